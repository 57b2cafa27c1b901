//! Conformance cases of `im2col`: those of ggml's test-backend-ops, made smaller where only the size was large.

use super::Im2col;
use crate::cases::{Case, Fill, Input};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        // The stems of Whisper and kernels longer than the input.
        for (x, k) in [([1, 80, 150], 3), ([2, 5, 33], 1), ([1, 3, 9], 9), ([3, 1, 20], 7)] {
            cases.push(case(&x, [k, 1], [1, 1], [k / 2, k / 2, 0, 0], [1, 1], dtype));
        }
        for (s, p, d) in grid() {
            cases.push(case(&[2, 3, 20], [3, 1], [s, 1], [p, p, 0, 0], [d, 1], dtype));
        }
        for (s, p, d) in grid() {
            cases.push(case(&[2, 2, 10, 12], [3, 3], [s, s], [p, p, p, p], [d, d], dtype));
        }
        // Uneven in every way, many channels, kernels of 33 taps, nothing at all.
        cases.push(case(&[1, 2, 9, 7], [2, 4], [2, 1], [1, 0, 3, 2], [1, 2], dtype));
        cases.push(case(&[2, 260, 4, 5], [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], dtype));
        cases.push(case(&[2, 2, 40, 40], [33, 32], [1, 1], [0, 0, 0, 0], [1, 1], dtype));
        cases.push(case(&[2, 3, 14, 28], [14, 14], [14, 14], [0, 0, 0, 0], [1, 1], dtype));
        cases.push(case(&[0, 3, 5], [3, 1], [1, 1], [1, 1, 0, 0], [1, 1], dtype));
        cases.push(case(&[1, 3, 0], [3, 1], [2, 1], [1, 1, 0, 0], [1, 1], dtype));
    }
    cases
}

/// Strides, paddings and dilations of 1 (or 0) and 3.
fn grid() -> impl Iterator<Item = (usize, usize, usize)> {
    [1, 3].into_iter().flat_map(|s| [0, 3].into_iter().flat_map(move |p| [1, 3].map(|d| (s, p, d))))
}

fn case(
    x: &[usize],
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 4],
    dilation: [usize; 2],
    dtype: DType,
) -> Case {
    let name = format!("{x:?} k{kernel:?} s{stride:?} p{pad:?} d{dilation:?} {dtype}");
    // NaN and infinity are moved like anything else; f16 has no 1e30.
    let fill = if dtype == DType::F32 { Fill::Special } else { Fill::Normal(1.0) };
    Case::new(name, Im2col { kernel, stride, pad, dilation, dtype }).with(Input::f32(x).filled(fill))
}
