//! Aligned memory for tensors on the CPU, with a checked way to borrow several parts of it at once.
//!
//! A graph plan places every intermediate tensor at an offset of one buffer. A node reads some of these ranges and
//! writes others; Rust's borrow rules cannot see that they are disjoint, so [`AlignedBytes::split`] checks it at run
//! time and then hands out ordinary slices. It runs once per node and run, so it allocates nothing.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use thiserror::Error;

/// Alignment of every [`AlignedBytes`] in bytes: one cache line, and the widest vector register in use.
pub const ALIGNMENT: usize = 64;

/// The most ranges [`AlignedBytes::split`] takes in either list.
pub const MAX_PARTS: usize = 16;

/// Why an arena could not be made or borrowed from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// The operating system refused the memory.
    #[error("could not allocate {wanted} bytes ({:.1} MiB) for an arena; use a smaller model, shorter input or free memory", *wanted as f64 / 1048576.0)]
    OutOfMemory {
        /// Bytes asked for.
        wanted: usize,
    },
    /// More than [`MAX_PARTS`] ranges in one list.
    #[error("a split takes at most {MAX_PARTS} {side} ranges, got {count}")]
    TooManyParts {
        /// Which list.
        side: Side,
        /// Its length.
        count: usize,
    },
    /// A range ends before it starts or beyond the arena.
    #[error("{side} range {index} ({start}..{end}) is not inside the arena of {len} bytes")]
    OutOfBounds {
        /// Which list.
        side: Side,
        /// Position in that list.
        index: usize,
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes in the arena.
        len: usize,
    },
    /// A write range shares bytes with another range.
    #[error("write range {write} ({}..{}) overlaps {side} range {index} ({}..{})", write_range.start, write_range.end, other.start, other.end)]
    Overlap {
        /// Position in the write list.
        write: usize,
        /// That range.
        write_range: Range<usize>,
        /// The list of the other range.
        side: Side,
        /// Position in its list.
        index: usize,
        /// The other range.
        other: Range<usize>,
    },
}

/// One of the two lists that [`AlignedBytes::split`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Ranges that are only read.
    Read,
    /// Ranges that are written.
    Write,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Read => "read",
            Side::Write => "write",
        })
    }
}

/// A byte buffer of fixed length, zeroed when made, whose first byte lies on a multiple of [`ALIGNMENT`].
///
/// Large buffers cost no physical memory until they are touched.
pub struct AlignedBytes {
    /// The first usable byte; dangling (but aligned) when `len` is 0.
    start: NonNull<u8>,
    len: usize,
    /// What the allocator gave, with the layout to give it back; `None` when `len` is 0.
    block: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the buffer is owned by this value alone and holds plain bytes; nothing in it belongs to a thread.
unsafe impl Send for AlignedBytes {}
// SAFETY: a shared reference only gives shared access to the bytes.
unsafe impl Sync for AlignedBytes {}

impl Default for AlignedBytes {
    /// An empty buffer.
    fn default() -> AlignedBytes {
        AlignedBytes { start: dangling(), len: 0, block: None }
    }
}

impl AlignedBytes {
    /// A zeroed buffer of `len` bytes.
    ///
    /// # Errors
    /// [`ArenaError::OutOfMemory`] if the memory is refused or `len` cannot be addressed.
    pub fn zeroed(len: usize) -> Result<AlignedBytes, ArenaError> {
        if len == 0 {
            return Ok(AlignedBytes::default());
        }
        let refused = || ArenaError::OutOfMemory { wanted: len };
        // The alignment is made here by skipping up to 63 bytes: asked for 64, the allocator would zero the pages by
        // writing them, while for a small alignment it takes untouched zero pages from the system.
        let padded = len.checked_add(ALIGNMENT - 1).ok_or_else(refused)?;
        let layout = Layout::from_size_align(padded, 1).map_err(|_| refused())?;
        // SAFETY: `layout` has a size above zero.
        let block = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(refused)?;
        let skip = block.addr().get().wrapping_neg() & (ALIGNMENT - 1);
        // SAFETY: `skip` <= ALIGNMENT - 1 and the block has `len + ALIGNMENT - 1` bytes, so `start` and the `len`
        // bytes from it lie inside the block.
        let start = unsafe { block.add(skip) };
        Ok(AlignedBytes { start, len, block: Some((block, layout)) })
    }

    /// Whether a buffer of `len` bytes could be had and used now: the allocator hands it out, and the machine has that much
    /// memory left, where it says. Touches nothing.
    pub fn would_fit(len: usize) -> bool {
        let left = available().is_none_or(|bytes| len as u64 <= bytes);
        left && Vec::<u8>::new().try_reserve_exact(len).is_ok()
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes owned by `self`, borrowed as long as the slice lives; for
        // `len` 0 it is dangling and aligned, which a slice allows.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Borrows several ranges at once: `reads` to read and `writes` to write, in the order given.
    ///
    /// Reads may overlap each other. An operation that works in place names its range in `writes` only. Empty ranges
    /// overlap nothing.
    ///
    /// # Errors
    /// A list of more than [`MAX_PARTS`] ranges, a range outside the buffer, or a write that overlaps a read or
    /// another write. Nothing is borrowed then.
    #[inline]
    pub fn split(
        &mut self,
        reads: &[Range<usize>],
        writes: &[Range<usize>],
    ) -> Result<Split<'_>, ArenaError> {
        for (side, ranges) in [(Side::Read, reads), (Side::Write, writes)] {
            if ranges.len() > MAX_PARTS {
                return Err(ArenaError::TooManyParts { side, count: ranges.len() });
            }
        }
        self.check(reads, writes)?;
        let mut split = Split {
            reads: [&[]; MAX_PARTS],
            read_count: reads.len(),
            writes: std::array::from_fn(|_| &mut [][..]),
            write_count: writes.len(),
        };
        for (slot, range) in split.reads.iter_mut().zip(reads) {
            // SAFETY: `check` found the range inside the buffer, and no write range shares a byte with it. The
            // buffer stays exclusively borrowed through the returned value's lifetime.
            *slot = unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) };
        }
        for (slot, range) in split.writes.iter_mut().zip(writes) {
            // SAFETY: `check` found the range inside the buffer and disjoint from every other write and every read,
            // and the buffer stays exclusively borrowed through the returned value's lifetime.
            *slot =
                unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) };
        }
        Ok(split)
    }

    /// As [`AlignedBytes::split`], for lists of any length; it allocates.
    ///
    /// # Errors
    /// As [`AlignedBytes::split`], but for the length of the lists.
    pub fn split_many(
        &mut self,
        reads: &[Range<usize>],
        writes: &[Range<usize>],
    ) -> Result<ManyParts<'_>, ArenaError> {
        self.check(reads, writes)?;
        let start = self.start.as_ptr();
        // SAFETY: `check` found every read inside the buffer and sharing no byte with a write; the buffer stays
        // exclusively borrowed through the lifetime of what is returned.
        let read = |r: &Range<usize>| unsafe { std::slice::from_raw_parts(start.add(r.start), r.len()) };
        // SAFETY: as above, and every write is disjoint from all others.
        let write = |w: &Range<usize>| unsafe { std::slice::from_raw_parts_mut(start.add(w.start), w.len()) };
        Ok((reads.iter().map(read).collect(), writes.iter().map(write).collect()))
    }

    /// The checks of [`AlignedBytes::split`] and [`AlignedBytes::split_many`].
    #[inline]
    fn check(&self, reads: &[Range<usize>], writes: &[Range<usize>]) -> Result<(), ArenaError> {
        for (side, ranges) in [(Side::Read, reads), (Side::Write, writes)] {
            for (index, r) in ranges.iter().enumerate() {
                if r.start > r.end || r.end > self.len {
                    return Err(ArenaError::OutOfBounds {
                        side,
                        index,
                        start: r.start,
                        end: r.end,
                        len: self.len,
                    });
                }
            }
        }
        for (write, w) in writes.iter().enumerate() {
            let others = [(Side::Read, reads), (Side::Write, &writes[..write])];
            for (side, ranges) in others {
                for (index, other) in ranges.iter().enumerate() {
                    if w.start.max(other.start) < w.end.min(other.end) {
                        let (write_range, other) = (w.clone(), other.clone());
                        return Err(ArenaError::Overlap { write, write_range, side, index, other });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of memory that programs can still have; `None` if the system does not say.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if let Some((block, layout)) = self.block {
            // SAFETY: `block` came from `alloc_zeroed` with this layout and is given back once.
            unsafe { alloc::dealloc(block.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The address of an empty buffer: aligned as every other.
fn dangling() -> NonNull<u8> {
    #[repr(align(64))]
    struct Line;
    NonNull::<Line>::dangling().cast()
}

/// What [`AlignedBytes::split_many`] borrows: reads, writes.
pub type ManyParts<'a> = (Vec<&'a [u8]>, Vec<&'a mut [u8]>);

/// Parts of an arena borrowed at once by [`AlignedBytes::split`].
pub struct Split<'a> {
    reads: [&'a [u8]; MAX_PARTS],
    read_count: usize,
    writes: [&'a mut [u8]; MAX_PARTS],
    write_count: usize,
}

impl<'a> Split<'a> {
    /// The read parts, in the order asked for.
    #[inline]
    pub fn reads(&self) -> &[&'a [u8]] {
        // The count was checked against MAX_PARTS when the split was made.
        &self.reads[..self.read_count]
    }

    /// The write parts, in the order asked for.
    #[inline]
    pub fn writes(&mut self) -> &mut [&'a mut [u8]] {
        &mut self.writes[..self.write_count]
    }

    /// Both lists at once: reads, writes.
    #[inline]
    pub fn parts(&mut self) -> (&[&'a [u8]], &mut [&'a mut [u8]]) {
        (&self.reads[..self.read_count], &mut self.writes[..self.write_count])
    }
}

impl fmt::Debug for Split<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split")
            .field("reads", &self.read_count)
            .field("writes", &self.write_count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
// A list of one range is meant as such here.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    type Ranges = Vec<Range<usize>>;

    #[test]
    fn zeroed_is_aligned_and_zero() {
        for len in [0, 1, 63, 64, 65, 4096, 1 << 20] {
            let mut a = AlignedBytes::zeroed(len).unwrap();
            assert_eq!((a.len(), a.is_empty()), (len, len == 0));
            assert_eq!(a.as_slice().as_ptr().addr() % ALIGNMENT, 0, "{len}");
            assert!(a.as_slice().iter().all(|&b| b == 0));
            a.as_mut_slice().fill(7);
            assert!(a.as_slice().iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn refused_memory_is_an_error_with_the_size() {
        for wanted in [usize::MAX, usize::MAX - 63, isize::MAX as usize, 1 << 62] {
            let error = AlignedBytes::zeroed(wanted).unwrap_err();
            assert_eq!(error, ArenaError::OutOfMemory { wanted });
            assert!(error.to_string().contains(&wanted.to_string()), "{error}");
        }
    }

    #[test]
    fn split_gives_the_ranges_in_order() {
        let mut a = AlignedBytes::zeroed(256).unwrap();
        a.as_mut_slice().iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let mut split = a.split(&[64..128, 100..104, 0..0], &[192..256, 0..64, 128..128]).unwrap();
        assert_eq!(split.reads().len(), 3);
        assert_eq!(split.reads()[1], [100, 101, 102, 103]);
        let (reads, writes) = split.parts();
        assert_eq!((writes[0].len(), writes[1].len(), writes[2].len()), (64, 64, 0));
        writes[1].copy_from_slice(reads[0]);
        writes[0].fill(1);
        assert_eq!(split.writes()[1][5], 69);
        assert_eq!(a.as_slice()[..64], a.as_slice()[64..128]);
        assert!(a.as_slice()[192..].iter().all(|&b| b == 1));
        assert_eq!(a.as_slice()[128], 128);
    }

    #[test]
    fn split_many_takes_lists_of_any_length_and_refuses_what_split_refuses() {
        let mut arena = AlignedBytes::zeroed(64 * 40).unwrap();
        let range = |i: usize| i * 64..(i + 1) * 64;
        let (reads, writes): (Vec<_>, Vec<_>) = ((0..20).map(range).collect(), (20..40).map(range).collect());
        for (i, r) in reads.iter().enumerate() {
            arena.as_mut_slice()[r.start] = i as u8;
        }
        let (read, mut write) = arena.split_many(&reads, &writes).unwrap();
        read.iter().zip(&mut write).for_each(|(r, w)| w.copy_from_slice(r));
        assert!((0..20).all(|i| arena.as_slice()[(i + 20) * 64] == i as u8));
        assert!(arena.split_many(&reads, &reads).is_err(), "a write over a read");
        assert!(arena.split_many(&[0..64 * 41], &[]).is_err(), "outside");
    }

    #[test]
    fn split_refuses_what_would_alias_or_leave_the_arena() {
        use Side::{Read, Write};
        let out = |side, index, start, end| ArenaError::OutOfBounds { side, index, start, end, len: 64 };
        let overlap = |write, write_range, side, index, other| ArenaError::Overlap {
            write,
            write_range,
            side,
            index,
            other,
        };
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 9..8;
        let max = usize::MAX;
        let cases: Vec<(Ranges, Ranges, ArenaError)> = vec![
            (vec![0..65], vec![], out(Read, 0, 0, 65)),
            (vec![0..1, 65..65], vec![], out(Read, 1, 65, 65)),
            (vec![], vec![0..max], out(Write, 0, 0, max)),
            (vec![reversed.clone()], vec![], out(Read, 0, 9, 8)),
            (vec![], vec![max..0], out(Write, 0, max, 0)),
            (vec![0..16], vec![15..32], overlap(0, 15..32, Read, 0, 0..16)),
            (vec![0..64], vec![8..9], overlap(0, 8..9, Read, 0, 0..64)),
            (vec![8..9], vec![0..64], overlap(0, 0..64, Read, 0, 8..9)),
            (vec![], vec![0..8, 8..16, 7..9], overlap(2, 7..9, Write, 0, 0..8)),
            (vec![0..1; 17], vec![], ArenaError::TooManyParts { side: Read, count: 17 }),
            (vec![], vec![0..0; 17], ArenaError::TooManyParts { side: Write, count: 17 }),
        ];
        let mut a = AlignedBytes::zeroed(64).unwrap();
        for (reads, writes, expected) in cases {
            assert_eq!(a.split(&reads, &writes).unwrap_err(), expected, "{reads:?} {writes:?}");
        }
        // The limits themselves are fine, and so are neighbours that touch and reads that overlap reads.
        assert!(a.split(&vec![0..8; 16], &vec![64..64; 16]).is_ok());
        assert!(a.split(&[0..8, 4..8], &[8..16, 16..64]).is_ok());
        assert!(AlignedBytes::zeroed(0).unwrap().split(&[0..0], &[0..0]).is_ok());
    }

    #[test]
    fn moves_between_threads() {
        let mut a = AlignedBytes::zeroed(128).unwrap();
        let a = std::thread::spawn(move || {
            a.as_mut_slice()[0] = 9;
            a
        })
        .join()
        .unwrap();
        assert_eq!(a.as_slice()[0], 9);
    }
}
