//! What the blocks of all families are made of. B batch, T new tokens, D model, H query heads, G key heads, K head width, J
//! value width, C rows of the cache; E experts, U those that a token uses, F inner width of one.

use super::CacheSpec;
use super::config::{DecoderConfig, Experts, Factors, RotaryConfig};
use crate::layers::{linear, linear_then};
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{
    Activation, Binary, BinaryKind, ExpertLinear, Gate, Gated, MatMul, Reshape, RmsNorm, Rope, RotaryAngles,
    Route, Routing, Sdpa, SdpaKeys, Slice, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, DType, Dim, Shape, Symbol};

/// Sequences of a run.
pub(super) const B: Symbol = Symbol::new("B");
/// New tokens of each.
pub(super) const T: Symbol = Symbol::new("T");
/// Rows of logits that are wanted.
pub(super) const R: Symbol = Symbol::new("R");

/// What every block reads besides its input.
pub(super) struct Inputs {
    /// `[B]` i32: the row of the cache of each sequence's first new token.
    pub(super) at: ValueId,
    /// `[B, T, R]`: angles of the layers that see everything.
    pub(super) angles: ValueId,
    /// `[B, T, R]`: angles of the layers that see a window.
    pub(super) local_angles: ValueId,
}

/// The block that is being built.
pub(super) struct Block<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) cache: &'a CacheSpec,
    pub(super) inputs: &'a Inputs,
    /// Its number.
    pub(super) index: usize,
}

/// What a family's attention has besides projections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttentionParts {
    /// RMS norms of each head's query and key: `attn_q_norm`, `attn_k_norm`.
    pub(super) head_norms: bool,
    /// One more logit per head that every token sees: `attn_sinks`.
    pub(super) sinks: bool,
    /// Behind each head's query in `attn_q`, a gate of what it finds.
    pub(super) gated: bool,
}

/// RMS norm with the weight `NAME.weight` `[D]`, and `residual` added to it if given.
pub(super) fn rms_norm(
    g: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    (d, eps): (usize, f32),
    residual: Option<ValueId>,
) -> Result<ValueId, GraphError> {
    let mut inputs = vec![x, g.weight(&format!("{name}.weight"), &[d])?];
    inputs.extend(residual);
    g.apply(RmsNorm { eps, residual: residual.is_some() }, &inputs)
}

/// The angles of `rope` at `positions`, for caches of `context` rows.
pub(super) fn angles(
    g: &mut GraphBuilder,
    rope: &RotaryConfig,
    positions: ValueId,
    context: usize,
) -> Result<ValueId, GraphError> {
    let name = match rope.factors {
        Factors::None => None,
        Factors::Always(name) => Some(name),
        Factors::ByContext(original) if context > original => Some("rope_factors_long.weight"),
        Factors::ByContext(_) => Some("rope_factors_short.weight"),
    };
    let factors = name.map(|name| g.weight_opt(name, &[rope.turned / 2])).transpose()?.flatten();
    let op = RotaryAngles {
        turned: rope.turned,
        base: rope.base,
        scaling: rope.scaling,
        magnitude: rope.magnitude,
        factors: factors.is_some(),
        sections: rope.sections,
    };
    let inputs: Vec<ValueId> = [positions].into_iter().chain(factors).collect();
    g.apply(op, &inputs) // [B, T, R]
}

/// `[B, T, heads * width]` as `[B, T, heads, width]`.
fn split_heads(g: &mut GraphBuilder, x: ValueId, heads: usize, width: usize) -> Result<ValueId, GraphError> {
    let axes = [
        (Axis::B, Dim::from(B)),
        (Axis::T, Dim::from(T)),
        (Axis::H, Dim::from(heads)),
        (Axis::K, Dim::from(width)),
    ];
    g.apply(Reshape { shape: Shape::new(axes) }, &[x])
}

impl Block<'_> {
    /// Norm of rows of width D.
    pub(super) fn norm(&self, g: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        rms_norm(g, name, x, (self.config.d_model, self.config.eps), None)
    }

    /// `residual` + the norm of `x`.
    pub(super) fn norm_onto(
        &self,
        g: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        residual: ValueId,
    ) -> Result<ValueId, GraphError> {
        rms_norm(g, name, x, (self.config.d_model, self.config.eps), Some(residual))
    }

    /// Queries, keys and values, from projections of their own or from one: `attn_q`, `attn_k`, `attn_v` or `attn_qkv`.
    fn project(&self, g: &mut GraphBuilder, x: ValueId, gated: bool) -> Result<[ValueId; 3], GraphError> {
        let c = self.config;
        let of_query = c.head_dim * (1 + usize::from(gated));
        let widths = [c.heads * of_query, c.key_heads * c.head_dim, c.key_heads * c.value_dim];
        let names = ["attn_q", "attn_k", "attn_v"];
        if !g.has_weight("attn_qkv.weight") {
            let [q, k, v] = [0, 1, 2].map(|i| linear(g, names[i], x, [widths[i], c.d_model]));
            return Ok([q?, k?, v?]);
        }
        let all = linear(g, "attn_qkv", x, [widths.iter().sum(), c.d_model])?; // [B, T, q + k + v]
        let mut start = 0;
        let mut parts = [all; 3];
        for (part, width) in parts.iter_mut().zip(widths) {
            *part = g.apply(Slice { axis: 2, start, end: Dim::from(start + width) }, &[all])?;
            start += width;
        }
        Ok(parts)
    }

    /// Attention over everything so far, keys and values kept in the states `k` and `v`: `[B, T, H * J]`.
    pub(super) fn attention(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        parts: AttentionParts,
    ) -> Result<ValueId, GraphError> {
        let c = self.config;
        let [q, k, v] = self.project(g, x, parts.gated)?;
        let (mut q, gate) = if parts.gated {
            let both = split_heads(g, q, c.heads, 2 * c.head_dim)?; // [B, T, H, K + J]
            let half = |start: usize| Slice { axis: 3, start, end: Dim::from(start + c.head_dim) };
            (g.apply(half(0), &[both])?, Some(g.apply(half(c.head_dim), &[both])?))
        } else {
            (split_heads(g, q, c.heads, c.head_dim)?, None) // [B, T, H, K]
        };
        let mut k = split_heads(g, k, c.key_heads, c.head_dim)?; // [B, T, G, K]
        let v = split_heads(g, v, c.key_heads, c.value_dim)?; // [B, T, G, J]
        if parts.head_norms {
            q = rms_norm(g, "attn_q_norm", q, (c.head_dim, c.eps), None)?;
            k = rms_norm(g, "attn_k_norm", k, (c.head_dim, c.eps), None)?;
        }
        let local = c.is_local(self.index);
        let angles = if local { self.inputs.local_angles } else { self.inputs.angles };
        let rope = Rope { pairs: c.rope_of(self.index).pairs };
        q = g.apply(rope.clone(), &[q, angles])?;
        k = g.apply(rope, &[k, angles])?;
        let keys = self.remember(g, "k", k, c.head_dim)?; // [items, C, G, K]
        let values = self.remember(g, "v", v, c.value_dim)?; // [items, C, G, J]
        let window = c.local.as_ref().filter(|_| local).map(|l| l.window);
        let (scale, cap, sinks) = (c.attention_scale, c.attention_cap, parts.sinks);
        let op = Sdpa { scale, keys: SdpaKeys::Cached, window, cap, sinks };
        let mut inputs = vec![q, keys, values, self.inputs.at];
        if parts.sinks {
            inputs.push(g.weight("attn_sinks.weight", &[c.heads])?);
        }
        let mut out = g.apply(op, &inputs)?; // [B, T, H, J]
        if let Some(gate) = gate {
            let open = g.apply(Unary { kind: UnaryKind::Sigmoid }, &[gate])?;
            out = g.apply(Binary { kind: BinaryKind::Mul }, &[out, open])?;
        }
        let axes =
            [(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T)), (Axis::D, Dim::from(c.heads * c.value_dim))];
        g.apply(Reshape { shape: Shape::new(axes) }, &[out])
    }

    /// Appends rows to a cache of this block.
    fn remember(
        &self,
        g: &mut GraphBuilder,
        name: &str,
        rows: ValueId,
        width: usize,
    ) -> Result<ValueId, GraphError> {
        let lengths = [self.cache.items, self.cache.capacity, self.config.key_heads, width];
        let axes = [Axis::B, Axis::T, Axis::H, Axis::K].into_iter().zip(lengths);
        let state = g.state(name, ValueType::new(self.cache.dtype, Shape::new(axes)));
        g.append(state, rows, self.inputs.at)
    }

    /// `attn_output` of what attention gave, onto `residual` if given.
    pub(super) fn attention_output(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let c = self.config;
        let sizes = [c.d_model, c.heads * c.value_dim];
        linear_then(g, "attn_output", x, sizes, Activation::None, residual.map(|r| (r, 1.0)))
    }

    /// As [`Block::feed_forward_by`], experts chosen by the softmax over all.
    pub(super) fn feed_forward(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        kind: Gate,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        self.feed_forward_by(g, x, kind, Routing::SoftmaxOfAll, residual)
    }

    /// The feed-forward network, or in a mixture the sum of the experts that each token is given to.
    pub(super) fn feed_forward_by(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        kind: Gate,
        routing: Routing,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        match self.config.experts {
            None => self.dense(g, x, kind, residual),
            Some(experts) => {
                let y = self.mixture(g, x, kind, routing, experts)?; // [B, T, D]
                let add = |residual| g.apply(Binary { kind: BinaryKind::Add }, &[residual, y]);
                residual.map_or(Ok(y), add)
            }
        }
    }

    /// The weighted sum of the chosen experts' `ffn_down_exps(kind(ffn_gate_exps x, ffn_up_exps x))`; `ffn_gate_inp` gives
    /// the logits of the choice.
    fn mixture(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        kind: Gate,
        routing: Routing,
        Experts { count, used, feed_forward: inner }: Experts,
    ) -> Result<ValueId, GraphError> {
        let d = self.config.d_model;
        let logits = linear(g, "ffn_gate_inp", x, [count, d])?; // [B, T, E]
        let chosen = g.apply_all(Route { routing, used }, &[logits])?;
        let [ids, weights] = *chosen.as_slice() else {
            return Err(GraphError::Build { what: format!("route gave {} outputs, not 2", chosen.len()) });
        };
        let gate = expert_linear(g, "ffn_gate_exps", x, ids, [count, inner, d])?; // [B, T, U, F]
        let up = expert_linear(g, "ffn_up_exps", x, ids, [count, inner, d])?;
        let hidden = g.apply(Gated { kind }, &[gate, up])?;
        let each = expert_linear(g, "ffn_down_exps", hidden, ids, [count, d, inner])?; // [B, T, U, D]
        let tokens = || [(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T))].into_iter();
        let row = Shape::new(tokens().chain([(Axis::ANY, Dim::from(1)), (Axis::U, Dim::from(used))]));
        let weights = g.apply(Reshape { shape: row }, &[weights])?; // [B, T, 1, U]
        let sum = g.apply(MatMul { transpose_b: false }, &[weights, each])?; // [B, T, 1, D]
        g.apply(Reshape { shape: Shape::new(tokens().chain([(Axis::D, Dim::from(d))])) }, &[sum])
    }

    /// `ffn_down(kind(ffn_gate x, ffn_up x))`, onto `residual` if given. Where there is no `ffn_gate`, `ffn_up` holds both,
    /// the gate first.
    fn dense(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        kind: Gate,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let (d, inner) = (self.config.d_model, self.config.feed_forward);
        let (gate, up) = if g.has_weight("ffn_gate.weight") {
            (linear(g, "ffn_gate", x, [inner, d])?, linear(g, "ffn_up", x, [inner, d])?)
        } else {
            let both = linear(g, "ffn_up", x, [2 * inner, d])?; // [B, T, 2 F]
            let half = |start: usize| Slice { axis: 2, start, end: Dim::from(start + inner) };
            (g.apply(half(0), &[both])?, g.apply(half(inner), &[both])?)
        };
        let hidden = g.apply(Gated { kind }, &[gate, up])?; // [B, T, F]
        linear_then(g, "ffn_down", hidden, [d, inner], Activation::None, residual.map(|r| (r, 1.0)))
    }
}

/// `W[id] x + b[id]` of the experts `ids`, with the weights `NAME.weight` `[E, N, K]` and, if the model has it, `NAME.bias`
/// `[E, N]`.
fn expert_linear(
    g: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    ids: ValueId,
    [experts, output, input]: [usize; 3],
) -> Result<ValueId, GraphError> {
    g.scoped(name, |g| {
        let mut inputs = vec![x, g.weight("weight", &[experts, output, input])?, ids];
        let bias = g.weight_opt("bias", &[experts, output])?;
        inputs.extend(bias);
        g.apply(ExpertLinear { experts, bias: bias.is_some() }, &inputs)
    })
}

/// i32 of one axis.
pub(super) fn ids(axis: Axis, symbol: Symbol) -> ValueType {
    ValueType::new(DType::I32, Shape::new([(axis, Dim::from(symbol))]))
}
