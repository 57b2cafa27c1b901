//! Reading numbers and strings from bytes, never past their end.

/// A position in the bytes of a file.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Fewer bytes are left than are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub at: usize,
    pub wanted: u64,
    pub left: usize,
}

impl<'a> Cursor<'a> {
    /// Reads `bytes` from byte `at` on.
    pub fn new(bytes: &'a [u8], at: usize) -> Cursor<'a> {
        Cursor { bytes, at: at.min(bytes.len()) }
    }

    /// The position.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes follow.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes from `start`, an earlier position, to here.
    pub fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: u64) -> Result<&'a [u8], Short> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(Short { at: self.at, wanted: count, left: rest.len() }),
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        match self.bytes[self.at..].first_chunk() {
            Some(&bytes) => {
                self.at += N;
                Ok(bytes)
            }
            None => Err(Short { at: self.at, wanted: N as u64, left: self.left() }),
        }
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length, then its bytes.
    pub fn string(&mut self) -> Result<&'a [u8], Short> {
        let len = self.u64()?;
        self.take(len)
    }
}
