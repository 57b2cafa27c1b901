//! An allocator for tests that refuses what it is told to refuse.
//!
//! ```
//! use conure_device::faulty::FaultyAlloc;
//!
//! #[global_allocator]
//! static ALLOCATOR: FaultyAlloc = FaultyAlloc::new();
//!
//! ALLOCATOR.refuse(1 << 20, 1); // the first request of a MiB or more from now on, and none after it
//! assert!(conure_device::arena::AlignedBytes::zeroed(2 << 20).is_err());
//! assert!(conure_device::arena::AlignedBytes::zeroed(2 << 20).is_ok());
//! assert!(ALLOCATOR.refused());
//! ```

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, but for one large request that it refuses when told to.
#[derive(Debug)]
pub struct FaultyAlloc {
    /// Requests of at least so many bytes count.
    large: AtomicUsize,
    /// Large requests until the one that is refused, that one included; 0: none is.
    countdown: AtomicUsize,
    refused: AtomicBool,
}

impl FaultyAlloc {
    /// One that refuses nothing yet.
    #[allow(clippy::new_without_default)] // made in a static, where Default cannot be called
    pub const fn new() -> FaultyAlloc {
        FaultyAlloc {
            large: AtomicUsize::new(usize::MAX),
            countdown: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        }
    }

    /// Refuses the `n`th request of `large` bytes or more from now on, on any thread; `n` 0: none.
    pub fn refuse(&self, large: usize, n: usize) {
        self.refused.store(false, Relaxed);
        self.large.store(large, Relaxed);
        self.countdown.store(n, Relaxed);
    }

    /// Whether a request was refused since.
    pub fn refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    fn refuses(&self, size: usize) -> bool {
        if size < self.large.load(Relaxed) {
            return false;
        }
        let left = self.countdown.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        let refuses = left == Ok(1);
        if refuses {
            self.refused.store(true, Relaxed);
        }
        refuses
    }
}

// SAFETY: every request goes to the system's allocator as it came, or is answered with null, which is a refusal.
unsafe impl GlobalAlloc for FaultyAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && self.refuses(size) {
            return null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; every block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}
