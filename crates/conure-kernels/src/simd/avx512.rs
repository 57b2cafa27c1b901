//! AVX-512: 16 lanes, 32 registers, masks.

use std::arch::x86_64::*;

use super::Simd;

/// AVX-512 F, BW, VL, DQ.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

// SAFETY (for every `unsafe` below): `Avx512` values exist only where AVX-512 does (see `isa::dispatch`), and the callers
// of the pointer methods vouch for their extent. Loads and stores are unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    // 28 accumulators, 2 vectors of the panel, 1 broadcast: 31 of 32 registers. 32 columns divide every width of the
    // models in use, where 48 (8 rows) would waste 3 % at 512.
    const TILE_ROWS: usize = 14;
    const PANEL: usize = 32;
    const CHUNK_BYTES: usize = 3 << 18;
    const WIDE_SCALE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }
    #[inline(always)]
    fn scale(self, y: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(y, n) }
    }
    #[inline(always)]
    fn recip(self, x: __m512) -> __m512 {
        unsafe {
            // 14 bits and a Newton step: a third of the time of a division.
            let r = _mm512_rcp14_ps(x);
            let e = _mm512_fnmadd_ps(x, r, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(r, e, r)
        }
    }
    #[inline(always)]
    fn exp2_nonpositive(self, t: __m512) -> __m512 {
        unsafe {
            // t less its floor, a polynomial on [0, 1) that is 1 at 0 (relative error 8e-8, minimax), and a scaling that
            // takes the floor itself: infinities and subnormals need no care.
            let r = _mm512_reduce_ps::<0x09>(t);
            let mut p = _mm512_set1_ps(1.867_13e-3);
            for c in [9.017_03e-3, 5.579_991_3e-2, 0.240_164_45, 0.693_151_3, 1.0] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
            }
            _mm512_scalef_ps(p, t)
        }
    }
    #[inline(always)]
    unsafe fn transpose4(self, src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
        unsafe {
            // Rows r, r + 4, r + 8, r + 12 in the quarters of vector r, then a 4 x 4 transpose within each quarter.
            macro_rules! quarters {
                ($r:literal) => {{
                    let v = _mm512_castps128_ps512(_mm_loadu_ps(src.add($r * stride)));
                    let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(src.add(($r + 4) * stride)));
                    let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(src.add(($r + 8) * stride)));
                    _mm512_insertf32x4::<3>(v, _mm_loadu_ps(src.add(($r + 12) * stride)))
                }};
            }
            let (r0, r1, r2, r3) = (quarters!(0), quarters!(1), quarters!(2), quarters!(3));
            let (a, b) = (_mm512_unpacklo_ps(r0, r1), _mm512_unpacklo_ps(r2, r3));
            let (c, d) = (_mm512_unpackhi_ps(r0, r1), _mm512_unpackhi_ps(r2, r3));
            self.store(dst, _mm512_shuffle_ps::<0x44>(a, b));
            self.store(dst.add(dst_stride), _mm512_shuffle_ps::<0xee>(a, b));
            self.store(dst.add(2 * dst_stride), _mm512_shuffle_ps::<0x44>(c, d));
            self.store(dst.add(3 * dst_stride), _mm512_shuffle_ps::<0xee>(c, d));
        }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    super::tile_method!(#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")] Avx512, 2; 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
}
