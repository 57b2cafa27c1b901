//! Conformance cases of `mask_time`.

use super::MaskTime;
use crate::cases::{Case, Fill, Input};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], &[i32]); 7] = [
        (&[1, 1], &[1]),
        (&[1, 7, 3], &[4]),
        (&[3, 5, 17], &[5, 0, 2]),
        (&[2, 9, 3, 4], &[9, 1]),
        (&[2, 4, 2], &[-3, 100]),
        (&[2, 300, 65], &[299, 1]),
        (&[2, 0, 3], &[0, 0]),
    ];
    let mut cases = Vec::new();
    for (shape, lengths) in shapes {
        let masked = Input::i32(&shape[..1], lengths);
        let case = Case::new(format!("{shape:?} {lengths:?}"), MaskTime);
        cases.push(case.with(Input::f32(shape)).with(masked.clone()));
        let special = Input::f32(shape).filled(Fill::Special);
        cases.push(Case::new(format!("{shape:?} {lengths:?} special"), MaskTime).with(special).with(masked));
    }
    cases
}
