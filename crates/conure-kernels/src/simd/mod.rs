//! The vectors that every kernel is written over, once per instruction set.
// Register tiles are indexed by constants, which reads as the arithmetic does.
#![allow(clippy::needless_range_loop)]

mod bytes;
mod dot;
mod math;
mod scalar;
mod tile;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;

pub(crate) use bytes::Bytes;
#[cfg(target_arch = "x86_64")]
pub(crate) use dot::Avx512Vnni;
#[cfg(target_arch = "aarch64")]
pub(crate) use dot::NeonDot;
pub(crate) use dot::{
    Channels32, Dot, DotTile, Group, MAX_DOT_ROWS, Small16, Small32, SmallMins32, Vector, Wide32,
};

pub(crate) use math::{exp, sigmoid, silu, tanh};
use tile::tile_method;
pub(crate) use tile::{BF16Panel, F16Panel, F32Panel, Weights, Widening, panels_at_once};

/// Floats from one row of the left operand to the next in the buffers that [`Simd::tile`] reads. A constant, so
/// that the rows are addressed by displacement; 33 cache lines, so that rows fall into different cache sets.
pub(crate) const TILE_STRIDE: usize = 528;

/// The longest chain of products that one [`Simd::tile`] call makes; what is longer goes in several.
pub(crate) const TILE_K: usize = 512;

/// The most rows any instruction set's tile has.
pub(crate) const MAX_TILE_ROWS: usize = 14;

/// The most lanes any instruction set's vector has.
pub(crate) const MAX_LANES: usize = 16;

/// The most columns any instruction set's panel has.
pub(crate) const MAX_PANEL: usize = 32;

/// Vectors of f32 and what kernels do with them.
///
/// Values of this type exist only where the instruction set does: [`crate::isa::dispatch`] makes them. All
/// implementations are `#[inline(always)]`, so that they are compiled with the features of the dispatching function.
pub(crate) trait Simd: Bytes<<Self as Simd>::V> + Copy + Send + Sync + 'static {
    /// A vector.
    type V: Copy;
    /// Its floats.
    const LANES: usize;
    /// Rows of a GEMM tile.
    const TILE_ROWS: usize;
    /// Columns of a GEMM tile and of a packed panel: a multiple of `LANES`.
    const PANEL: usize;
    /// Bytes of copied rows that stay in the second-level cache of machines with this instruction set while panels pass by.
    const CHUNK_BYTES: usize = 1 << 18;
    /// Whether [`Simd::scale`] takes any `n`, overflowing to infinity and going through subnormals to 0.
    const WIDE_SCALE: bool = false;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `LANES` floats are readable at `p`.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// The first `n < LANES` floats, the rest zero.
    /// # Safety
    /// `n` floats are readable at `p`.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V;
    /// # Safety
    /// `LANES` floats are writable at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Stores the first `n < LANES` lanes.
    /// # Safety
    /// `n` floats are writable at `p`.
    unsafe fn store_first(self, p: *mut f32, v: Self::V, n: usize);
    /// `LANES` binary16 values, widened.
    /// # Safety
    /// `LANES` values are readable at `p`.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// `LANES` bfloat16 values, widened.
    /// # Safety
    /// `LANES` values are readable at `p`.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// `LANES` signed bytes, converted.
    /// # Safety
    /// `LANES` values are readable at `p`.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, in one rounding where the instruction set has it.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Per lane: `yes` where `a < b`, else `no`.
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^n` for whole `n` in -126..=127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// `y * 2^n` for `y` in 0.5..2 and whole `n`: right for `n` in -125..=128; beyond, where [`Simd::WIDE_SCALE`].
    #[inline(always)]
    fn scale(self, y: Self::V, n: Self::V) -> Self::V {
        // 2^(n-1) and a doubling: n reaches 128, whose power is not a float.
        let y = self.mul(y, self.pow2(self.sub(n, self.splat(1.0))));
        self.add(y, y)
    }
    /// `1 / x` within 1 ulp for `x` in 1..=2^127 (NaN for NaN).
    #[inline(always)]
    fn recip(self, x: Self::V) -> Self::V {
        self.div(self.splat(1.0), x)
    }
    /// `2^t` for `t <= 0` within 3 ulp: exactly 1 at 0, 0 at -infinity (and where the result is under 2e-38, possibly), NaN
    /// for NaN.
    #[inline(always)]
    fn exp2_nonpositive(self, t: Self::V) -> Self::V {
        math::exp2_nonpositive(self, t)
    }
    /// Writes four columns of `LANES` rows, the rows `stride` apart at `src`, as four vectors, `dst_stride` apart, one after the
    /// other. Bits stay as they are.
    ///
    /// # Safety
    /// Four floats are readable at each row and `LANES` writable at each vector.
    unsafe fn transpose4(self, src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize);
    /// The sum of the lanes, in a fixed order.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane; NaN lanes may be overlooked.
    fn max_lane(self, v: Self::V) -> f32;
    /// Asks for the cache line at `p`, which may be any address.
    fn prefetch(self, p: *const f32);
    /// As [`Simd::prefetch`], only into the second-level cache where that can be said.
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        self.prefetch(p);
    }

    /// The GEMM tile: `c[r][0..panels * PANEL] (+)= sum over k of a[r][k] * b[k][..]`, each output one chain of
    /// [`Simd::fma`] in the order of `k`, starting from `c` if `accumulate`, else from zero. `panels` is
    /// [`panels_at_once`] or 1.
    ///
    /// # Safety
    /// `1 <= rows <= TILE_ROWS`; `a` has `rows` rows of `k` readable floats, `TILE_STRIDE` apart; `b` has `panels` panels
    /// of `k` rows of `PANEL` weights, one after the other; `c` has `rows` rows of `panels * PANEL` floats, `ldc` apart,
    /// writable (and readable if `accumulate`).
    #[allow(clippy::too_many_arguments)]
    unsafe fn tile<W: Weights>(
        self,
        rows: usize,
        panels: usize,
        a: *const f32,
        b: W,
        k: usize,
        c: *mut f32,
        ldc: usize,
        accumulate: bool,
    );
}

/// Writes `rows` rows of `k` floats, `stride` apart at `src`, as columns: `dst[i][0..PANEL]` holds element i of each row,
/// and zeros in the columns from `rows` on.
///
/// # Safety
/// `rows <= PANEL`; `k` floats are readable at each row; `dst` has `k * PANEL` floats.
#[inline(always)]
pub(crate) unsafe fn pack_columns<S: Simd>(
    s: S,
    rows: usize,
    k: usize,
    src: *const f32,
    stride: usize,
    dst: *mut f32,
) {
    let fours = k / 4 * 4;
    for c in (0..S::PANEL).step_by(S::LANES) {
        // SAFETY: the contract; rows c .. c + LANES exist where they are read together.
        unsafe {
            let from = src.wrapping_add(c * stride);
            let whole = c + S::LANES <= rows;
            let mut i = 0;
            while whole && i < fours {
                if i % 16 == 0 {
                    // The next group of rows: strided rows are not fetched ahead by themselves.
                    for r in S::LANES..2 * S::LANES {
                        s.prefetch(from.wrapping_add(r * stride + i));
                    }
                }
                s.transpose4(from.add(i), stride, dst.add(i * S::PANEL + c), S::PANEL);
                i += 4;
            }
            while i < k {
                for r in 0..S::LANES {
                    *dst.add(i * S::PANEL + c + r) =
                        if c + r < rows { *from.add(r * stride + i) } else { 0.0 };
                }
                i += 1;
            }
        }
    }
}

/// Runs the body for each group of `n <= LANES` elements of `0..len`; only the last may have fewer. A macro, because a
/// closure that is not inlined would be compiled without the instruction set.
macro_rules! for_lanes {
    ($S:ident, $len:expr, |$i:ident, $n:ident| $body:block) => {{
        let len = $len;
        let mut at = 0;
        while at + $S::LANES <= len {
            let ($i, $n) = (at, $S::LANES);
            $body
            at += $S::LANES;
        }
        if at < len {
            let ($i, $n) = (at, len - at);
            $body
        }
    }};
}
pub(crate) use for_lanes;

/// Loads `n <= LANES` floats.
///
/// # Safety
/// `n` floats are readable at `p`.
#[inline(always)]
pub(crate) unsafe fn load_n<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
    // SAFETY: passed on.
    unsafe { if n == S::LANES { s.load(p) } else { s.load_first(p, n) } }
}

/// Stores `n <= LANES` floats.
///
/// # Safety
/// `n` floats are writable at `p`.
#[inline(always)]
pub(crate) unsafe fn store_n<S: Simd>(s: S, p: *mut f32, v: S::V, n: usize) {
    // SAFETY: passed on.
    unsafe { if n == S::LANES { s.store(p, v) } else { s.store_first(p, v, n) } }
}
