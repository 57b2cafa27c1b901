//! Conformance cases of `concat`.

use super::Concat;
use crate::cases::{Case, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let joins: [(usize, &[&[usize]]); 6] = [
        (0, &[&[3]]),
        (0, &[&[2, 5], &[1, 5], &[4, 5]]),
        (1, &[&[2, 5], &[2, 1], &[2, 0]]),
        (2, &[&[2, 3, 17], &[2, 3, 16]]),
        (1, &[&[2, 3, 4], &[2, 1, 4]]),
        (1, &[&[0, 3], &[0, 2]]),
    ];
    let mut cases = Vec::new();
    for (axis, shapes) in joins {
        for dtype in [DType::F32, DType::F16, DType::I32, DType::I64] {
            let mut case = Case::new(format!("{dtype} axis {axis} {shapes:?}"), Concat { axis });
            for shape in shapes {
                case = case.with(Input::f32(shape).typed(dtype));
            }
            cases.push(case);
        }
    }
    cases
}
