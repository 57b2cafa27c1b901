//! Conformance cases of `sdpa`.

use super::{Sdpa, SdpaKeys};
use crate::cases::{Case, Fill, Input, Tolerance};
use crate::rel_pos_attention::AttentionMask;
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-11,
    element: 8e-6,
    why: "scores of up to 20 are rounded in f32 before their exponential is taken",
};

/// A name, B T H K, C0 C G J, and the rows where the items stand.
type Shapes = (&'static str, [usize; 4], [usize; 4], &'static [i32]);

/// The cases.
pub fn cases() -> Vec<Case> {
    let plain = Sdpa { scale: 0.125, keys: SdpaKeys::Cached, window: None, cap: None, sinks: false };
    let shapes: [Shapes; 9] = [
        ("first token", [1, 1, 4, 32], [1, 8, 1, 32], &[0]),
        ("one token, blocks", [1, 1, 4, 64], [1, 700, 1, 64], &[600]),
        ("items of their own", [3, 1, 4, 32], [3, 300, 2, 64], &[0, 299, 255]),
        ("more items than used", [1, 2, 2, 64], [4, 40, 2, 64], &[7]),
        ("many heads on one", [1, 1, 16, 32], [1, 64, 1, 32], &[63]),
        ("a prompt", [1, 40, 4, 64], [1, 64, 2, 64], &[0]),
        ("a long prompt further on", [2, 70, 4, 32], [2, 600, 1, 96], &[0, 500]),
        ("no group", [1, 9, 3, 32], [1, 20, 3, 32], &[11]),
        ("no tokens", [1, 0, 2, 32], [1, 8, 1, 32], &[3]),
    ];
    let mut cases = Vec::new();
    for (name, q, cache, at) in shapes {
        let variants = [
            ("", plain.clone()),
            ("window", Sdpa { window: Some(20), ..plain.clone() }),
            ("cap and sinks", Sdpa { cap: Some(4.0), sinks: true, ..plain.clone() }),
        ];
        for (variant, op) in variants {
            for dtype in [DType::F32, DType::F16, DType::Q8_0] {
                cases.push(case(format!("{name} {variant} {dtype}"), op.clone(), q, cache, dtype, at));
            }
        }
        cases.push(case(format!("{name} bf16"), plain.clone(), q, cache, DType::BF16, at));
    }
    cases.extend(without_cache());
    cases
}

/// Queries, keys and values of the same clip, or of two.
fn without_cache() -> Vec<Case> {
    let masks = [
        AttentionMask::Full,
        AttentionMask::ChunkedLimited { left: None, right: 0 },
        AttentionMask::ChunkedLimited { left: Some(8), right: 3 },
        AttentionMask::Banded { left: 5, right: 2 },
    ];
    // B T H K, G J, lengths.
    let frames: [([usize; 4], [usize; 2], &[i32]); 6] = [
        ([1, 1, 1, 5], [1, 7], &[1]),
        ([2, 17, 4, 8], [4, 8], &[17, 3]),
        ([3, 33, 4, 16], [2, 24], &[0, 33, 40]),
        ([1, 5, 2, 32], [1, 32], &[4]),
        ([2, 290, 1, 33], [1, 16], &[290, -1]),
        ([1, 0, 1, 4], [1, 4], &[0]),
    ];
    let mut cases = Vec::new();
    for (q, [g, j], lengths) in frames {
        for mask in masks {
            let op = Sdpa { keys: SdpaKeys::Frames(mask), ..uncached() };
            let name = format!("{q:?} g{g} j{j} {mask:?} {lengths:?}");
            cases.push(case(name, op, q, [q[0], q[1], g, j], DType::F32, lengths));
        }
    }
    // B T H K, C G J.
    let all: [([usize; 4], [usize; 3]); 6] = [
        ([1, 1, 1, 1], [1, 1, 1]),
        ([2, 9, 4, 8], [9, 4, 8]),
        ([1, 30, 4, 16], [70, 2, 33]),
        ([2, 3, 2, 32], [300, 1, 32]),
        ([1, 20, 1, 7], [1, 1, 20]),
        ([1, 4, 1, 4], [0, 1, 4]),
    ];
    for (q, [c, g, j]) in all {
        for (variant, cap, sinks) in [("", None, false), ("cap and sinks", Some(4.0), true)] {
            for dtype in [DType::F32, DType::F16] {
                let op = Sdpa { keys: SdpaKeys::All, cap, sinks, ..uncached() };
                let name = format!("{q:?} all {c} g{g} j{j} {variant} {dtype}");
                cases.push(case(name, op, q, [q[0], c, g, j], dtype, &[]));
            }
        }
    }
    cases
}

fn uncached() -> Sdpa {
    Sdpa { scale: 0.3, keys: SdpaKeys::All, window: None, cap: None, sinks: false }
}

/// Cases in which NaN and infinities lie in rows of the cache that some queries or all of them do not see, for one token, for
/// a few and for many.
pub fn hidden() -> Vec<Case> {
    let plain = Sdpa { scale: 0.125, keys: SdpaKeys::Cached, window: None, cap: None, sinks: false };
    let window = Sdpa { window: Some(6), ..plain.clone() };
    let shapes: [Shapes; 5] = [
        ("one token", [1, 1, 4, 32], [1, 300, 1, 32], &[280]),
        ("a few tokens", [2, 4, 2, 32], [2, 300, 1, 32], &[20, 255]),
        ("a prompt", [1, 40, 4, 32], [1, 64, 2, 32], &[0]),
        ("a long prompt", [2, 70, 4, 32], [2, 600, 1, 96], &[0, 500]),
        ("a prompt of odd heads", [1, 30, 3, 32], [1, 50, 3, 64], &[11]),
    ];
    let mut cases = Vec::new();
    for (name, q, cache, at) in shapes {
        let last = q[0] - 1;
        // Rows of the last item: the newest token's own, one that leaves the window on the way, and all that is free.
        let own = at[last] as usize + q[1] - 1;
        let [_, capacity, groups, _] = cache;
        let row = |r: usize| (last * capacity + r) * groups..(last * capacity + r + 1) * groups;
        let free = (last * capacity + own + 1) * groups..(last + 1) * capacity * groups;
        for dtype in [DType::F32, DType::F16] {
            for (variant, op) in [("", &plain), ("window", &window)] {
                for (what, input, parts) in [
                    ("value", 2, vec![(row(own), f32::NAN), (free.clone(), f32::NAN)]),
                    ("old value", 2, vec![(row(own.saturating_sub(7)), f32::NAN)]),
                    ("infinite value", 2, vec![(row(own), f32::INFINITY)]),
                    ("key", 1, vec![(row(own), f32::NAN), (free.clone(), f32::NAN)]),
                ] {
                    let name = format!("{name} {variant} {what} {dtype}");
                    let mut case = case(name, op.clone(), q, cache, dtype, at);
                    case.inputs[input] = case.inputs[input].clone().except(&parts);
                    cases.push(case);
                }
            }
        }
    }
    for (mask, b) in [(AttentionMask::Full, 2), (AttentionMask::Banded { left: 5, right: 2 }, 1)] {
        // The last item's frames from its end on, and one in its middle.
        let frames = Sdpa { keys: SdpaKeys::Frames(mask), ..plain.clone() };
        let (q, lengths) = ([b, 40, 2, 16], [40, 25]);
        for (what, input) in [("key", 1), ("value", 2)] {
            let lengths = &lengths[2 - b..];
            let mut case = case(
                format!("frames {what} {mask:?}"),
                frames.clone(),
                q,
                [b, 40, 2, 16],
                DType::F32,
                lengths,
            );
            let first = (b - 1) * 40;
            let parts = [
                ((first + 25) * 2..(first + 40) * 2, f32::NAN),
                ((first + 9) * 2..(first + 9) * 2 + 1, f32::NAN),
            ];
            case.inputs[input] = case.inputs[input].clone().except(&parts);
            cases.push(case);
        }
    }
    // Scores of -infinity for all of the first block and more, then numbers; and for all there is.
    for (name, tokens, end) in
        [("one", 1, 270), ("many", 20, 270), ("all of one", 1, 300), ("all of many", 20, 300)]
    {
        let name = format!("scores of -infinity, {name}");
        let mut case = case(name, plain.clone(), [1, tokens, 1, 32], [1, 300, 1, 32], DType::F32, &[275]);
        case.inputs[0] = case.inputs[0].clone().except(&[(0..tokens, 1.0)]);
        case.inputs[1] = case.inputs[1].clone().except(&[(0..end, f32::NEG_INFINITY)]);
        cases.push(case);
    }
    cases
}

fn case(name: String, op: Sdpa, q: [usize; 4], [c0, c, g, j]: [usize; 4], dtype: DType, at: &[i32]) -> Case {
    let sinks = Input::weight(DType::F32, &[q[2]]).filled(Fill::Normal(2.0));
    let (with_sinks, with_number) = (op.sinks, op.keys != SdpaKeys::All);
    Case::new(name, op)
        .with(Input::f32(&q))
        .with(Input::f32(&[c0, c, g, q[3]]).typed(dtype))
        .with(Input::f32(&[c0, c, g, j]).typed(dtype))
        .with_if(with_number, Input::i32(&[q[0]], at))
        .with_if(with_sinks, sinks)
        .within(TOLERANCE)
}
