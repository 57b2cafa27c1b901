//! The mel filterbank and the window: stored sparsely, and computed where a checkpoint does not carry them.

/// A mel filterbank of which only the weights between the first and the last that is not 0 are kept: each triangle
/// covers a few of the bins.
#[derive(Debug, Clone)]
pub(crate) struct Filterbank {
    /// First bin and weights of each channel.
    rows: Vec<(usize, Vec<f32>)>,
}

impl Filterbank {
    /// From `[n_mels, bins]` row-major.
    pub(crate) fn from_dense(dense: &[f32], bins: usize) -> Self {
        let rows = dense
            .chunks_exact(bins)
            .map(|row| {
                let first = row.iter().position(|w| *w != 0.0).unwrap_or(0);
                let end = row.iter().rposition(|w| *w != 0.0).map_or(first, |last| last + 1);
                (first, row[first..end].to_vec())
            })
            .collect();
        Filterbank { rows }
    }

    /// Energies of the channels: `out[m] = sum_b weight[m, b] * power[b]`.
    pub(crate) fn apply(&self, power: &[f32], out: &mut [f32]) {
        for ((first, weights), out) in self.rows.iter().zip(out) {
            let covered = power.get(*first..).unwrap_or(&[]);
            *out = weights.iter().zip(covered).map(|(w, p)| w * p).sum();
        }
    }
}

/// Symmetric Hann window (`hann_window(n, periodic=False)`), computed in f64.
pub(crate) fn hann_symmetric(length: usize) -> Vec<f32> {
    if length == 1 {
        return vec![1.0];
    }
    let step = std::f64::consts::TAU / (length.max(2) - 1) as f64;
    (0..length).map(|i| (0.5 - 0.5 * (step * i as f64).cos()) as f32).collect()
}

/// Frequency (Hz) of a value on Slaney's mel scale: linear below 1 kHz (200/3 Hz a mel), logarithmic above
/// (27 mels for a factor of 6.4).
fn mel_to_hz(mel: f64) -> f64 {
    const LINEAR: f64 = 200.0 / 3.0;
    const KNEE: f64 = 15.0;
    if mel < KNEE { mel * LINEAR } else { 1000.0 * ((mel - KNEE) * 6.4f64.ln() / 27.0).exp() }
}

fn hz_to_mel(hz: f64) -> f64 {
    const LINEAR: f64 = 200.0 / 3.0;
    if hz < 1000.0 { hz / LINEAR } else { 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

/// Slaney filterbank `[n_mels, n_fft / 2 + 1]` row-major, triangles from 0 Hz to half the sample rate, each scaled to
/// unit area; the arithmetic is f64 with the roundings to f32 of `librosa.filters.mel`.
pub(crate) fn slaney(sample_rate: u32, n_fft: usize, n_mels: usize) -> Vec<f32> {
    let bins = n_fft / 2 + 1;
    let top = hz_to_mel(f64::from(sample_rate) / 2.0);
    let corner: Vec<f64> = (0..n_mels + 2).map(|i| mel_to_hz(top * i as f64 / (n_mels + 1) as f64)).collect();
    let mut dense = Vec::with_capacity(n_mels * bins);
    for m in 0..n_mels {
        let (low, mid, high) = (corner[m], corner[m + 1], corner[m + 2]);
        let area = 2.0 / (high - low);
        for bin in 0..bins {
            let hz = bin as f64 * f64::from(sample_rate) / n_fft as f64;
            let height = ((hz - low) / (mid - low)).min((high - hz) / (high - mid)).max(0.0) as f32;
            dense.push((f64::from(height) * area) as f32);
        }
    }
    dense
}
