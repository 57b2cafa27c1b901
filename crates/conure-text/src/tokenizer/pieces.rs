//! The texts of all tokens, and the way from a text to its token.

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Normal,
    /// What stands for text that there is no token for.
    Unknown,
    /// A sign for the model: not text, and not to be found in texts.
    Control,
    /// A text that is always one token.
    UserDefined,
    /// Nothing.
    Unused,
    /// One byte, `<0x0A>`.
    Byte,
}

impl Kind {
    /// The kind of this number in files.
    pub(crate) fn from_number(number: i32) -> Option<Kind> {
        Some(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => return None,
        })
    }
}

/// An empty place of the hash table.
const EMPTY: u32 = u32::MAX;

/// Texts one after the other, and a hash table over them: a vocabulary of 262144 tokens takes 6 MB and 20 ms, where a
/// string and an entry of a map for each would take 30 MB.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// Where each text ends.
    ends: Vec<u32>,
    slots: Vec<u32>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0x9e37_79b9_7f4a_7c15u64 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(word)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h ^= h >> 32;
    }
    h
}

impl Pieces {
    /// No texts, with room for `count`.
    pub(crate) fn with_room(count: usize) -> Pieces {
        let slots = (count.max(4) * 2).next_power_of_two();
        Pieces { bytes: Vec::new(), ends: Vec::with_capacity(count), slots: vec![EMPTY; slots] }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of a number; empty if there is none.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends.get(id - 1).copied().unwrap_or(0) as usize };
        let end = self.ends.get(id).copied().unwrap_or(0) as usize;
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// The number of a text: the first that has it.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = hash(text) as usize & mask;
        loop {
            let id = *self.slots.get(at)?;
            if id == EMPTY {
                return None;
            }
            if self.get(id) == text {
                return Some(id);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a text and gives its number. One that is there already gets another number, and is still found by its first.
    pub(crate) fn push(&mut self, text: &[u8]) -> u32 {
        if (self.ends.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let id = u32::try_from(self.ends.len()).unwrap_or(EMPTY);
        let known = self.find(text).is_some();
        self.bytes.extend_from_slice(text);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        if !known {
            self.place(id);
        }
        id
    }

    fn place(&mut self, id: u32) {
        let mask = self.slots.len() - 1;
        let mut at = hash(self.get(id)) as usize & mask;
        while self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.slots[at] = id;
    }

    fn grow(&mut self) {
        let placed: Vec<u32> = self.slots.iter().copied().filter(|&id| id != EMPTY).collect();
        self.slots = vec![EMPTY; self.slots.len() * 2];
        placed.into_iter().for_each(|id| self.place(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_their_first_number() {
        let mut pieces = Pieces::with_room(2);
        let texts: Vec<String> = (0..5000).map(|i| format!("piece{}", i % 4000)).collect();
        for text in &texts {
            pieces.push(text.as_bytes());
        }
        assert_eq!(pieces.len(), 5000);
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(pieces.get(i as u32), text.as_bytes());
            assert_eq!(pieces.find(text.as_bytes()), Some((i % 4000) as u32));
        }
        assert_eq!((pieces.find(b"piece"), pieces.find(b"")), (None, None));
        assert_eq!((Pieces::default().find(b"x"), Pieces::default().get(3)), (None, &b""[..]));
    }
}
