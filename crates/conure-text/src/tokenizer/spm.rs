//! SentencePiece's byte-pair encoding: merges by the score of the token that they make; bytes for what has no token.

use super::Tokenizer;
use super::merge::{Symbol, merge};
use crate::error::TextError;

/// The sign that stands for a space in pieces: U+2581.
pub(super) const SPACE: &str = "\u{2581}";

/// No token of its own.
const NONE: u32 = u32::MAX;

/// A score as a rank: the greater the score, the less the rank.
fn rank_of(score: f32) -> u64 {
    let bits = score.to_bits();
    // Floats in the order of their values.
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ordered)
}

impl Tokenizer {
    /// Tokens of a text without special tokens.
    pub(super) fn encode_spm(
        &self,
        text: &str,
        space_before: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut marked = if space_before { SPACE.to_owned() } else { String::new() };
        marked.push_str(&text.replace(' ', SPACE));
        let bytes = marked.as_bytes();
        let mut symbols: Vec<Symbol> = marked
            .char_indices()
            .map(|(start, c)| {
                let end = start + c.len_utf8();
                Symbol { start, end, id: self.pieces.find(&bytes[start..end]).unwrap_or(NONE) }
            })
            .collect();
        merge(&mut symbols, |a, b| {
            let id = self.pieces.find(&bytes[a.start..b.end])?;
            Some((rank_of(self.scores.get(id as usize).copied().unwrap_or(0.0)), id))
        });
        for symbol in symbols {
            if symbol.id != NONE {
                out.push(symbol.id);
                continue;
            }
            for &byte in &bytes[symbol.start..symbol.end] {
                let id = self.bytes[byte as usize].or_else(|| self.pieces.find(&[byte]));
                let lost = || TextError::NoToken(marked[symbol.start..symbol.end].to_owned());
                out.push(id.ok_or_else(lost)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::rank_of;

    #[test]
    fn greater_scores_come_first() {
        let scores = [f32::INFINITY, 5.0, 0.5, 0.0, -0.5, -1.0, -261_000.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|w| rank_of(w[0]) < rank_of(w[1])));
    }
}
