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

    super::tile_method!(2; 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
}
