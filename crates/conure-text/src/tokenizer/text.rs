//! From tokens back to text, whole or piece by piece.

use super::bpe::byte_of;
use super::pieces::Kind;
use super::spm::SPACE;
use super::{Model, Tokenizer};

impl Tokenizer {
    /// Appends the bytes that a token stands for. Signs for the model stand for nothing, unless `signs`.
    fn push_bytes(&self, id: u32, signs: bool, out: &mut Vec<u8>) {
        let piece = self.pieces.get(id);
        match self.kind(id) {
            Kind::Control | Kind::Unknown if !signs => {}
            Kind::Control | Kind::Unknown | Kind::UserDefined | Kind::Unused => out.extend_from_slice(piece),
            Kind::Byte => match byte_value(piece) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(piece),
            },
            Kind::Normal => match &self.model {
                Model::Spm | Model::Unigram(_) => {
                    out.extend_from_slice(self.piece_text(id).replace(SPACE, " ").as_bytes())
                }
                Model::Bpe(_) => {
                    for c in self.piece_text(id).chars() {
                        match byte_of(c) {
                            Some(byte) => out.push(byte),
                            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                        }
                    }
                }
            },
        }
    }

    /// The bytes that a token stands for; nothing for signs for the model, unless `signs`: then their texts.
    pub fn token_bytes(&self, id: u32, signs: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.push_bytes(id, signs, &mut bytes);
        bytes
    }

    /// The text of `ids`: signs for the model print nothing unless `signs`, the space that encoding put before the first
    /// word is left out again, and bytes that are no characters become U+FFFD.
    pub fn decode(&self, ids: &[u32], signs: bool) -> String {
        let mut bytes = Vec::new();
        ids.iter().for_each(|&id| self.push_bytes(id, signs, &mut bytes));
        let begins_with_sign = ids.first().is_some_and(|&id| self.kind(id) == Kind::Control);
        let text = String::from_utf8_lossy(&bytes);
        let cut = self.space_prefix && (!begins_with_sign || self.bos == ids.first().copied());
        if cut { text.strip_prefix(' ').unwrap_or(&text).to_owned() } else { text.into_owned() }
    }
}

/// The byte that `<0x0A>` stands for.
pub(super) fn byte_value(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Tokens become text as they come; a character appears when all of its bytes are there.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    pending: Vec<u8>,
}

impl TextStream {
    /// What can be shown now that `id` has come.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        tokenizer.push_bytes(id, false, &mut self.pending);
        let mut out = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(text) => {
                    out.push_str(text);
                    self.pending.clear();
                    return out;
                }
                Err(e) => {
                    let (good, rest) = self.pending.split_at(e.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(good));
                    // What may still become a character waits; what cannot is shown as such.
                    let Some(bad) = e.error_len() else {
                        self.pending = rest.to_vec();
                        return out;
                    };
                    out.push('\u{fffd}');
                    self.pending = rest[bad..].to_vec();
                }
            }
        }
    }

    /// What is left at the end: a character of which bytes are missing, as U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}
