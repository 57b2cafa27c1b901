//! Qwen 3: Llama's block with normed queries and keys.
//!
//! Yang et al., "Qwen3 Technical Report" (2025).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::DecoderConfig;
use super::llama::{no_experts, pre_norm_block};
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};

pub(super) const FAMILY: Family = Family { architecture: "qwen3", configure, block };

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    no_experts(keys, c)
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    pre_norm_block(b, g, x, AttentionParts { head_norms: true, ..AttentionParts::default() })
}
