//! AVX2 with FMA and F16C: 8 lanes, 16 registers.

use std::arch::x86_64::*;

use super::Simd;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// All ones in the first `n` of 8 lanes.
#[inline(always)]
fn mask(n: usize) -> __m256i {
    static ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: n <= 8, so the 8 integers from 8 - n on lie in the table; `Avx2` values exist only where AVX2 does.
    unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - n.min(8)).cast()) }
}

// SAFETY (for every `unsafe` below): `Avx2` values exist only where AVX2, FMA and F16C do (see `isa::dispatch`), and the
// callers of the pointer methods vouch for their extent. Loads and stores are unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const PANEL: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m256, n: usize) {
        unsafe { _mm256_maskstore_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn select_lt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn pow2(self, n: __m256) -> __m256 {
        unsafe {
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
        }
    }
    #[inline(always)]
    unsafe fn transpose4(self, src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
        unsafe {
            // Rows r and r + 4 in the halves of vector r, then a 4 x 4 transpose within each half.
            macro_rules! pair {
                ($r:literal) => {
                    _mm256_insertf128_ps::<1>(
                        _mm256_castps128_ps256(_mm_loadu_ps(src.add($r * stride))),
                        _mm_loadu_ps(src.add(($r + 4) * stride)),
                    )
                };
            }
            let (r0, r1, r2, r3) = (pair!(0), pair!(1), pair!(2), pair!(3));
            let (a, b) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpacklo_ps(r2, r3));
            let (c, d) = (_mm256_unpackhi_ps(r0, r1), _mm256_unpackhi_ps(r2, r3));
            self.store(dst, _mm256_shuffle_ps::<0x44>(a, b));
            self.store(dst.add(dst_stride), _mm256_shuffle_ps::<0xee>(a, b));
            self.store(dst.add(2 * dst_stride), _mm256_shuffle_ps::<0x44>(c, d));
            self.store(dst.add(3 * dst_stride), _mm256_shuffle_ps::<0xee>(c, d));
        }
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn max_lane(self, v: __m256) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    super::tile_method!(#[target_feature(enable = "avx2,fma,f16c")] Avx2, 2; 1, 2, 3, 4, 5, 6);
}
