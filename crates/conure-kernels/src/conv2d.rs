//! Convolution over time and frequency, channels last: `[B, T, F, C]`.
//!
//! Weights are kept taps first, `[kernel T, kernel F, C / groups, C']`, so that the output channels are the fastest axis
//! and fill the vectors; [`taps_major`] makes that of a checkpoint's order, once. No im2col buffer: each kernel reads the
//! frames where they are. A 1x1 convolution is a [`crate::gemm::linear`] and faster there.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{Cpu, KernelError, Result, check};

/// Multiply-adds that are worth a task of their own: about 10 us.
const GRAIN: usize = 128 * 1024;

/// Output positions along F computed together: they share the loads of the weights.
const BLOCK: usize = 4;

/// Taps of the largest window that the one-channel kernel gathers.
const MAX_WINDOW: usize = 32;

/// One axis of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Taps.
    pub kernel: usize,
    /// Step from one output to the next.
    pub stride: usize,
    /// Step from one tap to the next.
    pub dilation: usize,
    /// Zeros before the first element.
    pub before: usize,
    /// Zeros after the last.
    pub after: usize,
}

impl Axis {
    /// Outputs for `len` inputs; `None` if the kernel is longer than the padded input or an option is 0.
    pub fn out_len(&self, len: usize) -> Option<usize> {
        let span = self.kernel.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        let padded = len.checked_add(self.before)?.checked_add(self.after)?;
        if self.dilation == 0 {
            return None;
        }
        padded.checked_sub(span)?.checked_div(self.stride)?.checked_add(1)
    }

    /// The input read by tap 0 of output `o`.
    #[inline(always)]
    fn first(&self, o: usize) -> isize {
        (o * self.stride) as isize - self.before as isize
    }

    /// The taps that read inside `0..len`, if tap 0 reads `first`.
    #[inline(always)]
    fn taps(&self, first: isize, len: usize) -> (usize, usize) {
        let step = self.dilation;
        let from = if first < 0 { first.unsigned_abs().div_ceil(step) } else { 0 }.min(self.kernel);
        let room = (len as isize - first).max(0) as usize;
        (from, room.div_ceil(step).clamp(from, self.kernel))
    }
}

/// A convolution `[B, T, F, C]` to `[B, T', F', C']`.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d<'a> {
    /// `[kernel T, kernel F, C / groups, C']`.
    pub weights: &'a [f32],
    /// `[C']`.
    pub bias: Option<&'a [f32]>,
    /// Time. Causal subsampling pads (2, 1).
    pub time: Axis,
    /// Frequency.
    pub freq: Axis,
    /// C.
    pub channels: usize,
    /// C'.
    pub out_channels: usize,
    /// Groups of channels; C of them with C' = C make a depthwise convolution.
    pub groups: usize,
    /// Whether negative outputs become 0.
    pub relu: bool,
}

/// A checkpoint's weights `[C', C / groups, taps]` (taps: kernel T times kernel F, F fastest) as `[taps, C / groups, C']`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have its shape.
pub fn taps_major(
    weights: &[f32],
    out_channels: usize,
    group_channels: usize,
    taps: usize,
    out: &mut [f32],
) -> Result<()> {
    let dims = [out_channels, group_channels, taps];
    check::length("taps_major", "weights", "[C', C / groups, taps]", &dims, weights.len())?;
    check::length("taps_major", "out", "[taps, C / groups, C']", &dims, out.len())?;
    for (i, &w) in weights.iter().enumerate() {
        let (channel, rest) = (i / (group_channels * taps), i % (group_channels * taps));
        let (input, tap) = (rest / taps, rest % taps);
        out[(tap * group_channels + input) * out_channels + channel] = w;
    }
    Ok(())
}

/// Which kernel computes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Depthwise,
    OneChannel,
    General,
}

/// One output row (all F', all C') after another.
struct RowsKernel<'a> {
    conv: &'a Conv2d<'a>,
    kind: Kind,
    /// One item, `[T, F, C]`.
    x: &'a [f32],
    frames: usize,
    bins: usize,
    out_bins: usize,
    /// The first output row.
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for RowsKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let row = self.out_bins * self.conv.out_channels;
        let out = std::mem::take(&mut self.out);
        for (i, out) in out.chunks_exact_mut(row).enumerate() {
            let first = self.conv.time.first(self.start + i);
            let taps = self.conv.time.taps(first, self.frames);
            match self.kind {
                Kind::Depthwise => self.depthwise_row(s, first, taps, out),
                Kind::OneChannel => self.one_channel_row(s, first, taps, out),
                Kind::General => self.general_row(s, first, taps, out),
            }
        }
    }
}

impl RowsKernel<'_> {
    /// The bias of channels `c..c + n`.
    ///
    /// # Safety
    /// `c + n <= C'`.
    #[inline(always)]
    unsafe fn bias<S: Simd>(&self, s: S, c: usize, n: usize) -> S::V {
        // SAFETY: the bias has C' elements (checked at entry).
        self.conv.bias.map_or(s.splat(0.0), |b| unsafe { load_n(s, b.as_ptr().add(c), n) })
    }

    #[inline(always)]
    fn activate<S: Simd>(&self, s: S, v: S::V) -> S::V {
        if self.conv.relu { s.max(s.splat(0.0), v) } else { v }
    }

    #[inline(always)]
    fn depthwise_row<S: Simd>(&self, s: S, first_t: isize, taps_t: (usize, usize), out: &mut [f32]) {
        let freq = self.conv.freq;
        let mut f = 0;
        while f < self.out_bins {
            let first = freq.first(f);
            let last = freq.first(f + BLOCK - 1) + ((freq.kernel - 1) * freq.dilation) as isize;
            if f + BLOCK <= self.out_bins && first >= 0 && last < self.bins as isize {
                // SAFETY: all taps of BLOCK outputs are inside.
                unsafe {
                    self.depthwise::<S, BLOCK>(s, (first_t, taps_t), (first, (0, freq.kernel)), f, out)
                };
                f += BLOCK;
            } else {
                let taps = freq.taps(first, self.bins);
                // SAFETY: `taps` are those inside.
                unsafe { self.depthwise::<S, 1>(s, (first_t, taps_t), (first, taps), f, out) };
                f += 1;
            }
        }
    }

    /// Outputs `f..f + U` of a row.
    ///
    /// # Safety
    /// The given taps of all U outputs read inside the item; `out` has F' times C floats and f + U <= F'.
    #[inline(always)]
    unsafe fn depthwise<S: Simd, const U: usize>(
        &self,
        s: S,
        (first_t, (t0, t1)): (isize, (usize, usize)),
        (first_f, (f0, f1)): (isize, (usize, usize)),
        f: usize,
        out: &mut [f32],
    ) {
        let Conv2d { channels, time, freq, weights, .. } = *self.conv;
        let out = out[f * channels..].as_mut_ptr();
        for_lanes!(S, channels, |c, n| {
            // SAFETY: c + n <= C and the contract.
            unsafe {
                let mut acc = [self.bias(s, c, n); U];
                for kt in t0..t1 {
                    let t = (first_t + (kt * time.dilation) as isize) as usize;
                    for kf in f0..f1 {
                        let w = load_n(s, weights.as_ptr().add((kt * freq.kernel + kf) * channels + c), n);
                        let bin = (first_f + (kf * freq.dilation) as isize) as usize;
                        let x = self.x.as_ptr().add((t * self.bins + bin) * channels + c);
                        for (u, acc) in acc.iter_mut().enumerate() {
                            *acc = s.fma(load_n(s, x.add(u * freq.stride * channels), n), w, *acc);
                        }
                    }
                }
                for (u, v) in acc.into_iter().enumerate() {
                    store_n(s, out.add(u * channels + c), self.activate(s, v), n);
                }
            }
        });
    }

    #[inline(always)]
    fn one_channel_row<S: Simd>(&self, s: S, first_t: isize, taps_t: (usize, usize), out: &mut [f32]) {
        let Conv2d { time, freq, out_channels, weights, .. } = *self.conv;
        let window = time.kernel * freq.kernel;
        let mut f = 0;
        while f < self.out_bins {
            // The windows of up to BLOCK outputs, padding included.
            let count = BLOCK.min(self.out_bins - f);
            let mut x = [[0.0f32; MAX_WINDOW]; BLOCK];
            for (u, x) in x.iter_mut().enumerate().take(count) {
                let first = freq.first(f + u);
                let (f0, f1) = freq.taps(first, self.bins);
                for kt in taps_t.0..taps_t.1 {
                    let t = (first_t + (kt * time.dilation) as isize) as usize;
                    for kf in f0..f1 {
                        let bin = (first + (kf * freq.dilation) as isize) as usize;
                        x[kt * freq.kernel + kf] = self.x[t * self.bins + bin];
                    }
                }
            }
            let out = out[f * out_channels..][..count * out_channels].as_mut_ptr();
            for_lanes!(S, out_channels, |c, n| {
                // SAFETY: c + n <= C', the weights have window * C' elements, `out` has count * C'.
                unsafe {
                    let mut acc = [self.bias(s, c, n); BLOCK];
                    for k in 0..window {
                        let w = load_n(s, weights.as_ptr().add(k * out_channels + c), n);
                        for (acc, x) in acc.iter_mut().zip(&x) {
                            *acc = s.fma(s.splat(x[k]), w, *acc);
                        }
                    }
                    for (u, v) in acc.into_iter().enumerate().take(count) {
                        store_n(s, out.add(u * out_channels + c), self.activate(s, v), n);
                    }
                }
            });
            f += count;
        }
    }

    #[inline(always)]
    fn general_row<S: Simd>(&self, s: S, first_t: isize, (t0, t1): (usize, usize), out: &mut [f32]) {
        let Conv2d { time, freq, channels, out_channels, groups, weights, .. } = *self.conv;
        let (inputs, outputs) = (channels / groups, out_channels / groups);
        for (f, out) in out.chunks_exact_mut(out_channels).enumerate() {
            let first = freq.first(f);
            let (f0, f1) = freq.taps(first, self.bins);
            for group in 0..groups {
                for_lanes!(S, outputs, |c, n| {
                    let c = group * outputs + c;
                    // SAFETY: c + n <= C'; taps are those inside the item.
                    unsafe {
                        let mut acc = self.bias(s, c, n);
                        for kt in t0..t1 {
                            let t = (first_t + (kt * time.dilation) as isize) as usize;
                            for kf in f0..f1 {
                                let bin = (first + (kf * freq.dilation) as isize) as usize;
                                let x =
                                    &self.x[(t * self.bins + bin) * channels + group * inputs..][..inputs];
                                let w = (kt * freq.kernel + kf) * inputs * out_channels + c;
                                for (i, &x) in x.iter().enumerate() {
                                    let w = load_n(s, weights.as_ptr().add(w + i * out_channels), n);
                                    acc = s.fma(s.splat(x), w, acc);
                                }
                            }
                        }
                        store_n(s, out.as_mut_ptr().add(c), self.activate(s, acc), n);
                    }
                });
            }
        }
    }
}

impl Conv2d<'_> {
    /// `(T', F')` for `frames` and `bins`; `None` if a kernel is longer than its padded axis or an option is 0.
    pub fn out_dims(&self, frames: usize, bins: usize) -> Option<(usize, usize)> {
        Some((self.time.out_len(frames)?, self.freq.out_len(bins)?))
    }

    fn kind(&self) -> Kind {
        if self.groups == self.channels && self.out_channels == self.channels {
            Kind::Depthwise
        } else if self.channels == 1 && self.time.kernel * self.freq.kernel <= MAX_WINDOW {
            Kind::OneChannel
        } else {
            Kind::General
        }
    }

    fn check(
        &self,
        x: &[f32],
        batch: usize,
        frames: usize,
        bins: usize,
        out: &[f32],
    ) -> Result<(usize, usize)> {
        const NAME: &str = "conv2d";
        let groups = self.groups;
        let divides =
            groups > 0 && self.channels.is_multiple_of(groups) && self.out_channels.is_multiple_of(groups);
        check::valid(NAME, divides, || {
            format!("{groups} groups do not divide {} and {} channels", self.channels, self.out_channels)
        })?;
        let (out_frames, out_bins) = self.out_dims(frames, bins).ok_or_else(|| KernelError::Invalid {
            kernel: NAME,
            reason: format!(
                "{frames} frames of {bins} bins are too small for {:?} and {:?}",
                self.time, self.freq
            ),
        })?;
        let taps = [self.time.kernel, self.freq.kernel, self.channels / groups, self.out_channels];
        check::length(NAME, "weights", "[kernel T, kernel F, C / groups, C']", &taps, self.weights.len())?;
        check::length(NAME, "x", "[B, T, F, C]", &[batch, frames, bins, self.channels], x.len())?;
        check::length(
            NAME,
            "out",
            "[B, T', F', C']",
            &[batch, out_frames, out_bins, self.out_channels],
            out.len(),
        )?;
        if let Some(bias) = self.bias {
            check::length(NAME, "bias", "[C']", &[self.out_channels], bias.len())?;
        }
        Ok((out_frames, out_bins))
    }

    /// `x` `[B, T, F, C]`, `out` `[B, T', F', C']`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if a slice does not have its shape, [`KernelError::Invalid`] if groups do not divide the
    /// channels or a kernel is longer than its padded axis.
    pub fn run(
        &self,
        cpu: &Cpu,
        x: &[f32],
        batch: usize,
        frames: usize,
        bins: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (out_frames, out_bins) = self.check(x, batch, frames, bins, out)?;
        if out.is_empty() {
            return Ok(());
        }
        let row = out_bins * self.out_channels;
        let work = row * self.time.kernel * self.freq.kernel * (self.channels / self.groups).max(1);
        let item = frames * bins * self.channels;
        let kind = self.kind();
        let out = SharedMut::new(out);
        cpu.threads().run_ranges(batch * out_frames, GRAIN.div_ceil(work), |mut from, to| {
            while from < to {
                let (b, start) = (from / out_frames, from % out_frames);
                let count = (out_frames - start).min(to - from);
                // SAFETY: the ranges of rows are disjoint.
                let out = unsafe { out.part(from * row, count * row) };
                let x = &x[b * item..][..item];
                dispatch(cpu.isa(), RowsKernel { conv: self, kind, x, frames, bins, out_bins, start, out });
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

    fn axis(kernel: usize, stride: usize, dilation: usize, before: usize, after: usize) -> Axis {
        Axis { kernel, stride, dilation, before, after }
    }

    /// From the checkpoint's order of weights, `[C', C / groups, kernel T, kernel F]`.
    fn naive(conv: &Conv2d<'_>, w: &[f32], x: &[f32], batch: usize, frames: usize, bins: usize) -> Vec<f64> {
        let (ot, of) = conv.out_dims(frames, bins).unwrap();
        let (ig, og) = (conv.channels / conv.groups, conv.out_channels / conv.groups);
        let mut out = Vec::new();
        for (b, t, f) in (0..batch).flat_map(|b| (0..ot).flat_map(move |t| (0..of).map(move |f| (b, t, f)))) {
            for c in 0..conv.out_channels {
                let mut y = conv.bias.map_or(0.0, |b| b[c] as f64);
                for (i, kt, kf) in (0..ig).flat_map(|i| {
                    (0..conv.time.kernel).flat_map(move |a| (0..conv.freq.kernel).map(move |b| (i, a, b)))
                }) {
                    let ti =
                        (t * conv.time.stride + kt * conv.time.dilation) as isize - conv.time.before as isize;
                    let fi =
                        (f * conv.freq.stride + kf * conv.freq.dilation) as isize - conv.freq.before as isize;
                    if ti >= 0 && ti < frames as isize && fi >= 0 && fi < bins as isize {
                        let x = x[((b * frames + ti as usize) * bins + fi as usize) * conv.channels
                            + c / og * ig
                            + i];
                        y += x as f64
                            * w[((c * ig + i) * conv.time.kernel + kt) * conv.freq.kernel + kf] as f64;
                    }
                }
                out.push(if conv.relu { y.max(0.0) } else { y });
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_definition() {
        let same = axis(3, 2, 1, 1, 1);
        let causal = axis(3, 2, 1, 2, 1);
        // time, freq, C, C', groups, batch, frames, bins
        let cases = [
            (same, same, 1, 8, 1, 2, 9, 10),
            (same, same, 1, 33, 1, 1, 1, 1),
            (causal, causal, 1, 16, 1, 1, 8, 13),
            (same, same, 17, 17, 17, 2, 7, 21),
            (causal, causal, 32, 32, 32, 1, 16, 16),
            (same, same, 5, 5, 5, 1, 1, 2),
            (same, same, 6, 9, 3, 1, 6, 5),
            (axis(1, 1, 1, 0, 0), axis(5, 3, 1, 4, 2), 2, 40, 1, 2, 3, 7),
            (axis(3, 1, 2, 2, 2), axis(2, 2, 3, 0, 5), 3, 3, 3, 1, 9, 8),
            (axis(3, 1, 2, 5, 5), axis(3, 1, 4, 9, 9), 1, 4, 1, 1, 2, 3),
            (axis(7, 1, 1, 3, 3), axis(7, 1, 1, 3, 3), 1, 3, 1, 1, 5, 6),
        ];
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::new(2).unwrap()).unwrap();
            for (case, (time, freq, channels, out_channels, groups, batch, frames, bins)) in
                cases.into_iter().enumerate()
            {
                let taps = time.kernel * freq.kernel;
                let checkpoint = wave(out_channels * channels / groups * taps, 1.0);
                let mut weights = vec![0.0; checkpoint.len()];
                taps_major(&checkpoint, out_channels, channels / groups, taps, &mut weights).unwrap();
                let bias = wave(out_channels, 2.0);
                let x = wave(batch * frames * bins * channels, 3.0);
                for full in [false, true] {
                    let bias = full.then_some(&bias[..]);
                    let weights = &weights[..];
                    let conv =
                        Conv2d { weights, bias, time, freq, channels, out_channels, groups, relu: full };
                    let expected = naive(&conv, &checkpoint, &x, batch, frames, bins);
                    let mut out = vec![f32::NAN; expected.len()];
                    conv.run(&cpu, &x, batch, frames, bins, &mut out).unwrap();
                    for (i, (f, e)) in out.iter().zip(&expected).enumerate() {
                        assert!(
                            (*f as f64 - e).abs() < 3e-6 * (1.0 + e.abs()),
                            "{isa} case {case} [{i}]: {f} for {e}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let a = axis(3, 2, 1, 1, 1);
        let conv = Conv2d {
            weights: &[0.0; 18],
            bias: None,
            time: a,
            freq: a,
            channels: 1,
            out_channels: 2,
            groups: 1,
            relu: false,
        };
        assert!(conv.run(&cpu, &[0.0; 16], 1, 4, 4, &mut [0.0; 8]).is_ok());
        assert!(conv.run(&cpu, &[0.0; 16], 1, 4, 4, &mut [0.0; 9]).is_err());
        assert!(conv.run(&cpu, &[0.0; 15], 1, 4, 4, &mut [0.0; 8]).is_err());
        assert!(Conv2d { groups: 2, ..conv }.run(&cpu, &[0.0; 16], 1, 4, 4, &mut [0.0; 8]).is_err());
        assert!(Conv2d { groups: 0, ..conv }.run(&cpu, &[0.0; 16], 1, 4, 4, &mut [0.0; 8]).is_err());
        let narrow = Conv2d { time: axis(3, 2, 1, 0, 0), ..conv };
        assert!(narrow.run(&cpu, &[0.0; 8], 1, 2, 4, &mut [0.0; 0]).is_err());
        assert_eq!(axis(3, 0, 1, 1, 1).out_len(9), None);
        assert_eq!(axis(0, 1, 1, 1, 1).out_len(9), None);
        assert_eq!(axis(3, 1, 0, 1, 1).out_len(9), None);
    }
}
