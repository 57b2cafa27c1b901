//! Byte-level byte-pair encoding: bytes written as printable characters, cut into words, merged by rank.

use super::Tokenizer;
use super::merge::{Symbol, merge};
use super::words::Words;
use crate::error::TextError;
use std::collections::HashMap;

/// How a vocabulary merges.
#[derive(Debug)]
pub(super) struct Merges {
    /// The rank of a pair of pieces and the piece that it becomes.
    pub(super) ranks: HashMap<(u32, u32), (u32, u32)>,
    /// The piece of each byte.
    pub(super) bytes: Box<[u32; 256]>,
    /// How text is cut into words.
    pub(super) words: Words,
    /// Whether a word that is a token needs no merging.
    pub(super) whole_words: bool,
}

/// The character that stands for a byte: itself where it is printable, else one from U+0100 on.
pub(super) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !is_printable(b)).count();
    char::from_u32(0x100 + before as u32).unwrap_or('\u{fffd}')
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte that a character stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ 0..=0xff => u8::try_from(n).ok().filter(|&b| is_printable(b)),
        n => (0..=255u8).filter(|&b| !is_printable(b)).nth(n.checked_sub(0x100)? as usize),
    }
}

impl Tokenizer {
    /// Tokens of a text without special tokens.
    pub(super) fn encode_bpe(
        &self,
        text: &str,
        merges: &Merges,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut symbols = Vec::new();
        for word in merges.words.split(text)? {
            let bytes = &text.as_bytes()[word];
            if merges.whole_words {
                let written: String = bytes.iter().map(|&b| char_of(b)).collect();
                if let Some(id) = self.pieces.find(written.as_bytes()).filter(|&id| self.is_token(id)) {
                    out.push(id);
                    continue;
                }
            }
            symbols.clear();
            symbols.extend(bytes.iter().enumerate().map(|(start, &b)| Symbol {
                start,
                end: start + 1,
                id: merges.bytes[b as usize],
            }));
            merge(&mut symbols, |a, b| {
                merges.ranks.get(&(a.id, b.id)).map(|&(rank, id)| (u64::from(rank), id))
            });
            for symbol in &symbols {
                if self.is_token(symbol.id) {
                    out.push(symbol.id);
                } else {
                    // A piece that merges make and that is no token: its bytes, as far as those are tokens.
                    let each = bytes[symbol.start..symbol.end].iter().map(|&b| merges.bytes[b as usize]);
                    out.extend(each.filter(|&id| self.is_token(id)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_characters_of_their_own_and_come_back() {
        let chars: std::collections::HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        assert!((0..=255).all(|b| byte_of(char_of(b)) == Some(b)));
        assert_eq!([char_of(b' '), char_of(b'\n'), char_of(b'a'), char_of(0xad)], ['Ġ', 'Ċ', 'a', 'Ń']);
        assert_eq!([byte_of(' '), byte_of('\u{150}'), byte_of('中')], [None; 3]);
    }
}
