//! Conformance cases of `depthwise_conv1d`.

use super::DepthwiseConv1d;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    // [B, T, C], taps, zeros before, zeros after.
    let geometries = [
        ([1, 1, 1], 1, 0, 0),
        ([1, 1, 5], 9, 4, 4),
        ([2, 7, 17], 9, 4, 4),
        ([1, 20, 16], 9, 8, 0),
        ([2, 31, 33], 31, 15, 15),
        ([1, 12, 65], 5, 2, 2),
        ([1, 12, 64], 5, 0, 0),
        ([3, 4, 7], 4, 1, 3),
        ([1, 130, 48], 9, 4, 4),
        ([2, 3, 5], 3, 4, 0),
        ([1, 0, 5], 3, 1, 1),
    ];
    let mut cases = Vec::new();
    for (x, taps, pad_before, pad_after) in geometries {
        for (dtype, bias) in [(DType::F32, true), (DType::F32, false), (DType::F16, true)] {
            let op = DepthwiseConv1d { pad_before, pad_after, bias };
            let name = format!("{x:?} k{taps} p{pad_before}+{pad_after} {dtype} bias {bias}");
            let case = Case::new(name, op)
                .with(Input::f32(&x))
                .with(Input::weight(dtype, &[x[2], 1, taps]))
                .with_if(bias, Input::weight(dtype, &[x[2]]))
                .within(Tolerance::SUMS);
            cases.push(case);
        }
    }
    cases
}
