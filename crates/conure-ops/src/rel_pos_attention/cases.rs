//! Conformance cases of `rel_pos_attention`.

use super::{AttentionMask, RelPosAttention};
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 2e-12,
    element: 5e-6,
    why: "scores and weighted values are summed in f32 (measured: 1e-6)",
};

/// B, T, heads, width of a head, mask, lengths.
type Geometry = (usize, usize, usize, usize, AttentionMask, &'static [i32]);

const FULL: AttentionMask = AttentionMask::Full;

const fn chunked(left: usize, right: usize) -> AttentionMask {
    AttentionMask::ChunkedLimited { left: Some(left), right }
}

const fn banded(w: usize) -> AttentionMask {
    AttentionMask::Banded { left: w, right: w }
}

/// The cases.
pub fn cases() -> Vec<Case> {
    let geometries: [Geometry; 22] = [
        (1, 1, 1, 1, FULL, &[1]),
        (1, 2, 1, 3, FULL, &[2]),
        (1, 7, 2, 5, FULL, &[7]),
        (2, 17, 4, 8, FULL, &[17, 3]),
        (3, 16, 2, 16, FULL, &[0, 16, 9]),
        (1, 33, 3, 17, FULL, &[31]),
        (1, 65, 2, 64, FULL, &[65]),
        (2, 131, 1, 33, FULL, &[130, -1]),
        (1, 70, 1, 8, FULL, &[200]),
        (1, 1, 1, 4, chunked(70, 1), &[1]),
        (2, 19, 2, 8, chunked(4, 1), &[19, 8]),
        (1, 40, 2, 16, chunked(10, 0), &[40]),
        (1, 37, 1, 7, chunked(14, 6), &[35]),
        (1, 23, 2, 8, AttentionMask::ChunkedLimited { left: None, right: 3 }, &[23]),
        (1, 1, 1, 4, banded(3), &[1]),
        (2, 29, 2, 8, banded(5), &[29, 11]),
        (1, 64, 2, 16, banded(16), &[63]),
        (1, 150, 1, 32, banded(8), &[150]),
        (1, 20, 2, 5, banded(40), &[20]),
        (1, 20, 2, 8, banded(0), &[20]),
        (1, 30, 2, 8, AttentionMask::Banded { left: 7, right: 2 }, &[30]),
        (1, 30, 2, 8, AttentionMask::Banded { left: 0, right: 3 }, &[28]),
    ];
    let mut cases = Vec::new();
    for (b, t, heads, width, mask, lengths) in geometries {
        for dtype in [DType::F32, DType::F16] {
            cases.push(case([b, t, heads, width], mask, lengths, dtype));
        }
    }
    let full_cache: [(usize, usize, &[i32], &[i32]); 5] = [
        (1, 4, &[1], &[4]),
        (2, 70, &[2], &[3]),
        (5, 6, &[5, 2], &[0, 6]),
        (7, 14, &[7], &[200]),
        (14, 70, &[13], &[70]),
    ];
    for (t, context, lengths, cached) in full_cache {
        cases.push(with_context(t, context, lengths, cached));
    }
    cases
}

/// Cases in which NaN and infinities lie where most queries do not look. Weights of 0 must not meet them: what a query does not
/// see cannot spoil it. (A device that multiplies whole matrices does not hold to that.)
pub fn hidden() -> Vec<Case> {
    const NAN: f32 = f32::NAN;
    const INFINITY: f32 = f32::INFINITY;
    let mut cases = Vec::new();
    let geometries: [Geometry; 8] = [
        (1, 90, 2, 16, banded(5), &[90]),
        (1, 90, 1, 33, AttentionMask::Banded { left: 7, right: 2 }, &[81]),
        (1, 70, 2, 5, chunked(14, 6), &[70]),
        (2, 40, 2, 8, AttentionMask::ChunkedLimited { left: None, right: 3 }, &[40, 21]),
        // Several blocks of keys.
        (1, 600, 1, 16, banded(16), &[600]),
        (1, 600, 1, 16, chunked(70, 1), &[590]),
        (2, 300, 1, 8, FULL, &[300, 30]),
        (1, 600, 1, 4, FULL, &[600]),
    ];
    for (b, t, heads, width, mask, lengths) in geometries {
        let base = case([b, t, heads, width], mask, lengths, DType::F32);
        let row = b * t - t / 3;
        let places = [
            ("value", 2, vec![(row..row + 1, NAN)]),
            ("infinite value", 2, vec![(row..row + 1, INFINITY), (row + 1..row + 2, f32::NEG_INFINITY)]),
            ("key", 1, vec![(row..row + 2, NAN)]),
            ("infinite key", 1, vec![(row..row + 1, INFINITY)]),
            ("position", 3, vec![(0..1, NAN)]),
            ("query", 0, vec![(row..row + 1, NAN)]),
        ];
        for (name, input, rows) in places {
            let mut case = base.clone();
            case.name = format!("{} {name}", base.name);
            case.inputs[input] = case.inputs[input].clone().except(&rows);
            cases.push(case);
        }
    }
    // Scores of -infinity for all of the first block and more: no weight yet, then numbers; and for all there is.
    for (name, end) in [("until 300", 300), ("throughout", 320)] {
        let mut case = case([1, 320, 1, 4], FULL, &[320], DType::F32);
        case.name = format!("scores of -infinity {name}");
        case.inputs[0] = case.inputs[0].clone().except(&[(0..320, 9.0)]);
        case.inputs[1] = case.inputs[1].clone().except(&[(0..end, f32::NEG_INFINITY)]);
        cases.push(case);
    }
    let mut case = with_context(7, 14, &[7], &[9]);
    case.name.push_str(" what was before");
    for i in [1, 2] {
        case.inputs[i] = case.inputs[i].clone().except(&[(0..5, NAN)]);
    }
    cases.push(case);
    cases
}

fn with_context(t: usize, context: usize, lengths: &[i32], cached: &[i32]) -> Case {
    let (b, heads, width) = (lengths.len(), 2, 8);
    let (d, frames) = (heads * width, context + t);
    Case::new(
        format!("b{b} t{t} after {context} {lengths:?} cached {cached:?}"),
        RelPosAttention { heads, mask: FULL, context },
    )
    .with(Input::f32(&[b, t, d]))
    .with(Input::f32(&[b, frames, d]))
    .with(Input::f32(&[b, frames, d]))
    .with(Input::f32(&[frames + t - 1, d]))
    .with(Input::weight(DType::F32, &[heads, width]))
    .with(Input::weight(DType::F32, &[heads, width]))
    .with(Input::i32(&[b], lengths))
    .with(Input::i32(&[b], cached))
    .within(TOLERANCE)
}

fn case([b, t, heads, width]: [usize; 4], mask: AttentionMask, lengths: &[i32], dtype: DType) -> Case {
    let d = heads * width;
    let rows = match mask {
        AttentionMask::Banded { left, right } => left + right + 1,
        _ => 2 * t - 1,
    };
    let x = Input::f32(&[b, t, d]);
    Case::new(
        format!("b{b} t{t} h{heads} k{width} {mask:?} {lengths:?} {dtype}"),
        RelPosAttention { heads, mask, context: 0 },
    )
    .with(x.clone())
    .with(x.clone())
    .with(x)
    .with(Input::f32(&[rows, d]))
    .with(Input::weight(dtype, &[heads, width]))
    .with(Input::weight(dtype, &[heads, width]))
    .with(Input::i32(&[b], lengths))
    .within(TOLERANCE)
}
