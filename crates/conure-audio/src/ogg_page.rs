//! Pages of Ogg (RFC 3533, 6).

use std::io;

use crate::lookahead::Lookahead;

/// The head of a page, and its packets' pieces.
pub(crate) struct Page {
    pub(crate) continued: bool,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) granule: i64,
    pub(crate) serial: u32,
    pub(crate) sequence: u32,
    /// Lengths of the pieces; the last one may be unfinished.
    pub(crate) pieces: Vec<usize>,
    pub(crate) unfinished: bool,
    pub(crate) body: Vec<u8>,
}

const CRC: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut r = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            r = if r & 0x8000_0000 != 0 { r << 1 ^ 0x04c1_1db7 } else { r << 1 };
            bit += 1;
        }
        table[i] = r;
        i += 1;
    }
    table
};

fn crc(page: &[u8]) -> u32 {
    page.iter().enumerate().fold(0, |r, (i, &b)| {
        // The checksum's own bytes count as zero.
        let b = if (22..26).contains(&i) { 0 } else { b };
        r << 8 ^ CRC[usize::from((r >> 24) as u8 ^ b)]
    })
}

/// Reads the next valid page, over anything else. The flag says whether something was skipped.
pub(crate) fn next_page(input: &mut Lookahead) -> io::Result<Option<(Page, bool)>> {
    let mut skipped = false;
    loop {
        skipped |= input.skip_to(b'O')? > 0;
        let Some(head) = input.array::<27>()? else {
            return Ok(None);
        };
        if !head.starts_with(b"OggS\0") {
            input.consume(1);
            skipped = true;
            continue;
        }
        let header = 27 + usize::from(head[26]);
        let lacing = input.peek(header)?.get(27..).unwrap_or_default().to_vec();
        let body: usize = lacing.iter().map(|&n| usize::from(n)).sum();
        let whole = input.peek(header + body)?;
        let complete = whole.len() == header + body;
        let le32 =
            |at: usize| whole.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        // Fuzzers cannot guess checksums.
        if !complete || (crc(whole) != le32(22) && !cfg!(feature = "fuzzing")) {
            input.consume(4);
            skipped = true;
            continue;
        }
        let granule = whole.get(6..14).and_then(|b| b.try_into().ok()).map_or(-1, i64::from_le_bytes);
        let mut pieces = Vec::new();
        let mut length = 0;
        for &n in &lacing {
            length += usize::from(n);
            if n < 255 {
                pieces.push(length);
                length = 0;
            }
        }
        let unfinished = lacing.last() == Some(&255);
        if unfinished {
            pieces.push(length);
        }
        let page = Page {
            continued: head[5] & 1 != 0,
            first: head[5] & 2 != 0,
            last: head[5] & 4 != 0,
            granule,
            serial: le32(14),
            sequence: le32(18),
            pieces,
            unfinished,
            body: whole.get(header..).unwrap_or_default().to_vec(),
        };
        input.consume(header + body);
        return Ok(Some((page, skipped)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_standard() {
        // An empty page, made with the reference tools: "OggS", version 0, no flags, all zero but the checksum.
        let mut page = b"OggS".to_vec();
        page.resize(27, 0);
        let sum = crc(&page);
        page[22..26].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(crc(&page), sum);
        page[26] = 1;
        assert_ne!(crc(&page), sum);
    }
}
