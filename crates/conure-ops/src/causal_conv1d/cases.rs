//! Conformance cases of `causal_conv1d`.

use super::CausalConv1d;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    // [B, T, C], taps, items, tokens before.
    let sizes: [([usize; 3], usize, usize, &[i32]); 9] = [
        ([1, 1, 1], 2, 1, &[0]),
        ([1, 1, 17], 4, 1, &[5]),
        ([1, 2, 16], 4, 1, &[0]),
        ([2, 2, 33], 4, 3, &[7, 0]),
        ([1, 40, 65], 4, 2, &[3]),
        ([3, 5, 15], 3, 3, &[0, 1, 2]),
        ([1, 3, 8], 9, 1, &[1]),
        ([1, 6, 5], 1, 1, &[1]),
        ([1, 0, 5], 4, 1, &[0]),
    ];
    let mut cases = Vec::new();
    for (x, taps, items, at) in sizes {
        for dtype in [DType::F32, DType::F16] {
            let case = Case::new(format!("{x:?} k{taps} of {items} at {at:?} {dtype}"), CausalConv1d)
                .with(Input::f32(&x))
                .with(Input::weight(dtype, &[x[2], 1, taps]))
                .with(Input::f32(&[items, taps - 1, x[2]]))
                .with(Input::i32(&[x[0]], at));
            cases.push(case.within(Tolerance::SUMS));
        }
    }
    cases
}
