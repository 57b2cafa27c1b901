//! Where audio comes from: a path, bytes in memory, or a reader that cannot seek. All become one thing to read.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symphonia::core::io::MediaSource;

use crate::error::{AudioError, AudioErrorKind};

/// A piped input up to this many bytes is kept in memory, a longer one in a temporary file.
const SPOOL_MEMORY: usize = 32 << 20;

/// How much of the beginning is looked at to tell the format.
pub(crate) const HEAD: usize = 64 << 10;

/// Audio to be read: see [`AudioSource::path`], [`AudioSource::bytes`], [`AudioSource::reader`].
pub struct AudioSource {
    name: String,
    origin: Origin,
}

enum Origin {
    Path(PathBuf),
    Bytes(Vec<u8>),
    Reader(Box<dyn Read + Send>),
}

impl AudioSource {
    /// A file. A FIFO or `/dev/stdin` works too, as a reader.
    pub fn path(path: impl Into<PathBuf>) -> AudioSource {
        let path = path.into();
        AudioSource { name: path.display().to_string(), origin: Origin::Path(path) }
    }

    /// A whole file in memory; `name` is for messages only.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> AudioSource {
        AudioSource { name: name.into(), origin: Origin::Bytes(bytes.into()) }
    }

    /// Something that can only be read once, front to back, such as standard input. WAV and raw samples are decoded
    /// as they come; every other format is first kept whole, in memory or in a temporary file.
    pub fn reader(name: impl Into<String>, reader: impl Read + Send + 'static) -> AudioSource {
        AudioSource { name: name.into(), origin: Origin::Reader(Box::new(reader)) }
    }

    /// The same once more, from its beginning; `None` for what can only be read once.
    pub fn again(&self) -> Option<AudioSource> {
        let origin = match &self.origin {
            Origin::Path(path) if std::fs::metadata(path).map_or(true, |m| m.is_file()) => {
                Origin::Path(path.clone())
            }
            Origin::Bytes(bytes) => Origin::Bytes(bytes.clone()),
            Origin::Path(_) | Origin::Reader(_) => return None,
        };
        Some(AudioSource { name: self.name.clone(), origin })
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens it and reads the first bytes.
    pub(crate) fn open(self, max_bytes: u64) -> Result<Input, AudioError> {
        let name = self.name;
        let fail = |kind| AudioError::new(&name, kind);
        let seekable = |mut media: Box<dyn MediaSource>, len: u64| -> Result<Input, AudioError> {
            let head = read_head(&mut media).map_err(|e| fail(AudioErrorKind::Read(e)))?;
            Ok(Input { name: name.clone(), head, body: Body::Seekable(media, len), max_bytes })
        };
        let stream = |mut reader: Box<dyn Read + Send>| -> Result<Input, AudioError> {
            let head = read_head(&mut reader).map_err(|e| fail(AudioErrorKind::Read(e)))?;
            Ok(Input { name: name.clone(), head, body: Body::Stream(reader), max_bytes })
        };
        match self.origin {
            Origin::Bytes(bytes) => {
                let len = bytes.len() as u64;
                seekable(Box::new(Cursor::new(bytes)), len)
            }
            Origin::Reader(reader) => stream(reader),
            Origin::Path(path) => {
                let meta = std::fs::metadata(&path).map_err(|e| fail(AudioErrorKind::Open(e)))?;
                if meta.is_dir() {
                    return Err(fail(AudioErrorKind::Directory));
                }
                let file = File::open(&path).map_err(|e| fail(AudioErrorKind::Open(e)))?;
                if meta.is_file() { seekable(Box::new(file), meta.len()) } else { stream(Box::new(file)) }
            }
        }
    }
}

fn read_head(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    reader.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// An opened source and its first bytes.
pub(crate) struct Input {
    pub(crate) name: String,
    /// The first [`HEAD`] bytes, or all if there are fewer.
    pub(crate) head: Vec<u8>,
    body: Body,
    max_bytes: u64,
}

enum Body {
    /// Positioned anywhere; the length in bytes is known.
    Seekable(Box<dyn MediaSource>, u64),
    /// Positioned just behind the head.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    /// The length in bytes, where it is known without reading.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.body {
            Body::Seekable(_, len) => Some(*len),
            Body::Stream(_) => (self.head.len() < HEAD).then_some(self.head.len() as u64),
        }
    }

    /// To read once from the first byte on, without keeping anything.
    pub(crate) fn into_reader(self) -> Result<Box<dyn Read + Send>, AudioErrorKind> {
        match self.body {
            Body::Seekable(mut media, _) => {
                media.seek(SeekFrom::Start(0)).map_err(AudioErrorKind::Read)?;
                Ok(Box::new(io::BufReader::with_capacity(64 << 10, media)))
            }
            Body::Stream(reader) => {
                Ok(Box::new(io::BufReader::with_capacity(64 << 10, Cursor::new(self.head).chain(reader))))
            }
        }
    }

    /// To read with seeking, from the first byte on; keeps a pipe in memory or in a temporary file.
    pub(crate) fn into_media(self) -> Result<Media, AudioErrorKind> {
        match self.body {
            Body::Seekable(mut media, len) => {
                media.seek(SeekFrom::Start(0)).map_err(AudioErrorKind::Read)?;
                Ok(Media { inner: media, start: 0, len, pos: 0 })
            }
            Body::Stream(reader) => spool(self.head, reader, self.max_bytes),
        }
    }
}

fn spool(head: Vec<u8>, reader: impl Read, max_bytes: u64) -> Result<Media, AudioErrorKind> {
    let mut memory = head;
    let mut reader = reader.take(max_bytes.saturating_add(1).saturating_sub(memory.len() as u64));
    let room = SPOOL_MEMORY.saturating_sub(memory.len()) as u64;
    (&mut reader).take(room).read_to_end(&mut memory).map_err(AudioErrorKind::Read)?;
    if (memory.len() as u64) > max_bytes {
        return Err(AudioErrorKind::TooManyBytes { limit: max_bytes });
    }
    if memory.len() < SPOOL_MEMORY {
        let len = memory.len() as u64;
        return Ok(Media { inner: Box::new(Cursor::new(memory)), start: 0, len, pos: 0 });
    }
    // Readable by this user only, without a name where the system can, so it is gone even after a kill.
    let mut file = tempfile::tempfile().map_err(AudioErrorKind::Spool)?;
    file.write_all(&memory).map_err(AudioErrorKind::Spool)?;
    drop(memory);
    let mut buffer = vec![0u8; 256 << 10];
    let mut len = SPOOL_MEMORY as u64;
    loop {
        let n = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(AudioErrorKind::Read(e)),
        };
        file.write_all(&buffer[..n]).map_err(AudioErrorKind::Spool)?;
        len += n as u64;
        if len > max_bytes {
            return Err(AudioErrorKind::TooManyBytes { limit: max_bytes });
        }
    }
    file.seek(SeekFrom::Start(0)).map_err(AudioErrorKind::Spool)?;
    Ok(Media { inner: Box::new(file), start: 0, len, pos: 0 })
}

/// Seekable bytes, or a window into them. Never yields a byte outside the window.
pub(crate) struct Media {
    inner: Box<dyn MediaSource>,
    /// The window's first byte in `inner`.
    start: u64,
    /// The window's length.
    len: u64,
    /// The position in the window; `inner` stands at `start + pos`.
    pos: u64,
}

impl Media {
    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The part from `offset` on, at most `len` bytes, positioned at its beginning.
    pub(crate) fn window(mut self, offset: u64, len: u64) -> io::Result<Media> {
        let offset = offset.min(self.len);
        self.start += offset;
        self.len = len.min(self.len - offset);
        self.rewind()?;
        Ok(self)
    }

    /// The whole again, positioned at its beginning. `total` is the whole's length.
    pub(crate) fn rewind(&mut self) -> io::Result<()> {
        self.inner.seek(SeekFrom::Start(self.start))?;
        self.pos = 0;
        Ok(())
    }

    /// Reads at `pos`, as many bytes as there are up to `buf`'s length.
    pub(crate) fn read_at(&mut self, pos: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.seek(SeekFrom::Start(pos))?;
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|r| !r.is_empty()) {
            match self.read(rest) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}

/// Media that readers use one after the other.
#[derive(Clone)]
pub(crate) struct SharedMedia(Arc<Mutex<Media>>);

impl Media {
    /// For more than one reader in turn.
    pub(crate) fn shared(self) -> SharedMedia {
        SharedMedia(Arc::new(Mutex::new(self)))
    }
}

impl SharedMedia {
    fn media(&self) -> MutexGuard<'_, Media> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part from `offset` on, at most `len` bytes. Windows made before it must not be read any more.
    pub(crate) fn window(&self, offset: u64, len: u64) -> io::Result<Media> {
        let whole = self.media().len();
        Media { inner: Box::new(self.clone()), start: 0, len: whole, pos: 0 }.window(offset, len)
    }
}

impl Read for SharedMedia {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.media().read(buf)
    }
}

impl Seek for SharedMedia {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.media().seek(to)
    }
}

impl MediaSource for SharedMedia {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.media().len())
    }
}

impl Read for Media {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.len.saturating_sub(self.pos)).unwrap_or(usize::MAX);
        let want = buf.len().min(room);
        let n = self.inner.read(&mut buf[..want])?;
        self.pos += n as u64;
        Ok(n)
    }
}

impl Seek for Media {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "seek before the beginning");
        let target = match to {
            SeekFrom::Start(p) => p,
            SeekFrom::End(d) => self.len.checked_add_signed(d).ok_or_else(invalid)?,
            SeekFrom::Current(d) => self.pos.checked_add_signed(d).ok_or_else(invalid)?,
        };
        // Beyond the end there is nothing to read; stand there without asking the system for absurd offsets.
        let clamped = target.min(self.len);
        if clamped != self.pos {
            self.inner.seek(SeekFrom::Start(self.start + clamped))?;
        }
        self.pos = clamped;
        Ok(target)
    }
}

impl MediaSource for Media {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_spooled_and_bounded() {
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let open = |max| AudioSource::reader("-", Cursor::new(data.clone())).open(max).unwrap().into_media();
        let mut media = open(1 << 40).unwrap();
        assert_eq!(media.len(), 200_000);
        let mut buf = [0u8; 16];
        assert_eq!(media.read_at(199_990, &mut buf).unwrap(), 10);
        assert_eq!(buf[..10], data[199_990..]);
        assert_eq!(media.seek(SeekFrom::Start(u64::MAX)).unwrap(), u64::MAX);
        assert_eq!(media.read(&mut buf).unwrap(), 0);
        assert!(matches!(open(1000), Err(AudioErrorKind::TooManyBytes { limit: 1000 })));
    }

    #[test]
    fn a_long_pipe_goes_to_a_file() {
        let len = SPOOL_MEMORY as u64 + 1_000_003;
        let reader = io::repeat(7).take(len);
        let mut media = AudioSource::reader("-", reader).open(1 << 40).unwrap().into_media().unwrap();
        assert_eq!(media.len(), len);
        let mut buf = [0u8; 4];
        assert_eq!(media.read_at(len - 2, &mut buf).unwrap(), 2);
        assert_eq!(buf[..2], [7, 7]);
    }

    #[test]
    fn windows_hold() {
        let data: Vec<u8> = (0..100u8).collect();
        let media = AudioSource::bytes("x", data).open(1000).unwrap().into_media().unwrap();
        let mut media = media.window(10, 20).unwrap();
        let mut all = Vec::new();
        media.read_to_end(&mut all).unwrap();
        assert_eq!(all, (10..30u8).collect::<Vec<_>>());
        assert!(media.seek(SeekFrom::End(-21)).is_err());
        assert_eq!(media.seek(SeekFrom::End(-5)).unwrap(), 15);
        let mut b = [0u8; 2];
        media.read_exact(&mut b).unwrap();
        assert_eq!(b, [25, 26]);
        let mut sub = media.window(18, 100).unwrap();
        all.clear();
        sub.read_to_end(&mut all).unwrap();
        assert_eq!(all, vec![28, 29]);
    }
}
