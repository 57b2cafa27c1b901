//! Conformance cases of `mask_scores`.

use super::MaskScores;
use crate::cases::{Case, Fill, Input};
use crate::rel_pos_attention::AttentionMask;

/// The cases.
pub fn cases() -> Vec<Case> {
    let masks = [
        AttentionMask::Full,
        AttentionMask::ChunkedLimited { left: Some(4), right: 1 },
        AttentionMask::ChunkedLimited { left: None, right: 3 },
        AttentionMask::Banded { left: 3, right: 2 },
    ];
    let shapes: [(&[usize], &[i32]); 4] = [
        (&[1, 1, 1, 1], &[1]),
        (&[2, 3, 9, 9], &[9, 4]),
        (&[3, 1, 17, 17], &[0, -1, 40]),
        (&[1, 2, 0, 0], &[0]),
    ];
    let mut cases = Vec::new();
    for mask in masks {
        for (shape, lengths) in shapes {
            let case = Case::new(format!("{mask:?} {shape:?} {lengths:?}"), MaskScores { mask })
                .with(Input::f32(shape).filled(Fill::Special))
                .with(Input::i32(&shape[..1], lengths));
            cases.push(case);
        }
    }
    cases
}
