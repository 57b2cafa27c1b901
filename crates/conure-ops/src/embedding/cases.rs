//! Conformance cases of `embedding`.

use super::Embedding;
use crate::cases::{Case, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::I64)) {
        let width = dtype.block_len() * 2;
        let case = Case::new(format!("stored {dtype}"), Embedding)
            .with(Input::i32(&[2, 3], &[4, 0, -1, 1, 4]))
            .with(Input::weight(dtype, &[5, width]));
        cases.push(case);
    }
    for (ids, width) in [(&[1][..], 1), (&[7], 17), (&[0], 3), (&[2, 2, 2], 640)] {
        let case = Case::new(format!("{ids:?} d{width}"), Embedding)
            .with(Input::i32(ids, &[3, -1, 0, 12]))
            .with(Input::weight(DType::F32, &[13, width]));
        cases.push(case);
    }
    cases
}
