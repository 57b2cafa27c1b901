//! Gemma 2: norms before and after each half of a block, scores and logits bent under caps, every other layer local.
//!
//! Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size" (2024).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::DecoderConfig;
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::Gate;

pub(super) const FAMILY: Family = Family { architecture: "gemma2", configure, block };

/// Layers of the 27B model, whose queries are scaled by another rule; files do not carry the scale.
const LAYERS_27B: usize = 46;

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    c.embedding_scale = Some((c.d_model as f32).sqrt());
    if c.layers == LAYERS_27B {
        c.attention_scale = 1.0 / (c.d_model as f32 / c.heads as f32).sqrt();
    }
    c.attention_cap = keys.cap(&c.key("attn_logit_softcapping"), 50.0)?;
    c.logit_cap = keys.cap(&c.key("final_logit_softcapping"), 30.0)?;
    let window = keys.size_or(&c.key("attention.sliding_window"), 4096, 1..=1 << 30)?;
    c.set_local(keys, window, 2, c.rope.clone())
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    let h = b.norm(g, "attn_norm", x)?;
    let h = b.attention(g, h, AttentionParts::default())?;
    let h = b.attention_output(g, h, None)?;
    let x = b.norm_onto(g, "post_attention_norm", h, x)?;
    let h = b.norm(g, "ffn_norm", x)?;
    let h = b.feed_forward(g, h, Gate::GeluTanh, None)?;
    b.norm_onto(g, "post_ffw_norm", h, x)
}
