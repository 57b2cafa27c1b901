//! Qwen 3 as a mixture of experts: its block with experts for the feed-forward network.
//!
//! Yang et al., "Qwen3 Technical Report" (2025).

use super::Family;
use super::blocks::{AttentionParts, Block};
use super::config::DecoderConfig;
use super::llama::pre_norm_block;
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_graph::{GraphBuilder, GraphError, ValueId};

pub(super) const FAMILY: Family = Family { architecture: "qwen3moe", configure, block };

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    let inner = c.key("expert_feed_forward_length");
    let dense = c.feed_forward;
    let given = keys.meta.get(&inner).is_some();
    let experts = c.some_experts(keys)?;
    if !given {
        // Early files give the width of all that a token uses.
        experts.feed_forward = dense / experts.used;
    }
    let width = experts.feed_forward;
    keys.check(&inner, width, "more than 0", width > 0)
}

fn block(b: &Block<'_>, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    pre_norm_block(b, g, x, AttentionParts { head_norms: true, ..AttentionParts::default() })
}
