//! Scores, mask, softmax and values become attention.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{
    AttentionMask, Binary, BinaryKind, MaskScores, MaskTime, MatMul, Op, RelPosAttention, RelShift, Reshape,
    Scale, Softmax, Transpose, ValueType,
};
use conure_tensor::{Dim, Shape};

/// Replaces attention that is spelt out by the op, whose kernel works in tiles and never holds the scores of all pairs.
///
/// ```text
///   q + u ──┐
///           matmul ────────────── + ── scale ── mask_scores ── softmax ──┐
///   k ──────┘                     │              (lengths)               matmul ── heads side by side ── mask_time ── y
///   q + v' ─┐                     │                     v ── mask_time ──┘
///           matmul ── rel_shift ──┘
///   p ──────┘
///
///   q, k, v, p, u, v', lengths ── rel_pos_attention ── y
/// ```
///
/// Full, chunked and banded masks. The scale must be `1 / sqrt(K)`, the shift that of the mask, the lengths the same everywhere,
/// and nothing in between may be read by anybody else or carry a name.
#[derive(Clone, Copy, Debug)]
pub struct FuseAttention;

impl Pass for FuseAttention {
    fn name(&self) -> &'static str {
        "fuse_attention"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(found) = Found::at(r, index) else { return Ok(false) };
            let mut inputs = Vec::new();
            for v in [found.q, found.k, found.v, found.p] {
                inputs.push(r.new_of(v)?);
            }
            for bias in found.biases {
                inputs.push(match bias {
                    Bias::Stored(v) => r.reshaped_weight(v, &found.sizes)?,
                    Bias::Computed(v) => r.new_of(v)?,
                });
            }
            inputs.push(r.new_of(found.lengths)?);
            let node = r.old_node(index);
            let y = r.apply(found.op, &inputs, &node.path)?;
            r.replace(node.outputs[0], y)?;
            Ok(true)
        })
    }
}

#[derive(Clone, Copy)]
enum Bias {
    Stored(ValueId),
    Computed(ValueId),
}

struct Found {
    op: RelPosAttention,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    p: ValueId,
    biases: [Bias; 2],
    /// Heads and their width.
    sizes: [usize; 2],
    lengths: ValueId,
}

/// Input `i` of node `n`.
fn input(r: &Rewriter<'_>, n: usize, i: usize) -> Option<ValueId> {
    r.old_node(n).inputs.get(i).copied()
}

/// Both inputs of node `n`.
fn pair(r: &Rewriter<'_>, n: usize) -> Option<[ValueId; 2]> {
    Some([input(r, n, 0)?, input(r, n, 1)?])
}

/// What was reshaped to heads and transposed so that they come first: `[..., T, H K]`, with H and K.
fn heads(r: &Rewriter<'_>, v: ValueId, perm: &[usize]) -> Option<(ValueId, [Dim; 2])> {
    let (n, transpose) = r.made_by::<Transpose>(v)?;
    if transpose.perm != perm {
        return None;
    }
    let (n, reshape) = r.made_by::<Reshape>(input(r, n, 0)?)?;
    let rank = reshape.shape.rank();
    let (h, k) = (reshape.shape.get(rank - 2)?.clone(), reshape.shape.get(rank - 1)?.clone());
    let source = input(r, n, 0)?;
    let shape = &r.old_ty(source).shape;
    // Only the last axis was taken apart.
    let same = shape.rank() + 1 == rank && (0..rank - 2).all(|i| shape.get(i) == reshape.shape.get(i));
    (same && shape.last() == Some(&(&h * &k))).then_some((source, [h, k]))
}

/// `(query + bias) keys^T`: query, bias and keys.
fn scores(r: &Rewriter<'_>, v: ValueId) -> Option<[ValueId; 3]> {
    let (n, matmul) = r.inner::<MatMul>(v)?;
    let [query, keys] = pair(r, n)?;
    let (n, add) = r.inner::<Binary>(query)?;
    let [query, bias] = pair(r, n)?;
    (matmul.transpose_b && add.kind == BinaryKind::Add).then_some([query, bias, keys])
}

/// A bias `[H, 1, K]` as it is stored, or as `[H, K]` before it was reshaped.
fn bias(r: &Rewriter<'_>, v: ValueId, [h, k]: [usize; 2]) -> Option<Bias> {
    let shape = &r.old_ty(v).shape;
    if !shape.same_lengths(&Shape::fixed(&[h, 1, k])) {
        return None;
    }
    if r.is_static(v) {
        return Some(Bias::Stored(v));
    }
    let (n, _) = r.made_by::<Reshape>(v)?;
    let source = input(r, n, 0)?;
    if r.is_static(source) {
        return Some(Bias::Stored(source));
    }
    r.old_ty(source).shape.same_lengths(&Shape::fixed(&[h, k])).then_some(Bias::Computed(source))
}

impl Found {
    fn at(r: &Rewriter<'_>, index: usize) -> Option<Found> {
        r.op::<MaskTime>(index)?;
        let [y, lengths] = pair(r, index)?;
        let (n, side_by_side) = r.inner::<Reshape>(y)?;
        let (n, transpose) = r.inner::<Transpose>(input(r, n, 0)?)?;
        let (n, values) = r.inner::<MatMul>(input(r, n, 0)?)?;
        let [weights, value] = pair(r, n)?;
        let (n, _) = r.inner::<Softmax>(weights)?;
        let (n, masked) = r.inner::<MaskScores>(input(r, n, 0)?)?;
        let [sum, also_lengths] = pair(r, n)?;
        let (n, scale) = r.inner::<Scale>(sum)?;
        let (n, add) = r.inner::<Binary>(input(r, n, 0)?)?;
        let plain = transpose.perm == [0, 2, 1, 3] && !values.transpose_b && add.kind == BinaryKind::Add;
        if !plain || lengths != also_lengths {
            return None;
        }
        let [a, b] = pair(r, n)?;
        let (content, (n, shift)) = match (r.inner::<RelShift>(a), r.inner::<RelShift>(b)) {
            (None, Some(shift)) => (a, shift),
            (Some(shift), None) => (b, shift),
            _ => return None,
        };
        let [query, u, key] = scores(r, content)?;
        let [also_query, v_bias, position] = scores(r, input(r, n, 0)?)?;
        let in_heads = |v| heads(r, v, &[0, 2, 1, 3]);
        let (q, sizes) = in_heads(query)?;
        let (k, key_sizes) = in_heads(key)?;
        let (v, value_sizes) = in_heads(value)?;
        let (p, position_sizes) = heads(r, position, &[1, 0, 2])?;
        let same = [&key_sizes, &value_sizes, &position_sizes].iter().all(|s| **s == sizes);
        if !same || in_heads(also_query)?.0 != q || !side_by_side.shape.same_lengths(&r.old_ty(q).shape) {
            return None;
        }
        let sizes = [sizes[0].as_constant()?, sizes[1].as_constant()?];
        // Values past the end have no weight; that they were set to zero changes nothing but NaN.
        let v = match r.made_by::<MaskTime>(v) {
            Some((n, _)) if input(r, n, 1) == Some(lengths) => input(r, n, 0)?,
            _ => v,
        };
        let left = match masked.mask {
            AttentionMask::Banded { left, .. } => Some(left),
            _ => None,
        };
        let expected = 1.0 / (sizes[1] as f32).sqrt();
        if shift.left != left || (scale.factor / expected - 1.0).abs() > 1e-6 {
            return None;
        }
        let biases = [bias(r, u, sizes)?, bias(r, v_bias, sizes)?];
        let op = RelPosAttention { heads: sizes[0], mask: masked.mask, context: 0 };
        let found = Found { op, q, k, v, p, biases, sizes, lengths };
        found.fits(r).then_some(found)
    }

    /// Whether the op takes these types.
    fn fits(&self, r: &Rewriter<'_>) -> bool {
        let biases = self.biases.map(|b| match b {
            Bias::Stored(v) => ValueType::new(r.old_ty(v).dtype, Shape::fixed(&self.sizes)),
            Bias::Computed(v) => r.old_ty(v).clone(),
        });
        let [q, k, v, p] = [self.q, self.k, self.v, self.p].map(|v| r.old_ty(v));
        self.op.infer(&[q, k, v, p, &biases[0], &biases[1], r.old_ty(self.lengths)]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NodeOp;
    use crate::passes::Decompose;
    use crate::passes::testing::count;
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_tensor::{DType, Tensor};
    use std::sync::Arc;

    /// Attention taken apart, with one node changed by `twist`.
    fn apart(twist: impl Fn(&mut NodeOp)) -> Graph {
        let weights = MemoryWeights::new()
            .with("u", Tensor::zeros(DType::F32, &[2, 4]).unwrap())
            .with("v", Tensor::zeros(DType::F32, &[2, 4]).unwrap());
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let frames = ValueType::f32(Shape::fixed(&[1, 5, 8]));
        let mut values: Vec<ValueId> = ["q", "k", "v"].iter().map(|n| g.input(n, frames.clone())).collect();
        values.push(g.input("p", ValueType::f32(Shape::fixed(&[9, 8]))));
        values.push(g.weight("u", &[2, 4]).unwrap());
        values.push(g.weight("v", &[2, 4]).unwrap());
        values.push(g.input("lengths", ValueType::new(DType::I32, Shape::fixed(&[1]))));
        let y =
            g.apply(RelPosAttention { heads: 2, mask: AttentionMask::Full, context: 0 }, &values).unwrap();
        g.output("y", y);
        let mut graph = Decompose::ops(&["rel_pos_attention"]).run(g.finish().unwrap()).unwrap();
        graph.nodes.iter_mut().for_each(|n| twist(&mut n.op));
        graph
    }

    fn swap<T: Op>(op: &mut NodeOp, other: impl Op) {
        if let NodeOp::Op(o) = op
            && o.as_any().is::<T>()
        {
            *op = NodeOp::Op(Arc::new(other));
        }
    }

    #[test]
    fn what_is_not_quite_attention_is_left_alone() {
        let fused = |graph: Graph| count(&FuseAttention.run(graph).unwrap(), "rel_pos_attention");
        assert_eq!(fused(apart(|_| {})), 1);
        assert_eq!(fused(apart(|op| swap::<Scale>(op, Scale { factor: 0.51 }))), 0, "another scale");
        assert_eq!(fused(apart(|op| swap::<RelShift>(op, RelShift { left: Some(3) }))), 0, "another shift");
        let banded = AttentionMask::Banded { left: 3, right: 3 };
        assert_eq!(fused(apart(|op| swap::<MaskScores>(op, MaskScores { mask: banded }))), 0, "another mask");
        let sub = Binary { kind: BinaryKind::Sub };
        assert_eq!(fused(apart(|op| swap::<Binary>(op, sub.clone()))), 0, "another sum");
        // A name on the scores keeps them.
        let mut graph = apart(|_| {});
        let softmax = graph.nodes.iter().find(|n| n.op_name() == "softmax").unwrap().outputs[0];
        graph.names.insert("weights".into(), softmax);
        assert_eq!(fused(graph), 0, "a name");
    }
}
