//! A linear layer ends in the gated linear unit that follows it.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::Graph;
use conure_ops::{Activation, Glu, Linear};

/// Gates in the last step of the product, so that its output, twice as wide, is never stored.
///
/// ```text
///   x ── linear [D → 2 D'] ── glu ── y
///
///   x ── linear (glu) ── y
/// ```
///
/// Transcribing with a 110M model takes 1.03 of the processor time without it, as much as the noise (`docs/passes.md`).
#[derive(Clone, Copy, Debug)]
pub struct FuseGlu;

impl Pass for FuseGlu {
    fn name(&self) -> &'static str {
        "fuse_glu"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            if r.op::<Glu>(index).is_none() {
                return Ok(false);
            }
            let node = r.old_node(index);
            let Some((at, linear)) = r.inner::<Linear>(node.inputs[0]) else { return Ok(false) };
            if linear.activation != Activation::None || linear.residual.is_some() {
                return Ok(false);
            }
            let op = Linear { activation: Activation::Glu, ..linear.clone() };
            let y = r.apply_like(at, op)?;
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
    use conure_tensor::{Bindings, DType, Shape};
    use std::sync::Arc;

    #[test]
    fn a_layer_that_is_done_otherwise_is_left_alone() {
        for (activation, residual, named, left) in [
            (Activation::None, None, false, 0),
            (Activation::Relu, None, false, 1),
            (Activation::None, Some(1.0), false, 1),
            (Activation::None, None, true, 1),
        ] {
            let weights = MemoryWeights::new()
                .with("w", noise(1, &[34, 12], DType::F16))
                .with("b", noise(2, &[34], DType::F32));
            let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
            let x = g.input("x", ValueType::f32(Shape::fixed(&[7, 12])));
            let r = g.input("r", ValueType::f32(Shape::fixed(&[7, 34])));
            let inputs = [("x", noise(3, &[7, 12], DType::F32)), ("r", noise(4, &[7, 34], DType::F32))];
            let (w, b) = (g.weight("w", &[34, 12]).unwrap(), g.weight("b", &[34]).unwrap());
            let operands = if residual.is_some() { vec![x, w, b, r] } else { vec![x, w, b] };
            let wide = g.apply(Linear { activation, bias: true, residual }, &operands).unwrap();
            if named {
                g.name(wide, "wide");
            }
            let y = g.apply(Glu, &[wide]).unwrap();
            g.output("y", y);
            let graph = g.finish().unwrap();
            let fused = FuseGlu.run(graph.clone()).unwrap();
            assert_eq!(count(&fused, "glu"), left);
            check("glu", &graph, &fused, &Bindings::new(), &inputs, 1e-12);
        }
    }
}
