//! Conformance cases of `matmul`.

use super::MatMul;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

/// Shapes of a and of b as `[..., N, K]`: around the tiles of the product, with one and two batch axes, repeated and not.
const SHAPES: [(&[usize], &[usize]); 17] = [
    (&[1, 1], &[1, 1]),
    (&[5, 3], &[7, 3]),
    (&[17, 65], &[33, 65]),
    (&[16, 67], &[1, 67]),
    (&[1, 77], &[9, 77]),
    (&[3, 80], &[130, 80]),
    (&[2, 17, 9], &[2, 1, 9]),
    (&[4, 1, 9], &[4, 35, 9]),
    (&[2, 3, 5, 16], &[2, 3, 7, 16]),
    (&[2, 3, 5, 16], &[3, 7, 16]),
    (&[2, 3, 5, 16], &[2, 1, 7, 16]),
    (&[3, 5, 16], &[2, 3, 7, 16]),
    (&[5, 16], &[2, 3, 7, 16]),
    (&[1, 193], &[3, 8, 193]),
    (&[70, 9, 4], &[70, 3, 4]),
    (&[0, 4], &[3, 4]),
    (&[2, 3, 0], &[2, 5, 0]),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (a, b) in SHAPES {
        for transpose_b in [true, false] {
            for (left, right) in
                [(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::F32, DType::F16)]
            {
                let mut b = b.to_vec();
                if !transpose_b {
                    let last = b.len() - 1;
                    b.swap(last, last - 1);
                }
                let name = format!("{a:?} {left} {b:?} {right} transposed {transpose_b}");
                let case = Case::new(name, MatMul { transpose_b })
                    .with(Input::f32(a).typed(left))
                    .with(Input::f32(&b).typed(right))
                    .within(Tolerance::SUMS);
                cases.push(case);
            }
        }
    }
    // A NaN spoils its row of a or its column of b, nothing else.
    let special = Case::new("special", MatMul { transpose_b: true })
        .with(Input::f32(&[2, 9, 33]).filled(Fill::Special))
        .with(Input::f32(&[2, 12, 33]))
        .within(Tolerance::SUMS);
    cases.push(special);
    cases
}
