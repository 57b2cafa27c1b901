//! Conformance cases of `reshape`.

use super::Reshape;
use crate::cases::{Case, Input};
use conure_tensor::{DType, Shape};

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64] {
        for (from, to) in
            [(&[6][..], &[2, 3][..]), (&[2, 3, 4], &[6, 4]), (&[5, 1], &[5]), (&[0, 3], &[3, 0])]
        {
            let case = Case::new(format!("{dtype} {from:?} {to:?}"), Reshape { shape: Shape::fixed(to) });
            cases.push(case.with(Input::f32(from).typed(dtype)));
        }
    }
    cases
}
