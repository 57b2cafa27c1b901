//! A window of an open file or of memory, read by offset: members of an archive are never unpacked to disk.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Backing {
    File(Arc<File>),
    Bytes(Arc<[u8]>),
}

/// A readable, seekable window. Clones have their own position.
#[derive(Clone, Debug)]
pub struct Section {
    backing: Backing,
    start: u64,
    len: u64,
    pos: u64,
    budget: Option<u64>,
}

impl Section {
    /// The whole of a regular file.
    ///
    /// # Errors
    /// If the file's length cannot be asked, or it is a directory, pipe or device (which could block for ever).
    pub fn of_file(file: File) -> io::Result<Section> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Section {
            backing: Backing::File(Arc::new(file)),
            start: 0,
            len: meta.len(),
            pos: 0,
            budget: None,
        })
    }

    /// All of these bytes.
    pub fn of_bytes(bytes: impl Into<Arc<[u8]>>) -> Section {
        let bytes: Arc<[u8]> = bytes.into();
        let len = bytes.len() as u64;
        Section { backing: Backing::Bytes(bytes), start: 0, len, pos: 0, budget: None }
    }

    /// `len` bytes from `offset`, or `None` where that reaches past this window.
    pub fn sub(&self, offset: u64, len: u64) -> Option<Section> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let start = self.start.checked_add(offset)?;
        Some(Section { backing: self.backing.clone(), start, len, pos: 0, budget: None })
    }

    /// The same window, from its start, that fails once `bytes` have been read. It bounds what a parser that reads
    /// on and on can make of a hostile file.
    pub fn with_budget(&self, bytes: u64) -> Section {
        Section { pos: 0, budget: Some(bytes), ..self.clone() }
    }

    /// Bytes in the window.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// If the window ends before, or the file cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut window = self.sub(offset, out.len() as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{} bytes at {offset} reach past the end, {}", out.len(), self.len),
            )
        })?;
        window.read_exact(out)
    }

    /// All bytes, if there are no more than `limit`.
    ///
    /// # Errors
    /// If there are more, or the file cannot be read.
    pub fn read_all(&self, limit: u64) -> io::Result<Vec<u8>> {
        if self.len > limit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it has {} bytes, more than the {limit} expected of such a file", self.len),
            ));
        }
        let mut out = vec![0; usize::try_from(self.len).map_err(io::Error::other)?];
        self.read_at(0, &mut out)?;
        Ok(out)
    }
}

impl Read for Section {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(self.pos)).unwrap_or(usize::MAX);
        let want = out.len().min(left);
        if want == 0 {
            return Ok(0);
        }
        if let Some(budget) = self.budget.as_mut() {
            *budget = budget
                .checked_sub(want as u64)
                .ok_or_else(|| io::Error::other("its directory is larger than any model's"))?;
        }
        let at = self.start.saturating_add(self.pos);
        let n = match &self.backing {
            // One thread reads; the position of the shared handle is set before every read.
            Backing::File(file) => {
                let mut handle: &File = file;
                handle.seek(SeekFrom::Start(at))?;
                handle.read(&mut out[..want])?
            }
            Backing::Bytes(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let part = &bytes[from..from.saturating_add(want).min(bytes.len())];
                out[..part.len()].copy_from_slice(part);
                part.len()
            }
        };
        self.pos = self.pos.saturating_add(n as u64);
        Ok(n)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::End(d) => self.len.checked_add_signed(d),
            SeekFrom::Current(d) => self.pos.checked_add_signed(d),
        };
        self.pos =
            target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a seek before the start"))?;
        Ok(self.pos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_where_they_say() {
        let all = Section::of_bytes(*b"0123456789");
        let mut part = all.sub(3, 4).unwrap();
        let mut text = String::new();
        part.read_to_string(&mut text).unwrap();
        assert_eq!(text, "3456");
        assert!(all.sub(3, 8).is_none());
        assert!(all.sub(u64::MAX, 2).is_none());
        assert!(part.read_at(2, &mut [0; 3]).is_err());
        assert_eq!(part.seek(SeekFrom::End(-1)).unwrap(), 3);
        assert!(part.seek(SeekFrom::Current(-4)).is_err());
        assert!(all.read_all(9).is_err());
    }

    #[test]
    fn a_budget_ends() {
        let mut s = Section::of_bytes(vec![7u8; 100]).with_budget(60);
        assert!(s.read_exact(&mut [0; 60]).is_ok());
        assert!(s.read_exact(&mut [0; 1]).is_err());
    }
}
