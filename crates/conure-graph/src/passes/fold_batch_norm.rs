//! A batch norm behind a depthwise convolution becomes the convolution's scale and shift.

use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{BatchNorm, DepthwiseConv1d};
use conure_tensor::Tensor;

/// Computes what a batch norm of fixed statistics does to a channel, and lets the convolution before it do that.
///
/// ```text
///   x ── depthwise_conv1d ── batch_norm (gamma, beta, mean, var) ── y
///
///   x ── depthwise_conv1d (scale, shift) ── y        scale = gamma / sqrt(var + eps), shift = beta - mean scale
/// ```
///
/// The kernel's taps stay as they are: folding the scale into them would round each of them again.
#[derive(Clone, Copy, Debug)]
pub struct FoldBatchNorm;

impl Pass for FoldBatchNorm {
    fn name(&self) -> &'static str {
        "fold_batch_norm"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(norm) = r.op::<BatchNorm>(index) else { return Ok(false) };
            let node = r.old_node(index);
            let Some((conv_at, conv)) = r.inner::<DepthwiseConv1d>(node.inputs[0]) else { return Ok(false) };
            let plain =
                DepthwiseConv1d { scale_shift: false, activation: Default::default(), ..conv.clone() };
            let Some([scale, shift]) = folded(r, norm.eps, &node.inputs[1..])? else { return Ok(false) };
            if plain != *conv {
                return Ok(false);
            }
            let mut inputs =
                r.old_node(conv_at).inputs.iter().map(|&v| r.new_of(v)).collect::<Result<Vec<_>, _>>()?;
            inputs.push(r.constant(scale));
            inputs.push(r.constant(shift));
            let y = r.apply(DepthwiseConv1d { scale_shift: true, ..plain }, &inputs, &node.path)?;
            r.replace(node.outputs[0], y)?;
            Ok(true)
        })
    }
}

/// Scale and shift `[C]` of statistics that are stored.
fn folded(r: &Rewriter<'_>, eps: f32, statistics: &[ValueId]) -> Result<Option<[Tensor; 2]>, GraphError> {
    let mut values = Vec::new();
    for &v in statistics {
        match r.stored_values(v)? {
            Some(of) => values.push(of),
            None => return Ok(None),
        }
    }
    let [gamma, beta, mean, var] = values.as_slice() else { return Ok(None) };
    let mut out = [Vec::with_capacity(gamma.len()), Vec::with_capacity(gamma.len())];
    for (((&gamma, &beta), &mean), &var) in gamma.iter().zip(beta).zip(mean).zip(var) {
        let scale = f64::from(gamma) / (f64::from(var) + f64::from(eps)).sqrt();
        out[0].push(scale as f32);
        out[1].push((f64::from(beta) - f64::from(mean) * scale) as f32);
    }
    let tensor = |v: &[f32]| {
        Tensor::from_slice(&[v.len()], v)
            .map_err(|source| GraphError::Tensor { path: "fold_batch_norm".into(), source })
    };
    Ok(Some([tensor(&out[0])?, tensor(&out[1])?]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::{Activation, ValueType};
    use conure_tensor::{Bindings, DType, Shape};
    use std::sync::Arc;

    fn graph(named: bool, computed: bool) -> (Graph, Vec<(&'static str, Tensor)>) {
        let c = 19;
        let positive: Vec<f32> = (0..c).map(|i| 0.3 + i as f32 / 7.0).collect();
        let mut weights = MemoryWeights::new()
            .with("w", noise(1, &[c, 1, 5], DType::F32))
            .with("var", Tensor::from_slice(&[c], &positive).unwrap());
        for (i, name) in ["b", "gamma", "beta", "mean"].into_iter().enumerate() {
            weights = weights.with(name, noise(2 + i as u64, &[c], DType::F32));
        }
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let mut inputs = vec![("x", noise(9, &[2, 23, c], DType::F32))];
        let x = g.input("x", ValueType::f32(Shape::fixed(&[2, 23, c])));
        let (w, b) = (g.weight("w", &[c, 1, 5]).unwrap(), g.weight("b", &[c]).unwrap());
        let conv = DepthwiseConv1d {
            pad_before: 2,
            pad_after: 2,
            bias: true,
            scale_shift: false,
            activation: Activation::None,
        };
        let y = g.apply(conv, &[x, w, b]).unwrap();
        if named {
            g.name(y, "conv");
        }
        let mut stats: Vec<ValueId> =
            ["gamma", "beta", "mean", "var"].iter().map(|n| g.weight(n, &[c]).unwrap()).collect();
        if computed {
            stats[0] = g.input("gamma", ValueType::f32(Shape::fixed(&[c])));
            inputs.push(("gamma", noise(11, &[c], DType::F32)));
        }
        let y = g.apply(BatchNorm { eps: 1e-5 }, &[&[y], stats.as_slice()].concat()).unwrap();
        g.output("y", y);
        (g.finish().unwrap(), inputs)
    }

    #[test]
    fn the_norm_goes_where_nothing_else_needs_the_convolution() {
        for (named, computed, left) in [(false, false, 0), (true, false, 1), (false, true, 1)] {
            let (graph, inputs) = graph(named, computed);
            let folded = FoldBatchNorm.run(graph.clone()).unwrap();
            assert_eq!(count(&folded, "batch_norm"), left);
            check("folded", &graph, &folded, &Bindings::new(), &inputs, 1e-12);
        }
    }
}
