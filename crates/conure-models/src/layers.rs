//! Layers that every paper uses, with the names their weights have in files.

use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{Activation, LayerNorm, Linear};

/// `x W^T + b` with the weights `NAME.weight` `[out, in]` and, if the model has it, `NAME.bias` `[out]`.
pub(crate) fn linear(
    g: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    sizes: [usize; 2],
) -> Result<ValueId, GraphError> {
    linear_then(g, name, x, sizes, Activation::None, None)
}

/// As [`linear`], with an activation after it and, if given, `residual + scale * result`.
pub(crate) fn linear_then(
    g: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    [output, input]: [usize; 2],
    activation: Activation,
    residual: Option<(ValueId, f32)>,
) -> Result<ValueId, GraphError> {
    g.scoped(name, |g| {
        let mut inputs = vec![x, g.weight("weight", &[output, input])?];
        let bias = g.weight_opt("bias", &[output])?;
        inputs.extend(bias);
        inputs.extend(residual.map(|(r, _)| r));
        g.apply(
            Linear { activation, bias: bias.is_some(), residual: residual.map(|(_, scale)| scale) },
            &inputs,
        )
    })
}

/// Layer norm over the last axis, of width `d`: `NAME.weight`, `NAME.bias`, epsilon 1e-5.
pub(crate) fn layer_norm(
    g: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    d: usize,
) -> Result<ValueId, GraphError> {
    g.scoped(name, |g| {
        let gamma = g.weight("weight", &[d])?;
        let beta = g.weight("bias", &[d])?;
        g.apply(LayerNorm { eps: 1e-5 }, &[x, gamma, beta])
    })
}
