//! Vectors of bytes, as wide as those of f32: what block formats are unpacked with.

/// Vectors of `4 * LANES` bytes, also seen as `LANES` lanes of 32 bits. `V` is the instruction set's vector of f32.
///
/// As for [`super::Simd`], values of this type exist only where the instructions do.
pub(crate) trait Bytes<V>: Copy {
    /// A vector.
    type B: Copy;

    /// # Safety
    /// `4 * LANES` bytes are readable at `p`.
    unsafe fn load_bytes(self, p: *const u8) -> Self::B;
    /// # Safety
    /// `4 * LANES` bytes are writable at `p`.
    unsafe fn store_bytes(self, p: *mut u8, v: Self::B);
    /// The four bytes at `p` in every lane.
    /// # Safety
    /// Four bytes are readable at `p`.
    unsafe fn repeat4(self, p: *const i8) -> Self::B;
    /// `x` in every lane.
    fn splat_i32(self, x: i32) -> Self::B;
    /// Sums of lanes.
    fn add_i32(self, a: Self::B, b: Self::B) -> Self::B;
    /// `v` and `mask`, byte by byte.
    fn and(self, v: Self::B, mask: u8) -> Self::B;
    /// The bits of either.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// The bits that differ from `mask`, byte by byte.
    fn xor(self, v: Self::B, mask: u8) -> Self::B;
    /// What stands in `table` at each byte, which is below 16.
    fn look_up(self, table: &[u8; 16], v: Self::B) -> Self::B;
    /// Lanes shifted right by `n`, zeros coming in.
    fn shr(self, v: Self::B, n: u32) -> Self::B;
    /// Lanes shifted left by `n`.
    fn shl(self, v: Self::B, n: u32) -> Self::B;
    /// Lanes as signed integers, converted.
    fn to_f32(self, v: Self::B) -> V;
    /// Stores numbers in -128..=127, rounded to whole ones (halves to even), as signed bytes.
    /// # Safety
    /// `LANES` bytes are writable at `p`.
    unsafe fn store_i8(self, p: *mut i8, v: V);
}

impl Bytes<[f32; 4]> for super::Scalar {
    type B = [i32; 4];

    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> [i32; 4] {
        // SAFETY: the caller vouches for 16 bytes; the read needs no alignment.
        unsafe { p.cast::<[i32; 4]>().read_unaligned() }.map(i32::from_le)
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, v: [i32; 4]) {
        // SAFETY: the caller vouches for 16 bytes; the write needs no alignment.
        unsafe { p.cast::<[i32; 4]>().write_unaligned(v.map(i32::to_le)) }
    }
    #[inline(always)]
    unsafe fn repeat4(self, p: *const i8) -> [i32; 4] {
        // SAFETY: the caller vouches for 4 bytes; the read needs no alignment.
        [i32::from_le(unsafe { p.cast::<i32>().read_unaligned() }); 4]
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> [i32; 4] {
        [x; 4]
    }
    #[inline(always)]
    fn add_i32(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        [0, 1, 2, 3].map(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn and(self, v: [i32; 4], mask: u8) -> [i32; 4] {
        v.map(|v| v & i32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn or(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        [0, 1, 2, 3].map(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn xor(self, v: [i32; 4], mask: u8) -> [i32; 4] {
        v.map(|v| v ^ i32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: [i32; 4]) -> [i32; 4] {
        v.map(|v| i32::from_le_bytes(v.to_le_bytes().map(|i| table[usize::from(i & 15)])))
    }
    #[inline(always)]
    fn shr(self, v: [i32; 4], n: u32) -> [i32; 4] {
        v.map(|v| (v as u32 >> n) as i32)
    }
    #[inline(always)]
    fn shl(self, v: [i32; 4], n: u32) -> [i32; 4] {
        v.map(|v| v << n)
    }
    #[inline(always)]
    fn to_f32(self, v: [i32; 4]) -> [f32; 4] {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: [f32; 4]) {
        // 1.5 * 2^23: adding it leaves a float whose last bit counts ones.
        const MAGIC: f32 = 12_582_912.0;
        // SAFETY: the caller vouches for 4 bytes; the write needs no alignment.
        unsafe { p.cast::<[i8; 4]>().write_unaligned(v.map(|v| ((v + MAGIC) - MAGIC) as i8)) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Bytes;
    use crate::simd::{Avx2, Avx512};
    use std::arch::x86_64::*;

    // SAFETY (for every `unsafe` below): `Avx2` values exist only where AVX2 does (see `isa::dispatch`), and the callers
    // of the pointer methods vouch for their extent. Loads and stores are unaligned ones.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Bytes<__m256> for Avx2 {
        type B = __m256i;

        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> __m256i {
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store_bytes(self, p: *mut u8, v: __m256i) {
            unsafe { _mm256_storeu_si256(p.cast(), v) }
        }
        #[inline(always)]
        unsafe fn repeat4(self, p: *const i8) -> __m256i {
            unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        fn splat_i32(self, x: i32) -> __m256i {
            unsafe { _mm256_set1_epi32(x) }
        }
        #[inline(always)]
        fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_add_epi32(a, b) }
        }
        #[inline(always)]
        fn and(self, v: __m256i, mask: u8) -> __m256i {
            unsafe { _mm256_and_si256(v, _mm256_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        fn or(self, a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_or_si256(a, b) }
        }
        #[inline(always)]
        fn xor(self, v: __m256i, mask: u8) -> __m256i {
            unsafe { _mm256_xor_si256(v, _mm256_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        fn look_up(self, table: &[u8; 16], v: __m256i) -> __m256i {
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v)
            }
        }
        #[inline(always)]
        fn shr(self, v: __m256i, n: u32) -> __m256i {
            unsafe { _mm256_srlv_epi32(v, _mm256_set1_epi32(n as i32)) }
        }
        #[inline(always)]
        fn shl(self, v: __m256i, n: u32) -> __m256i {
            unsafe { _mm256_sllv_epi32(v, _mm256_set1_epi32(n as i32)) }
        }
        #[inline(always)]
        fn to_f32(self, v: __m256i) -> __m256 {
            unsafe { _mm256_cvtepi32_ps(v) }
        }
        #[inline(always)]
        unsafe fn store_i8(self, p: *mut i8, v: __m256) {
            unsafe {
                let v = _mm256_cvtps_epi32(v);
                let v = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
                _mm_storel_epi64(p.cast(), _mm_packs_epi16(v, v));
            }
        }
    }

    // SAFETY (for every `unsafe` below): as above, for AVX-512.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Bytes<__m512> for Avx512 {
        type B = __m512i;

        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> __m512i {
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store_bytes(self, p: *mut u8, v: __m512i) {
            unsafe { _mm512_storeu_si512(p.cast(), v) }
        }
        #[inline(always)]
        unsafe fn repeat4(self, p: *const i8) -> __m512i {
            unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        fn splat_i32(self, x: i32) -> __m512i {
            unsafe { _mm512_set1_epi32(x) }
        }
        #[inline(always)]
        fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
            unsafe { _mm512_add_epi32(a, b) }
        }
        #[inline(always)]
        fn and(self, v: __m512i, mask: u8) -> __m512i {
            unsafe { _mm512_and_si512(v, _mm512_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        fn or(self, a: __m512i, b: __m512i) -> __m512i {
            unsafe { _mm512_or_si512(a, b) }
        }
        #[inline(always)]
        fn xor(self, v: __m512i, mask: u8) -> __m512i {
            unsafe { _mm512_xor_si512(v, _mm512_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        fn look_up(self, table: &[u8; 16], v: __m512i) -> __m512i {
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v)
            }
        }
        #[inline(always)]
        fn shr(self, v: __m512i, n: u32) -> __m512i {
            unsafe { _mm512_srlv_epi32(v, _mm512_set1_epi32(n as i32)) }
        }
        #[inline(always)]
        fn shl(self, v: __m512i, n: u32) -> __m512i {
            unsafe { _mm512_sllv_epi32(v, _mm512_set1_epi32(n as i32)) }
        }
        #[inline(always)]
        fn to_f32(self, v: __m512i) -> __m512 {
            unsafe { _mm512_cvtepi32_ps(v) }
        }
        #[inline(always)]
        unsafe fn store_i8(self, p: *mut i8, v: __m512) {
            unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v))) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Bytes;
    use crate::simd::Neon;
    use std::arch::aarch64::*;

    // SAFETY (for every `unsafe` below): `Neon` values exist only where NEON does (see `isa::dispatch`), and the callers
    // of the pointer methods vouch for their extent.
    #[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
    impl Bytes<float32x4_t> for Neon {
        type B = uint8x16_t;

        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> uint8x16_t {
            unsafe { vld1q_u8(p) }
        }
        #[inline(always)]
        unsafe fn store_bytes(self, p: *mut u8, v: uint8x16_t) {
            unsafe { vst1q_u8(p, v) }
        }
        #[inline(always)]
        unsafe fn repeat4(self, p: *const i8) -> uint8x16_t {
            unsafe { vreinterpretq_u8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
        }
        #[inline(always)]
        fn splat_i32(self, x: i32) -> uint8x16_t {
            unsafe { vreinterpretq_u8_s32(vdupq_n_s32(x)) }
        }
        #[inline(always)]
        fn add_i32(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            unsafe { vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b))) }
        }
        #[inline(always)]
        fn and(self, v: uint8x16_t, mask: u8) -> uint8x16_t {
            unsafe { vandq_u8(v, vdupq_n_u8(mask)) }
        }
        #[inline(always)]
        fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            unsafe { vorrq_u8(a, b) }
        }
        #[inline(always)]
        fn xor(self, v: uint8x16_t, mask: u8) -> uint8x16_t {
            unsafe { veorq_u8(v, vdupq_n_u8(mask)) }
        }
        #[inline(always)]
        fn look_up(self, table: &[u8; 16], v: uint8x16_t) -> uint8x16_t {
            unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), v) }
        }
        #[inline(always)]
        fn shr(self, v: uint8x16_t, n: u32) -> uint8x16_t {
            unsafe { vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(v), vdupq_n_s32(-(n as i32)))) }
        }
        #[inline(always)]
        fn shl(self, v: uint8x16_t, n: u32) -> uint8x16_t {
            unsafe { vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(v), vdupq_n_s32(n as i32))) }
        }
        #[inline(always)]
        fn to_f32(self, v: uint8x16_t) -> float32x4_t {
            unsafe { vcvtq_f32_s32(vreinterpretq_s32_u8(v)) }
        }
        #[inline(always)]
        unsafe fn store_i8(self, p: *mut i8, v: float32x4_t) {
            unsafe {
                let v = vqmovn_s32(vcvtnq_s32_f32(v));
                let v = vqmovn_s16(vcombine_s16(v, v));
                p.cast::<i32>().write_unaligned(vget_lane_s32::<0>(vreinterpret_s32_s8(v)));
            }
        }
    }
}
