//! Gemma 3: norms before and after each half of a block, normed queries and keys, five of six layers local.
//!
//! Gemma Team, "Gemma 3 Technical Report" (2025).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::{DecoderConfig, RotaryConfig};
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{Gate, RopeScaling};

pub(super) const FAMILY: Family = Family { architecture: "gemma3", configure, block };

/// Layers of the 27B model, whose queries are scaled by another rule; files do not carry the scale.
const LAYERS_27B: usize = 62;

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    c.embedding_scale = Some((c.d_model as f32).sqrt());
    if c.layers == LAYERS_27B {
        c.attention_scale = 1.0 / (c.d_model as f32 / c.heads as f32).sqrt();
    }
    c.logit_cap = keys.cap(&c.key("final_logit_softcapping"), 0.0)?;
    let window = keys.size_or(&c.key("attention.sliding_window"), 0, 0..=1 << 30)?;
    if window > 0 {
        // Local layers were trained with a base of their own and are never stretched.
        let base = keys.positive_or(&c.key("rope.freq_base_swa"), 10_000.0)?;
        let rope = RotaryConfig { base, scaling: RopeScaling::None, magnitude: 1.0, ..c.rope.clone() };
        c.set_local(keys, window, 6, rope)?;
    }
    Ok(())
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    let h = b.norm(g, "attn_norm", x)?;
    let h = b.attention(g, h, AttentionParts { head_norms: true, ..AttentionParts::default() })?;
    let h = b.attention_output(g, h, None)?;
    let x = b.norm_onto(g, "post_attention_norm", h, x)?;
    let h = b.norm(g, "ffn_norm", x)?;
    let h = b.feed_forward(g, h, Gate::GeluTanh, None)?;
    b.norm_onto(g, "post_ffw_norm", h, x)
}
