//! Qwen 3 VL, its text side: Qwen 3, with positions in time, height and width.
//!
//! Bai et al., "Qwen3-VL Technical Report" (2025). Of a text's token all three positions are the same, so that the sections by
//! which pairs are shared out among them make no difference: every pair turns by the one position, as in training.

use super::Family;
use super::config::DecoderConfig;
use super::llama::no_experts;
use super::qwen3;
use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;

pub(super) const FAMILY: Family = Family { architecture: "qwen3vl", configure, block: qwen3::FAMILY.block };

fn configure(keys: &Keys<'_>, _: &GgufFile, c: &mut DecoderConfig) -> Result<(), ModelError> {
    sections(keys, c)?;
    no_experts(keys, c)
}

/// Checks that the file shares pairs out among positions, as this family and later ones must.
pub(super) fn sections(keys: &Keys<'_>, c: &DecoderConfig) -> Result<(), ModelError> {
    let key = c.key("rope.dimension_sections");
    let sections = keys.meta.usize_array(&key)?;
    let covered = sections.iter().fold(0usize, |a, &b| a.saturating_add(b));
    let expected = format!("four numbers that add up to at least half of the {} that turn", c.rope.turned);
    keys.check(&key, covered, &expected, sections.len() == 4 && covered >= c.rope.turned / 2)
}
