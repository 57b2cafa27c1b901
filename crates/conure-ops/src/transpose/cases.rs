//! Conformance cases of `transpose`.

use super::Transpose;
use crate::cases::{Case, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let moves: [(&[usize], &[usize]); 11] = [
        (&[5], &[0]),
        (&[3, 7], &[1, 0]),
        (&[17, 33], &[1, 0]),
        (&[2, 3, 5], &[0, 2, 1]),
        (&[2, 3, 5], &[2, 1, 0]),
        (&[2, 3, 5], &[0, 1, 2]),
        (&[2, 9, 4, 8], &[0, 1, 3, 2]),
        (&[2, 9, 4, 8], &[0, 2, 1, 3]),
        (&[1, 65, 10, 31], &[0, 1, 3, 2]),
        (&[2, 3, 4, 5, 6], &[4, 2, 0, 1, 3]),
        (&[0, 3], &[1, 0]),
    ];
    let mut cases = Vec::new();
    for (shape, perm) in moves {
        for dtype in [DType::F32, DType::F16, DType::I64] {
            let case = Case::new(format!("{dtype} {shape:?} {perm:?}"), Transpose { perm: perm.to_vec() });
            cases.push(case.with(Input::f32(shape).typed(dtype)));
        }
    }
    cases
}
