//! Conformance cases of `conv_length`.

use super::ConvLength;
use crate::cases::{Case, Input};

/// The cases.
pub fn cases() -> Vec<Case> {
    let lengths = [0, 1, 2, 3, 742, 743, 744, -1, i32::MAX, i32::MIN];
    [(3, 2, 2), (3, 2, 3), (1, 1, 0), (5, 3, 1), (9, 1, 0)]
        .into_iter()
        .map(|(kernel, stride, pad)| {
            Case::new(format!("k{kernel} s{stride} p{pad}"), ConvLength { kernel, stride, pad })
                .with(Input::i32(&[lengths.len()], &lengths))
        })
        .collect()
}
