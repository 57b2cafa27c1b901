//! Depthwise convolution over time, channels last.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, silu, store_n};
use crate::{Cpu, KernelError, Result, check};

/// Multiply-adds that are worth a task of their own: about 10 us.
const GRAIN: usize = 128 * 1024;

/// Frames computed together: they share the loads of the weights.
const BLOCK: usize = 4;

/// A depthwise convolution `[B, T, C]` to `[B, T + left + right - K + 1, C]` with stride 1, and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct DepthwiseConv1d<'a> {
    /// `[K, C]`: a checkpoint's `[C, 1, K]` through [`crate::conv2d::taps_major`].
    pub weights: &'a [f32],
    /// K.
    pub kernel: usize,
    /// Zero frames before the first. `K - 1` and no right padding make it causal.
    pub left: usize,
    /// Zero frames after the last.
    pub right: usize,
    /// `[C]`.
    pub bias: Option<&'a [f32]>,
    /// A folded batch norm, `[C]` each: `y * scale + shift`.
    pub scale_shift: Option<(&'a [f32], &'a [f32])>,
    /// Whether SiLU follows (no other function does in the models at hand).
    pub silu: bool,
}

struct FramesKernel<'a> {
    conv: &'a DepthwiseConv1d<'a>,
    channels: usize,
    /// One item, `[T, C]`.
    x: &'a [f32],
    /// The first output frame.
    start: usize,
    /// Output frames.
    count: usize,
    /// `[count, C]`.
    out: *mut f32,
}

impl Kernel for FramesKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let frames = self.count;
        let taken = self.x.len() / self.channels;
        let mut t = 0;
        while t < frames {
            // Tap k of output t + u reads frame start + t + u + k - left.
            let first = (self.start + t) as isize - self.conv.left as isize;
            let inside = first >= 0 && first as usize + BLOCK - 1 + self.conv.kernel <= taken;
            if inside && t + BLOCK <= frames {
                // SAFETY: the frames first .. first + BLOCK - 1 + K exist, as do BLOCK output frames.
                unsafe { self.block::<S, BLOCK>(s, t, first, 0, self.conv.kernel) };
                t += BLOCK;
            } else {
                let from = (-first).clamp(0, self.conv.kernel as isize) as usize;
                let to = (taken as isize - first).clamp(from as isize, self.conv.kernel as isize) as usize;
                // SAFETY: the frames first + from .. first + to exist, as does the output frame.
                unsafe { self.block::<S, 1>(s, t, first, from, to) };
                t += 1;
            }
        }
    }
}

impl FramesKernel<'_> {
    /// Output frames `t..t + U` from the taps `from..to`; tap 0 of the first reads frame `first`.
    ///
    /// # Safety
    /// The input frames `first + from .. first + U - 1 + to` and the output frames exist.
    #[inline(always)]
    unsafe fn block<S: Simd, const U: usize>(&self, s: S, t: usize, first: isize, from: usize, to: usize) {
        let channels = self.channels;
        let DepthwiseConv1d { weights, bias, scale_shift, silu: with_silu, .. } = *self.conv;
        let x = self.x.as_ptr().wrapping_offset(first * channels as isize);
        let out = self.out.wrapping_add(t * channels);
        for_lanes!(S, channels, |c, n| {
            // SAFETY: c + n <= C; weights, bias, scale and shift were checked at entry; frames as the contract says.
            unsafe {
                let start = bias.map_or(s.splat(0.0), |b| load_n(s, b.as_ptr().add(c), n));
                let mut acc = [start; U];
                for k in from..to {
                    let w = load_n(s, weights.as_ptr().add(k * channels + c), n);
                    for (u, acc) in acc.iter_mut().enumerate() {
                        *acc = s.fma(load_n(s, x.wrapping_add((u + k) * channels + c), n), w, *acc);
                    }
                }
                for (u, v) in acc.into_iter().enumerate() {
                    let mut v = v;
                    if let Some((scale, shift)) = scale_shift {
                        v = s.fma(
                            v,
                            load_n(s, scale.as_ptr().add(c), n),
                            load_n(s, shift.as_ptr().add(c), n),
                        );
                    }
                    if with_silu {
                        v = silu(s, v);
                    }
                    store_n(s, out.add(u * channels + c), v, n);
                }
            }
        });
    }
}

impl DepthwiseConv1d<'_> {
    /// Output frames for `frames` input frames; `None` if the kernel is longer than the padded input.
    pub fn out_frames(&self, frames: usize) -> Option<usize> {
        frames.checked_add(self.left)?.checked_add(self.right)?.checked_add(1)?.checked_sub(self.kernel)
    }

    /// `x` `[B, T, C]`, `out` `[B, T', C]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if a slice does not have its shape, [`KernelError::Invalid`] if the kernel is empty or
    /// longer than the padded input.
    pub fn run(
        &self,
        cpu: &Cpu,
        x: &[f32],
        batch: usize,
        frames: usize,
        channels: usize,
        out: &mut [f32],
    ) -> Result<()> {
        const NAME: &str = "depthwise conv1d";
        check::valid(NAME, self.kernel > 0, || "the kernel has no taps".to_string())?;
        let out_frames = self.out_frames(frames).ok_or_else(|| KernelError::Invalid {
            kernel: NAME,
            reason: format!(
                "{} frames and {} + {} of padding are fewer than the kernel's {}",
                frames, self.left, self.right, self.kernel
            ),
        })?;
        check::length(NAME, "x", "[B, T, C]", &[batch, frames, channels], x.len())?;
        check::length(NAME, "weights", "[K, C]", &[self.kernel, channels], self.weights.len())?;
        check::length(NAME, "out", "[B, T', C]", &[batch, out_frames, channels], out.len())?;
        if let Some(bias) = self.bias {
            check::length(NAME, "bias", "[C]", &[channels], bias.len())?;
        }
        if let Some((scale, shift)) = self.scale_shift {
            check::length(NAME, "scale", "[C]", &[channels], scale.len())?;
            check::length(NAME, "shift", "[C]", &[channels], shift.len())?;
        }
        if out.is_empty() {
            return Ok(());
        }
        let out = SharedMut::new(out);
        let grain = GRAIN.div_ceil(self.kernel * channels);
        cpu.threads().run_ranges(batch * out_frames, grain, |mut from, to| {
            while from < to {
                let (item, start) = (from / out_frames, from % out_frames);
                let count = (out_frames - start).min(to - from);
                // SAFETY: the ranges of frames are disjoint.
                let out = unsafe { out.part(from * channels, count * channels) };
                let x = &x[item * frames * channels..][..frames * channels];
                dispatch(
                    cpu.isa(),
                    FramesKernel { conv: self, channels, x, start, count, out: out.as_mut_ptr() },
                );
                from += count;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin()).collect()
    }

    fn naive(
        conv: &DepthwiseConv1d<'_>,
        x: &[f32],
        batch: usize,
        frames: usize,
        channels: usize,
    ) -> Vec<f64> {
        let out_frames = conv.out_frames(frames).unwrap();
        let mut out = Vec::new();
        for b in 0..batch {
            for t in 0..out_frames {
                for c in 0..channels {
                    let mut y = conv.bias.map_or(0.0, |b| b[c] as f64);
                    for k in 0..conv.kernel {
                        let at = (t + k) as isize - conv.left as isize;
                        if at >= 0 && (at as usize) < frames {
                            let x = x[(b * frames + at as usize) * channels + c] as f64;
                            y += x * conv.weights[k * channels + c] as f64;
                        }
                    }
                    if let Some((scale, shift)) = conv.scale_shift {
                        y = y * scale[c] as f64 + shift[c] as f64;
                    }
                    out.push(if conv.silu { y / (1.0 + (-y).exp()) } else { y });
                }
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_definition() {
        // batch, frames, channels, K, left, right
        let cases = [
            (1, 1, 1, 1, 0, 0),
            (1, 1, 3, 9, 4, 4),
            (2, 5, 17, 9, 4, 4),
            (1, 93, 64, 9, 4, 4),
            (3, 20, 33, 9, 8, 0),
            (1, 30, 16, 31, 15, 15),
            (2, 12, 5, 3, 0, 0),
            (1, 4, 2, 3, 7, 7),
            (1, 700, 48, 9, 4, 4),
        ];
        for isa in Isa::available() {
            for threads in [1, 2] {
                let cpu = Cpu::new(isa, Threads::new(threads).unwrap()).unwrap();
                for (batch, frames, channels, kernel, left, right) in cases {
                    let (x, weights) = (wave(batch * frames * channels, 0.0), wave(kernel * channels, 1.0));
                    let (a, b, c) = (wave(channels, 2.0), wave(channels, 3.0), wave(channels, 4.0));
                    for full in [false, true] {
                        let conv = DepthwiseConv1d {
                            weights: &weights,
                            kernel,
                            left,
                            right,
                            bias: full.then_some(&a[..]),
                            scale_shift: full.then_some((&b[..], &c[..])),
                            silu: full,
                        };
                        let expected = naive(&conv, &x, batch, frames, channels);
                        let mut out = vec![f32::NAN; expected.len()];
                        conv.run(&cpu, &x, batch, frames, channels, &mut out).unwrap();
                        for (i, (f, e)) in out.iter().zip(&expected).enumerate() {
                            assert!(
                                (*f as f64 - e).abs() < 2e-6 * (1.0 + e.abs()),
                                "{isa} {frames}x{channels} k{kernel} [{i}] {f} {e}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let conv = DepthwiseConv1d {
            weights: &[0.0; 6],
            kernel: 3,
            left: 0,
            right: 0,
            bias: None,
            scale_shift: None,
            silu: false,
        };
        assert!(conv.run(&cpu, &[0.0; 8], 1, 4, 2, &mut [0.0; 4]).is_ok());
        assert!(conv.run(&cpu, &[0.0; 8], 1, 4, 2, &mut [0.0; 5]).is_err());
        assert!(conv.run(&cpu, &[0.0; 2], 1, 1, 2, &mut [0.0; 4]).is_err());
        assert!(conv.run(&cpu, &[0.0; 12], 1, 4, 3, &mut [0.0; 6]).is_err());
    }
}
