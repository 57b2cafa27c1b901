//! The grids of ggml's test-backend-ops for the families of ops that Conure has, as large as they are there. Their limits on the
//! normalised squared error are 1e-7, 5e-4 for products and attention, 1e-6 for softmax; the limits here are those of our own
//! cases, a thousandth of that and less.
//!
//! A part of each grid runs with the suite, all of it on request: `cargo nextest run -p conure-ops --run-ignored only grids`.

use crate::run::{cpus, walk};
use conure_ops::cases::{Case, Fill, Input, Tolerance};
use conure_ops::{
    Activation, AttentionMask, BatchNorm, Binary, BinaryKind, Cast, Concat, Conv2d, DepthwiseConv1d,
    Embedding, Gate, Gated, Glu, Im2col, LayerNorm, Linear, LogSoftmax, LstmCell, MaskScores, MaskTime,
    MatMul, Pairs, RelPosAttention, Reshape, RmsNorm, Rope, Scale, Sdpa, SdpaKeys, Slice, Softmax, Transpose,
    Unary, UnaryKind,
};
use conure_tensor::{DType, Dim, Shape};

/// The shapes of most elementwise grids there.
const PLAIN: [&[usize]; 2] = [&[2, 2, 2, 128], &[5, 7, 11, 13]];
/// Cases of each grid that run with the suite, and the most multiplications of one of them.
const SAMPLE: usize = 24;
const WORK: f64 = 2e6;

const LONG_SUMS: Tolerance = Tolerance {
    nmse: 1e-11,
    element: 1e-4,
    why: "up to 5000 products summed in f32, in another order than the reference's",
};
const NORMS: Tolerance = Tolerance { nmse: 1e-12, element: 2e-6, why: "up to 1025 squares summed in f32" };
const FUNCTIONS: Tolerance = Tolerance {
    nmse: 1e-12,
    element: 2e-4,
    why: "1 + tanh is off by 2e-7 where gelu is nearly 0, times a gate of 5, times an ungated value of up to 150",
};
const SOFTMAX: Tolerance =
    Tolerance { nmse: 1e-11, element: 1e-6, why: "up to 200001 exponentials summed in f32 lanes" };
const LOG_SOFTMAX: Tolerance =
    Tolerance { nmse: 1e-12, element: 2e-6, why: "the logarithm of up to 200001 exponentials, in f32" };
const ATTENTION: Tolerance =
    Tolerance { nmse: 1e-10, element: 3e-5, why: "scores of up to 60 are rounded before their exponential" };

/// Element types that stand for real numbers.
fn real() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::I64))
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in PLAIN {
        for kind in UnaryKind::ALL {
            let (fill, tolerance) = match kind {
                UnaryKind::Log | UnaryKind::Sqrt => (Fill::Uniform(1e-3, 150.0), Tolerance::FUNCTION),
                UnaryKind::Exp => (Fill::Uniform(-20.0, 10.0), Tolerance::FUNCTION),
                _ => (Fill::Uniform(-150.0, 150.0), Tolerance::FUNCTION),
            };
            for fill in [fill, Fill::Special] {
                let case = Case::new(format!("{} {shape:?} {fill:?}", kind.name()), Unary { kind });
                cases.push(case.with(Input::f32(shape).filled(fill)).within(tolerance));
            }
        }
        for fill in [Fill::Normal(4.0), Fill::Special] {
            let scale = Case::new(format!("{shape:?} {fill:?}"), Scale { factor: -3.25 });
            cases.push(scale.with(Input::f32(shape).filled(fill)).within(Tolerance::ROUNDED));
        }
    }
    cases
}

fn gates() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in PLAIN {
        for fill in [Fill::Normal(4.0), Fill::Uniform(-150.0, 150.0)] {
            let kinds = [Gate::Silu, Gate::GeluTanh, Gate::ClampedSwiglu(2.0), Gate::ClampedSwiglu(7.0)];
            for kind in kinds {
                let x = || Input::f32(shape).filled(fill.clone());
                let case = Case::new(format!("{kind:?} {shape:?} {fill:?}"), Gated { kind });
                cases.push(case.with(x()).with(x()).within(FUNCTIONS));
            }
            let mut halves = shape.to_vec();
            halves[3] = halves[3].next_multiple_of(2);
            let case = Case::new(format!("{halves:?} {fill:?}"), Glu);
            cases.push(case.with(Input::f32(&halves).filled(fill)).within(FUNCTIONS));
        }
    }
    // One row that is no number leaves the others alone.
    let spoilt = || Input::f32(&[6, 34]).except(&[(2..3, f32::NAN), (4..5, f32::INFINITY)]);
    cases.push(Case::new("a row of NaN", Glu).with(spoilt()).within(FUNCTIONS));
    let gated = Case::new("a row of NaN", Gated { kind: Gate::Silu }).with(spoilt());
    cases.push(gated.with(Input::f32(&[6, 34])).within(FUNCTIONS));
    cases
}

fn arithmetic() -> Vec<Case> {
    // The right side repeated along each axis in turn, and along several; last the large ones.
    let right: [(&[usize], &[usize]); 13] = [
        (&[1, 1, 1, 10], &[1]),
        (&[4, 3, 5, 10], &[4, 3, 5, 10]),
        (&[4, 3, 5, 20], &[4, 3, 5, 1]),
        (&[4, 3, 10, 10], &[4, 3, 1, 10]),
        (&[4, 6, 5, 10], &[4, 1, 5, 10]),
        (&[8, 3, 5, 10], &[1, 3, 5, 10]),
        (&[8, 3, 5, 10], &[3, 5, 10]),
        (&[8, 6, 5, 10], &[1, 1, 5, 10]),
        (&[8, 6, 10, 20], &[1, 1, 1, 1]),
        (&[1, 77, 1280], &[1280]),
        (&[1, 16, 16, 1280], &[1, 1, 1, 1280]),
        (&[256, 1280], &[256, 1]),
        (&[1, 2, 32, 1921], &[1921]),
    ];
    let mut cases = Vec::new();
    for (a, b) in right {
        for kind in BinaryKind::ALL {
            for (dtype, stored) in [(DType::F32, false), (DType::F16, true)] {
                let b_in = Input::f32(b).typed(dtype).filled(Fill::Uniform(0.9, 1.1));
                let case = Case::new(format!("{} {a:?} {b:?} {dtype}", kind.name()), Binary { kind })
                    .with(Input::f32(a))
                    .with(Input { weight: stored, ..b_in });
                cases.push(case.within(Tolerance::ROUNDED));
            }
        }
    }
    cases
}

fn moves() -> Vec<Case> {
    let mut cases = Vec::new();
    let types = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64];
    let perms: Vec<Vec<usize>> = (0..256)
        .map(|n| vec![n / 64 % 4, n / 16 % 4, n / 4 % 4, n % 4])
        .filter(|p| (0..4).all(|axis| p.contains(&axis)))
        .collect();
    for dtype in types {
        for perm in &perms {
            for shape in [&[4, 3, 10, 10], &[2, 5, 33, 17]] {
                let case = Case::new(format!("{dtype} {shape:?} {perm:?}"), Transpose { perm: perm.clone() });
                cases.push(case.with(Input::f32(shape).typed(dtype).filled(Fill::Special)));
            }
        }
        for axis in 0..4 {
            let (left, mut right) = ([11, 12, 13, 14], [11, 12, 13, 14]);
            right[axis] = 7;
            let case = Case::new(format!("{dtype} axis {axis}"), Concat { axis });
            let x = |shape: &[usize]| Input::f32(shape).typed(dtype).filled(Fill::Special);
            cases.push(case.with(x(&left)).with(x(&right)));
            for (start, end) in [(0, 5), (3, 11), (10, 11)] {
                let op = Slice { axis, start, end: Dim::from(end) };
                cases.push(Case::new(format!("{dtype} axis {axis} {start}..{end}"), op).with(x(&left)));
            }
        }
        let shape = Shape::fixed(&[20, 7, 13]);
        cases.push(
            Case::new(format!("{dtype}"), Reshape { shape })
                .with(Input::f32(&[5, 7, 4, 13]).typed(dtype).filled(Fill::Special)),
        );
        if dtype != DType::I64 {
            for shape in [&[3, 2, 2, 256], &[5, 7, 11, 13]] {
                let case = Case::new(format!("{dtype} {shape:?}"), Cast);
                cases.push(case.with(Input::f32(shape).typed(dtype).filled(Fill::Special)));
            }
        }
    }
    for (shape, perm) in [(&[2, 200_097][..], &[1, 0][..]), (&[1, 513, 1, 129], &[3, 1, 2, 0])] {
        let case = Case::new(format!("large {shape:?}"), Transpose { perm: perm.to_vec() });
        cases.push(case.with(Input::f32(shape)));
    }
    cases
}

fn rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in real() {
        for (width, table, count) in [(256, 5, 4), (512, 70, 130), (768, 300, 7)] {
            for batch in [1, 7] {
                let case = Case::new(format!("{dtype} {width} {table} {batch} x {count}"), Embedding)
                    .with(Input::i32(&[batch, count], &[table as i32 - 1, 0, 3, -1, 2]))
                    .with(Input::weight(dtype, &[table, width]));
                cases.push(case);
            }
        }
    }
    let table = Input::weight(DType::F32, &[9, 33]).except(&[(4..5, f32::NAN), (7..8, f32::INFINITY)]);
    cases.push(Case::new("rows of NaN", Embedding).with(Input::i32(&[6], &[0, 4, 7, 8])).with(table));
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [64, 1025, 33, 132, 260] {
        for eps in [0.0, 1e-6, 1e-4, 0.1, 10.0] {
            for dtype in [DType::F32, DType::F16] {
                let (x, w) = (|| Input::f32(&[3, 4, 5, n]), || Input::weight(dtype, &[n]));
                let name = format!("n {n} eps {eps} {dtype}");
                let norm = Case::new(name.clone(), LayerNorm { eps }).with(x()).with(w()).with(w());
                cases.push(norm.within(NORMS));
                for residual in [false, true] {
                    let op = RmsNorm { eps, residual };
                    let case = Case::new(format!("{name} {residual}"), op).with(x()).with(w());
                    cases.push(case.with_if(residual, x()).within(NORMS));
                }
                let positive = w().filled(Fill::Uniform(0.1, 2.0));
                let batch = Case::new(name, BatchNorm { eps }).with(x()).with(w()).with(w()).with(w());
                cases.push(batch.with(positive).within(NORMS));
            }
        }
    }
    let spoilt = || Input::f32(&[6, 70]).except(&[(1..2, f32::NAN), (3..4, f32::NEG_INFINITY)]);
    let w = || Input::weight(DType::F32, &[70]);
    let layer = Case::new("a row of NaN", LayerNorm { eps: 1e-5 }).with(spoilt()).with(w()).with(w());
    let rms = Case::new("a row of NaN", RmsNorm { eps: 1e-5, residual: false }).with(spoilt()).with(w());
    cases.extend([layer.within(NORMS), rms.within(NORMS)]);
    cases
}

fn softmaxes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, width) in [(16, 16), (15, 1023), (1024, 15), (16, 1024), (4, 4096), (1, 200_001), (643, 16)] {
        for scale in [1.0, 0.1, 30.0] {
            let x = || Input::f32(&[2, rows, width]).filled(Fill::Normal(scale));
            let name = format!("{rows} x {width} by {scale}");
            cases.push(Case::new(name.clone(), Softmax).with(x()).within(SOFTMAX));
            cases.push(Case::new(name, LogSoftmax).with(x()).within(LOG_SOFTMAX));
        }
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x = || Input::f32(&[7, 83]).except(&[(2..3, value)]);
        cases.push(Case::new(format!("a row of {value}"), Softmax).with(x()).within(SOFTMAX));
        cases.push(Case::new(format!("a row of {value}"), LogSoftmax).with(x()).within(LOG_SOFTMAX));
        let part = || Input::f32(&[7, 83]).filled(Fill::Except(vec![(83 * 3 + 5..83 * 3 + 60, value)]));
        cases.push(Case::new(format!("part of {value}"), Softmax).with(part()).within(SOFTMAX));
    }
    for mask in masks() {
        for (heads, frames) in [(1, 16), (3, 130)] {
            let lengths = [frames, frames / 3, 0];
            let case = Case::new(format!("{mask:?} {heads} {frames}"), MaskScores { mask })
                .with(Input::f32(&[3, heads, frames as usize, frames as usize]).filled(Fill::Special))
                .with(Input::i32(&[3], &lengths));
            cases.push(case);
        }
    }
    for row in [1, 7, 512] {
        let case =
            Case::new(format!("row {row}"), MaskTime).with(Input::f32(&[3, 65, row]).filled(Fill::Special));
        cases.push(case.with(Input::i32(&[3], &[64, 0, 99])));
    }
    cases
}

fn masks() -> [AttentionMask; 5] {
    [
        AttentionMask::Full,
        AttentionMask::ChunkedLimited { left: None, right: 0 },
        AttentionMask::ChunkedLimited { left: Some(70), right: 13 },
        AttentionMask::Banded { left: 128, right: 128 },
        AttentionMask::Banded { left: 0, right: 5 },
    ]
}

fn turns() -> Vec<Case> {
    let tolerance = Tolerance { nmse: 1e-13, element: 8e-7, why: "two products of numbers up to 1.5, added" };
    let mut cases = Vec::new();
    // Llama 7B, 13B, 30B, 65B, Falcon 7B and 40B, Phi 2, Qwen 2 VL, and of several tokens.
    let heads = [(32, 128), (40, 128), (52, 128), (64, 128), (1, 64), (71, 64), (8, 64), (128, 64), (12, 80)];
    for (h, k) in heads {
        for t in [1, 2, 13] {
            for turned in [k, k / 2, 20] {
                for pairs in [Pairs::Adjacent, Pairs::Halves] {
                    for range in [1.0, 1.4245] {
                        let case =
                            Case::new(format!("{pairs:?} {h} x {k} t{t} r{turned} {range}"), Rope { pairs })
                                .with(Input::f32(&[2, t, h, k]))
                                .with(Input::f32(&[2, t, turned]).filled(Fill::Uniform(-range, range)));
                        cases.push(case.within(tolerance));
                    }
                }
            }
        }
    }
    let x = Input::f32(&[1, 5, 2, 64]).except(&[(4..5, f32::NAN), (6..7, f32::INFINITY)]);
    let angles = Input::f32(&[1, 5, 64]).filled(Fill::Uniform(-1.0, 1.0));
    cases.push(
        Case::new("a head of NaN", Rope { pairs: Pairs::Halves }).with(x).with(angles).within(tolerance),
    );
    cases
}

fn products() -> Vec<Case> {
    let plain = |bias| Linear { activation: Activation::None, bias, residual: None };
    let linear = |name: String, m: usize, n: usize, k: usize, dtype: DType| {
        Case::new(name, plain(false))
            .with(Input::f32(&[m, k]))
            .with(Input::weight(dtype, &[n, k]))
            .within(LONG_SUMS)
    };
    let mut cases = Vec::new();
    for dtype in real() {
        for m in 1..10 {
            cases.push(linear(format!("{dtype} {m} x 16 x 256"), m, 16, 256, dtype));
        }
        cases.push(linear(format!("{dtype} 33 x 67 x 512"), 33, 67, 512, dtype));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for k in [65, 67, 77, 80, 193, 588] {
            cases.push(linear(format!("{dtype} 2 x 64 x {k}"), 2, 64, k, dtype));
            cases.push(linear(format!("{dtype} 64 x 77 x {k}"), 64, 77, k, dtype));
        }
        cases.push(linear(format!("{dtype} 512 x 576 x 576"), 512, 576, 576, dtype));
    }
    for dtype in [DType::Q4_0, DType::Q8_0] {
        cases.push(linear(format!("{dtype} 32 x 2880 x 512"), 32, 2880, 512, dtype));
    }
    for (left, right) in [(DType::F32, DType::F32), (DType::F32, DType::F16), (DType::F16, DType::F32)] {
        for (m, n, k) in
            [(1, 16, 256), (9, 16, 256), (1, 1056, 128), (7, 1063, 135), (64, 45, 128), (1, 83, 1057)]
        {
            for batch in [[1, 1], [8, 1], [1, 3], [2, 4]] {
                for repeated in [1, 4] {
                    for transpose_b in [true, false] {
                        let b = if transpose_b { [n, k] } else { [k, n] };
                        let a_shape = [batch[0], batch[1] * repeated, m, k];
                        let b_shape = [batch[0], if repeated > 1 { 1 } else { batch[1] }, b[0], b[1]];
                        let case = Case::new(
                            format!("{a_shape:?} {left} {b_shape:?} {right}"),
                            MatMul { transpose_b },
                        )
                        .with(Input::f32(&a_shape).typed(left))
                        .with(Input::f32(&b_shape).typed(right));
                        cases.push(case.within(LONG_SUMS));
                    }
                }
            }
        }
    }
    // A row of x that is no number spoils its row of the result, a row of the weight its column.
    for dtype in [DType::F32, DType::F16] {
        let x = Input::f32(&[30, 96]).except(&[(3..4, f32::NAN), (17..18, f32::INFINITY)]);
        let w = Input::weight(dtype, &[70, 96]).except(&[(69..70, f32::NAN)]);
        cases.push(Case::new(format!("rows of NaN {dtype}"), plain(false)).with(x).with(w).within(LONG_SUMS));
    }
    for (b, i, h) in [(1, 640, 640), (3, 33, 64), (16, 256, 128)] {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            if i % dtype.block_len() == 0 {
                // As trained networks have them (and untrained ones begin): gates of about one deviation. With weights of half
                // a deviation the sums over 1280 terms have 18, and nothing but their steps would be compared.
                let weight = |rows: usize, columns: usize| {
                    let deviation = 1.0 / ((i + h) as f32).sqrt();
                    Input::weight(dtype, &[rows, columns]).filled(Fill::Normal(deviation))
                };
                let small = || Input::weight(DType::F32, &[4 * h]);
                let case = Case::new(format!("b{b} i{i} h{h} {dtype}"), LstmCell::default())
                    .with(Input::f32(&[b, i]))
                    .with(Input::f32(&[b, h]))
                    .with(Input::f32(&[b, h]))
                    .with(weight(4 * h, i))
                    .with(weight(4 * h, h));
                cases.push(case.with(small()).with(small()).within(LONG_SUMS));
            }
        }
    }
    cases
}

fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (s0, p1, c, o) in quads([1, 3], [2, 5], [1, 25], [1, 12]) {
        for (kh, kw, h, w) in shapes_and_taps() {
            for dtype in [DType::F32, DType::F16] {
                let op = Conv2d {
                    stride: [5, s0],
                    pad: [p1, p1, 5, 5],
                    dilation: [4, 2],
                    groups: 1,
                    activation: Activation::None,
                    bias: false,
                };
                // A kernel that is longer than the padded image has no place.
                if h + 2 * p1 > (kh - 1) * 4 && w + 10 > (kw - 1) * 2 {
                    let name = format!("{h} x {w} x {c} to {o} k{kh} x {kw} s{s0} p{p1} {dtype}");
                    let case = Case::new(name, op)
                        .with(Input::f32(&[2, h, w, c]))
                        .with(Input::weight(dtype, &[o, c, kh, kw]));
                    cases.push(case.within(LONG_SUMS));
                }
            }
        }
    }
    for (x, stride, pad) in [([1, 17, 34, 9], 1, 0), ([1, 32, 8, 64], 2, 1), ([2, 21, 40, 512], 2, 1)] {
        for dtype in [DType::F32, DType::F16] {
            let op = Conv2d {
                stride: [stride; 2],
                pad: [pad; 4],
                dilation: [1, 1],
                groups: x[3],
                activation: Activation::Relu,
                bias: true,
            };
            let case = Case::new(format!("depthwise {x:?} s{stride} {dtype}"), op)
                .with(Input::f32(&x))
                .with(Input::weight(dtype, &[x[3], 1, 3, 3]))
                .with(Input::weight(dtype, &[x[3]]));
            cases.push(case.within(LONG_SUMS));
        }
    }
    for (taps, channels, frames) in quads([1, 3], [9, 31], [0, 1], [0, 1])
        .map(|(small, large, c, t)| (if c == 0 { small } else { large }, [33, 512][c], [5, 130][t]))
    {
        let op = DepthwiseConv1d {
            pad_before: taps / 2,
            pad_after: taps / 2,
            bias: true,
            scale_shift: true,
            activation: Activation::Silu,
        };
        let vector = || Input::weight(DType::F32, &[channels]);
        let case = Case::new(format!("{frames} x {channels} k{taps}"), op)
            .with(Input::f32(&[2, frames, channels]))
            .with(Input::weight(DType::F32, &[channels, 1, taps]))
            .with(vector())
            .with(vector())
            .with(vector());
        cases.push(case.within(LONG_SUMS));
    }
    for dtype in [DType::F32, DType::F16] {
        for (x, kernel) in [([1, 384, 3000], 3), ([1, 128, 3000], 3), ([2, 1536, 2], 1)] {
            let op =
                Im2col { kernel: [kernel, 1], stride: [1, 1], pad: [1, 1, 0, 0], dilation: [1, 1], dtype };
            cases.push(Case::new(format!("{x:?} {dtype}"), op).with(Input::f32(&x)));
        }
        for (s, d, p, k) in quads([1, 3], [1, 3], [0, 3], [3, 32]) {
            let op = Im2col { kernel: [k, k + 1], stride: [s; 2], pad: [p; 4], dilation: [d; 2], dtype };
            let size = (k + 1) * d + 3;
            cases.push(Case::new(format!("{op:?}"), op).with(Input::f32(&[2, 2, size, size])));
        }
    }
    // A frame that is no number spoils what sees it.
    let op = DepthwiseConv1d {
        pad_before: 4,
        pad_after: 4,
        bias: false,
        scale_shift: false,
        activation: Activation::None,
    };
    let x = Input::f32(&[1, 40, 17]).except(&[(20..21, f32::NAN)]);
    let case = Case::new("a frame of NaN", op).with(x).with(Input::weight(DType::F32, &[17, 1, 9]));
    cases.push(case.within(LONG_SUMS));
    cases
}

/// All of the product of four lists.
fn quads<T: Copy, U: Copy, V: Copy, W: Copy>(
    a: [T; 2],
    b: [U; 2],
    c: [V; 2],
    d: [W; 2],
) -> impl Iterator<Item = (T, U, V, W)> {
    (0..16).map(move |i| (a[i / 8], b[i / 4 % 2], c[i / 2 % 2], d[i % 2]))
}

/// Kernels and images of the convolutions.
fn shapes_and_taps() -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let taps = [1, 2, 3, 11];
    (0..64).map(move |i| (taps[i / 16], taps[i / 4 % 4], [1, 133][i / 2 % 2], [1, 141][i % 2]))
}

fn attention() -> Vec<Case> {
    let mut cases = Vec::new();
    let widths: [usize; 10] = [40, 64, 72, 80, 96, 128, 192, 256, 320, 512];
    for width in widths {
        for (dtype, sinks, cap) in [
            (DType::F32, false, None),
            (DType::F16, true, None),
            (DType::BF16, false, Some(10.0)),
            (DType::Q8_0, true, Some(10.0)),
        ] {
            if !width.is_multiple_of(dtype.block_len()) {
                continue;
            }
            for (group, kv, tokens) in [
                (1, 113, 1),
                (4, 512, 3),
                (8, 113, 32),
                (16, 512, 1),
                (32, 113, 1),
                (12, 1024, 1),
                (1, 512, 75),
                (20, 113, 3),
            ] {
                let scale = 1.0 / (width as f32).sqrt();
                let window = if tokens == 3 { Some(100) } else { None };
                let op = Sdpa { scale, keys: SdpaKeys::Cached, window, cap, sinks };
                let values = if width == 192 { 128 } else { width };
                let at = (kv - tokens) as i32 - 5;
                cases.push(sdpa(op, [1, tokens, group, width], [kv, 1, values], dtype, Some(at)));
            }
        }
        for mask in masks() {
            let op = Sdpa { scale: 0.1, keys: SdpaKeys::Frames(mask), window: None, cap: None, sinks: false };
            cases.push(sdpa(op, [2, 75, 4, width], [75, 2, width], DType::F32, Some(70)));
        }
        let op = Sdpa { scale: 0.1, keys: SdpaKeys::All, window: None, cap: None, sinks: false };
        cases.push(sdpa(op, [2, 32, 2, width], [113, 2, width], DType::F32, None));
    }
    for mask in masks() {
        for (t, heads, width) in [(75, 2, 64), (300, 1, 128), (530, 4, 16)] {
            let d = heads * width;
            let rows = match mask {
                AttentionMask::Banded { left, right } => left + right + 1,
                _ => 2 * t - 1,
            };
            let x = || Input::f32(&[1, t, d]);
            let bias = || Input::weight(DType::F32, &[heads, width]);
            let case = Case::new(
                format!("{mask:?} {t} {heads} x {width}"),
                RelPosAttention { heads, mask, context: 0 },
            )
            .with(x())
            .with(x())
            .with(x())
            .with(Input::f32(&[rows, d]))
            .with(bias())
            .with(bias())
            .with(Input::i32(&[1], &[t as i32 - 1]));
            cases.push(case.within(ATTENTION));
        }
    }
    cases
}

/// q `[B, T, H, K]`, and C, G, J.
fn sdpa(op: Sdpa, q: [usize; 4], [c, g, j]: [usize; 3], dtype: DType, number: Option<i32>) -> Case {
    let name = format!("{q:?} {c} {g} {j} {dtype} {op:?}");
    let sinks = op.sinks;
    let case = Case::new(name, op)
        .with(Input::f32(&q))
        .with(Input::f32(&[q[0], c, g, q[3]]).typed(dtype))
        .with(Input::f32(&[q[0], c, g, j]).typed(dtype))
        .with_if(number.is_some(), Input::i32(&[q[0]], &[number.unwrap_or(0)]));
    case.with_if(sinks, Input::weight(DType::F32, &[q[2]])).within(ATTENTION)
}

type Grid = (&'static str, fn() -> Vec<Case>);

const GRIDS: [Grid; 11] = [
    ("elementwise", elementwise),
    ("gates", gates),
    ("arithmetic", arithmetic),
    ("moves", moves),
    ("rows", rows),
    ("norms", norms),
    ("softmaxes", softmaxes),
    ("turns", turns),
    ("products", products),
    ("convolutions", convolutions),
    ("attention", attention),
];

/// What a case costs: its operations, or its elements where it only moves them.
fn work(case: &Case) -> f64 {
    let inputs: Vec<&[usize]> = case.inputs.iter().map(|i| i.shape.as_slice()).collect();
    let types = crate::run::types_of(case);
    let outputs = crate::run::output_types(case, &types);
    let outputs: Vec<&[usize]> = outputs.iter().map(|(_, shape)| shape.as_slice()).collect();
    let elements = |all: &[&[usize]]| all.iter().map(|s| s.iter().product::<usize>()).sum::<usize>();
    case.op.flops(&inputs, &outputs) + 10.0 * (elements(&inputs) + elements(&outputs)) as f64
}

/// Holds the cases of every grid that `take` takes to their references.
fn hold(least: usize, take: impl Fn(Vec<Case>) -> Vec<Case>) {
    let cpus = cpus();
    let mut failures = Vec::new();
    for (name, grid) in GRIDS {
        let cases = take(grid());
        assert!(cases.len() >= least, "{name}: {} cases", cases.len());
        for case in &cases {
            walk(case, &cpus, &mut failures);
        }
    }
    let shown: Vec<&str> = failures.iter().take(60).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures, the first:\n{}", failures.len(), shown.join("\n"));
}

/// As many cases of a grid as [`SAMPLE`] says, from all over it, none of them large; and those with NaN, which are few.
fn sample(cases: Vec<Case>) -> Vec<Case> {
    let (special, plain): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|c| c.name.contains("NaN"));
    let small: Vec<Case> = plain.into_iter().filter(|c| work(c) <= WORK).collect();
    let step = small.len().div_ceil(SAMPLE).max(1);
    small.into_iter().step_by(step).chain(special).collect()
}

#[test]
fn parts_of_the_grids() {
    hold(10, sample);
}

#[test]
#[ignore = "minutes: all of what `parts_of_the_grids` takes parts of"]
fn all_of_the_grids() {
    hold(20, |cases| cases);
}
