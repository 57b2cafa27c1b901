//! Llama 1 to 3, and what is built like it under the same name: Mistral, TinyLlama, SmolLM2, and Mixtral with experts for the
//! feed-forward network.
//!
//! Touvron et al., "LLaMA" (2023); Dubey et al., "The Llama 3 Herd of Models" (2024); Jiang et al., "Mistral 7B" (2023);
//! Jiang et al., "Mixtral of Experts" (2024).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::{DecoderConfig, Factors};
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};
use conure_ops::{Gate, Pairs};

pub(super) const FAMILY: Family = Family { architecture: "llama", configure, block };

fn configure(_: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    // Converters reorder queries and keys of this family so that neighbours turn together.
    c.rope.pairs = Pairs::Adjacent;
    // Llama 3.1 and later: stretched by wavelength, which files carry as a factor for each pair.
    c.rope.factors = Factors::Always("rope_freqs.weight");
    Ok(())
}

/// Refuses mixtures of experts in a family of which only dense models can be run.
pub(super) fn no_experts(keys: &Keys<'_>, c: &DecoderConfig) -> Result<(), ModelError> {
    let count = c.experts.map_or(0, |e| e.count);
    keys.check(
        &c.key("expert_count"),
        count,
        "0: mixtures of experts of this family cannot be run",
        count == 0,
    )
}

/// Norm, attention, norm, feed-forward network or experts, each half added to what it read.
pub(super) fn pre_norm_block(
    b: &Block<'_>,
    g: &mut GraphBuilder,
    x: ValueId,
    parts: AttentionParts,
) -> Result<ValueId, GraphError> {
    let h = b.norm(g, "attn_norm", x)?;
    let h = b.attention(g, h, parts)?;
    let x = b.attention_output(g, h, Some(x))?;
    let h = b.norm(g, "ffn_norm", x)?;
    b.feed_forward(g, h, Gate::Silu, Some(x))
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    pre_norm_block(b, g, x, AttentionParts::default())
}
