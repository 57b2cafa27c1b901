//! Conformance cases of `rel_pos_encoding`.

use super::RelPosEncoding;
use crate::cases::{Case, Input, Tolerance};

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-14,
    element: 1.2e-7,
    why: "angles are computed in f64, so that only the result is rounded",
};

/// The cases.
pub fn cases() -> Vec<Case> {
    let geometries = [
        (1, 2, None),
        (2, 8, None),
        (17, 6, None),
        (33, 64, None),
        (700, 20, None),
        (5, 16, Some(0)),
        (5, 16, Some(3)),
        (1, 10, Some(128)),
    ];
    geometries
        .into_iter()
        .map(|(frames, d_model, window)| {
            Case::new(
                format!("t{frames} d{d_model} {window:?}"),
                RelPosEncoding { d_model, window, context: 0 },
            )
            .with(Input::f32(&[2, frames, 3]))
            .within(TOLERANCE)
        })
        .chain([(1, 70), (2, 4), (14, 70), (3, 5)].map(|(frames, context)| {
            let op = RelPosEncoding { d_model: 8, window: None, context };
            let name = format!("t{frames} after {context}");
            Case::new(name, op).with(Input::f32(&[1, frames, 3])).within(TOLERANCE)
        }))
        .collect()
}
