//! Conformance cases of `gated_delta`.

use super::GatedDelta;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-11,
    element: 2e-5,
    why: "a state that is read and corrected in f32 at every token, up to 70 of them, in sums of up to 128 products",
};

/// The cases.
pub fn cases() -> Vec<Case> {
    // Items and tokens of the run; heads of keys and values, widths of both; items of the state; tokens before.
    type Sizes = ([usize; 2], [usize; 4], usize, &'static [i32]);
    let sizes: [Sizes; 8] = [
        ([1, 1], [1, 1, 1, 1], 1, &[0]),
        ([1, 1], [1, 1, 16, 16], 1, &[9]),
        ([1, 7], [2, 4, 17, 33], 1, &[0]),
        ([2, 3], [2, 2, 15, 31], 3, &[4, 0]),
        ([1, 70], [2, 6, 32, 20], 1, &[1]),
        ([3, 2], [1, 3, 8, 64], 3, &[1, 0, 2]),
        ([1, 4], [2, 4, 128, 128], 1, &[2]),
        ([1, 0], [1, 2, 4, 4], 1, &[0]),
    ];
    let mut cases = Vec::new();
    for ([b, t], [key_heads, heads, k, j], items, at) in sizes {
        for (dtype, deviation) in [(DType::F32, 1.0), (DType::F16, 1.0), (DType::F32, 12.0)] {
            let op = GatedDelta { key_heads, eps: 1e-6 };
            let name =
                format!("b{b} t{t} g{key_heads} h{heads} k{k} j{j} of {items} at {at:?} {dtype} {deviation}");
            let gate = || Input::f32(&[b, t, heads]).filled(Fill::Normal(deviation));
            let case = Case::new(name, op)
                .with(Input::f32(&[b, t, 2 * key_heads * k + heads * j]))
                .with(gate())
                .with(gate())
                .with(Input::weight(dtype, &[heads]).filled(Fill::Uniform(-2.0, -0.01)))
                .with(Input::weight(dtype, &[heads]))
                .with(Input::f32(&[items, heads, k, j]).filled(Fill::Normal(0.5)))
                .with(Input::i32(&[b], at));
            cases.push(case.within(TOLERANCE));
        }
    }
    cases
}
