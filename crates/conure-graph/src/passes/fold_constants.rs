//! What depends on nothing but weights and constants is computed once.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, NodeOp};
use conure_ops::{Op, Reshape};
use conure_tensor::{Bindings, Tensor, TensorMut, TensorView, tensor_bytes};

/// Bytes of what an op reads and of what it makes, up to which it is folded: weights of that size cost nothing to keep twice,
/// larger ones would.
const LIMIT: usize = 1 << 20;

/// Computes nodes of fixed inputs with the references of their ops.
///
/// ```text
///   weight ── cast ── transpose ──┐
///                            x ── matmul ── y        constant ──┐
///                                               x ── matmul ── y
/// ```
///
/// A reshaped weight becomes the same weight under another shape, of any size. A node that reads or makes more than a mebibyte
/// is left alone, and so is one whose result has a name or is an output.
#[derive(Clone, Copy, Debug)]
pub struct FoldConstants;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "fold_constants"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let node = r.old_node(index);
            let NodeOp::Op(op) = &node.op else { return Ok(false) };
            if node.inputs.is_empty() || node.outputs.iter().any(|&v| r.seen_outside(v)) {
                return Ok(false);
            }
            for &v in &node.inputs {
                if !r.is_new_static(r.new_of(v)?) {
                    return Ok(false);
                }
            }
            if let (Some(reshape), &[input]) = (r.op::<Reshape>(index), node.inputs.as_slice()) {
                let Ok(shape) = reshape.shape.eval(&Bindings::new()) else { return Ok(false) };
                let new = r.reshaped(r.new_of(input)?, &shape)?;
                r.replace(node.outputs[0], new)?;
                return Ok(true);
            }
            let Some(results) = computed(r, index, op.as_ref())? else { return Ok(false) };
            for (&out, tensor) in node.outputs.iter().zip(results) {
                let new = r.constant(tensor);
                r.replace(out, new)?;
            }
            Ok(true)
        })
    }
}

/// The outputs of a node of fixed inputs; `None` if they or the inputs are too large.
fn computed(r: &Rewriter<'_>, index: usize, op: &dyn Op) -> Result<Option<Vec<Tensor>>, GraphError> {
    let node = r.old_node(index);
    let fail = |source| GraphError::Tensor { path: node.path.clone(), source };
    let mut outputs = Vec::new();
    for &v in &node.outputs {
        let ty = r.old_ty(v);
        let Ok(dims) = ty.shape.eval(&Bindings::new()) else { return Ok(None) };
        if tensor_bytes(ty.dtype, &dims).is_none_or(|n| n > LIMIT) {
            return Ok(None);
        }
        outputs.push(Tensor::zeros(ty.dtype, &dims).map_err(fail)?);
    }
    let mut inputs: Vec<TensorView<'_>> = Vec::new();
    for &v in &node.inputs {
        match r.new_stored(r.new_of(v)?)? {
            Some(view) if view.bytes().len() <= LIMIT => inputs.push(view),
            _ => return Ok(None),
        }
    }
    let mut views: Vec<TensorMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
    op.reference(&inputs, &mut views).map_err(|source| GraphError::Op { path: node.path.clone(), source })?;
    Ok(Some(outputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::{Cast, MatMul, Transpose, ValueType};
    use conure_tensor::{DType, Shape};
    use std::sync::Arc;

    fn graph(k: usize, named: bool) -> (Graph, Vec<(&'static str, Tensor)>) {
        let weights = MemoryWeights::new().with("w", noise(1, &[3, 2, k], DType::F16));
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let x = g.input("x", ValueType::f32(Shape::fixed(&[4, 6])));
        let w = g.weight("w", &[3, 2, k]).unwrap();
        let w = g.apply(Reshape { shape: Shape::fixed(&[6, k]) }, &[w]).unwrap();
        let w = g.apply(Cast, &[w]).unwrap();
        if named {
            g.name(w, "cast");
        }
        let w = g.apply(Transpose { perm: vec![1, 0] }, &[w]).unwrap();
        let y = g.apply(MatMul { transpose_b: true }, &[x, w]).unwrap();
        g.output("y", y);
        (g.finish().unwrap(), vec![("x", noise(2, &[4, 6], DType::F32))])
    }

    #[test]
    fn small_fixed_parts_are_computed_and_large_or_named_ones_left() {
        for (k, named, left) in [(5, false, 1), (5, true, 3), (LIMIT / 24 + 1, false, 3)] {
            let (graph, inputs) = graph(k, named);
            let folded = FoldConstants.run(graph.clone()).unwrap();
            assert_eq!(folded.nodes().len(), left, "k {k} named {named}");
            assert_eq!(count(&folded, "reshape"), 0);
            check("folded", &graph, &folded, &Bindings::new(), &inputs, 1e-12);
        }
    }
}
