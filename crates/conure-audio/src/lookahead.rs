//! A buffered reader that can look ahead, for bare streams, Ogg and Matroska.

use std::io::{self, Read, Seek, SeekFrom};

use crate::source::Media;

const BUFFER: usize = 64 << 10;

pub(crate) struct Lookahead {
    media: Media,
    buffer: Vec<u8>,
    at: usize,
    /// The position in the media of the buffer's end.
    end: u64,
}

impl Lookahead {
    /// Starts at the beginning of `media`.
    pub(crate) fn new(mut media: Media) -> io::Result<Lookahead> {
        media.rewind()?;
        Ok(Lookahead { media, buffer: Vec::new(), at: 0, end: 0 })
    }

    /// Where the next byte stands.
    pub(crate) fn position(&self) -> u64 {
        self.end - (self.buffer.len() - self.at) as u64
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> u64 {
        self.media.len().saturating_sub(self.position())
    }

    /// The next `n` bytes, or fewer at the end. Memory is taken for bytes that are there only.
    pub(crate) fn peek(&mut self, n: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.at < n {
            self.buffer.drain(..self.at);
            self.at = 0;
            let want = n.max(BUFFER) - self.buffer.len();
            let got = (&mut self.media).take(want as u64).read_to_end(&mut self.buffer)?;
            self.end += got as u64;
        }
        let end = self.at.saturating_add(n).min(self.buffer.len());
        Ok(self.buffer.get(self.at..end).unwrap_or_default())
    }

    /// The next `N` bytes, if there are as many.
    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        Ok(self.peek(N)?.try_into().ok())
    }

    /// Goes on by `n` bytes that were looked at.
    pub(crate) fn consume(&mut self, n: usize) {
        self.at = self.at.saturating_add(n).min(self.buffer.len());
    }

    pub(crate) fn at_end(&mut self) -> io::Result<bool> {
        Ok(self.peek(1)?.is_empty())
    }

    /// Goes to the next `byte` or to the end; returns how far that was.
    pub(crate) fn skip_to(&mut self, byte: u8) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            self.peek(1)?;
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(skipped);
            }
            let found = rest.iter().position(|&b| b == byte);
            let step = found.unwrap_or(rest.len());
            skipped += step as u64;
            self.at += step;
            if found.is_some() {
                return Ok(skipped);
            }
        }
    }

    /// Goes on by `n` bytes or to the end, without reading what is jumped over.
    pub(crate) fn skip(&mut self, n: u64) -> io::Result<()> {
        let buffered = (self.buffer.len() - self.at) as u64;
        if n <= buffered {
            self.at += n as usize;
            return Ok(());
        }
        self.seek(self.position().saturating_add(n))
    }

    /// Goes to a position, at most the end.
    pub(crate) fn seek(&mut self, position: u64) -> io::Result<()> {
        let position = position.min(self.media.len());
        self.media.seek(SeekFrom::Start(position))?;
        self.buffer.clear();
        self.at = 0;
        self.end = position;
        Ok(())
    }

    /// Goes over tags and zeros; says how many bytes there are with those tags, if anything stands behind them.
    pub(crate) fn more_than_tags(&mut self) -> io::Result<Option<u64>> {
        // With a tag begins the file that it belongs to.
        let mut from = None;
        // A few tags in a row occur.
        let mut tags = 0;
        loop {
            let left = self.left();
            let data = self.peek(4096)?;
            if let Some(tag) = crate::sniff::tag_len(data).filter(|_| tags < 16) {
                tags += 1;
                from = from.or(Some(left));
                self.skip(tag)?;
                continue;
            }
            match data.iter().position(|&b| b != 0) {
                // The first bytes of MP4 are zeros too.
                Some(zeros) => {
                    self.consume(if zeros < 4 { 0 } else { zeros });
                    return Ok(from.or(Some(self.left())));
                }
                None if data.is_empty() => return Ok(None),
                None => {
                    let zeros = data.len();
                    self.consume(zeros);
                }
            }
        }
    }

    /// Takes `n` bytes, or fewer at the end.
    pub(crate) fn read(&mut self, n: usize) -> io::Result<Vec<u8>> {
        let bytes = self.peek(n)?.to_vec();
        self.consume(bytes.len());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::AudioSource;

    #[test]
    fn looks_and_jumps() {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i / 1000) as u8).collect();
        let media = AudioSource::bytes("x", data).open(1 << 30).unwrap().into_media().unwrap();
        let mut l = Lookahead::new(media).unwrap();
        assert_eq!(l.peek(3).unwrap(), [0, 0, 0]);
        assert_eq!(l.skip_to(200).unwrap(), 200_000);
        assert_eq!((l.position(), l.left()), (200_000, 100_000));
        l.skip(10).unwrap();
        l.skip(80_000).unwrap();
        assert_eq!(l.position(), 280_010);
        assert_eq!(l.read(2).unwrap(), [(280_010u32 / 1000) as u8; 2]);
        assert_eq!(l.peek(1 << 20).unwrap().len(), 300_000 - 280_012);
        l.seek(5_000).unwrap();
        assert_eq!(l.read(1).unwrap(), [5]);
        l.skip(u64::MAX).unwrap();
        assert!(l.at_end().unwrap());
    }
}
