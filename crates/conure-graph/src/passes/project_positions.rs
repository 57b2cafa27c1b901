//! Relative positions and their projection become one op, which a device may keep the rows of.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::Graph;
use conure_ops::{Activation, Linear, RelPosEncoding, RelPosProjection};

/// Joins the encoding of relative positions and each linear layer that projects it: what comes out depends on the length
/// only, and row by row not even on that.
///
/// ```text
///   x ── rel_pos_encoding ─┬─ linear (w₁) ── p₁
///                          └─ linear (w₂) ── p₂
///
///   x ─┬─ rel_pos_projection (w₁) ── p₁
///      └─ rel_pos_projection (w₂) ── p₂
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ProjectPositions;

impl Pass for ProjectPositions {
    fn name(&self) -> &'static str {
        "project_positions"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(linear) = r.op::<Linear>(index) else { return Ok(false) };
            let plain = Linear { activation: Activation::None, bias: false, residual: None };
            let node = r.old_node(index);
            let (encoded, weight) = (node.inputs[0], node.inputs[1]);
            let Some((at, encoding)) = r.made_by::<RelPosEncoding>(encoded) else { return Ok(false) };
            if *linear != plain || !r.is_static(weight) || r.old_ty(weight).shape.rank() != 2 {
                return Ok(false);
            }
            let x = r.new_of(r.old_node(at).inputs[0])?;
            let weight = r.new_of(weight)?;
            let op = RelPosProjection { encoding: encoding.clone() };
            let y = r.apply(op, &[x, weight], &node.path)?;
            r.replace(node.outputs[0], y)?;
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::ValueType;
    use conure_tensor::{Axis, Bindings, DType, Dim, Shape, Symbol};
    use std::sync::Arc;

    #[test]
    fn layers_that_do_more_are_left_alone() {
        const T: Symbol = Symbol::new("T");
        for (activation, bias, named, left) in [
            (Activation::None, false, false, 0),
            (Activation::None, false, true, 1),
            (Activation::Relu, false, false, 1),
            (Activation::None, true, false, 1),
        ] {
            let mut weights = MemoryWeights::new();
            for (name, shape) in [("w1", vec![12, 8]), ("w2", vec![8, 8]), ("b", vec![8])] {
                weights = weights.with(name, noise(1, &shape, DType::F32));
            }
            let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
            let ty = Shape::new([(Axis::B, Dim::from(1)), (Axis::T, Dim::from(T)), (Axis::D, Dim::from(8))]);
            let x = g.input("x", ValueType::f32(ty));
            let p = g.apply(RelPosEncoding { d_model: 8, window: None, context: 3 }, &[x]).unwrap();
            if named {
                g.name(p, "encoded");
            }
            let (w1, w2, b) = (g.weight("w1", &[12, 8]), g.weight("w2", &[8, 8]), g.weight("b", &[8]));
            let plain = Linear { activation: Activation::None, bias: false, residual: None };
            let first = g.apply(plain.clone(), &[p, w1.unwrap()]).unwrap();
            let inputs = if bias { vec![p, w2.unwrap(), b.unwrap()] } else { vec![p, w2.unwrap()] };
            let second = g.apply(Linear { activation, bias, ..plain }, &inputs).unwrap();
            g.output("first", first);
            g.output("second", second);
            let graph = g.finish().unwrap();
            let joined = ProjectPositions.run(graph.clone()).unwrap();
            assert_eq!(count(&joined, "rel_pos_encoding"), left, "{activation:?} {bias} {named}");
            assert!(count(&joined, "rel_pos_projection") > 0);
            let inputs = [("x", noise(3, &[1, 5, 8], DType::F32))];
            check("positions", &graph, &joined, &Bindings::new().with(T, 5), &inputs, 1e-11);
        }
    }
}
