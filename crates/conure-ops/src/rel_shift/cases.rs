//! Conformance cases of `rel_shift`.

use super::RelShift;
use crate::cases::{Case, Fill, Input};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], Option<usize>); 9] = [
        (&[1, 1], None),
        (&[3, 5], None),
        (&[2, 3, 17, 33], None),
        (&[2, 1, 9, 4], Some(2)),
        (&[9, 4], Some(0)),
        (&[9, 4], Some(3)),
        (&[3, 41], Some(20)),
        (&[2, 5, 1], Some(0)),
        (&[0, 4], Some(2)),
    ];
    shapes
        .into_iter()
        .map(|(shape, left)| {
            Case::new(format!("{shape:?} {left:?}"), RelShift { left })
                .with(Input::f32(shape).filled(Fill::Special))
        })
        .collect()
}
