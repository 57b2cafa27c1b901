//! Conformance cases of `rms_norm`.

use super::RmsNorm;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance { nmse: 1e-13, element: 1e-6, why: "squares are summed in f32 lanes" };

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 8] =
        [&[1], &[3, 1], &[2, 7], &[1, 5, 16], &[2, 3, 17], &[31, 64], &[2, 3, 4, 256], &[0, 9]];
    let mut cases = Vec::new();
    for shape in shapes {
        for (dtype, residual) in [(DType::F32, false), (DType::F16, true), (DType::F32, true)] {
            let name = format!("{shape:?} {dtype} residual {residual}");
            cases.push(case(name, shape, dtype, RmsNorm { eps: 1e-6, residual }, Fill::Normal(1.0)));
        }
    }
    let plain = |eps| RmsNorm { eps, residual: false };
    cases.push(case("large".into(), &[3, 96], DType::F32, plain(1e-5), Fill::Uniform(900.0, 1100.0)));
    cases.push(case("small".into(), &[3, 40], DType::F32, plain(1e-6), Fill::Normal(1e-4)));
    cases
}

fn case(name: String, shape: &[usize], dtype: DType, op: RmsNorm, fill: Fill) -> Case {
    let residual = op.residual;
    Case::new(name, op)
        .with(Input::f32(shape).filled(fill))
        .with(Input::weight(dtype, &[shape[shape.len() - 1]]))
        .with_if(residual, Input::f32(shape))
        .within(TOLERANCE)
}
