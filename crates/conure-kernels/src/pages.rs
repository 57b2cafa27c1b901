//! Memory for what is packed once and then read for every token: on large pages where the system gives them.
//!
//! A token of a small language model reads 60,000 pages of 4 KB, and for each the core has to look up where it is. On pages of 2 MB
//! two threads read 27.5 GB/s where they read 23.8 on small ones. Matrices are often smaller than a large page, so they lie one behind the other in
//! regions. Linux gets a part's pages back when the part goes, other systems a region when nothing is in it any more.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use crate::buffer::LINE;
use crate::{KernelError, Result};

/// A large page of common machines.
const LARGE: usize = 2 << 20;

/// Bytes of a region, which cost nothing until they are touched; more if something needs more.
const REGION: usize = 32 << 20;

/// A multiple of the size of any system's usual pages.
#[cfg(target_os = "linux")]
const PAGES: usize = 64 << 10;

/// A stretch of memory of its own, zero where nobody wrote.
struct Region {
    /// The first byte, on a large page.
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory, which is used through `start` only.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    map: MmapMut,
}

// SAFETY: the memory belongs to the region, and each byte of it to one `Pages` at most, whose borrows are checked.
unsafe impl Send for Region {}
// SAFETY: as above; the region itself gives no access.
unsafe impl Sync for Region {}

impl Region {
    fn new(len: usize) -> Option<Region> {
        let mut map = MmapMut::map_anon(len.checked_add(LARGE)?).ok()?;
        // Where the system knows no large pages, or is told not to use them, memory is as usual.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let first = map.as_mut_ptr();
        // The map has LARGE bytes more than `len`, and `skip` is less than that.
        let skip = first.addr().wrapping_neg() % LARGE;
        Some(Region { start: NonNull::new(first.wrapping_add(skip))?, len, map })
    }
}

/// The region that parts are taken from, and the bytes that are taken.
static CURRENT: Mutex<(Weak<Region>, usize)> = Mutex::new((Weak::new(), 0));

/// Zeroed bytes that start on a cache line.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory; `None` without bytes.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    region: Option<Arc<Region>>,
}

// SAFETY: it owns its bytes as a `Vec` does.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// The address of no bytes, aligned as every other.
#[repr(align(64))]
struct Line;

impl Default for Pages {
    fn default() -> Pages {
        Pages { start: NonNull::<Line>::dangling().cast(), len: 0, region: None }
    }
}

impl Pages {
    /// At least `bytes` zero bytes, which cost nothing until they are touched.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] if they are refused.
    pub(crate) fn zeroed(kernel: &'static str, bytes: usize) -> Result<Pages> {
        if bytes == 0 {
            return Ok(Pages::default());
        }
        let refused = || KernelError::OutOfMemory { kernel, bytes };
        let len = bytes.checked_next_multiple_of(LINE).ok_or_else(refused)?;
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let (place, used) = &mut *current;
        if let Some(region) = place.upgrade().filter(|r| r.len - *used >= len) {
            let at = *used;
            *used += len;
            return Ok(Pages::part(region, at, len));
        }
        let whole = len.max(REGION).checked_next_multiple_of(LARGE).ok_or_else(refused)?;
        let region = Arc::new(Region::new(whole).ok_or_else(refused)?);
        // What follows goes where more is left, but never behind what fills a region by itself and is given back with it.
        if whole == REGION && whole - len >= place.upgrade().map_or(0, |r| r.len - *used) {
            (*place, *used) = (Arc::downgrade(&region), len);
        }
        Ok(Pages::part(region, 0, len))
    }

    /// `len` bytes from `at` on, which nobody else has.
    fn part(region: Arc<Region>, at: usize, len: usize) -> Pages {
        debug_assert!(at + len <= region.len);
        // SAFETY: inside the region by its caller.
        let start = unsafe { region.start.add(at) };
        Pages { start, len, region: Some(region) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What of it lies on pages of its own, whatever their size, as a stretch of the map.
    #[cfg(target_os = "linux")]
    fn whole_pages(&self, map: &MmapMut) -> (usize, usize) {
        let (base, start) = (map.as_ptr().addr(), self.start.as_ptr().addr());
        let (first, end) = (start.next_multiple_of(PAGES), (start + self.len) / PAGES * PAGES);
        (first - base, end.saturating_sub(first))
    }

    pub(crate) fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        // SAFETY: `start` points to `len` bytes that are zero or written, owned by this value and borrowed as long as the slice lives.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    pub(crate) fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pages {
    /// Gives its memory back although others of the region may stay: nothing is put there again.
    fn drop(&mut self) {
        let Some(region) = &self.region else { return };
        let (at, len) = self.whole_pages(&region.map);
        if len > 0 && Arc::strong_count(region) > 1 {
            // SAFETY: these bytes are this value's alone, which nobody borrows any more; whole pages, so that no neighbour's are
            // among them. If the system refuses, memory stays until the region goes.
            let _ = unsafe { region.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zero_aligned_and_apart() {
        let mut all: Vec<(u8, Pages)> = Vec::new();
        for (i, bytes) in
            [1usize, 64, 100, 3 << 20, 0, REGION - 64, 40 << 20, 7, 5000].into_iter().enumerate()
        {
            let mut pages = Pages::zeroed("test", bytes).unwrap();
            assert_eq!((pages.len() % LINE, pages.as_slice::<u8>().as_ptr() as usize % LINE), (0, 0));
            assert!(pages.len() >= bytes && pages.as_slice::<u8>().iter().all(|&b| b == 0));
            pages.as_mut_slice::<u8>().fill(i as u8 + 1);
            all.push((i as u8 + 1, pages));
            if i == 5 {
                // What is given back changes nothing for what stays.
                all.remove(1);
            }
        }
        for (i, pages) in &all {
            assert!(pages.as_slice::<u8>().iter().all(|b| b == i), "{i}");
        }
    }

    /// Resident bytes of this process.
    #[cfg(target_os = "linux")]
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_comes_back_though_neighbours_stay() {
        for bytes in [20 << 20, 90 << 20] {
            let [mut before, mut large, mut after] =
                [100_000, bytes, 100_000].map(|bytes| Pages::zeroed("test", bytes).unwrap());
            for (part, value) in [(&mut before, 1u8), (&mut large, 2), (&mut after, 3)] {
                part.as_mut_slice::<u8>().fill(value);
            }
            let held = resident();
            drop(large);
            assert!(resident() + bytes / 2 < held, "{bytes}: {held} became {}", resident());
            for (part, value) in [(&before, 1u8), (&after, 3)] {
                assert!(part.as_slice::<u8>().iter().all(|&b| b == value), "{bytes}");
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for bytes in [usize::MAX, usize::MAX - LARGE, isize::MAX as usize] {
            let refused = Pages::zeroed("test", bytes).map(|p| p.len());
            assert_eq!(refused, Err(KernelError::OutOfMemory { kernel: "test", bytes }));
        }
    }
}
