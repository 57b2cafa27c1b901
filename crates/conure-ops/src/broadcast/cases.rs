//! Conformance cases of `broadcast`.

use super::Broadcast;
use crate::cases::{Case, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (b, n, like) in
        [(1, 1, &[1, 1][..]), (2, 3, &[2, 5, 7]), (3, 17, &[3, 4]), (2, 128, &[2, 9, 1, 1]), (1, 4, &[1, 0])]
    {
        for dtype in [DType::F32, DType::F16, DType::I32] {
            let case = Case::new(format!("{dtype} b{b} n{n} like {like:?}"), Broadcast)
                .with(Input::f32(&[b, n]).typed(dtype))
                .with(Input::f32(like));
            cases.push(case);
        }
    }
    cases
}
