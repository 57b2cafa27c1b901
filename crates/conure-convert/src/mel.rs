//! The mel filterbank and window that a Hugging Face checkpoint leaves out.
//!
//! Slaney's scale (Auditory Toolbox: linear to 1 kHz, then 27 logarithmic steps per factor 6.4) with filters of equal
//! area, computed as librosa does: in f64, the triangles rounded to f32 before the area factor and after it.

use std::f64::consts::PI;

const LINEAR_STEP: f64 = 200.0 / 3.0;
const LOG_START_HZ: f64 = 1000.0;
const LOG_START_MEL: f64 = LOG_START_HZ / LINEAR_STEP;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn hz_to_mel(hz: f64) -> f64 {
    if hz >= LOG_START_HZ { LOG_START_MEL + (hz / LOG_START_HZ).ln() / log_step() } else { hz / LINEAR_STEP }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel >= LOG_START_MEL {
        LOG_START_HZ * (log_step() * (mel - LOG_START_MEL)).exp()
    } else {
        LINEAR_STEP * mel
    }
}

/// The filterbank from 0 to half the sample rate, row-major `[n_mels, n_fft / 2 + 1]`.
pub fn filterbank(sample_rate: u32, n_fft: usize, n_mels: usize) -> Vec<f32> {
    let bins = n_fft / 2 + 1;
    let rate = f64::from(sample_rate);
    let bin_hz = 1.0 / (n_fft as f64 * (1.0 / rate));
    let top = hz_to_mel(rate / 2.0);
    let step = top / (n_mels + 1) as f64;
    let edges: Vec<f64> =
        (0..n_mels + 2).map(|i| mel_to_hz(if i == n_mels + 1 { top } else { i as f64 * step })).collect();
    let mut out = Vec::with_capacity(n_mels * bins);
    for edge in edges.windows(3) {
        let (rise, fall) = (edge[1] - edge[0], edge[2] - edge[1]);
        let area = 2.0 / (edge[2] - edge[0]);
        for bin in 0..bins {
            let hz = bin as f64 * bin_hz;
            let lower = -(edge[0] - hz) / rise;
            let upper = (edge[2] - hz) / fall;
            // numpy's maximum(0, -0.0) is -0.0, and the first bin of the first filter has it.
            let triangle = lower.min(upper);
            let below = triangle.is_sign_negative() && triangle != 0.0;
            let triangle = if below { 0.0 } else { triangle as f32 };
            out.push((f64::from(triangle) * area) as f32);
        }
    }
    out
}

/// A symmetric Hann window (`periodic=False`) of `length` samples.
///
/// The angle is rounded to f32 as torch does; the cosine is exact, where torch's vectorised one is up to one unit in the
/// last place off: of 400 values 390 are equal bit for bit, and 10 differ by one unit (6e-8).
pub fn hann(length: usize) -> Vec<f32> {
    let step = (2.0 * PI / length.saturating_sub(1).max(1) as f64) as f32;
    (0..length)
        .map(|i| {
            let cos = f64::from(i as f32 * step).cos() as f32;
            -0.5 * cos + 0.5
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_slaney_area() {
        // Each triangle has height 2 / width in Hz: its sum times the bin width is about 1.
        let fb = filterbank(16000, 512, 80);
        assert_eq!(fb.len(), 80 * 257);
        for (i, filter) in fb.chunks_exact(257).enumerate().skip(60) {
            let area: f32 = filter.iter().sum::<f32>() * 31.25;
            assert!((area - 1.0).abs() < 0.02, "filter {i}: {area}");
        }
        assert!(fb.iter().all(|&x| x >= 0.0));
        assert_eq!(fb[0], 0.0);
    }

    #[test]
    fn the_window_is_symmetric_with_zero_ends() {
        let w = hann(400);
        assert_eq!((w[0], w.len()), (0.0, 400));
        assert!(w[399].abs() < 1e-6);
        for i in 0..200 {
            assert!((w[i] - w[399 - i]).abs() < 1e-6);
        }
    }
}
