//! SentencePiece's unigram model: of all ways to cut a text into pieces, that with the greatest sum of scores (Kudo, "Subword
//! Regularization", 2018).

use super::normaliser::Normaliser;
use super::{Kind, Tokenizer};
use crate::error::TextError;

/// How much less than the least score a character counts for that is in no piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// What texts that users define count for: more than any other way to cut them.
const USER_DEFINED: f32 = -0.1;

/// What the unigram model has besides pieces and scores.
#[derive(Debug)]
pub(super) struct Unigram {
    pub(super) normaliser: Normaliser,
    /// The token that stands for what is in no piece, where there are none of its bytes.
    unknown: Option<u32>,
    unknown_score: f32,
    /// Bytes of the longest piece.
    longest: usize,
}

/// The best way to cut a text up to some place.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    /// Where its last piece begins, and which it is; `None` for a character that is in no piece.
    start: usize,
    id: Option<u32>,
}

impl Unigram {
    /// Of pieces with these kinds and scores.
    pub(super) fn new<'p>(
        normaliser: Normaliser,
        pieces: impl Iterator<Item = (&'p [u8], Kind)>,
        scores: &[f32],
        unknown: Option<u32>,
    ) -> Unigram {
        let (mut longest, mut least) = (0, f32::INFINITY);
        for ((text, kind), &score) in pieces.zip(scores) {
            if matches!(kind, Kind::Normal | Kind::UserDefined) {
                longest = longest.max(text.len());
            }
            if kind == Kind::Normal {
                least = least.min(score);
            }
        }
        Unigram { normaliser, unknown, unknown_score: least - UNKNOWN_PENALTY, longest }
    }
}

impl Tokenizer {
    /// Tokens of a text without special tokens.
    pub(super) fn encode_unigram(
        &self,
        model: &Unigram,
        text: &str,
        space_before: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let text = model.normaliser.apply(text, space_before);
        let best = self.best_ways(model, &text);
        let (mut end, mut cuts) = (text.len(), Vec::new());
        while let Some(Some(Best { start, id, .. })) = best.get(end).filter(|_| end > 0) {
            cuts.push((*start, end, *id));
            end = *start;
        }
        let mut after_unknown = false;
        for (start, end, id) in cuts.into_iter().rev() {
            let Some(id) = id else {
                after_unknown = self.push_unknown(model, &text[start..end], after_unknown, out)?;
                continue;
            };
            out.push(id);
            after_unknown = false;
        }
        Ok(())
    }

    /// For each place of `text` the best way to cut what lies before it; `None` inside characters.
    fn best_ways(&self, model: &Unigram, text: &str) -> Vec<Option<Best>> {
        let bytes = text.as_bytes();
        let mut best: Vec<Option<Best>> = vec![None; bytes.len() + 1];
        for (start, first) in text.char_indices() {
            let before = if start == 0 { 0.0 } else { best[start].map_or(0.0, |b| b.score) };
            let mut alone = false;
            let mut reach = |end: usize, score: f32, id: Option<u32>| {
                let score = before + score;
                if best[end].is_none_or(|b| score > b.score) {
                    best[end] = Some(Best { score, start, id });
                }
            };
            let most = bytes.len().min(start.saturating_add(model.longest));
            for end in start + 1..=most {
                if !text.is_char_boundary(end) {
                    continue;
                }
                let Some(id) = self.pieces.find(&bytes[start..end]) else { continue };
                let score = match self.kind(id) {
                    Kind::Normal => self.scores.get(id as usize).copied().unwrap_or(0.0),
                    Kind::UserDefined => USER_DEFINED,
                    _ => continue,
                };
                reach(end, score, Some(id));
                alone |= end == start + first.len_utf8();
            }
            if !alone {
                reach(start + first.len_utf8(), model.unknown_score, None);
            }
        }
        best
    }

    /// Puts out a character that is in no piece: as its bytes, if there are tokens of them, or as the sign for what is unknown,
    /// once for several in a row. Whether it was that sign.
    fn push_unknown(
        &self,
        model: &Unigram,
        text: &str,
        after_unknown: bool,
        out: &mut Vec<u32>,
    ) -> Result<bool, TextError> {
        let bytes = text.bytes().map(|byte| self.bytes[byte as usize]);
        if let Some(ids) = bytes.collect::<Option<Vec<u32>>>() {
            out.extend(ids);
            return Ok(false);
        }
        let unknown = model.unknown.ok_or_else(|| TextError::NoToken(text.to_owned()))?;
        if !after_unknown {
            out.push(unknown);
        }
        Ok(true)
    }
}
