//! What SentencePiece makes of a text before it is cut: characters replaced by rules, spaces in order.
//!
//! The rules are a table of bytes (`tokenizer.ggml.precompiled_charsmap`): the length of a double-array trie (Aoe, 1989) in bytes,
//! the trie, 32 bits a unit, and after it the replacements, each ended by a zero, which the trie's values point into.

use super::spm::SPACE;
use std::borrow::Cow;

/// The rules, and what becomes of spaces.
#[derive(Debug, Default)]
pub(super) struct Normaliser {
    units: Vec<u32>,
    texts: Vec<u8>,
    /// Whether spaces at both ends and those after another are left out.
    pub(super) single_spaces: bool,
}

/// A unit of the trie.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// From a state to those after it.
    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & (1 << 9)) >> 6)) as usize
    }

    /// The byte that leads here; not one of a unit that holds a value.
    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xff)
    }

    fn has_value(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }
}

impl Normaliser {
    /// Of a table of rules; none if it is empty.
    ///
    /// # Errors
    /// What is wrong with the table.
    pub(super) fn new(table: &[u8], single_spaces: bool) -> Result<Normaliser, String> {
        if table.is_empty() {
            return Ok(Normaliser { single_spaces, ..Normaliser::default() });
        }
        let Some((length, rest)) = table.split_first_chunk::<4>() else {
            return Err(format!("a table of {} bytes", table.len()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        if !length.is_multiple_of(4) || length > rest.len() {
            return Err(format!("a table of {} bytes whose trie has {length}", table.len()));
        }
        let (trie, texts) = rest.split_at(length);
        let unit = |b: &[u8]| b.try_into().map_or(0, u32::from_le_bytes);
        Ok(Normaliser {
            units: trie.chunks_exact(4).map(unit).collect(),
            texts: texts.to_vec(),
            single_spaces,
        })
    }

    /// The first of `text` as rules have it, and the bytes of `text` that it stands for.
    fn first<'a>(&'a self, text: &'a str) -> (Cow<'a, str>, usize) {
        if let Some((replacement, length)) = self.longest_rule(text) {
            return (replacement, length);
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        (Cow::Borrowed(&text[..length]), length)
    }

    /// The longest beginning of `text` that a rule replaces, and by what.
    fn longest_rule(&self, text: &str) -> Option<(Cow<'_, str>, usize)> {
        let mut state = Unit(*self.units.first()?).offset();
        let mut found = None;
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            state ^= usize::from(byte);
            let Some(unit) = self.units.get(state).map(|&u| Unit(u)) else { break };
            if unit.label() != u32::from(byte) {
                break;
            }
            state ^= unit.offset();
            if unit.has_value() && text.is_char_boundary(i + 1) {
                found = self.units.get(state).map(|&u| (Unit(u).value(), i + 1));
            }
        }
        let (at, length) = found?;
        let replacement = self.texts.get(at..)?;
        let end = replacement.iter().position(|&b| b == 0).unwrap_or(replacement.len());
        Some((String::from_utf8_lossy(&replacement[..end]), length))
    }

    /// `text` with its rules applied, spaces as U+2581, and one before it if `prefix`; nothing if nothing is left.
    pub(super) fn apply(&self, text: &str, prefix: bool) -> String {
        let mut rest = text;
        while self.single_spaces && !rest.is_empty() {
            let (first, length) = self.first(rest);
            if first != " " {
                break;
            }
            rest = &rest[length..];
        }
        let mut out = String::with_capacity(text.len() + SPACE.len());
        if rest.is_empty() {
            return out;
        }
        if prefix {
            out.push_str(SPACE);
        }
        let mut after_space = self.single_spaces;
        while !rest.is_empty() {
            let (first, length) = self.first(rest);
            let shown = if after_space { first.trim_start_matches(' ') } else { first.as_ref() };
            shown.chars().for_each(|c| if c == ' ' { out.push_str(SPACE) } else { out.push(c) });
            if !shown.is_empty() {
                after_space = self.single_spaces && shown.ends_with(' ');
            }
            rest = &rest[length..];
        }
        while self.single_spaces && out.ends_with(SPACE) {
            out.truncate(out.len() - SPACE.len());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_come_in_order() {
        for (text, single, prefix, expected) in [
            (" a  b ", true, true, "▁a▁b"),
            (" a  b ", false, true, "▁▁a▁▁b▁"),
            (" a  b ", false, false, "▁a▁▁b▁"),
            ("  ", true, true, ""),
            ("  ", false, false, "▁▁"),
            ("", false, true, ""),
            ("a\n b", true, false, "a\n▁b"),
        ] {
            let found = Normaliser::new(&[], single).unwrap().apply(text, prefix);
            assert_eq!(found, expected, "{text:?} {single} {prefix}");
        }
    }

    /// A table that is damaged is an error or replaces something else, and never a fault.
    #[test]
    fn damaged_tables_do_no_harm() {
        assert!(Normaliser::new(&[1, 2], false).is_err());
        assert!(Normaliser::new(&[9, 0, 0, 0, 1], false).is_err());
        assert!(Normaliser::new(&[3, 0, 0, 0, 1, 2, 3], false).is_err());
        let mut state = 1u32;
        for length in [0usize, 1, 7, 300] {
            for _ in 0..50 {
                let units: Vec<u8> = (0..length)
                    .flat_map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 4 & 0x8000_7fff).to_le_bytes()
                    })
                    .collect();
                let table = [&(4 * length as u32).to_le_bytes()[..], &units, b"x\0\xff"].concat();
                let normaliser = Normaliser::new(&table, true).unwrap();
                normaliser.apply("The old man, Größe 你好 🙂", true);
            }
        }
    }
}
