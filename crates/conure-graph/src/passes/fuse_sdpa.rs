//! Plain attention that is spelt out becomes one op.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{
    AttentionMask, MaskScores, MaskTime, MatMul, Op, Reshape, Scale, Sdpa, SdpaKeys, Softmax, Transpose,
};
use conure_tensor::Shape;

/// Replaces scaled dot-product attention without relative positions by the op, whose kernel works in tiles and never holds the
/// scores of all pairs. (With relative positions it is [`super::FuseAttention`].)
///
/// ```text
///   q ── heads first ──┐
///                      matmul ── scale ── mask_scores ── softmax ──┐
///   k ── heads first ──┘                  (lengths)                matmul ── frames first ── mask_time ── y
///   v ── heads first ──────────────────────────────────────────────┘                         (lengths)
///
///   q, k, v, lengths ── sdpa ── y
/// ```
///
/// With a mask (all of [`AttentionMask`]) and without; then keys may be of another clip than queries. The scale may stand behind
/// the product, at the query, or be missing; the keys may be transposed for a product that does not do so itself; there may be a
/// reshape between the last transpose and `mask_time`. With a mask, `mask_time` must follow: a query past the end sees nothing,
/// which is NaN when it is spelt out. The lengths must be the same everywhere, and nothing in between may be read by anybody
/// else or carry a name.
#[derive(Clone, Copy, Debug)]
pub struct FuseSdpa;

impl Pass for FuseSdpa {
    fn name(&self) -> &'static str {
        "fuse_sdpa"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(found) = Found::at(r, index) else { return Ok(false) };
            let node = r.old_node(index);
            let inputs = found.inputs.iter().map(|&v| r.new_of(v)).collect::<Result<Vec<_>, _>>()?;
            let mut y = r.apply(found.op, &inputs, &node.path)?;
            if let Some(shape) = found.reshaped {
                y = r.apply(Reshape { shape }, &[y], &node.path)?;
            }
            r.replace(node.outputs[0], y)?;
            Ok(true)
        })
    }
}

/// From `[B, T, H, K]` to `[B, H, T, K]` and back.
const SWAP: [usize; 4] = [0, 2, 1, 3];

struct Found {
    op: Sdpa,
    /// q, k, v, and the lengths if there is a mask.
    inputs: Vec<ValueId>,
    /// What the result becomes before it leaves.
    reshaped: Option<Shape>,
}

/// The one input of node `n`, or the first.
fn input(r: &Rewriter<'_>, n: usize) -> Option<ValueId> {
    r.old_node(n).inputs.first().copied()
}

/// Both inputs of node `n`.
fn pair(r: &Rewriter<'_>, n: usize) -> Option<[ValueId; 2]> {
    <[ValueId; 2]>::try_from(r.old_node(n).inputs.as_slice()).ok()
}

/// What was transposed so.
fn transposed(r: &Rewriter<'_>, v: ValueId, perm: [usize; 4]) -> Option<ValueId> {
    let (n, transpose) = r.made_by::<Transpose>(v)?;
    if transpose.perm == perm { input(r, n) } else { None }
}

/// What was scaled, and by how much: by 1 if it was not.
fn scaled(r: &Rewriter<'_>, v: ValueId) -> (ValueId, f32) {
    match r.made_by::<Scale>(v) {
        Some((n, scale)) => (input(r, n).unwrap_or(v), scale.factor),
        None => (v, 1.0),
    }
}

impl Found {
    fn at(r: &Rewriter<'_>, index: usize) -> Option<Found> {
        if r.op::<MaskTime>(index).is_some() {
            let [y, lengths] = pair(r, index)?;
            let (y, reshaped) = match r.inner::<Reshape>(y) {
                Some((n, reshape)) => (input(r, n)?, Some(reshape.shape.clone())),
                None => (y, None),
            };
            let (n, transpose) = r.inner::<Transpose>(y)?;
            let found = Found::before(r, input(r, n)?, &transpose.perm)?;
            // A reshape may take the last axes together, not the frames apart.
            let frames = |v: ValueId| [0, 1].map(|i| r.old_ty(v).shape.get(i).cloned());
            let kept = frames(y) == frames(r.old_node(index).outputs[0]);
            return (found.inputs.get(3) == Some(&lengths) && kept).then_some(Found { reshaped, ..found });
        }
        let transpose = r.op::<Transpose>(index)?;
        let found = Found::before(r, input(r, index)?, &transpose.perm)?;
        (found.op.keys == SdpaKeys::All).then_some(found)
    }

    /// The attention that makes `v` `[B, H, T, J]`, which is transposed by `perm` then.
    fn before(r: &Rewriter<'_>, v: ValueId, perm: &[usize]) -> Option<Found> {
        let (n, values) = r.inner::<MatMul>(v)?;
        let [weights, value] = pair(r, n)?;
        let (n, _) = r.inner::<Softmax>(weights)?;
        if perm != SWAP || values.transpose_b {
            return None;
        }
        let mut scores = input(r, n)?;
        let mut mask: Option<(AttentionMask, ValueId)> = None;
        if let Some((n, masked)) = r.inner::<MaskScores>(scores) {
            let [inner, lengths] = pair(r, n)?;
            (scores, mask) = (inner, Some((masked.mask, lengths)));
        }
        let mut scale = 1.0;
        if let Some((n, after)) = r.inner::<Scale>(scores) {
            (scores, scale) = (input(r, n)?, after.factor);
        }
        let (n, product) = r.inner::<MatMul>(scores)?;
        let [query, key] = pair(r, n)?;
        let (query, outside) = scaled(r, query);
        let (q, inside) = scaled(r, transposed(r, query, SWAP)?);
        let k = transposed(r, key, if product.transpose_b { SWAP } else { [0, 2, 3, 1] })?;
        let mut v = transposed(r, value, SWAP)?;
        // Values past the end have no weight; that they were set to zero changes nothing but NaN.
        if let (Some((n, _)), Some((_, lengths))) = (r.made_by::<MaskTime>(v), mask)
            && let Some([inner, also]) = pair(r, n)
            && also == lengths
        {
            v = inner;
        }
        let keys = mask.map_or(SdpaKeys::All, |(mask, _)| SdpaKeys::Frames(mask));
        let op = Sdpa { scale: scale * outside * inside, keys, window: None, cap: None, sinks: false };
        let inputs: Vec<ValueId> = [q, k, v].into_iter().chain(mask.map(|(_, lengths)| lengths)).collect();
        let types: Vec<_> = inputs.iter().map(|&v| r.old_ty(v)).collect();
        op.infer(&types).ok()?;
        Some(Found { op, inputs, reshaped: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::{Binary, BinaryKind, ValueType};
    use conure_tensor::{Axis, Bindings, DType, Dim, Symbol, Tensor};
    use std::sync::Arc;

    const B: Symbol = Symbol::new("B");
    const T: Symbol = Symbol::new("T");
    const C: Symbol = Symbol::new("C");

    /// How a graph differs from the plainest form.
    #[derive(Clone)]
    struct Form {
        mask: Option<AttentionMask>,
        /// Whether keys and values are of another clip.
        cross: bool,
        key_heads: usize,
        scale_query: bool,
        scale_scores: bool,
        transpose_keys: bool,
        mask_values: bool,
        reshape: bool,
        perms: [[usize; 4]; 4],
        mask_time: bool,
        other_lengths: bool,
        transpose_values: bool,
        bias: bool,
        name: Option<&'static str>,
        read_twice: bool,
        one_batch_of_keys: bool,
        frames_apart: bool,
    }

    fn form() -> Form {
        Form {
            mask: None,
            cross: false,
            key_heads: 3,
            scale_query: false,
            scale_scores: true,
            transpose_keys: false,
            mask_values: false,
            reshape: false,
            perms: [SWAP; 4],
            mask_time: false,
            other_lengths: false,
            transpose_values: false,
            bias: false,
            name: None,
            read_twice: false,
            one_batch_of_keys: false,
            frames_apart: false,
        }
    }

    fn masked(mask: AttentionMask) -> Form {
        Form { mask: Some(mask), mask_time: true, mask_values: true, reshape: true, ..form() }
    }

    fn graph(form: &Form) -> Graph {
        let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
        let rows = |batch: Dim, frames: Dim, heads: usize, width: usize| {
            ValueType::f32(Shape::new([
                (Axis::B, batch),
                (Axis::T, frames),
                (Axis::H, Dim::from(heads)),
                (Axis::K, Dim::from(width)),
            ]))
        };
        let (b, t) = (Dim::from(B), Dim::from(T));
        let frames = if form.cross { Dim::from(C) } else { t.clone() };
        let keys_b = if form.one_batch_of_keys { Dim::from(1) } else { b.clone() };
        let q = g.input("q", rows(b.clone(), t.clone(), 3, 4));
        let k = g.input("k", rows(keys_b.clone(), frames.clone(), form.key_heads, 4));
        let v = g.input("v", rows(keys_b, frames, form.key_heads, 4));
        let of = |g: &mut GraphBuilder, name: &str| {
            g.input(name, ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])))
        };
        let (lengths, others) = (of(&mut g, "lengths"), of(&mut g, "others"));
        let swap = |g: &mut GraphBuilder, x, perm: [usize; 4]| {
            g.apply(Transpose { perm: perm.to_vec() }, &[x]).unwrap()
        };
        let mut query = swap(&mut g, q, form.perms[0]);
        if form.scale_query {
            query = g.apply(Scale { factor: 0.7 }, &[query]).unwrap();
        }
        let key = swap(&mut g, k, if form.transpose_keys { [0, 2, 3, 1] } else { form.perms[1] });
        let mut value = v;
        if form.mask_values {
            value = g.apply(MaskTime, &[value, lengths]).unwrap();
        }
        let value = swap(&mut g, value, if form.transpose_values { [0, 2, 3, 1] } else { form.perms[2] });
        let mut scores = g.apply(MatMul { transpose_b: !form.transpose_keys }, &[query, key]).unwrap();
        if form.bias {
            scores = g.apply(Binary { kind: BinaryKind::Add }, &[scores, scores]).unwrap();
        }
        if form.scale_scores {
            scores = g.apply(Scale { factor: 0.5 }, &[scores]).unwrap();
        }
        if let Some(mask) = form.mask {
            scores = g.apply(MaskScores { mask }, &[scores, lengths]).unwrap();
        }
        let weights = g.apply(Softmax, &[scores]).unwrap();
        if let Some(name) = form.name {
            g.name(weights, name);
        }
        if form.read_twice {
            let sum = g.apply(Scale { factor: 2.0 }, &[weights]).unwrap();
            g.output("weights", sum);
        }
        let values = MatMul { transpose_b: form.transpose_values };
        let y = g.apply(values, &[weights, value]).unwrap();
        let mut y = swap(&mut g, y, form.perms[3]);
        if form.reshape {
            let axes = [(Axis::B, b.clone()), (Axis::T, t.clone()), (Axis::D, Dim::from(12))];
            let apart = [(Axis::B, b), (Axis::T, &t * &Dim::from(3)), (Axis::D, Dim::from(4))];
            let shape = Shape::new(if form.frames_apart { apart } else { axes });
            y = g.apply(Reshape { shape }, &[y]).unwrap();
        }
        if form.mask_time {
            let lengths = if form.other_lengths { others } else { lengths };
            y = g.apply(MaskTime, &[y, lengths]).unwrap();
        }
        g.output("y", y);
        g.finish().unwrap()
    }

    fn fused(form: &Form) -> Graph {
        FuseSdpa.run(graph(form)).unwrap()
    }

    #[test]
    fn attention_that_is_spelt_out_is_one_op() {
        let causal = AttentionMask::ChunkedLimited { left: None, right: 0 };
        let forms = [
            ("plain", form()),
            ("of another clip", Form { cross: true, ..form() }),
            ("one head of keys", Form { key_heads: 1, ..form() }),
            ("no scale", Form { scale_scores: false, ..form() }),
            ("scaled queries", Form { scale_scores: false, scale_query: true, ..form() }),
            ("scaled twice", Form { scale_query: true, ..form() }),
            ("transposed keys", Form { transpose_keys: true, ..form() }),
            ("full mask", masked(AttentionMask::Full)),
            ("causal", masked(causal)),
            ("chunks", masked(AttentionMask::ChunkedLimited { left: Some(4), right: 1 })),
            ("band", masked(AttentionMask::Banded { left: 3, right: 2 })),
            ("mask without reshape", Form { reshape: false, mask_values: false, ..masked(causal) }),
        ];
        for (what, form) in forms {
            let (original, rewritten) = (graph(&form), fused(&form));
            assert_eq!(count(&rewritten, "sdpa"), 1, "{what}");
            for op in ["softmax", "matmul", "transpose", "mask_scores", "mask_time", "scale"] {
                assert_eq!(count(&rewritten, op), 0, "{what}: {op}");
            }
            for t in [1, 7, 40] {
                let keys = if form.cross { 19 } else { t };
                let bindings = Bindings::new().with(B, 2).with(T, t).with(C, keys);
                let lengths = Tensor::from_slice(&[2], &[t as i32, t as i32 / 2]).unwrap();
                let inputs = [
                    ("q", noise(1, &[2, t, 3, 4], DType::F32)),
                    ("k", noise(2, &[2, keys, form.key_heads, 4], DType::F32)),
                    ("v", noise(3, &[2, keys, form.key_heads, 4], DType::F32)),
                    ("lengths", lengths.clone()),
                    ("others", lengths),
                ];
                check(what, &original, &rewritten, &bindings, &inputs, 1e-11);
            }
        }
    }

    #[test]
    fn the_scores_of_all_pairs_are_never_there() {
        let causal = masked(AttentionMask::ChunkedLimited { left: None, right: 0 });
        let cpu = conure_kernels::Cpu::detect(Some(1)).unwrap();
        let bindings = Bindings::new().with(B, 1).with(T, 1000);
        let arena = |g: Graph| crate::Program::new(g).arena_bytes(&bindings, &[], &cpu).unwrap();
        let (spelt, one) = (arena(graph(&causal)), arena(fused(&causal)));
        // Three heads of a thousand times a thousand scores, and what is read and written.
        assert!(spelt > 12_000_000 && one < 100_000, "{spelt} and {one} bytes");
    }

    #[test]
    fn what_is_not_quite_attention_is_left_alone() {
        let full = || masked(AttentionMask::Full);
        let perm = |at: usize, perm: [usize; 4], form: Form| {
            let mut perms = form.perms;
            perms[at] = perm;
            Form { perms, ..form }
        };
        let kept = [0, 1, 2, 3];
        let forms = [
            ("a mask whose NaN nobody sets to zero", Form { mask_time: false, ..full() }),
            ("other lengths", Form { other_lengths: true, ..full() }),
            ("frames taken apart", Form { frames_apart: true, ..full() }),
            ("a name inside", Form { name: Some("weights"), ..form() }),
            ("weights that somebody else reads", Form { read_twice: true, ..form() }),
            ("a sum of scores", Form { bias: true, ..form() }),
            ("values transposed", Form { transpose_values: true, ..form() }),
            ("keys of one item for all", Form { one_batch_of_keys: true, ..form() }),
            ("the result in another order", perm(3, [0, 1, 3, 2], form())),
            ("heads that were not moved", {
                let form = perm(0, kept, perm(1, kept, perm(2, kept, form())));
                perm(3, kept, form)
            }),
            ("queries in another order", perm(0, kept, perm(1, kept, perm(2, kept, form())))),
        ];
        for (what, form) in forms {
            assert_eq!(count(&fused(&form), "sdpa"), 0, "{what}");
        }
        assert_eq!(count(&fused(&full()), "sdpa"), 1);
    }
}
