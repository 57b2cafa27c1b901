//! How the chunks of container formats are written, as far as it takes to pass over them.

/// How the chunks behind the sound are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// Four bytes of name and four of length, little endian.
    Riff,
    /// The same in big endian.
    Iff,
    /// 16 bytes of name and eight of length, which count themselves too.
    W64,
    /// Four bytes of name and eight of length, big endian.
    Caf,
    /// None: sound is the last thing in the file.
    None,
}

impl Chunks {
    /// The lengths of the chunk's head and of its content with padding.
    pub(crate) fn lengths(self, head: &[u8]) -> Option<(usize, u64)> {
        let four = head.get(4..8)?.try_into().ok()?;
        let even = |n: u32| u64::from(n) + u64::from(n % 2);
        Some(match self {
            Chunks::Riff => (8, even(u32::from_le_bytes(four))),
            Chunks::Iff => (8, even(u32::from_be_bytes(four))),
            Chunks::Caf => (12, u64::from_be_bytes(head.get(4..12)?.try_into().ok()?)),
            Chunks::W64 => {
                let size = u64::from_le_bytes(head.get(16..24)?.try_into().ok()?).checked_sub(24)?;
                (24, size.checked_next_multiple_of(8)?)
            }
            Chunks::None => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        let mut w64 = b"listxxxxxxxxxxxx".to_vec();
        w64.extend(31u64.to_le_bytes());
        for (chunks, head, expected) in [
            (Chunks::Riff, &b"LIST\x03\0\0\0"[..], Some((8, 4))),
            (Chunks::Iff, b"NAME\0\0\0\x03", Some((8, 4))),
            (Chunks::Caf, b"info\0\0\0\0\0\0\0\x03", Some((12, 3))),
            (Chunks::W64, &w64, Some((24, 8))),
            (Chunks::W64, &[0; 24], None),
            (Chunks::None, b"LIST\x03\0\0\0", None),
            (Chunks::Riff, b"LIST", None),
        ] {
            assert_eq!(chunks.lengths(head), expected, "{chunks:?}");
        }
    }
}
