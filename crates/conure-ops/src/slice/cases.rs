//! Conformance cases of `slice`.

use super::Slice;
use crate::cases::{Case, Input};
use conure_tensor::{DType, Dim};

/// The cases.
pub fn cases() -> Vec<Case> {
    let cuts: [(&[usize], usize, usize, usize); 7] = [
        (&[5], 0, 0, 5),
        (&[5], 0, 2, 4),
        (&[3, 7], 1, 1, 7),
        (&[3, 7, 5], 1, 6, 7),
        (&[2, 3, 17], 2, 0, 16),
        (&[4, 3], 0, 3, 3),
        (&[0, 3], 1, 1, 2),
    ];
    let mut cases = Vec::new();
    for (shape, axis, start, end) in cuts {
        for dtype in [DType::F32, DType::F16, DType::I64] {
            let op = Slice { axis, start, end: Dim::from(end) };
            let case = Case::new(format!("{dtype} {shape:?} axis {axis} {start}..{end}"), op);
            cases.push(case.with(Input::f32(shape).typed(dtype)));
        }
    }
    cases
}
