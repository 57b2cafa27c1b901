//! Conformance cases of `batch_norm`.

use super::BatchNorm;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance =
    Tolerance { nmse: 1e-13, element: 1e-6, why: "scale and shift are rounded to f32 (measured: 1.7e-7)" };

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 6] = [&[1], &[5, 1], &[2, 3, 17], &[1, 7, 33], &[31, 64], &[2, 0, 5]];
    let mut cases = Vec::new();
    for shape in shapes {
        for dtype in [DType::F32, DType::F16] {
            let c = shape[shape.len() - 1];
            let case = Case::new(format!("{shape:?} {dtype}"), BatchNorm { eps: 1e-5 })
                .with(Input::f32(shape))
                .with(Input::weight(dtype, &[c]))
                .with(Input::weight(dtype, &[c]))
                .with(Input::weight(dtype, &[c]))
                .with(Input::weight(dtype, &[c]).filled(Fill::Uniform(0.01, 2.0)))
                .within(TOLERANCE);
            cases.push(case);
        }
    }
    cases
}
