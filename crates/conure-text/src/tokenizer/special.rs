//! Finding the tokens in a text that are always one token, before the rest is encoded.

use super::Tokenizer;
use super::pieces::Kind;
use std::ops::Range;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// To be encoded.
    Text(Range<usize>),
    /// A token.
    Token(u32),
}

/// Lengths of the special tokens that begin with each byte, the longest first.
#[derive(Debug)]
pub(super) struct Specials(Vec<Vec<usize>>);

impl Specials {
    pub(super) fn of(texts: impl Iterator<Item = impl AsRef<[u8]>>) -> Specials {
        let mut lengths = vec![Vec::new(); 256];
        for text in texts {
            if let [first, ..] = text.as_ref() {
                lengths[*first as usize].push(text.as_ref().len());
            }
        }
        for list in &mut lengths {
            list.sort_unstable_by(|a, b| b.cmp(a));
            list.dedup();
        }
        Specials(lengths)
    }
}

impl Tokenizer {
    fn is_special(&self, id: u32, parse: bool) -> bool {
        match self.kind(id) {
            Kind::UserDefined => true,
            Kind::Control | Kind::Unknown => parse,
            _ => false,
        }
    }

    /// Cuts `text` at special tokens: the longest first wherever they stand, of equally long ones that with the lower number,
    /// then from left to right. Tokens that users define are always found, signs for the model only if `parse`.
    pub(super) fn parts(&self, text: &str, parse: bool) -> Vec<Part> {
        let bytes = text.as_bytes();
        let mut found: Vec<(usize, u32, usize)> = Vec::new();
        for (at, &first) in bytes.iter().enumerate() {
            for &length in &self.specials.0[first as usize] {
                let id = bytes.get(at..at + length).and_then(|t| self.pieces.find(t));
                if let Some(id) = id.filter(|&id| self.is_special(id, parse)) {
                    found.push((length, id, at));
                }
            }
        }
        found.sort_unstable_by(|a, b| b.0.cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut taken: std::collections::BTreeMap<usize, (usize, u32)> = std::collections::BTreeMap::new();
        for (length, id, at) in found {
            let before = taken.range(..at + length).next_back();
            if before.is_none_or(|(_, &(end, _))| end <= at) {
                taken.insert(at, (at + length, id));
            }
        }
        let mut parts = Vec::with_capacity(2 * taken.len() + 1);
        let mut at = 0;
        for (start, (end, id)) in taken {
            if at < start {
                parts.push(Part::Text(at..start));
            }
            parts.push(Part::Token(id));
            at = end;
        }
        if at < bytes.len() {
            parts.push(Part::Text(at..bytes.len()));
        }
        parts
    }
}
