//! Conformance cases of `cast`.

use super::Cast;
use crate::cases::{Case, Fill, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
        for shape in [&[1][..], &[2, 3, 5], &[16], &[17], &[40, 131], &[0, 3]] {
            cases.push(Case::new(format!("{dtype} {shape:?}"), Cast).with(Input::f32(shape).typed(dtype)));
        }
        if dtype != DType::I32 {
            let special = Input::f32(&[113]).typed(dtype).filled(Fill::Special);
            cases.push(Case::new(format!("{dtype} special"), Cast).with(special));
        }
    }
    let large = Input::i32(&[5], &[i32::MAX, i32::MIN, (1 << 24) + 1, -1, 0]);
    cases.push(Case::new("large integers", Cast).with(large));
    cases
}
