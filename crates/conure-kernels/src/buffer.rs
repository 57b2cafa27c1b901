//! Aligned storage, per-thread scratch, and disjoint writes from several threads.

use crate::{KernelError, Result};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::thread::LocalKey;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// One cache line; its alignment is what makes [`AlignedBuf`] aligned.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Zeroed bytes that start on a cache line.
#[derive(Clone, Default)]
pub(crate) struct AlignedBuf(Vec<Line>);

/// `len` zeros that cost nothing until they are touched, for what is large. `vec!` gives such too, but ends the program if the
/// memory is refused.
///
/// # Errors
/// [`KernelError::OutOfMemory`] if it is.
pub fn zeroed<T: bytemuck::Pod>(kernel: &'static str, len: usize) -> Result<Vec<T>> {
    let refused = || KernelError::OutOfMemory { kernel, bytes: len.saturating_mul(size_of::<T>()) };
    let layout = Layout::array::<T>(len).map_err(|_| refused())?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a size above zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<T>()).ok_or_else(refused)?;
    // SAFETY: the memory comes from the global allocator with the layout of `len` values, all of them initialised: for a
    // plain type zeros are a value.
    Ok(unsafe { Vec::from_raw_parts(start.as_ptr(), len, len) })
}

impl AlignedBuf {
    /// At least `bytes` zero bytes, for what is small: scratch.
    fn zeroed(bytes: usize) -> AlignedBuf {
        AlignedBuf(vec![Line([0; LINE]); bytes.div_ceil(LINE)])
    }

    fn len(&self) -> usize {
        self.0.len() * LINE
    }

    fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

thread_local! {
    static SCRATCH: Cell<AlignedBuf> = const { Cell::new(AlignedBuf(Vec::new())) };
    static OPERAND: Cell<AlignedBuf> = const { Cell::new(AlignedBuf(Vec::new())) };
}

/// Calls `f` with `len` floats of this thread's scratch, aligned to 64 bytes, of unspecified content. The memory
/// stays with the thread at its high-water mark; a nested call gets memory of its own.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    with_kept(&SCRATCH, len, f)
}

/// As [`with_scratch`], for an operand that the tasks of a product share: the caller's thread is among those that
/// work on tasks, each with its own scratch, and both are kept.
pub(crate) fn with_operand<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    with_kept(&OPERAND, len, f)
}

fn with_kept<R>(key: &'static LocalKey<Cell<AlignedBuf>>, len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    key.with(|cell| {
        let mut buf = cell.take();
        if buf.len() < len * 4 {
            buf = AlignedBuf::zeroed(len * 4);
        }
        let result = f(&mut buf.as_mut_slice()[..len]);
        let inner = cell.take();
        cell.set(if inner.len() > buf.len() { inner } else { buf });
        result
    })
}

/// Splits a scratch slice into consecutive parts, each starting on a cache line.
pub(crate) struct Carve<'a>(&'a mut [f32]);

impl<'a> Carve<'a> {
    pub(crate) fn new(scratch: &'a mut [f32]) -> Self {
        Carve(scratch)
    }

    /// What a part of `len` floats takes up.
    pub(crate) const fn padded(len: usize) -> usize {
        len.next_multiple_of(16)
    }

    /// The next `len` floats; fewer if the scratch is too short, which is a bug of the caller.
    pub(crate) fn take(&mut self, len: usize) -> &'a mut [f32] {
        let all = std::mem::take(&mut self.0);
        let (head, tail) = all.split_at_mut(Self::padded(len).min(all.len()));
        self.0 = tail;
        let n = len.min(head.len());
        debug_assert_eq!(n, len, "scratch too short");
        &mut head[..n]
    }
}

/// A mutable slice that tasks on several threads write disjoint parts of.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are only reachable through `part`, whose caller promises that no two live parts overlap.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { ptr: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The first element, for parts that are not consecutive: whoever writes through it keeps in bounds and apart from others.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.ptr
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No other part that is alive at the same time may overlap this one.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the check above; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_kept_and_safe_to_nest() {
        let first = with_scratch(100, |a| {
            a.fill(1.0);
            with_scratch(50, |b| b.fill(2.0));
            assert!(a.iter().all(|&x| x == 1.0));
            assert_eq!(a.as_ptr() as usize % 64, 0);
            a.as_ptr() as usize
        });
        assert_eq!(with_scratch(64, |a| a.as_ptr() as usize), first, "memory was not kept");
    }

    #[test]
    fn carve_keeps_alignment() {
        with_scratch(Carve::padded(3) + Carve::padded(17), |s| {
            let mut carve = Carve::new(s);
            let (a, b) = (carve.take(3), carve.take(17));
            assert_eq!((a.len(), b.len(), b.as_ptr() as usize % 64), (3, 17, 0));
        });
    }
}
