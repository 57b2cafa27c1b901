//! Qwen 3.5: three of four layers keep a state of fixed size by the gated delta rule, the fourth attends, and gates what it finds.
//!
//! Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024), in the form that Qwen3-Next brought
//! ("Qwen3-Next", Qwen Team, 2025). As in Qwen 3 VL, a text's token turns by one position.

use super::Family;
use super::blocks::{AttentionParts, Block, rms_norm};
use super::config::{DecoderConfig, Recurrent};
use super::llama::no_experts;
use super::qwen3vl::sections;
use crate::error::ModelError;
use crate::keys::Keys;
use crate::layers::{linear, linear_then};
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{Activation, CausalConv1d, Gate, Gated, GatedDelta, Reshape, ValueType};
use conure_tensor::{Axis, Shape};

pub(super) const FAMILY: Family = Family { architecture: "qwen35", configure, block };

/// Added to the sums of squares of queries and keys, whatever epsilon the norms have: files do not carry it.
const KEY_EPS: f32 = 1e-6;

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    sections(keys, c)?;
    no_experts(keys, c)?;
    let (value, width) = (c.value_dim, c.head_dim);
    keys.check(
        &c.key("attention.value_length"),
        value,
        &format!("key_length, {width}: gates are as wide"),
        value == width,
    )?;
    let key_heads = keys.size(&c.key("ssm.group_count"), 1..=65_536)?;
    let heads = keys.size(&c.key("ssm.time_step_rank"), 1..=65_536)?;
    let divides = heads.is_multiple_of(key_heads);
    keys.check(
        &c.key("ssm.group_count"),
        key_heads,
        &format!("a divisor of time_step_rank, {heads}"),
        divides,
    )?;
    let inner = keys.size(&c.key("ssm.inner_size"), 1..=1 << 24)?;
    let divides = inner.is_multiple_of(heads);
    keys.check(&c.key("ssm.inner_size"), inner, &format!("a multiple of time_step_rank, {heads}"), divides)?;
    c.recurrent = Some(Recurrent {
        layers: recurrent_layers(keys, c)?,
        taps: keys.size(&c.key("ssm.conv_kernel"), 1..=1024)?,
        key_heads,
        key_dim: keys.size(&c.key("ssm.state_size"), 1..=4096)?,
        heads,
        value_dim: inner / heads,
    });
    Ok(())
}

/// Which layers are recurrent: those that the file lists, or all but the last of every so many.
fn recurrent_layers(keys: &Keys<'_>, c: &DecoderConfig) -> Result<Vec<bool>, ModelError> {
    let key = c.key("attention.recurrent_layers");
    if keys.meta.get(&key).is_some() {
        let layers = keys.meta.bool_array(&key)?;
        let expected = format!("one for each of {} layers", c.layers);
        keys.check(&key, layers.len(), &expected, layers.len() >= c.layers)?;
        return Ok(layers);
    }
    let interval = keys.size_or(&c.key("full_attention_interval"), 4, 1..=4096)?;
    Ok((0..c.layers).map(|i| !(i + 1).is_multiple_of(interval)).collect())
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    let h = b.norm(g, "attn_norm", x)?;
    let x = match &b.config.recurrent {
        Some(sizes) if b.config.is_recurrent(b.index) => delta_net(b, g, h, x, sizes)?,
        _ => {
            let h = b.attention(g, h, AttentionParts { head_norms: true, gated: true, sinks: false })?;
            b.attention_output(g, h, Some(x))?
        }
    };
    let h = b.norm(g, "post_attention_norm", x)?;
    b.feed_forward(g, h, Gate::Silu, Some(x))
}

/// Projections, a short convolution, the gated delta rule, a norm of each head behind a gate, onto `residual`.
fn delta_net(
    b: &Block<'_>,
    g: &mut GraphBuilder,
    x: ValueId,
    residual: ValueId,
    r: &Recurrent,
) -> Result<ValueId, GraphError> {
    let (d, heads, inner) = (b.config.d_model, r.heads, r.heads * r.value_dim);
    let qkv = linear(g, "attn_qkv", x, [r.width(), d])?; // [B, T, 2 G K + H J]
    let gate = linear(g, "attn_gate", x, [inner, d])?; // [B, T, H J]
    let alpha = linear(g, "ssm_alpha", x, [heads, d])?; // [B, T, H]
    let beta = linear(g, "ssm_beta", x, [heads, d])?;

    let items = b.cache.items;
    let before = [(Axis::B, items), (Axis::T, r.taps - 1), (Axis::C, r.width())];
    let state = g.state("conv", ValueType::f32(Shape::new(before)));
    let (w, last) = (g.weight("ssm_conv1d.weight", &[r.width(), 1, r.taps])?, g.read_state(state)?);
    let [qkv, next] = two(g.apply_all(CausalConv1d, &[qkv, w, last, b.inputs.at])?.as_slice())?;
    g.assign(state, next)?;

    let kept = [(Axis::B, items), (Axis::H, heads), (Axis::K, r.key_dim), (Axis("J"), r.value_dim)];
    let state = g.state("delta", ValueType::f32(Shape::new(kept)));
    let (decay, bias) = (g.weight("ssm_a", &[heads])?, g.weight("ssm_dt.bias", &[heads])?);
    let (op, last) = (GatedDelta { key_heads: r.key_heads, eps: KEY_EPS }, g.read_state(state)?);
    let [y, next] = two(g.apply_all(op, &[qkv, alpha, beta, decay, bias, last, b.inputs.at])?.as_slice())?;
    g.assign(state, next)?;

    let y = rms_norm(g, "ssm_norm", y, (r.value_dim, b.config.eps), None)?; // [B, T, H, J]
    let shape = g.ty(gate)?.shape.clone();
    let y = g.apply(Reshape { shape }, &[y])?; // [B, T, H J]
    let y = g.apply(Gated { kind: Gate::Silu }, &[gate, y])?;
    linear_then(g, "ssm_out", y, [d, inner], Activation::None, Some((residual, 1.0)))
}

/// The two outputs of an op that keeps a state.
fn two(outputs: &[ValueId]) -> Result<[ValueId; 2], GraphError> {
    let wrong =
        || GraphError::Build { what: format!("an op with a state gave {} outputs, not 2", outputs.len()) };
    outputs.try_into().map_err(|_| wrong())
}
