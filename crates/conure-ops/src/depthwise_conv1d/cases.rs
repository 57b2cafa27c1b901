//! Conformance cases of `depthwise_conv1d`.

use super::DepthwiseConv1d;
use crate::activation::Activation;
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
            let op = DepthwiseConv1d { pad_before, pad_after, bias, ..plain() };
            cases.push(case(x, taps, dtype, op));
        }
    }
    for activation in Activation::ELEMENTWISE {
        for (bias, scale_shift) in [(false, false), (false, true), (true, true)] {
            let op = DepthwiseConv1d { pad_before: 4, pad_after: 4, bias, scale_shift, activation };
            cases.push(case([2, 21, 19], 9, if bias { DType::F16 } else { DType::F32 }, op));
        }
    }
    cases
}

fn plain() -> DepthwiseConv1d {
    let activation = Activation::None;
    DepthwiseConv1d { pad_before: 0, pad_after: 0, bias: false, scale_shift: false, activation }
}

fn case(x: [usize; 3], taps: usize, dtype: DType, op: DepthwiseConv1d) -> Case {
    let vector = || Input::weight(dtype, &[x[2]]);
    Case::new(format!("{x:?} k{taps} {dtype} {op:?}"), op.clone())
        .with(Input::f32(&x))
        .with(Input::weight(dtype, &[x[2], 1, taps]))
        .with_if(op.bias, vector())
        .with_if(op.scale_shift, vector())
        .with_if(op.scale_shift, vector())
        .within(Tolerance::SUMS)
}
