//! Conformance cases of `conv2d`.

use super::Conv2d;
use crate::activation::Activation;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

/// A geometry: input `[B, T, F, C]`, output channels, kernel, stride, padding, dilation, groups.
type Geometry = ([usize; 4], usize, [usize; 2], [usize; 2], [usize; 4], [usize; 2], usize);

const SAME: [usize; 4] = [1, 1, 1, 1];
const CAUSAL: [usize; 4] = [2, 1, 2, 1];
const NONE: [usize; 4] = [0; 4];

const GEOMETRIES: [Geometry; 31] = [
    // One input channel, as the first layer of the subsampling.
    ([1, 9, 8, 1], 16, [3, 3], [2, 2], SAME, [1, 1], 1),
    ([2, 12, 11, 1], 33, [3, 3], [2, 2], CAUSAL, [1, 1], 1),
    ([1, 1, 1, 1], 1, [3, 3], [2, 2], SAME, [1, 1], 1),
    ([1, 5, 80, 1], 64, [3, 3], [2, 2], SAME, [1, 1], 1),
    ([1, 6, 7, 1], 5, [2, 5], [1, 2], [0, 1, 3, 0], [1, 1], 1),
    ([1, 9, 9, 1], 7, [3, 3], [1, 1], SAME, [2, 2], 1),
    // Depthwise, as its second.
    ([1, 9, 8, 16], 16, [3, 3], [2, 2], SAME, [1, 1], 16),
    ([2, 12, 11, 33], 33, [3, 3], [2, 2], CAUSAL, [1, 1], 33),
    ([1, 1, 1, 3], 3, [3, 3], [2, 2], SAME, [1, 1], 3),
    ([1, 7, 5, 65], 65, [3, 3], [1, 1], SAME, [1, 1], 65),
    ([1, 7, 6, 17], 17, [5, 2], [1, 3], [2, 2, 0, 1], [1, 1], 17),
    ([1, 9, 9, 4], 4, [3, 3], [1, 1], SAME, [2, 3], 4),
    // Pointwise, as its third.
    ([1, 5, 4, 16], 32, [1, 1], [1, 1], NONE, [1, 1], 1),
    ([2, 3, 7, 33], 17, [1, 1], [1, 1], NONE, [1, 1], 1),
    ([1, 5, 4, 8], 8, [1, 1], [2, 2], NONE, [1, 1], 1),
    ([1, 3, 4, 8], 8, [1, 1], [1, 1], SAME, [1, 1], 1),
    // Anything else.
    ([1, 6, 5, 3], 4, [3, 3], [1, 1], SAME, [1, 1], 1),
    ([2, 7, 9, 8], 12, [3, 2], [2, 1], [1, 0, 1, 1], [1, 1], 4),
    ([1, 8, 8, 6], 9, [3, 3], [2, 1], CAUSAL, [2, 1], 3),
    ([1, 8, 8, 6], 12, [3, 3], [1, 1], SAME, [1, 1], 6),
    ([1, 20, 3, 17], 19, [3, 3], [1, 1], SAME, [1, 1], 1),
    ([1, 0, 3, 2], 2, [3, 3], [2, 2], SAME, [1, 1], 1),
    // One dimension, as Whisper's stem; patches that do not overlap, as CLIP's; ggml's uneven grid.
    ([1, 30, 1, 80], 33, [3, 1], [1, 1], [1, 1, 0, 0], [1, 1], 1),
    ([2, 31, 1, 17], 16, [3, 1], [2, 1], [1, 1, 0, 0], [1, 1], 1),
    ([1, 20, 1, 9], 8, [3, 1], [2, 3], [2, 1, 0, 0], [2, 1], 1),
    ([1, 28, 28, 3], 20, [14, 14], [14, 14], NONE, [1, 1], 1),
    ([2, 13, 14, 25], 12, [2, 3], [3, 5], [5, 5, 2, 2], [2, 4], 1),
    ([1, 33, 41, 1], 12, [11, 3], [1, 5], [5, 5, 5, 5], [2, 4], 1),
    ([1, 9, 17, 9], 9, [3, 3], [1, 1], NONE, [1, 1], 9),
    ([1, 32, 8, 64], 64, [3, 3], [2, 2], SAME, [1, 1], 64),
    ([1, 3, 2, 16], 7, [1, 1], [1, 1], [0, 1, 2, 0], [1, 1], 1),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for geometry in GEOMETRIES {
        for (dtype, bias, activation) in
            [(DType::F32, true, Activation::Relu), (DType::F16, false, Activation::None)]
        {
            cases.push(case(&geometry, dtype, bias, activation));
        }
    }
    for activation in [Activation::Silu, Activation::Sigmoid, Activation::Tanh] {
        for geometry in [GEOMETRIES[0], GEOMETRIES[6], GEOMETRIES[12], GEOMETRIES[16]] {
            cases.push(case(&geometry, DType::F32, true, activation));
        }
    }
    cases
}

fn case(geometry: &Geometry, dtype: DType, bias: bool, activation: Activation) -> Case {
    let &(x, o, kernel, stride, pad, dilation, groups) = geometry;
    let op = Conv2d { stride, pad, dilation, groups, activation, bias };
    let name = format!(
        "{x:?} o{o} k{kernel:?} s{stride:?} p{pad:?} d{dilation:?} g{groups} {dtype} {}",
        activation.name()
    );
    Case::new(name, op)
        .with(Input::f32(&x))
        .with(Input::weight(dtype, &[o, x[3] / groups, kernel[0], kernel[1]]))
        .with_if(bias, Input::weight(dtype, &[o]))
        .within(Tolerance::SUMS)
}
