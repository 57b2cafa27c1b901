//! Patches of an image as the rows of a matrix, in the order that ggml's IM2COL gives them.
//!
//! A convolution does not need this buffer ([`crate::gemm::convolve`]); graphs that come from elsewhere have it.

use crate::buffer::SharedMut;
use crate::conv2d::Axis;
use crate::{Cpu, KernelError, Result, check};
use half::f16;

/// Elements that are worth a task of their own: about 20 us.
const GRAIN: usize = 32 * 1024;

/// An element that patches are written as.
pub trait Element: Copy + Send {
    /// Zero.
    const ZERO: Self;
    /// The nearest to `x`.
    fn from_f32(x: f32) -> Self;
}

impl Element for f32 {
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Element for f16 {
    const ZERO: f16 = f16::ZERO;
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

/// `x` `[N, C, H, W]` to `out` `[N, H', W', C * kernel H * kernel W]`, rounded to the element of `out`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have its shape, [`KernelError::Invalid`] if a kernel is longer than its padded
/// axis.
pub fn im2col<E: Element>(
    cpu: &Cpu,
    x: &[f32],
    [batch, channels, height, width]: [usize; 4],
    [vertical, horizontal]: [Axis; 2],
    out: &mut [E],
) -> Result<()> {
    const NAME: &str = "im2col";
    check::length(NAME, "x", "[N, C, H, W]", &[batch, channels, height, width], x.len())?;
    let dims = vertical.out_len(height).zip(horizontal.out_len(width));
    let (rows, columns) = dims.ok_or_else(|| KernelError::Invalid {
        kernel: NAME,
        reason: format!("{height} x {width} is too small for {vertical:?} and {horizontal:?}"),
    })?;
    let taps = vertical.kernel * horizontal.kernel;
    let patch = check::size(NAME, "patch", &[channels, vertical.kernel, horizontal.kernel])?;
    check::length(NAME, "out", "[N, H', W', C kH kW]", &[batch, rows, columns, patch], out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let out = SharedMut::new(out);
    let row = columns * patch;
    cpu.threads().run_ranges(batch * rows, GRAIN.div_ceil(row), |from, to| {
        for at in from..to {
            // SAFETY: the ranges of rows are disjoint.
            let out = unsafe { out.part(at * row, row) };
            let image = &x[at / rows * channels * height * width..][..channels * height * width];
            let top = (at % rows * vertical.stride) as isize - vertical.before as isize;
            for (column, out) in out.chunks_exact_mut(patch).enumerate() {
                let left = (column * horizontal.stride) as isize - horizontal.before as isize;
                for (plane, out) in
                    image.chunks_exact((height * width).max(1)).zip(out.chunks_exact_mut(taps))
                {
                    for (i, out) in out.chunks_exact_mut(horizontal.kernel).enumerate() {
                        let y = top + (i * vertical.dilation) as isize;
                        if y < 0 || y >= height as isize {
                            out.fill(E::ZERO);
                            continue;
                        }
                        let line = &plane[y as usize * width..][..width];
                        for (j, out) in out.iter_mut().enumerate() {
                            let at = left + (j * horizontal.dilation) as isize;
                            let inside = usize::try_from(at).ok().and_then(|at| line.get(at));
                            *out = inside.map_or(E::ZERO, |&v| E::from_f32(v));
                        }
                    }
                }
            }
        }
    })
}
