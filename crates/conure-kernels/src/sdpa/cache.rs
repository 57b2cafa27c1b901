//! Rows of a cache of keys or values, in whatever type they are kept.

use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{KernelError, Result, check};
use conure_tensor::DType;
use half::{bf16, f16};

use super::NAME;

/// Elements of a q8_0 block, and its bytes: an f16 scale and the elements.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    BF16,
    Q8,
}

/// A cache `[items, rows, heads, width]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache<'a> {
    bytes: &'a [u8],
    kind: Kind,
    rows: usize,
    heads: usize,
    width: usize,
}

impl<'a> Cache<'a> {
    pub(super) fn new(
        bytes: &'a [u8],
        dtype: DType,
        rows: usize,
        heads: usize,
        width: usize,
    ) -> Result<Cache<'a>> {
        let (kind, align) = match dtype {
            DType::F32 => (Kind::F32, 4),
            DType::F16 => (Kind::F16, 2),
            DType::BF16 => (Kind::BF16, 2),
            DType::Q8_0 => (Kind::Q8, 1),
            _ => return Err(KernelError::DType { kernel: NAME, dtype }),
        };
        check::valid(NAME, kind != Kind::Q8 || width.is_multiple_of(BLOCK), || {
            format!("a q8_0 cache needs head widths in multiples of {BLOCK}, not {width}")
        })?;
        check::valid(NAME, (bytes.as_ptr() as usize).is_multiple_of(align), || {
            format!("a {dtype} cache is not aligned to its elements")
        })?;
        let cache = Cache { bytes, kind, rows, heads, width };
        let item = check::size(NAME, "cache", &[rows, heads, cache.row_bytes()])?;
        check::valid(NAME, item > 0 && bytes.len().is_multiple_of(item), || {
            format!("a cache of {} bytes is not whole items of {item}", bytes.len())
        })?;
        Ok(cache)
    }

    /// Bytes of one head's part of a row.
    fn row_bytes(&self) -> usize {
        match self.kind {
            Kind::F32 => 4 * self.width,
            Kind::F16 | Kind::BF16 => 2 * self.width,
            Kind::Q8 => self.width / BLOCK * BLOCK_BYTES,
        }
    }

    pub(super) fn items(&self) -> usize {
        self.bytes.len() / (self.rows * self.heads * self.row_bytes()).max(1)
    }

    /// One head's part of row `row` of item `item`.
    #[inline(always)]
    pub(super) fn row(&self, item: usize, row: usize, head: usize) -> Row<'a> {
        let bytes = self.row_bytes();
        let at = ((item * self.rows + row) * self.heads + head) * bytes;
        Row { bytes: &self.bytes[at..at + bytes], kind: self.kind, width: self.width }
    }
}

/// One head's part of a row.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    bytes: &'a [u8],
    kind: Kind,
    width: usize,
}

impl Row<'_> {
    /// Elements `d .. d + n` with `n <= LANES`; the lanes from `n` on are zero. For q8_0, `d` is a multiple of LANES.
    #[inline(always)]
    pub(super) fn load<S: Simd>(&self, s: S, d: usize, n: usize) -> S::V {
        debug_assert!(d + n <= self.width);
        let whole = n == S::LANES;
        match self.kind {
            // SAFETY: the row has `width` elements, of which d .. d + n are read.
            Kind::F32 => unsafe { load_n(s, self.bytes.as_ptr().cast::<f32>().add(d), n) },
            // SAFETY: as above; the cache is aligned to its elements.
            Kind::F16 if whole => unsafe { s.load_f16(self.bytes.as_ptr().cast::<u16>().add(d)) },
            // SAFETY: as above.
            Kind::BF16 if whole => unsafe { s.load_bf16(self.bytes.as_ptr().cast::<u16>().add(d)) },
            Kind::F16 | Kind::BF16 => self.load_some(s, d, n),
            Kind::Q8 => {
                // Lanes divide a block: a vector lies in one block.
                let block = &self.bytes[d / BLOCK * BLOCK_BYTES..][..BLOCK_BYTES];
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                // SAFETY: the block has 32 elements after its scale, and d % 32 + LANES <= 32.
                let v = unsafe { s.load_i8(block.as_ptr().add(2 + d % BLOCK).cast()) };
                s.mul(s.splat(scale), v)
            }
        }
    }

    /// As [`Row::load`], one by one.
    #[inline(always)]
    fn load_some<S: Simd>(&self, s: S, d: usize, n: usize) -> S::V {
        let mut lanes = [0f32; 16];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            let at = 2 * (d + i);
            let bits = [self.bytes[at], self.bytes[at + 1]];
            *lane = match self.kind {
                Kind::BF16 => bf16::from_le_bytes(bits).to_f32(),
                _ => f16::from_le_bytes(bits).to_f32(),
            };
        }
        // SAFETY: LANES <= 16.
        unsafe { s.load(lanes.as_ptr()) }
    }

    /// Elements `d .. d + out.len()` as f32.
    #[inline(always)]
    pub(super) fn widen<S: Simd>(&self, s: S, d: usize, out: &mut [f32]) {
        let to = out.as_mut_ptr();
        for_lanes!(S, out.len(), |i, n| {
            let v = self.load(s, d + i, n);
            // SAFETY: i + n <= out.len().
            unsafe { store_n(s, to.add(i), v, n) };
        });
    }
}
