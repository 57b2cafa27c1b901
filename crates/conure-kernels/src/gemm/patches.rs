//! A convolution as a product whose left rows are patches of the input, gathered where a product copies its rows anyway: no
//! buffer of all patches (im2col) is ever made.

use super::{Epilogue, PackedMatrix, Product, Source};
use crate::conv2d::Axis;
use crate::{Cpu, KernelError, Result, check};

/// The left rows of a product.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// `[M, K]`.
    Dense(&'a [f32]),
    /// Patches of an input, M of them, and how many there are in time and in frequency.
    Patches(Patches<'a>, [usize; 2]),
}

/// The patches that a convolution without groups sees: row `(b, t, f)`, K in the order kernel T, kernel F, C.
#[derive(Clone, Copy, Debug)]
pub struct Patches<'a> {
    /// `[B, T, F, C]`.
    pub x: &'a [f32],
    /// B.
    pub batch: usize,
    /// T.
    pub frames: usize,
    /// F.
    pub bins: usize,
    /// C.
    pub channels: usize,
    /// Time.
    pub time: Axis,
    /// Frequency.
    pub freq: Axis,
}

impl Patches<'_> {
    /// Elements of a patch: K.
    pub fn width(&self) -> usize {
        self.time.kernel * self.freq.kernel * self.channels
    }

    /// Copies elements `k0..k0 + to.len()` of patch `row`, zeros where it lies outside of the input.
    #[inline(always)]
    fn copy(&self, row: usize, [out_frames, out_bins]: [usize; 2], k0: usize, mut to: &mut [f32]) {
        let (b, t, f) = (row / out_bins / out_frames, row / out_bins % out_frames, row % out_bins);
        let first_t = (t * self.time.stride) as isize - self.time.before as isize;
        let first_f = (f * self.freq.stride) as isize - self.freq.before as isize;
        let c = self.channels;
        // A row of the kernel that lies inside along F is one run of the input.
        let inside =
            self.freq.dilation == 1 && first_f >= 0 && first_f as usize + self.freq.kernel <= self.bins;
        let mut k = k0;
        while !to.is_empty() {
            let (kt, kf) = (k / c / self.freq.kernel, k / c % self.freq.kernel);
            let run = if inside { (self.freq.kernel - kf) * c - k % c } else { c - k % c };
            let (now, rest) = to.split_at_mut(run.min(to.len()));
            let t = first_t + (kt * self.time.dilation) as isize;
            let f = first_f + (kf * self.freq.dilation) as isize;
            if (0..self.frames as isize).contains(&t) && (0..self.bins as isize).contains(&f) {
                let at = ((b * self.frames + t as usize) * self.bins + f as usize) * c + k % c;
                now.copy_from_slice(&self.x[at..at + now.len()]);
            } else {
                now.fill(0.0);
            }
            k += now.len();
            to = rest;
        }
    }
}

impl Left<'_> {
    /// Copies elements `k0..k0 + to.len()` of row `row` of `k`.
    #[inline(always)]
    pub(super) fn copy(&self, row: usize, k: usize, k0: usize, to: &mut [f32]) {
        match self {
            Left::Dense(x) => to.copy_from_slice(&x[row * k + k0..][..to.len()]),
            Left::Patches(p, out_dims) => p.copy(row, *out_dims, k0, to),
        }
    }
}

/// `out[B, T', F', N] = residual + scale * f(patches W^T + bias)`, with `weights` W `[N, kernel T * kernel F * C]`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have its shape, [`KernelError::Invalid`] if the kernel is longer than the
/// padded input.
pub fn convolve(
    cpu: &Cpu,
    patches: &Patches<'_>,
    weights: &PackedMatrix,
    epilogue: &Epilogue<'_>,
    out: &mut [f32],
) -> Result<()> {
    const NAME: &str = "convolve";
    let Patches { x, batch, frames, bins, channels, time, freq } = *patches;
    check::length(NAME, "x", "[B, T, F, C]", &[batch, frames, bins, channels], x.len())?;
    let dims = time.out_len(frames).zip(freq.out_len(bins)).ok_or_else(|| KernelError::Invalid {
        kernel: NAME,
        reason: format!("{frames} frames of {bins} bins are too small for {time:?} and {freq:?}"),
    })?;
    check::valid(NAME, weights.k() == patches.width(), || {
        format!("weights for patches of {}, not of {}", weights.k(), patches.width())
    })?;
    let m = check::size(NAME, "out", &[batch, dims.0, dims.1])?;
    let product = Product {
        kernel: NAME,
        m,
        k: weights.k,
        left: Left::Patches(*patches, [dims.0, dims.1]),
        columns: weights.columns,
        source: Source::Packed(weights),
        epilogue: *epilogue,
    };
    product.run(cpu, weights.isa, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv2d::{Conv2d, taps_major};
    use crate::gemm::Activation;
    use crate::{Isa, Threads};

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin()).collect()
    }

    /// `[N, C, taps]` as `[N, taps, C]`.
    fn taps_first(w: &[f32], n: usize, c: usize, taps: usize) -> Vec<f32> {
        (0..n * taps * c).map(|i| w[(i / (taps * c) * c + i % c) * taps + i / c % taps]).collect()
    }

    #[test]
    fn agrees_with_the_direct_kernel() {
        let axis = |kernel, stride, dilation, before, after| Axis { kernel, stride, dilation, before, after };
        // time, freq, C, N, batch, frames, bins
        let cases = [
            (axis(3, 1, 1, 1, 1), axis(1, 1, 1, 0, 0), 80, 33, 2, 40, 1),
            (axis(3, 2, 1, 1, 1), axis(1, 1, 1, 0, 0), 17, 96, 1, 41, 1),
            (axis(4, 4, 1, 0, 0), axis(4, 4, 1, 0, 0), 3, 20, 1, 16, 20),
            (axis(3, 2, 1, 1, 1), axis(3, 2, 1, 1, 1), 5, 8, 2, 7, 9),
            (axis(3, 1, 2, 2, 2), axis(2, 1, 3, 1, 4), 64, 7, 1, 9, 8),
            (axis(5, 1, 1, 9, 9), axis(5, 3, 1, 9, 9), 2, 3, 1, 1, 2),
            (axis(3, 1, 1, 1, 1), axis(3, 1, 1, 1, 1), 130, 65, 1, 6, 5),
        ];
        for isa in Isa::available() {
            for threads in [Threads::single(), Threads::new(2).unwrap()] {
                let cpu = Cpu::new(isa, threads).unwrap();
                for (case, (time, freq, channels, n, batch, frames, bins)) in cases.into_iter().enumerate() {
                    let taps = time.kernel * freq.kernel;
                    let stored = wave(n * channels * taps, 1.0);
                    let (bias, x) = (wave(n, 2.0), wave(batch * frames * bins * channels, 3.0));
                    let mut weights = vec![0.0; stored.len()];
                    taps_major(&stored, n, channels, taps, &mut weights).unwrap();
                    let conv = Conv2d {
                        weights: &weights,
                        bias: Some(&bias),
                        time,
                        freq,
                        channels,
                        out_channels: n,
                        groups: 1,
                        relu: true,
                    };
                    let (ot, of) = conv.out_dims(frames, bins).unwrap();
                    let mut expected = vec![f32::NAN; batch * ot * of * n];
                    conv.run(&cpu, &x, batch, frames, bins, &mut expected).unwrap();
                    let packed = PackedMatrix::from_f32(
                        &cpu,
                        &taps_first(&stored, n, channels, taps),
                        n,
                        taps * channels,
                    )
                    .unwrap();
                    let patches = Patches { x: &x, batch, frames, bins, channels, time, freq };
                    let epilogue =
                        Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::default() };
                    let mut found = vec![f32::NAN; expected.len()];
                    convolve(&cpu, &patches, &packed, &epilogue, &mut found).unwrap();
                    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
                        assert!(
                            (f - e).abs() < 2e-5 * (1.0 + e.abs()),
                            "{isa} case {case} [{i}]: {f} for {e}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn weights_rounded_to_bytes_are_those_values() {
        let axis = Axis { kernel: 3, stride: 1, dilation: 1, before: 1, after: 1 };
        let (n, channels, frames) = (33, 32, 9);
        let k = 3 * channels;
        let (x, weights) = (wave(frames * channels, 4.0), wave(n * k, 5.0));
        let mut values = weights.clone();
        for row in values.chunks_mut(k) {
            let largest = row.iter().fold(0f32, |a, v| a.max(v.abs()));
            let (scale, inverse) = (largest * (1.0 / 127.0), 127.0 / largest);
            row.iter_mut().for_each(|v| *v = (*v * inverse).round_ties_even() * scale);
        }
        let one = Axis { kernel: 1, stride: 1, dilation: 1, before: 0, after: 0 };
        let patches = Patches { x: &x, batch: 1, frames, bins: 1, channels, time: axis, freq: one };
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::single()).unwrap();
            let int8 = cpu.clone().with_precision(crate::Precision::Int8);
            let rounded = PackedMatrix::for_products(
                &int8,
                conure_tensor::DType::F32,
                bytemuck::cast_slice(&weights),
                n,
                k,
                false,
            );
            let outs =
                [rounded.unwrap(), PackedMatrix::from_f32(&cpu, &values, n, k).unwrap()].map(|packed| {
                    let mut out = vec![f32::NAN; frames * n];
                    convolve(&int8, &patches, &packed, &Epilogue::default(), &mut out).unwrap();
                    out
                });
            assert!(outs[0] == outs[1], "{isa}");
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let a = Axis { kernel: 3, stride: 2, dilation: 1, before: 1, after: 1 };
        let packed = PackedMatrix::from_f32(&cpu, &[0.0; 36], 2, 18).unwrap();
        let patches = Patches { x: &[0.0; 32], batch: 1, frames: 4, bins: 4, channels: 2, time: a, freq: a };
        let run =
            |p: &Patches<'_>, n: usize| convolve(&cpu, p, &packed, &Epilogue::default(), &mut vec![0.0; n]);
        assert!(run(&patches, 8).is_ok());
        assert!(run(&patches, 9).is_err());
        assert!(run(&Patches { x: &[0.0; 31], ..patches }, 8).is_err());
        assert!(run(&Patches { channels: 1, frames: 8, ..patches }, 16).is_err());
        let none = Axis { before: 0, after: 0, ..a };
        assert!(run(&Patches { x: &[0.0; 16], frames: 2, time: none, ..patches }, 4).is_err());
    }
}
