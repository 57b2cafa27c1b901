//! Files as bytes: mapped into memory, read into memory, or already there.
//!
//! A model file is mapped, so that opening it costs nothing, pages come in as they are used, and several processes
//! share one copy. [`MappedFile::read`] is for file systems that cannot map and for files that may change under the
//! program.

#![allow(unsafe_code)]

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use thiserror::Error;

use crate::arena::{AlignedBytes, ArenaError};

/// Every [`MappedFile`] starts on a multiple of this many bytes, so that an element inside whose offset in the file
/// is a multiple of its size can be read in place.
pub const MIN_ALIGNMENT: usize = 16;

/// Pages are given back in units of this size; machines with larger pages round up to theirs, which costs a second
/// read of the rest of such a page and nothing else.
const PAGE: usize = 4096;

/// Why a file could not be had as bytes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done: `open`, `map` (then [`MappedFile::read`] may still work), `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path names something that has no bytes of its own.
    #[error("{} is {kind}, not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is, with its article: `a directory`, `a pipe`.
        kind: &'static str,
    },
    /// The file has another length than when it was opened.
    #[error(
        "{} changed while it was in use: it had {expected} bytes and now has {found}; \
         do not write over a file that is loaded, or load it without mapping it",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Bytes when it was opened.
        expected: u64,
        /// Bytes now.
        found: u64,
    },
    /// No memory to hold the bytes.
    #[error("cannot hold {} in memory: {source}", name)]
    Memory {
        /// The file, or a description of the bytes.
        name: String,
        /// The refusal.
        source: ArenaError,
    },
}

/// The bytes of a file, read-only, wherever they are kept.
#[derive(Debug)]
pub struct MappedFile {
    store: Store,
    path: Option<PathBuf>,
}

#[derive(Debug)]
enum Store {
    /// The open file is kept to notice when it shrinks.
    Mapped(Mmap, File),
    Aligned(AlignedBytes),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl MappedFile {
    /// Maps a regular file read-only. Symbolic links are followed; an empty file gives no bytes.
    ///
    /// A mapping shows the file, not a copy: reading a part that another process has cut off since ends the process
    /// with a bus error. [`MappedFile::check_unchanged`] notices that before the bytes are used;
    /// [`MappedFile::read`] has no such hazard.
    ///
    /// # Errors
    /// A path that is missing or unreadable, a directory, pipe, device or socket, or a file that cannot be mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<MappedFile, MapError> {
        let path = path.as_ref();
        let (file, _) = open_regular(path)?;
        // SAFETY: the map is read-only and only ever lent as `&[u8]`. What remains, and no program can rule it out,
        // is another process writing to the file; the doc comment above says so, and `read` is the way around it.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| io_error("map", path, e))?;
        Ok(MappedFile { store: Store::Mapped(map, file), path: Some(path.to_owned()) })
    }

    /// Reads a regular file into memory.
    ///
    /// # Errors
    /// As [`MappedFile::open`]; also when memory is short, or the file changes its length while it is read.
    pub fn read(path: impl AsRef<Path>) -> Result<MappedFile, MapError> {
        let path = path.as_ref();
        let (mut file, meta) = open_regular(path)?;
        let expected = meta.len();
        let changed = |found| MapError::Changed { path: path.to_owned(), expected, found };
        let wanted = usize::try_from(expected).unwrap_or(usize::MAX);
        let mut bytes = aligned(wanted, &path.display().to_string())?;
        let mut filled = 0;
        while filled < wanted {
            match file.read(&mut bytes.as_mut_slice()[filled..]) {
                Ok(0) => return Err(changed(filled as u64)),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io_error("read", path, e)),
            }
        }
        let now = file.metadata().map_err(|e| io_error("read", path, e))?.len();
        if now != expected {
            return Err(changed(now));
        }
        Ok(MappedFile { store: Store::Aligned(bytes), path: Some(path.to_owned()) })
    }

    /// Takes bytes that are in memory already. They are copied only if they lie on an odd address.
    ///
    /// # Errors
    /// When that copy finds no memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<MappedFile, MapError> {
        let store = if is_aligned(&bytes) { Store::Owned(bytes) } else { Store::Aligned(copy(&bytes)?) };
        Ok(MappedFile { store, path: None })
    }

    /// Takes bytes that are part of the program; [`include_aligned!`](crate::include_aligned) puts them where they
    /// need no copy.
    ///
    /// # Errors
    /// When they lie on an odd address and the copy finds no memory.
    pub fn from_static(bytes: &'static [u8]) -> Result<MappedFile, MapError> {
        let store = if is_aligned(bytes) { Store::Static(bytes) } else { Store::Aligned(copy(bytes)?) };
        Ok(MappedFile { store, path: None })
    }

    /// All bytes; the first lies on a multiple of [`MIN_ALIGNMENT`].
    pub fn bytes(&self) -> &[u8] {
        match &self.store {
            Store::Mapped(map, _) => map,
            Store::Aligned(bytes) => bytes.as_slice(),
            Store::Owned(bytes) => bytes,
            Store::Static(bytes) => bytes,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Where the bytes came from; `None` for bytes that were given.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether the bytes are a mapping of the file rather than a copy.
    pub fn is_mapped(&self) -> bool {
        matches!(self.store, Store::Mapped(..))
    }

    /// What tells this file, as it is now, from every other and from itself after a change, without reading it: the file
    /// system's numbers for it, its length, and its times of change to the nanosecond. `None` for bytes that are no mapping
    /// of a file, on systems without such numbers, and for a file that changed a moment ago: a second change within one tick
    /// of the file system's clock would go unseen.
    pub fn stamp(&self) -> Option<String> {
        let Store::Mapped(_, file) = &self.store else { return None };
        stamp(&file.metadata().ok()?)
    }

    /// Tells the system that the bytes in `range` are not needed for now, so that their memory can be used for
    /// something else; whole pages inside the range only. The bytes stay readable: a later access fetches them from
    /// the file again. Does nothing for bytes that are not mapped, and on systems without such advice.
    pub fn release(&self, range: Range<usize>) {
        let Store::Mapped(map, _) = &self.store else { return };
        let start = range.start.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let mut end = range.end.min(map.len());
        // The last page may be a partial one: it belongs to the range if the range reaches the end of the file.
        if end < map.len() {
            end -= end % PAGE;
        }
        if start < end {
            advise_unneeded(map, start, end - start);
        }
    }

    /// Checks that a mapped file still has the length it was mapped with. Costs one system call; call it before
    /// reading a part for the first time.
    ///
    /// # Errors
    /// [`MapError::Changed`] if the length differs: reading on could end the process.
    pub fn check_unchanged(&self) -> Result<(), MapError> {
        let (Store::Mapped(map, file), Some(path)) = (&self.store, &self.path) else { return Ok(()) };
        let found = file.metadata().map_err(|e| io_error("read", path, e))?.len();
        let expected = map.len() as u64;
        if found == expected {
            Ok(())
        } else {
            Err(MapError::Changed { path: path.clone(), expected, found })
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Holds the bytes of a file, given as for `include_bytes!`, in the program, on an aligned address, as a
/// `&'static [u8]`.
#[macro_export]
macro_rules! include_aligned {
    ($path:expr $(,)?) => {{
        #[repr(C, align(64))]
        struct Aligned<T: ?Sized>(T);
        static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        let bytes: &'static [u8] = &BYTES.0;
        bytes
    }};
}

#[cfg(unix)]
fn advise_unneeded(map: &Mmap, start: usize, len: usize) {
    // Advice that the system refuses costs memory, nothing else, so its error is of no use to anyone.
    // SAFETY: the map is a shared, read-only view of a file, so dropped pages come back with the same bytes.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
}

#[cfg(not(unix))]
fn advise_unneeded(_: &Mmap, _: usize, _: usize) {}

/// A file this young may change again without its times changing.
#[cfg(unix)]
const SETTLED: std::time::Duration = std::time::Duration::from_secs(2);

#[cfg(unix)]
fn stamp(meta: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // The time of change counts writes and renames and cannot be set back as that of modification can.
    let changed = std::time::UNIX_EPOCH
        + std::time::Duration::new(u64::try_from(meta.ctime()).ok()?, u32::try_from(meta.ctime_nsec()).ok()?);
    let age = std::time::SystemTime::now().duration_since(changed).ok()?;
    (age > SETTLED).then(|| {
        format!(
            "{}.{}.{}.{}.{}.{}.{}",
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        )
    })
}

#[cfg(not(unix))]
fn stamp(_: &Metadata) -> Option<String> {
    None
}

/// Opens a path after making sure that it is a regular file: opening a pipe could wait for ever.
fn open_regular(path: &Path) -> Result<(File, Metadata), MapError> {
    let refuse = |kind| MapError::NotAFile { path: path.to_owned(), kind };
    let before = std::fs::metadata(path).map_err(|e| io_error("open", path, e))?;
    if let Some(kind) = odd_kind(before.file_type()) {
        return Err(refuse(kind));
    }
    let file = File::open(path).map_err(|e| io_error("open", path, e))?;
    let meta = file.metadata().map_err(|e| io_error("open", path, e))?;
    match odd_kind(meta.file_type()) {
        Some(kind) => Err(refuse(kind)),
        None => Ok((file, meta)),
    }
}

/// What a path is when it is not a regular file.
fn odd_kind(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        return None;
    }
    if kind.is_dir() {
        return Some("a directory");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return Some("a pipe");
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Some("a device");
        }
        if kind.is_socket() {
            return Some("a socket");
        }
    }
    Some("a special file")
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> MapError {
    MapError::Io { action, path: path.to_owned(), source }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(MIN_ALIGNMENT)
}

fn aligned(len: usize, name: &str) -> Result<AlignedBytes, MapError> {
    AlignedBytes::zeroed(len).map_err(|source| MapError::Memory { name: name.to_owned(), source })
}

fn copy(bytes: &[u8]) -> Result<AlignedBytes, MapError> {
    let mut copy = aligned(bytes.len(), "the given bytes")?;
    copy.as_mut_slice().copy_from_slice(bytes);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.flush().unwrap();
        file
    }

    #[test]
    fn every_way_in_gives_the_same_aligned_bytes() {
        static STATIC: [u8; 33] = [5; 33];
        let bytes: Vec<u8> = (0..20_000).map(|i| (i * 7) as u8).collect();
        let f = file(&bytes);
        let cases = [
            (MappedFile::open(f.path()).unwrap(), &bytes[..], true),
            (MappedFile::read(f.path()).unwrap(), &bytes[..], false),
            (MappedFile::from_bytes(bytes.clone()).unwrap(), &bytes[..], false),
            // One of these two lies on an odd address.
            (MappedFile::from_static(&STATIC[0..32]).unwrap(), &STATIC[0..32], false),
            (MappedFile::from_static(&STATIC[1..33]).unwrap(), &STATIC[1..33], false),
        ];
        for (got, want, mapped) in &cases {
            assert_eq!((got.bytes(), got.len(), got.is_mapped()), (*want, want.len(), *mapped));
            assert_eq!(got.bytes().as_ptr().addr() % MIN_ALIGNMENT, 0);
            assert!(got.check_unchanged().is_ok());
        }
        assert_eq!(cases[0].0.path(), Some(f.path()));
        assert_eq!(cases[2].0.path(), None);
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let f = file(b"");
        for got in [MappedFile::open(f.path()).unwrap(), MappedFile::read(f.path()).unwrap()] {
            assert!(got.is_empty());
            got.release(0..10);
        }
    }

    #[test]
    fn included_bytes_need_no_copy() {
        let bytes = include_aligned!("map.rs");
        assert!(bytes.starts_with(b"//! Files as bytes"));
        let got = MappedFile::from_static(bytes).unwrap();
        assert_eq!(got.bytes().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.gguf");
        let mut cases = vec![(dir.path().to_owned(), "is a directory, not a file")];
        cases.push((missing, "cannot open"));
        #[cfg(unix)]
        {
            let pipe = dir.path().join("pipe.gguf");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
            assert!(made.success());
            cases.push((pipe, "is a pipe, not a file"));
            cases.push(("/dev/zero".into(), "is a device, not a file"));
            let socket = dir.path().join("s");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            cases.push((socket, "is a socket, not a file"));
        }
        for (path, expected) in cases {
            for error in [MappedFile::open(&path).unwrap_err(), MappedFile::read(&path).unwrap_err()] {
                let text = error.to_string();
                assert!(text.contains(expected), "{text}");
                assert!(text.contains(&path.display().to_string()), "{text}");
            }
        }
    }

    #[test]
    fn released_pages_can_be_read_again() {
        let bytes: Vec<u8> = (0..10 * PAGE + 100).map(|i| (i / 13) as u8).collect();
        let f = file(&bytes);
        let map = MappedFile::open(f.path()).unwrap();
        let len = map.len();
        #[allow(clippy::reversed_empty_ranges)]
        let ranges = [
            0..len,
            1..PAGE,
            1..2 * PAGE,
            PAGE..PAGE,
            9 * PAGE..len,
            5..1,
            0..usize::MAX,
            usize::MAX..usize::MAX,
        ];
        for range in ranges {
            assert_eq!(map.bytes(), bytes);
            map.release(range);
        }
        assert_eq!(map.bytes(), bytes);
        MappedFile::from_bytes(bytes).unwrap().release(0..len);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn release_gives_memory_back() {
        let resident = || -> usize {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
        };
        let size = 32 << 20;
        let f = file(&vec![1; size]);
        let map = MappedFile::open(f.path()).unwrap();
        assert_eq!(map.bytes().iter().map(|&b| b as usize).sum::<usize>(), size);
        let before = resident();
        map.release(0..size);
        let after = resident();
        assert!(before - after > size / 2, "{before} bytes resident before, {after} after");
    }

    #[cfg(unix)]
    #[test]
    fn a_stamp_changes_with_the_file() {
        let f = file(&[1; 1000]);
        let meta = |path: &Path| std::fs::metadata(path).unwrap();
        assert_eq!(MappedFile::open(f.path()).unwrap().stamp(), None, "it was made a moment ago");
        assert_eq!(MappedFile::from_bytes(vec![1; 10]).unwrap().stamp(), None);
        // A file that is there since long: this program.
        let program = std::env::current_exe().unwrap();
        let stamp = |path: &Path| super::stamp(&meta(path));
        if let Some(first) = stamp(&program) {
            assert_eq!(stamp(&program), Some(first.clone()));
            assert!(first.contains(&meta(&program).len().to_string()));
        }
    }

    #[test]
    fn a_file_that_shrinks_is_noticed() {
        let f = file(&[1; 10_000]);
        let map = MappedFile::open(f.path()).unwrap();
        assert!(map.check_unchanged().is_ok());
        f.as_file().set_len(100).unwrap();
        let error = map.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("had 10000 bytes and now has 100"), "{error}");
    }
}
