//! Activations rounded to signed bytes, in the order in which tiles of bytes read them.

use super::blocks::Blocks;
use crate::buffer::{Carve, SharedMut};
use crate::isa::{DotKernel, Isa, dispatch_dot};
use crate::simd::{Bytes, Dot, MAX_LANES, Simd};
use crate::{Cpu, Result};

/// Rounding so few activations is not worth waking threads.
const ROUND_ALONE: usize = 1 << 14;

/// Activations of a row that are rounded before all rows' are put in order.
const AT_ONCE: usize = 256;

/// Magnitudes of a whole group below this are rounded to zero: their scale has no inverse.
const TINY: f32 = 1e-30;

/// How rounded activations lie in memory, in blocks of `rows` rows: bytes `[K / 4][rows][4]`, then scales and then sums
/// `[groups][rows]`, as [`crate::simd::DotTile`] describes them. Each part has room behind it for a vector that is stored whole.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) groups: usize,
    pub(super) k: usize,
}

impl Shape {
    /// Floats that the bytes take.
    pub(super) fn bytes_len(self) -> usize {
        Carve::padded(self.k / 4 * self.rows + MAX_LANES)
    }

    /// Floats that the scales take, and the sums.
    pub(super) fn scales_len(self) -> usize {
        Carve::padded(self.groups * self.rows + MAX_LANES)
    }

    pub(super) fn block_len(self) -> usize {
        self.bytes_len() + 2 * self.scales_len()
    }
}

/// Rounds rows of activations into `operand`.
pub(super) fn round_rows(
    x: &[f32],
    blocks: &Blocks,
    cpu: &Cpu,
    isa: Isa,
    shape: Shape,
    operand: &mut [f32],
) -> Result<()> {
    let k = shape.k;
    let one = |x: &[f32], block: &mut [f32]| dispatch_dot(isa, Round { x, block, shape, blocks });
    let parts = operand.chunks_exact_mut(shape.block_len());
    if x.len() <= ROUND_ALONE {
        x.chunks((shape.rows * k).max(1)).zip(parts).for_each(|(x, block)| one(x, block));
        return Ok(());
    }
    let count = parts.len();
    let operand = SharedMut::new(operand);
    cpu.threads().run_ranges(count, 1, |from, to| {
        for i in from..to {
            // SAFETY: each block of rows has its own part.
            let block = unsafe { operand.part(i * shape.block_len(), shape.block_len()) };
            one(&x[i * shape.rows * k..((i + 1) * shape.rows * k).min(x.len())], block);
        }
    })
}

/// Rounds up to `shape.rows` rows to a block.
struct Round<'a> {
    x: &'a [f32],
    block: &'a mut [f32],
    shape: Shape,
    blocks: &'a Blocks,
}

impl DotKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let Round { x, block, shape, blocks } = self;
        let (s, k, group) = (d.simd(), shape.k, blocks.group(shape.k));
        let (bytes, rest) = block.split_at_mut(shape.bytes_len());
        let scales = &mut rest[..shape.scales_len()];
        let rows = (x.len() / k).min(D::ROWS);
        let mut finite = [true; MAX_LANES];
        // Of whole rows, where a row has one scale.
        let mut inverses = [0f32; MAX_LANES];
        if group > AT_ONCE {
            for (r, x) in x.chunks_exact(k).enumerate() {
                let (largest, poison) = magnitude(s, x);
                finite[r] = !s.sum(poison).is_nan();
                (scales[r], inverses[r]) = scale_of(largest);
            }
        }
        let mut rounded = [[0u32; AT_ONCE / 4]; MAX_LANES];
        for k0 in (0..k).step_by(AT_ONCE) {
            let kc = AT_ONCE.min(k - k0);
            for (r, rounded) in rounded.iter_mut().enumerate().take(rows) {
                let x = &x[r * k + k0..][..kc];
                if group > AT_ONCE {
                    // SAFETY: there is a byte for each element, whose number is a multiple of LANES.
                    unsafe { round_to(s, x, inverses[r], rounded.as_mut_ptr().cast()) };
                    continue;
                }
                let mut poison = s.splat(0.0);
                let of_row = scales[k0 / group * D::ROWS..].chunks_exact_mut(D::ROWS);
                let groups = x.chunks_exact(group).zip(rounded.chunks_exact_mut(group / 4));
                for ((x, bytes), scales) in groups.zip(of_row) {
                    // SAFETY: there is a byte for each element of the group, which has a multiple of LANES.
                    let (scale, of_group) = unsafe { round_group(s, x, bytes.as_mut_ptr().cast()) };
                    poison = s.add(poison, of_group);
                    scales[r] = scale;
                }
                finite[r] &= !s.sum(poison).is_nan();
            }
            for c in (0..kc / 4).step_by(4) {
                // From the last rows on: what is stored beyond a word's rows is what is stored next.
                for first in (0..D::ROWS).step_by(D::S::LANES).rev() {
                    let words = &mut bytes[(k0 / 4 + c) * D::ROWS + first..][..3 * D::ROWS + D::S::LANES];
                    let rounded = &rounded[first..first + D::S::LANES];
                    // SAFETY: LANES rows of AT_ONCE / 4 words, four of which are read from `c`, and room for four vectors,
                    // ROWS apart.
                    unsafe {
                        let src = rounded.as_ptr().cast::<f32>().add(c);
                        s.transpose4(src, AT_ONCE / 4, words.as_mut_ptr(), D::ROWS);
                    }
                }
            }
        }
        for r in (0..rows).filter(|&r| !finite[r]) {
            // The row's outputs are NaN, as they are in f32 but for sums of infinities.
            scales.iter_mut().skip(r).step_by(D::ROWS).for_each(|scale| *scale = f32::NAN);
        }
        sum_groups(d, blocks, shape, block);
    }
}

/// Rounds a group to `out`; its scale, and a vector that has NaN in it if the group has NaN or an infinity.
///
/// # Safety
/// `out` has room for as many bytes as `x` has floats, a multiple of LANES.
#[inline(always)]
pub(super) unsafe fn round_group<S: Simd>(s: S, x: &[f32], out: *mut i8) -> (f32, S::V) {
    let (largest, poison) = magnitude(s, x);
    let (scale, inverse) = scale_of(largest);
    // SAFETY: the contract.
    unsafe { round_to(s, x, inverse, out) };
    (scale, poison)
}

/// The largest magnitude in `x`, whose length is a multiple of LANES, and a vector that has NaN in it if `x` has NaN or an
/// infinity.
#[inline(always)]
pub(super) fn magnitude<S: Simd>(s: S, x: &[f32]) -> (f32, S::V) {
    let (mut largest, mut poison) = (s.splat(0.0), s.splat(0.0));
    for x in x.chunks_exact(S::LANES) {
        // SAFETY: `x` has LANES floats.
        let v = unsafe { s.load(x.as_ptr()) };
        largest = s.max(s.max(v, s.sub(s.splat(0.0), v)), largest);
        // The maximum may overlook NaN.
        poison = s.fma(v, s.splat(0.0), poison);
    }
    (s.max_lane(largest), poison)
}

/// The scale of bytes whose largest magnitude is `largest`, and its inverse.
#[inline(always)]
pub(super) fn scale_of(largest: f32) -> (f32, f32) {
    if largest < TINY { (0.0, 0.0) } else { (largest * (1.0 / 127.0), 127.0 / largest) }
}

/// Writes `x * inverse`, rounded.
///
/// # Safety
/// `out` has room for as many bytes as `x` has floats, a multiple of LANES.
#[inline(always)]
pub(super) unsafe fn round_to<S: Simd>(s: S, x: &[f32], inverse: f32, out: *mut i8) {
    for (i, x) in x.chunks_exact(S::LANES).enumerate() {
        // SAFETY: `x` has LANES floats; the contract of `out`.
        unsafe { s.store_i8(out.add(i * S::LANES), s.mul(s.load(x.as_ptr()), s.splat(inverse))) };
    }
}

/// The sums of all groups of a block of rows, as [`crate::simd::DotTile::x_sums`] wants them: a lane is a row.
#[inline(always)]
fn sum_groups<D: Dot>(d: D, blocks: &Blocks, shape: Shape, block: &mut [f32]) {
    let (s, layout) = (d.simd(), blocks.layout);
    let (bytes, rest) = block.split_at_mut(shape.bytes_len());
    let (scales, sums) = rest.split_at_mut(shape.scales_len());
    // What each activation counts: what stored quanta are too large by, or one.
    let each = if layout.mins { 1 } else { blocks.excess().unsigned_abs() };
    let times = s.splat_i32(i32::from_le_bytes([each.to_le_bytes()[0]; 4]));
    let chunks = blocks.group(shape.k) / 4;
    for g in 0..shape.groups {
        for first in (0..D::ROWS).step_by(D::S::LANES) {
            let mut acc = s.splat_i32(0);
            for j in 0..chunks {
                let words = &bytes[(g * chunks + j) * D::ROWS + first..][..D::S::LANES];
                // SAFETY: LANES words. What lies beyond the rows is summed too, and replaced or not used.
                let x = unsafe { s.load_bytes(words.as_ptr().cast()) };
                acc =
                    if blocks.biased { d.dot::<true>(acc, times, x) } else { d.dot::<false>(acc, times, x) };
            }
            let at = g * D::ROWS + first;
            let (scales, sums) = (&scales[at..][..D::S::LANES], &mut sums[at..][..D::S::LANES]);
            // SAFETY: LANES floats each.
            unsafe {
                if layout.mins {
                    s.store(sums.as_mut_ptr(), s.mul(s.load(scales.as_ptr()), s.to_f32(acc)));
                } else {
                    let negative = s.add_i32(s.xor(acc, 0xff), s.splat_i32(1));
                    s.store_bytes(sums.as_mut_ptr().cast(), negative);
                }
            }
        }
    }
}
