//! A linear layer or a convolution takes in the bias and the function that follow it.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{Activation, Binary, BinaryKind, Conv2d, DepthwiseConv1d, Linear, Unary};
use conure_tensor::Dim;

/// Adds a stored bias, and applies a function of each element, where the sums are finished anyway.
///
/// ```text
///   x ── linear | conv2d | depthwise_conv1d ── + bias [N] ── relu | silu | sigmoid | tanh ── y
///
///   x ── linear | conv2d | depthwise_conv1d (bias, function) ── y
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FuseBiasActivation;

impl Pass for FuseBiasActivation {
    fn name(&self) -> &'static str {
        "fuse_bias_activation"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(end) = End::of(r, index) else { return Ok(false) };
            let out = r.old_node(index).outputs[0];
            let Some(y) = end.build(r)? else { return Ok(false) };
            r.replace(out, y)?;
            Ok(true)
        })
    }
}

/// What follows a product.
struct End {
    bias: Option<ValueId>,
    activation: Activation,
    /// The node before.
    at: usize,
}

impl End {
    fn of(r: &Rewriter<'_>, index: usize) -> Option<End> {
        let mut end = End { bias: None, activation: Activation::None, at: index };
        let mut input = None;
        if let Some(unary) = r.op::<Unary>(end.at) {
            end.activation = unary.kind.activation()?;
            let v = *r.old_node(end.at).inputs.first()?;
            input = Some(v);
            if let Some((n, _)) = r.inner::<Binary>(v) {
                end.at = n;
            }
        }
        if let (Some(Binary { kind: BinaryKind::Add }), &[a, b]) =
            (r.op::<Binary>(end.at), r.old_node(end.at).inputs.as_slice())
        {
            let shape = &r.old_ty(b).shape;
            if r.is_static(b)
                && Some(&shape.elements()) == shape.last()
                && shape.last() != Some(&Dim::from(1))
            {
                end.bias = Some(b);
                input = Some(a);
            }
        }
        let v = input?;
        end.at = r.producer(v).filter(|_| r.only_use(v))?;
        Some(end)
    }

    fn build(&self, r: &mut Rewriter<'_>) -> Result<Option<ValueId>, GraphError> {
        let at = self.at;
        let End { activation, .. } = *self;
        let bias = |has: bool| has || self.bias.is_some();
        // Where the bias goes, whether there is one already, and whether anything was done to the sums yet.
        let place = if let Some(op) = r.op::<Linear>(at) {
            let plain = op.activation == Activation::None && op.residual.is_none();
            (op.bias, plain)
        } else if let Some(op) = r.op::<Conv2d>(at) {
            (op.bias, op.activation == Activation::None)
        } else if let Some(op) = r.op::<DepthwiseConv1d>(at) {
            let scaled = op.scale_shift && self.bias.is_some();
            (op.bias, op.activation == Activation::None && !scaled)
        } else {
            return Ok(None);
        };
        let (has_bias, plain) = place;
        if !plain || (has_bias && self.bias.is_some()) {
            return Ok(None);
        }
        let node = r.old_node(at);
        let mut inputs = node.inputs.iter().map(|&v| r.new_of(v)).collect::<Result<Vec<_>, _>>()?;
        if let Some(b) = self.bias {
            let channels = r.old_ty(node.outputs[0]).shape.last().and_then(Dim::as_constant);
            let (Some(channels), Some(elements)) = (channels, r.old_ty(b).shape.elements().as_constant())
            else {
                return Ok(None);
            };
            if channels != elements {
                return Ok(None);
            }
            let b = r.reshaped_weight(b, &[channels])?;
            inputs.insert(2, b);
        }
        let path = &node.path;
        if let Some(op) = r.op::<Linear>(at) {
            let op = Linear { activation, bias: bias(op.bias), ..op.clone() };
            return r.apply(op, &inputs, path).map(Some);
        }
        if let Some(op) = r.op::<Conv2d>(at) {
            let op = Conv2d { activation, bias: bias(op.bias), ..op.clone() };
            return r.apply(op, &inputs, path).map(Some);
        }
        let Some(op) = r.op::<DepthwiseConv1d>(at) else { return Ok(None) };
        let op = DepthwiseConv1d { activation, bias: bias(op.bias), ..op.clone() };
        r.apply(op, &inputs, path).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::{UnaryKind, ValueType};
    use conure_tensor::{Bindings, DType, Shape};
    use std::sync::Arc;

    /// One of three ops, with or without what may follow; the kinds of nodes left.
    fn graph(op: usize, bias: Option<&[usize]>, kind: Option<UnaryKind>, named: bool) -> Graph {
        let c = 10;
        let weights = MemoryWeights::new()
            .with("linear", noise(1, &[c, c], DType::F32))
            .with("conv", noise(2, &[c, c, 3, 1], DType::F32))
            .with("depthwise", noise(3, &[c, 1, 3], DType::F32))
            .with("bias", noise(4, &[c], DType::F32));
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let dims: &[usize] = if op == 1 { &[1, c, 1, c] } else { &[1, c, c] };
        let x = g.input("x", ValueType::f32(Shape::fixed(dims)));
        let activation = Activation::None;
        let mut y = match op {
            0 => {
                let w = g.weight("linear", &[c, c]).unwrap();
                g.apply(Linear { activation, bias: false, residual: None }, &[x, w]).unwrap()
            }
            1 => {
                let w = g.weight("conv", &[c, c, 3, 1]).unwrap();
                let conv = Conv2d {
                    stride: [1, 1],
                    pad: [1, 1, 0, 0],
                    dilation: [1, 1],
                    groups: 1,
                    activation,
                    bias: false,
                };
                g.apply(conv, &[x, w]).unwrap()
            }
            _ => {
                let w = g.weight("depthwise", &[c, 1, 3]).unwrap();
                let conv = DepthwiseConv1d {
                    pad_before: 1,
                    pad_after: 1,
                    bias: false,
                    scale_shift: false,
                    activation,
                };
                g.apply(conv, &[x, w]).unwrap()
            }
        };
        if named {
            g.name(y, "sums");
        }
        if let Some(shape) = bias {
            let b = g.weight("bias", shape).unwrap();
            y = g.apply(Binary { kind: BinaryKind::Add }, &[y, b]).unwrap();
        }
        if let Some(kind) = kind {
            y = g.apply(Unary { kind }, &[y]).unwrap();
        }
        g.output("y", y);
        g.finish().unwrap()
    }

    #[test]
    fn what_follows_a_product_is_taken_in() {
        let c = 10;
        let row: &[usize] = &[c];
        // (bias, function, named) and the nodes that are left.
        let cases = [
            (Some(row), Some(UnaryKind::Silu), false, 1),
            (Some(&[1, 1, 10]), Some(UnaryKind::Relu), false, 1),
            (Some(row), None, false, 1),
            (None, Some(UnaryKind::Tanh), false, 1),
            (None, None, false, 1),
            (Some(row), Some(UnaryKind::Exp), false, 2),
            (Some(row), Some(UnaryKind::Silu), true, 3),
            // As many numbers, along another axis.
            (Some(&[10, 1]), Some(UnaryKind::Silu), false, 3),
        ];
        for op in 0..3 {
            for (bias, kind, named, left) in cases {
                if op == 1 && bias == Some(&[10, 1]) {
                    continue; // a convolution's bins are 1: not added along anything else
                }
                let graph = graph(op, bias, kind, named);
                let fused = FuseBiasActivation.run(graph.clone()).unwrap();
                let what = format!("{op} {bias:?} {kind:?} {named}");
                assert_eq!(fused.nodes().len(), left, "{what}");
                assert_eq!(count(&fused, "binary") + count(&fused, "unary"), left - 1, "{what}");
                let dims: &[usize] = if op == 1 { &[1, c, 1, c] } else { &[1, c, c] };
                let inputs = [("x", noise(7, dims, DType::F32))];
                check(&what, &graph, &fused, &Bindings::new(), &inputs, 1e-12);
            }
        }
    }
}
