//! gpt-oss: a mixture of experts with biases everywhere, attention sinks, and a window in every other layer.
//!
//! OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025); Xiao et al., "Efficient Streaming Language Models with Attention
//! Sinks" (2023).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::DecoderConfig;
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{Gate, Routing};

pub(super) const FAMILY: Family = Family { architecture: "gpt-oss", configure, block };

/// What gates, and what they gate, are cut at.
const SWIGLU_LIMIT: f32 = 7.0;

fn configure(keys: &Keys<'_>, file: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    c.some_experts(keys)?;
    keys.meta.u32(&c.key("expert_feed_forward_length"))?;
    // Readers of these files take the head's width from either key.
    let (turned, width) = (c.rope.turned, c.head_dim);
    keys.check(&c.key("rope.dimension_count"), turned, &format!("key_length, {width}"), turned == width)?;
    // Logits have a matrix of their own.
    file.tensor("output.weight")?;
    let window = keys.size(&c.key("attention.sliding_window"), 1..=1 << 30)?;
    c.set_local(keys, window, 2, c.rope.clone())
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    let h = b.norm(g, "attn_norm", x)?;
    let h = b.attention(g, h, AttentionParts { sinks: true, ..AttentionParts::default() })?;
    let x = b.attention_output(g, h, Some(x))?;
    let h = b.norm(g, "post_attention_norm", x)?;
    b.feed_forward_by(g, h, Gate::ClampedSwiglu(SWIGLU_LIMIT), Routing::SoftmaxOfChosen, Some(x))
}
