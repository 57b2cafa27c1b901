//! Phi 3, 3.5 and 4: Llama's block with projections in one matrix each, and factors for long contexts.
//!
//! Abdin et al., "Phi-3 Technical Report" (2024); Ding et al., "LongRoPE" (2024).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::{DecoderConfig, Factors};
use super::llama::{no_experts, pre_norm_block};
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};

pub(super) const FAMILY: Family = Family { architecture: "phi3", configure, block };

fn configure(keys: &Keys<'_>, file: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    let key = c.key("rope.scaling.original_context_length");
    let original = keys.size_or(&key, c.context_length, 1..=1 << 30)?;
    if file.tensor_info("rope_factors_long.weight").is_some() {
        c.rope.factors = Factors::ByContext(original);
    }
    // The window that files of this family carry is not used: they were trained without.
    no_experts(keys, c)
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    pre_norm_block(b, g, x, AttentionParts::default())
}
