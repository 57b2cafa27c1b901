//! Conformance cases of `rel_pos_projection`.

use super::RelPosProjection;
use crate::cases::{Case, Input, Tolerance};
use crate::rel_pos_encoding::RelPosEncoding;
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let geometries = [
        (1, 2, 3, None, 0),
        (2, 8, 8, None, 0),
        (17, 6, 40, None, 0),
        (33, 64, 64, None, 0),
        (90, 32, 33, None, 0),
        (5, 16, 16, Some(0), 0),
        (5, 16, 7, Some(3), 0),
        (1, 32, 32, Some(128), 0),
        (4, 8, 5, None, 70),
    ];
    let mut cases = Vec::new();
    for (frames, d_model, n, window, context) in geometries {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            if d_model % dtype.block_len() == 0 {
                let op = RelPosProjection { encoding: RelPosEncoding { d_model, window, context } };
                let case = Case::new(format!("t{frames} d{d_model} n{n} {window:?} c{context} {dtype}"), op)
                    .with(Input::f32(&[2, frames, 3]))
                    .with(Input::weight(dtype, &[n, d_model]))
                    .within(Tolerance::SUMS);
                cases.push(case);
            }
        }
    }
    cases
}
