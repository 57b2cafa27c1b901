//! Conformance cases of `layer_norm`.

use super::LayerNorm;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance =
    Tolerance { nmse: 1e-13, element: 1e-6, why: "mean and variance are summed in f32 lanes" };

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 8] =
        [&[1], &[3, 1], &[2, 7], &[1, 5, 16], &[2, 3, 17], &[31, 64], &[2, 512], &[0, 9]];
    let mut cases = Vec::new();
    for shape in shapes {
        for dtype in [DType::F32, DType::F16] {
            cases.push(case(format!("{shape:?} {dtype}"), shape, dtype, 1e-5, Fill::Normal(1.0)));
        }
    }
    cases.push(case("far from 0".into(), &[3, 96], DType::F32, 1e-5, Fill::Uniform(99.0, 101.0)));
    cases.push(case("constant rows".into(), &[3, 40], DType::F32, 1e-5, Fill::Uniform(2.0, 2.0)));
    cases.push(case("large eps".into(), &[3, 40], DType::F32, 0.5, Fill::Normal(1.0)));
    cases
}

fn case(name: String, shape: &[usize], dtype: DType, eps: f32, fill: Fill) -> Case {
    let d = shape[shape.len() - 1];
    // Around 100, the rounding of the input itself is a millionth of the deviation.
    let tolerance = if matches!(fill, Fill::Uniform(99.0, _)) {
        Tolerance { nmse: 1e-9, element: 5e-5, why: "the mean, 100 deviations away, is rounded to f32" }
    } else {
        TOLERANCE
    };
    Case::new(name, LayerNorm { eps })
        .with(Input::f32(shape).filled(fill))
        .with(Input::weight(dtype, &[d]))
        .with(Input::weight(dtype, &[d]))
        .within(tolerance)
}
