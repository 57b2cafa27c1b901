//! Portable vectors: arrays of four that the compiler may turn into whatever the target has.

use half::{bf16, f16};

use super::Simd;

/// Portable code.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

const N: usize = 4;

#[inline(always)]
fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Simd for Scalar {
    type V = [f32; N];
    const LANES: usize = N;
    const TILE_ROWS: usize = 4;
    const PANEL: usize = 2 * N;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; N] {
        // SAFETY: the caller vouches for N floats; the read needs no alignment.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> [f32; N] {
        let mut v = [0.0; N];
        for (i, x) in v.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, which the caller vouches for.
            *x = unsafe { *p.add(i) };
        }
        v
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: the caller vouches for N floats; the write needs no alignment.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: [f32; N], n: usize) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: i < n, which the caller vouches for.
            unsafe { *p.add(i) = x };
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller vouches for N values.
        unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller vouches for N values.
        unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> [f32; N] {
        // SAFETY: the caller vouches for N values.
        unsafe { p.cast::<[i8; N]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        // Two roundings: without the instruction `mul_add` is a slow library call.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn select_lt(self, a: [f32; N], b: [f32; N], yes: [f32; N], no: [f32; N]) -> [f32; N] {
        let mut v = no;
        for i in 0..N {
            if a[i] < b[i] {
                v[i] = yes[i];
            }
        }
        v
    }
    #[inline(always)]
    fn pow2(self, n: [f32; N]) -> [f32; N] {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn transpose4(self, src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: the caller vouches for four floats at each of four rows and four vectors.
        unsafe {
            let rows = [0, 1, 2, 3].map(|r| self.load(src.add(r * stride)));
            for i in 0..4 {
                self.store(dst.add(i * dst_stride), [rows[0][i], rows[1][i], rows[2][i], rows[3][i]]);
            }
        }
    }
    #[inline(always)]
    fn sum(self, v: [f32; N]) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    fn max_lane(self, v: [f32; N]) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn prefetch(self, _p: *const f32) {}

    super::tile_method!(#[inline(never)] Scalar, 2; 1, 2, 3, 4);
}
