//! Products of bytes: the tile of a quantised product.
// Register tiles are indexed by constants, which reads as the arithmetic does.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;

use super::{Bytes, Scalar, Simd};
use crate::buffer::LINE;

/// How groups of weights are stored, as far as the tile is concerned.
pub(crate) trait Group: Copy {
    /// Weights of a group, which share a scale, along K.
    const LEN: usize;
    /// Whether weights use all eight bits; else they are in 0..=63.
    const WIDE: bool;
    /// Whether groups have a minimum.
    const MINS: bool;
    /// Whether all groups of a column have one scale, and those of a row of activations.
    const CHANNELS: bool;
}

macro_rules! group {
    ($(#[$doc:meta])* $name:ident, $len:literal, $wide:literal, $mins:literal, $channels:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;
        impl Group for $name {
            const LEN: usize = $len;
            const WIDE: bool = $wide;
            const MINS: bool = $mins;
            const CHANNELS: bool = $channels;
        }
    };
}
group!(
    /// Q8_0, IQ4_NL.
    Wide32, 32, true, false, false
);
group!(
    /// Q4_0, Q5_0, MXFP4.
    Small32, 32, false, false, false
);
group!(
    /// Q4_1, Q5_1, Q4_K, Q5_K.
    SmallMins32, 32, false, true, false
);
group!(
    /// Q6_K.
    Small16, 16, false, false, false
);
group!(
    /// Bytes with one scale a column: groups are only what is multiplied between two looks at what to fetch.
    Channels32, 32, true, false, true
);

/// The operands of a tile. Groups along K, `ROWS` rows of a block of activations, one panel of weights.
#[derive(Clone, Copy)]
pub(crate) struct DotTile {
    /// Weights of the first group, `[LEN / 4][PANEL][4]`.
    pub(crate) w: *const u8,
    /// Bytes from one group's weights to the next one's.
    pub(crate) stride: usize,
    /// `[groups][PANEL]`; with [`Group::CHANNELS`] `[PANEL]`.
    pub(crate) scales: *const f32,
    /// `[groups][PANEL]`; unused without minima.
    pub(crate) mins: *const f32,
    /// Activations from the tile's first row on, `[K / 4][ROWS][4]`.
    pub(crate) x: *const i8,
    /// Their scales, `[groups][ROWS]`; with [`Group::CHANNELS`] `[ROWS]`, as the sums.
    pub(crate) x_scales: *const f32,
    /// With minima: the sum of a group's activations, times their scale. Without: an integer (its bits), minus the sum
    /// times what the stored weights are too large by. `[groups][ROWS]`.
    pub(crate) x_sums: *const f32,
    /// How many groups.
    pub(crate) groups: usize,
    /// What is multiplied next, fetched meanwhile; any address is fine.
    pub(crate) next: *const u8,
    /// Bytes of it that are fetched with each group, whole cache lines.
    pub(crate) ahead: usize,
    /// Whether sums begin at zero.
    pub(crate) fresh: bool,
    /// Whether the last group is the last of K. Before that sums with [`Group::CHANNELS`] are integers.
    pub(crate) last: bool,
    /// Sums, else added to: row `r` at `r * ldc`.
    pub(crate) c: *mut f32,
    /// Floats from a row of sums to the next.
    pub(crate) ldc: usize,
}

/// An instruction set's way to multiply bytes.
pub(crate) trait Dot: Copy + Send + Sync + 'static {
    /// Its other vectors.
    type S: Simd;
    /// Whether weights of eight bits are stored with 128 added, as unsigned bytes.
    const BIASED: bool;
    /// Rows of a block of activations: the most that a tile has.
    const ROWS: usize;

    fn simd(self) -> Self::S;

    /// Adds to each lane of `acc` the products of its four bytes of `w` and `x` (signed). `w` is in 0..=63, or if `WIDE`
    /// unsigned where [`Dot::BIASED`], else signed.
    fn dot<const WIDE: bool>(self, acc: Vector<Self>, w: Vector<Self>, x: Vector<Self>) -> Vector<Self>;

    /// `c[r][0..PANEL] += sum over groups of scale * x_scale * (sum of w x)`, and the minima's part; the groups in order. With
    /// [`Group::CHANNELS`] `scale * x_scale * (sum over all groups of w x)`, when the last comes.
    ///
    /// # Safety
    /// `1 <= rows <= ROWS`; everything that [`DotTile`] says is readable, and the sums writable.
    unsafe fn tile<G: Group>(self, rows: usize, tile: &DotTile);
}

/// The vector of bytes of `D`.
pub(crate) type Vector<D> = <<D as Dot>::S as Bytes<<<D as Dot>::S as Simd>::V>>::B;

/// The largest of [`Dot::ROWS`].
pub(crate) const MAX_DOT_ROWS: usize = 12;

/// [`Dot::tile`] for `R` rows and panels of `V` vectors. Sums of few rows are kept in `P` parts: one chain would wait for
/// itself.
///
/// # Safety
/// As [`Dot::tile`].
#[inline(always)]
unsafe fn tile_fixed<D: Dot, G: Group, const R: usize, const V: usize, const P: usize>(d: D, t: &DotTile) {
    let s = d.simd();
    let lanes = D::S::LANES;
    // SAFETY: every address is within what the contract makes readable or writable.
    unsafe {
        if G::CHANNELS {
            return channel_tile::<D, R, V, P>(d, t);
        }
        if t.fresh {
            for r in 0..R {
                for v in 0..V {
                    s.store(t.c.add(r * t.ldc + v * lanes), s.splat(0.0));
                }
            }
        }
        for g in 0..t.groups {
            for line in (0..t.ahead).step_by(LINE) {
                s.prefetch_far(t.next.wrapping_add(g * t.ahead + line).cast());
            }
            let mut acc = [[[s.splat_i32(0); V]; R]; P];
            if !G::MINS {
                for r in 0..R {
                    let start = s.splat_i32(*t.x_sums.cast::<i32>().add(g * D::ROWS + r));
                    acc[0][r] = [start; V];
                }
            }
            let (w, x) = (t.w.add(g * t.stride), t.x.add(g * G::LEN * D::ROWS));
            if G::WIDE {
                multiply_group::<D, true, R, V, P>(d, w, x, G::LEN, &mut acc);
            } else {
                multiply_group::<D, false, R, V, P>(d, w, x, G::LEN, &mut acc);
            }
            for p in 1..P {
                for r in 0..R {
                    for v in 0..V {
                        acc[0][r][v] = s.add_i32(acc[0][r][v], acc[p][r][v]);
                    }
                }
            }
            for v in 0..V {
                let scale = s.load(t.scales.add((g * V + v) * lanes));
                for r in 0..R {
                    let factor = s.mul(scale, s.splat(*t.x_scales.add(g * D::ROWS + r)));
                    let c = t.c.add(r * t.ldc + v * lanes);
                    let mut sum = s.fma(s.to_f32(acc[0][r][v]), factor, s.load(c));
                    if G::MINS {
                        let min = s.load(t.mins.add((g * V + v) * lanes));
                        sum = s.fma(min, s.splat(*t.x_sums.add(g * D::ROWS + r)), sum);
                    }
                    s.store(c, sum);
                }
            }
        }
    }
}

/// As [`tile_fixed`] with [`Group::CHANNELS`]: without a group's three instructions for each sum. 93 rows by 1024 x 1024 go at 634
/// GFLOP/s on one core so, and at 466 in q8_0; by 4096 x 1024 on two at 1291 and 967 (best of 2 s in turns).
///
/// # Safety
/// As [`Dot::tile`].
#[inline(always)]
unsafe fn channel_tile<D: Dot, const R: usize, const V: usize, const P: usize>(d: D, t: &DotTile) {
    let (s, lanes) = (d.simd(), D::S::LANES);
    let len = Channels32::LEN;
    // SAFETY: every address is within what the contract makes readable or writable.
    unsafe {
        let mut acc = [[[s.splat_i32(0); V]; R]; P];
        for r in 0..R {
            for v in 0..V {
                acc[0][r][v] = if t.fresh {
                    s.splat_i32(*t.x_sums.cast::<i32>().add(r))
                } else {
                    s.load_bytes(t.c.add(r * t.ldc + v * lanes).cast())
                };
            }
        }
        for g in 0..t.groups {
            for line in (0..t.ahead).step_by(LINE) {
                s.prefetch_far(t.next.wrapping_add(g * t.ahead + line).cast());
            }
            multiply_group::<D, true, R, V, P>(
                d,
                t.w.add(g * t.stride),
                t.x.add(g * len * D::ROWS),
                len,
                &mut acc,
            );
        }
        for r in 0..R {
            for v in 0..V {
                let mut sum = acc[0][r][v];
                for p in 1..P {
                    sum = s.add_i32(sum, acc[p][r][v]);
                }
                let c = t.c.add(r * t.ldc + v * lanes);
                if t.last {
                    let factor = s.mul(s.load(t.scales.add(v * lanes)), s.splat(*t.x_scales.add(r)));
                    s.store(c, s.mul(s.to_f32(sum), factor));
                } else {
                    s.store_bytes(c.cast(), sum);
                }
            }
        }
    }
}

/// Adds the products of a group of `len` weights at `w` with the rows at `x` to `acc`.
///
/// # Safety
/// As [`Dot::tile`].
#[inline(always)]
unsafe fn multiply_group<D: Dot, const WIDE: bool, const R: usize, const V: usize, const P: usize>(
    d: D,
    w: *const u8,
    x: *const i8,
    len: usize,
    acc: &mut [[[Vector<D>; V]; R]; P],
) {
    let (s, lanes) = (d.simd(), D::S::LANES);
    // The compiler must not know how often: it would unroll all, load ahead and column by column, and spill a
    // third of the loads for want of registers.
    let chunks = black_box(len / 4);
    let mut j = 0;
    while j < chunks {
        for p in 0..P {
            let mut row = [s.splat_i32(0); V];
            for v in 0..V {
                // SAFETY: the contract: `len / 4` chunks of V vectors.
                row[v] = unsafe { s.load_bytes(w.add(((j + p) * V + v) * 4 * lanes)) };
            }
            for r in 0..R {
                // SAFETY: the contract: `len / 4` chunks of ROWS times four bytes.
                let x = unsafe { s.repeat4(x.add(((j + p) * D::ROWS + r) * 4)) };
                for v in 0..V {
                    acc[p][r][v] = d.dot::<WIDE>(acc[p][r][v], row[v], x);
                }
            }
        }
        j += P;
    }
}

/// Implements [`Dot::tile`] with `$vecs` vectors a panel. The sizes listed (rows: parts) are functions of their own,
/// compiled once; other numbers of rows are put together from them.
macro_rules! dot_tile {
    ($(#[$features:meta])? $dot:ident, $vecs:literal; $($rows:literal: $parts:literal),+) => {
        #[inline(always)]
        unsafe fn tile<G: Group>(self, rows: usize, tile: &DotTile) {
            /// # Safety
            /// As [`Dot::tile`].
            $(#[$features])?
            unsafe fn sized<G: Group, const R: usize, const P: usize>(tile: &DotTile) {
                // SAFETY: the contract.
                unsafe { tile_fixed::<$dot, G, R, $vecs, P>($dot, tile) }
            }
            let (mut tile, mut left) = (*tile, rows);
            debug_assert!((1..=Self::ROWS).contains(&rows));
            while left > 0 {
                let done;
                $(if left >= $rows {
                    // SAFETY: the contract; a value of this type exists only where its instructions do.
                    unsafe { sized::<G, $rows, $parts>(&tile) };
                    done = $rows;
                } else)+ {
                    return;
                }
                left -= done;
                tile.ahead = 0;
                tile.x = tile.x.wrapping_add(4 * done);
                tile.x_scales = tile.x_scales.wrapping_add(done);
                tile.x_sums = tile.x_sums.wrapping_add(done);
                tile.c = tile.c.wrapping_add(done * tile.ldc);
            }
        }
    };
}

impl Dot for Scalar {
    type S = Scalar;
    const BIASED: bool = false;
    const ROWS: usize = 4;

    #[inline(always)]
    fn simd(self) -> Scalar {
        self
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, acc: [i32; 4], w: [i32; 4], x: [i32; 4]) -> [i32; 4] {
        [0, 1, 2, 3].map(|i| {
            let (w, x) = (w[i].to_le_bytes(), x[i].to_le_bytes());
            let product = |b: usize| i32::from(w[b] as i8) * i32::from(x[b] as i8);
            acc[i] + (product(0) + product(1)) + (product(2) + product(3))
        })
    }
    dot_tile!(#[inline(never)] Scalar, 2; 4: 1, 1: 1);
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx512Vnni;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::simd::{Avx2, Avx512};
    use std::arch::x86_64::*;

    /// AVX-512 with the instruction that multiplies four unsigned by four signed bytes and adds them to a lane.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Vnni;

    // SAFETY (for every `unsafe` in these three): values of these types exist only where their instructions do (see
    // `isa::dispatch_dot`).
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Dot for Avx2 {
        type S = Avx2;
        const BIASED: bool = false;
        // 8 sums, 2 vectors of the panel, 1 of activations, ones, and room for products.
        const ROWS: usize = 4;

        #[inline(always)]
        fn simd(self) -> Avx2 {
            self
        }
        #[inline(always)]
        fn dot<const WIDE: bool>(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
            unsafe {
                // Pairs are summed in 16 bits, saturating: at most 2 * 63 * 127, or with the sign moved to the
                // activations 2 * 128 * 127, which both fit.
                let pairs = if WIDE {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                } else {
                    _mm256_maddubs_epi16(w, x)
                };
                _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            }
        }
        dot_tile!(#[target_feature(enable = "avx2,fma,f16c")] Avx2, 2; 4: 1, 2: 2, 1: 2);
    }

    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Dot for Avx512 {
        type S = Avx512;
        const BIASED: bool = false;
        const ROWS: usize = 8;

        #[inline(always)]
        fn simd(self) -> Avx512 {
            self
        }
        #[inline(always)]
        fn dot<const WIDE: bool>(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
            unsafe {
                // As for AVX2.
                let pairs = if WIDE {
                    let x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
                    _mm512_maddubs_epi16(_mm512_abs_epi8(w), x)
                } else {
                    _mm512_maddubs_epi16(w, x)
                };
                _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
            }
        }
        dot_tile!(
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
            Avx512, 2; 8: 1, 4: 1, 2: 2, 1: 4
        );
    }

    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Dot for Avx512Vnni {
        type S = Avx512;
        const BIASED: bool = true;
        // 24 sums, 2 vectors of the panel, 1 of activations.
        const ROWS: usize = 12;

        #[inline(always)]
        fn simd(self) -> Avx512 {
            Avx512
        }
        #[inline(always)]
        fn dot<const WIDE: bool>(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
            unsafe { _mm512_dpbusd_epi32(acc, w, x) }
        }
        dot_tile!(
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            Avx512Vnni, 2; 12: 1, 9: 1, 6: 1, 4: 2, 2: 2, 1: 4
        );
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::NeonDot;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;
    use crate::simd::Neon;
    use std::arch::aarch64::*;

    /// NEON with the instruction that multiplies four pairs of signed bytes and adds them to a lane.
    #[derive(Clone, Copy)]
    pub(crate) struct NeonDot;

    // SAFETY (for every `unsafe` in both): values of these types exist only where their instructions do (see
    // `isa::dispatch_dot`).
    #[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
    impl Dot for Neon {
        type S = Neon;
        const BIASED: bool = false;
        const ROWS: usize = 4;

        #[inline(always)]
        fn simd(self) -> Neon {
            self
        }
        #[inline(always)]
        fn dot<const WIDE: bool>(self, acc: uint8x16_t, w: uint8x16_t, x: uint8x16_t) -> uint8x16_t {
            unsafe {
                let (w, x) = (vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
                let high = vpaddlq_s16(vmull_high_s8(w, x));
                vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(acc), vpaddq_s32(low, high)))
            }
        }
        dot_tile!(#[target_feature(enable = "neon")] Neon, 4; 4: 1, 2: 1, 1: 1);
    }

    #[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
    impl Dot for NeonDot {
        type S = Neon;
        const BIASED: bool = false;
        // 24 sums, 4 vectors of the panel, 1 of activations.
        const ROWS: usize = 6;

        #[inline(always)]
        fn simd(self) -> Neon {
            Neon
        }
        #[inline(always)]
        fn dot<const WIDE: bool>(self, acc: uint8x16_t, w: uint8x16_t, x: uint8x16_t) -> uint8x16_t {
            let mut sum = acc;
            // The intrinsic is not stable yet.
            unsafe {
                std::arch::asm!(
                    "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                    inout(vreg) sum, in(vreg) w, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
        dot_tile!(#[target_feature(enable = "neon,dotprod")] NeonDot, 4; 6: 1, 3: 1, 2: 1, 1: 2);
    }
}
