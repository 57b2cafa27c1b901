//! EBML (RFC 8794), the tree of numbered elements that Matroska is written in.

use std::io;

use crate::lookahead::Lookahead;

/// The head of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: u32,
    /// Bytes of content; `None`: until something of a higher level comes (live streams).
    pub(crate) size: Option<u64>,
    /// Bytes of the head itself.
    pub(crate) len: usize,
}

/// The longest head: 4 bytes of number and 8 of size.
pub(crate) const MAX_HEAD: usize = 12;

/// A number whose length its first byte tells. Returns it with the marker bit still in, and its length.
fn variable(data: &[u8], longest: usize) -> Option<(u64, usize)> {
    let len = data.first()?.leading_zeros() as usize + 1;
    if len > longest {
        return None;
    }
    Some((data.get(..len)?.iter().fold(0, |v, &b| v << 8 | u64::from(b)), len))
}

/// An unsigned number without its marker bit, and its length; `None` as value if all its bits are set.
pub(crate) fn vint(data: &[u8]) -> Option<(Option<u64>, usize)> {
    let (raw, len) = variable(data, 8)?;
    let mask = (1u64 << (7 * len)) - 1;
    Some((Some(raw & mask).filter(|&v| v != mask), len))
}

impl Head {
    pub(crate) fn parse(data: &[u8]) -> Option<Head> {
        let (id, a) = variable(data, 4)?;
        let (size, b) = vint(data.get(a..)?)?;
        Some(Head { id: id as u32, size, len: a + b })
    }

    /// The head that stands here, if there is one.
    pub(crate) fn peek(input: &mut Lookahead) -> io::Result<Option<Head>> {
        Ok(Head::parse(input.peek(MAX_HEAD)?))
    }
}

/// The children of an element in memory: (number, content). What does not fit ends the list.
pub(crate) fn children(mut data: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let head = Head::parse(data)?;
        let content = data.get(head.len..)?;
        let size = head.size.map_or(content.len(), |s| usize::try_from(s).unwrap_or(usize::MAX));
        let (own, rest) = content.split_at_checked(size)?;
        data = rest;
        Some((head.id, own))
    })
}

/// An unsigned integer of up to 8 bytes.
pub(crate) fn unsigned(data: &[u8]) -> u64 {
    data.iter().take(8).fold(0, |v, &b| v << 8 | u64::from(b))
}

/// A signed integer of up to 8 bytes.
pub(crate) fn signed(data: &[u8]) -> i64 {
    let bits = 8 * data.len().min(8) as u32;
    if bits == 0 { 0 } else { (unsigned(data) << (64 - bits)) as i64 >> (64 - bits) }
}

/// A float of 4 or 8 bytes.
pub(crate) fn float(data: &[u8]) -> f64 {
    match (<[u8; 4]>::try_from(data), <[u8; 8]>::try_from(data)) {
        (Ok(b), _) => f64::from(f32::from_be_bytes(b)),
        (_, Ok(b)) => f64::from_be_bytes(b),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (data, expected) in [
            (&[0x81u8][..], Some((Some(1), 1))),
            (&[0xff], Some((None, 1))),
            (&[0x40, 0x7f], Some((Some(127), 2))),
            (&[0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Some((None, 8))),
            (&[0x01, 0, 0, 0, 0, 0, 0, 5], Some((Some(5), 8))),
            (&[0x00, 0xff], None),
            (&[0x40], None),
            (&[], None),
        ] {
            assert_eq!(vint(data), expected, "{data:02x?}");
        }
        assert_eq!(
            Head::parse(&[0x1a, 0x45, 0xdf, 0xa3, 0x84]),
            Some(Head { id: 0x1a45_dfa3, size: Some(4), len: 5 })
        );
        assert_eq!((signed(&[0xff]), signed(&[0x7f, 0xff]), signed(&[])), (-1, 0x7fff, 0));
        assert_eq!((float(&[0x3f, 0x80, 0, 0]), float(&[1, 2])), (1.0, 0.0));
    }

    #[test]
    fn lists_end_at_damage() {
        let all = |d: &[u8]| children(d).map(|(id, c)| (id, c.len())).collect::<Vec<_>>();
        assert_eq!(all(&[0xd7, 0x81, 1, 0x86, 0x82, 1, 2]), [(0xd7, 1), (0x86, 2)]);
        assert_eq!(all(&[0xd7, 0x81, 1, 0x86, 0x85, 1, 2]), [(0xd7, 1)]);
        assert_eq!(all(&[0; 16]), []);
    }
}
