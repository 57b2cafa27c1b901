//! NEON: 4 lanes, 32 registers.

use std::arch::aarch64::*;

use super::Simd;

/// 128-bit Arm vectors.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

// SAFETY (for every `unsafe` below): `Neon` values exist only where NEON does (see `isa::dispatch`), and the callers of
// the pointer methods vouch for their extent.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    // 24 accumulators, 4 vectors of the panel, 1 broadcast.
    const TILE_ROWS: usize = 6;
    const PANEL: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> float32x4_t {
        let mut v = [0.0f32; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(4));
            vld1q_f32(v.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: float32x4_t, n: usize) {
        let mut all = [0.0f32; 4];
        unsafe {
            vst1q_f32(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n.min(4));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> float32x4_t {
        // The f16 vector types are not stable yet; the instruction is part of base NEON.
        let wide: float32x4_t;
        unsafe {
            let half = vld1_u16(p);
            std::arch::asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack));
        }
        wide
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> float32x4_t {
        unsafe {
            let four = vreinterpret_s8_s32(vdup_n_s32(p.cast::<i32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn select_lt(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), yes, no) }
    }
    #[inline(always)]
    fn pow2(self, n: float32x4_t) -> float32x4_t {
        unsafe {
            let n = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(n))
        }
    }
    #[inline(always)]
    unsafe fn transpose4(self, src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
        unsafe {
            let (r0, r1) = (vld1q_f32(src), vld1q_f32(src.add(stride)));
            let (r2, r3) = (vld1q_f32(src.add(2 * stride)), vld1q_f32(src.add(3 * stride)));
            let (a, b) = (vzip1q_f32(r0, r2), vzip1q_f32(r1, r3));
            let (c, d) = (vzip2q_f32(r0, r2), vzip2q_f32(r1, r3));
            vst1q_f32(dst, vzip1q_f32(a, b));
            vst1q_f32(dst.add(dst_stride), vzip2q_f32(a, b));
            vst1q_f32(dst.add(2 * dst_stride), vzip1q_f32(c, d));
            vst1q_f32(dst.add(3 * dst_stride), vzip2q_f32(c, d));
        }
    }
    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(v) }
    }
    #[inline(always)]
    fn max_lane(self, v: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }

    super::tile_method!(#[target_feature(enable = "neon")] Neon, 4; 1, 2, 3, 4, 5, 6);
}
