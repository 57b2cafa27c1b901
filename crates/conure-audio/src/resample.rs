//! Band-limited resampling: one channel, any rate to any other, in blocks.
//!
//! A Kaiser-windowed sinc evaluated at the exact rational position of every output sample. It is written here rather
//! than taken from a crate because the recogniser's times hang on its delay: output sample `n` is the signal at input
//! time `n * from / to` exactly, the length is `round(samples * to / from)`, and the size of the blocks changes not
//! a bit.
//!
//! With half the lower of both rates as 1: flat to 0.9 (within 0.01 dB), 80 dB down from 1.0. Nothing aliases.

/// Stop-band attenuation that the filter is designed for, in dB.
const ATTENUATION: f64 = 80.0;
/// Last frequency that passes whole, as a part of half the lower rate.
const PASS: f64 = 0.9;
/// Most taps (4 MiB) that are tabulated for every phase that occurs: the usual rates need up to 640 phases of 101
/// taps (11,025 Hz to 16 kHz).
const EXACT_TAPS: u64 = 1 << 20;
/// Steps per zero crossing of the interpolated table; linear interpolation is then 110 dB down.
const STEPS: f64 = 512.0;
/// Samples taken in at a time: bounds the copy that is kept of a long block.
const BLOCK: usize = 8192;

/// Lowest and highest rate, in Hz.
pub const RATES: std::ops::RangeInclusive<u32> = crate::pcm::MIN_RATE..=crate::pcm::MAX_RATE;

/// A rate outside [`RATES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "resampling: a sample rate of {rate} Hz is outside 1 kHz to 768 kHz; the file's header is wrong or damaged"
)]
pub struct RateError {
    /// The rate, in Hz.
    pub rate: u32,
}

/// Converts one channel from one rate to another. Feed it with [`push`](Self::push), end with
/// [`finish`](Self::finish).
#[derive(Debug, Clone)]
pub struct Resampler {
    /// Output samples per input sample, in lowest terms: `up / down`.
    up: u64,
    down: u64,
    filter: Option<Filter>,
    /// The latest input; its first sample has index `origin` (negative: the silence before the start).
    recent: Vec<f32>,
    origin: i64,
    received: u64,
    produced: u64,
    /// Input position of the next output sample: `whole + phase / up`.
    whole: u64,
    phase: u64,
}

/// The kernel at the phases that occur, or at steps between which it is interpolated.
#[derive(Debug, Clone)]
struct Filter {
    /// Taps before and after a position: a row reads input `floor(position) + 1 - half ..= floor(position) + half`.
    half: usize,
    /// Rows of `2 * half` taps.
    table: Vec<f32>,
    /// Steps from one input sample to the next; the table has a row more if it is interpolated.
    steps: u64,
    exact: bool,
}

impl Resampler {
    /// From `from` Hz to `to` Hz. Equal rates pass the samples through.
    ///
    /// # Errors
    /// A rate outside [`RATES`].
    pub fn new(from: u32, to: u32) -> Result<Self, RateError> {
        if let Some(rate) = [from, to].into_iter().find(|rate| !RATES.contains(rate)) {
            return Err(RateError { rate });
        }
        let common = gcd(from, to);
        let (up, down) = (u64::from(to / common), u64::from(from / common));
        let filter = (from != to).then(|| Filter::new(up, down));
        let mut resampler = Resampler {
            up,
            down,
            filter,
            recent: Vec::new(),
            origin: 0,
            received: 0,
            produced: 0,
            whole: 0,
            phase: 0,
        };
        resampler.reset();
        Ok(resampler)
    }

    /// Forgets the signal, as before the first block.
    pub fn reset(&mut self) {
        let before = self.filter.as_ref().map_or(0, |filter| filter.half);
        self.recent.clear();
        self.recent.resize(before, 0.0);
        self.origin = -(before as i64);
        (self.received, self.produced) = (0, 0);
        (self.whole, self.phase) = (0, 0);
    }

    /// Samples that [`finish`](Self::finish) will have given for `samples` in all: `round(samples * to / from)`.
    pub fn output_length(&self, samples: u64) -> u64 {
        let rounded = (u128::from(samples) * u128::from(self.up) * 2 + u128::from(self.down))
            / (u128::from(self.down) * 2);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }

    /// Takes a block of any size and appends the samples that can be computed so far; the rest follow with the next
    /// blocks, within a few milliseconds.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        if self.filter.is_none() {
            out.extend_from_slice(samples);
            self.received += samples.len() as u64;
            return;
        }
        for block in samples.chunks(BLOCK) {
            self.recent.extend_from_slice(block);
            self.received += block.len() as u64;
            self.produce(u64::MAX, out);
        }
    }

    /// Appends the samples that are still due, with silence after the last block, and resets.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if let Some(half) = self.filter.as_ref().map(|filter| filter.half) {
            let due = self.output_length(self.received);
            while self.produced < due {
                let silence = self.recent.len() + half;
                self.recent.resize(silence, 0.0);
                self.produce(due, out);
            }
        }
        self.reset();
    }

    /// Appends the samples whose taps all lie in `recent`, up to number `limit`, and drops the input behind them.
    fn produce(&mut self, limit: u64, out: &mut Vec<f32>) {
        let Some(filter) = &self.filter else { return };
        let taps = filter.half * 2;
        let first = |whole: u64| (whole as i64 + 1 - filter.half as i64 - self.origin).max(0) as usize;
        let (step, part) = (self.down / self.up, self.down % self.up);
        while self.produced < limit {
            let first = first(self.whole);
            let Some(window) = self.recent.get(first..first + taps) else { break };
            out.push(filter.apply(window, self.phase, self.up));
            self.produced += 1;
            self.whole += step;
            self.phase += part;
            if self.phase >= self.up {
                self.phase -= self.up;
                self.whole += 1;
            }
        }
        let passed = first(self.whole).min(self.recent.len());
        self.recent.drain(..passed);
        self.origin += passed as i64;
    }
}

/// A whole signal at another rate.
///
/// # Errors
/// A rate outside [`RATES`].
pub fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>, RateError> {
    let mut resampler = Resampler::new(from, to)?;
    let mut out = Vec::with_capacity(resampler.output_length(samples.len() as u64) as usize);
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    Ok(out)
}

impl Filter {
    fn new(up: u64, down: u64) -> Self {
        // frequencies as parts of half the input rate
        let stop = (up as f64 / down as f64).min(1.0);
        let transition = (1.0 - PASS) * stop;
        // Kaiser's formulas for the length and the shape
        let length = (ATTENUATION - 7.95) / (2.285 * std::f64::consts::PI * transition);
        let beta = 0.1102 * (ATTENUATION - 8.7);
        let half = (length / 2.0).ceil() as usize;
        let cutoff = stop - transition / 2.0;
        let exact = up.saturating_mul(half as u64 * 2) <= EXACT_TAPS;
        let steps = if exact { up } else { (STEPS * stop).ceil() as u64 };
        let rows = if exact { steps } else { steps + 1 };
        let mut table = Vec::with_capacity(rows as usize * half * 2);
        for row in 0..rows {
            let phase = row as f64 / steps as f64;
            let taps = (0..half * 2).map(|tap| {
                let x = (tap + 1) as f64 - half as f64 - phase;
                cutoff * sinc(cutoff * x) * kaiser(x / half as f64, beta)
            });
            let taps: Vec<f64> = taps.collect();
            // each phase passes a constant as it is
            let sum: f64 = taps.iter().sum();
            table.extend(taps.iter().map(|tap| (tap / sum) as f32));
        }
        Filter { half, table, steps, exact }
    }

    /// The signal `phase / up` after sample `half - 1` of the window of `2 * half` samples.
    fn apply(&self, window: &[f32], phase: u64, up: u64) -> f32 {
        let row =
            |index: usize| self.table.get(index * window.len()..(index + 1) * window.len()).unwrap_or(&[]);
        if self.exact {
            return dot(row(phase as usize), window);
        }
        let at = phase as f64 * self.steps as f64 / up as f64;
        let index = at.floor();
        let part = (at - index) as f32;
        let index = index as usize;
        dot(row(index), window) * (1.0 - part) + dot(row(index + 1), window) * part
    }
}

/// Sum of products in 16 lanes, which the compiler turns into vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// Kaiser window at `x` in -1..1.
fn kaiser(x: f64, beta: f64) -> f64 {
    bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt()) / bessel_i0(beta)
}

/// Modified Bessel function of order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..200 {
        term *= (x / 2.0 / f64::from(k)).powi(2);
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::f64::consts::TAU;

    fn tone(hz: f64, rate: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (TAU * hz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    /// The tone at 16 kHz less what the edges of the signal disturb.
    fn middle(samples: &[f32]) -> &[f32] {
        &samples[1200..samples.len() - 1200]
    }

    fn peak_db(samples: impl Iterator<Item = f64>) -> f64 {
        20.0 * samples.fold(1e-12f64, |peak, v| peak.max(v.abs())).log10()
    }

    /// The usual rates, and some that have no small ratio to 16 kHz.
    const RATES_IN: [u32; 14] = [
        1_000, 8_000, 11_025, 12_345, 15_999, 22_050, 24_000, 32_000, 44_056, 44_100, 48_000, 96_000,
        192_000, 767_999,
    ];

    #[test]
    fn tones_beyond_the_band_are_gone() {
        for from in RATES_IN {
            let top = f64::from(from) / 2.0;
            for step in 0..12 {
                let hz = 8_000.0 + (top - 8_000.0) * f64::from(step) / 12.0;
                if hz >= 8_000.0 && top > 8_000.0 {
                    let out = resample(&tone(hz, from, from as usize * 3 / 10), from, 16_000).unwrap();
                    let db = peak_db(middle(&out).iter().map(|v| f64::from(*v)));
                    assert!(db < -75.0, "{hz} Hz at {from}: {db} dB");
                }
            }
        }
    }

    /// A tone in the band comes out as the same tone at the same time: gain, phase, images and distortion at once.
    #[test]
    fn tones_in_the_band_stay_what_and_where_they_are() {
        for from in RATES_IN {
            let top = f64::from(from.min(16_000)) / 2.0 * PASS;
            for part in [0.01, 0.2, 0.5, 0.8, 0.95, 1.0] {
                let hz = (top * part).min(7_200.0);
                let out = resample(&tone(hz, from, from as usize * 3 / 10), from, 16_000).unwrap();
                let want = tone(hz, 16_000, out.len());
                let errors = middle(&out).iter().zip(middle(&want)).map(|(a, b)| f64::from(a - b));
                // 0.1 dB of gain alone would be -39 dB
                let db = peak_db(errors);
                assert!(db < -70.0, "{hz} Hz at {from}: {db} dB");
            }
        }
    }

    #[test]
    fn a_constant_stays_a_constant() {
        for from in RATES_IN {
            let out = resample(&vec![0.5; from as usize * 3 / 10], from, 16_000).unwrap();
            let worst = middle(&out).iter().map(|v| (v - 0.5).abs()).fold(0f32, f32::max);
            assert!(worst < 2e-6, "{from}: {worst:e}");
        }
    }

    #[test]
    fn lengths_are_rounded_and_short_signals_work() {
        for from in RATES_IN {
            for samples in [0, 1, 2, 3, 5, 23, 24, 25, 159, 160, 161, 399, 400, 401, 8191, 8192, 8193] {
                let out = resample(&vec![0.25; samples], from, 16_000).unwrap();
                let want = (samples as f64 * 16_000.0 / f64::from(from)).round() as usize;
                assert_eq!(out.len(), want, "{samples} samples at {from}");
                assert!(out.iter().all(|v| v.is_finite() && v.abs() < 0.5));
            }
        }
    }

    #[test]
    fn blocks_of_any_size_give_the_same_bits() {
        for from in [8_000, 12_345, 44_100, 48_000] {
            let signal: Vec<f32> =
                (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8e6 - 1.0).collect();
            let whole = resample(&signal, from, 16_000).unwrap();
            let mut resampler = Resampler::new(from, 16_000).unwrap();
            // the same one again and again: finish resets
            for size in [1, 7, 160, 997, 4096, 20_000] {
                let mut out = Vec::new();
                for block in signal.chunks(size) {
                    resampler.push(block, &mut out);
                    resampler.push(&[], &mut out);
                }
                resampler.finish(&mut out);
                assert!(out == whole, "{from} in blocks of {size}");
            }
        }
    }

    #[test]
    fn equal_rates_pass_through() {
        let signal = tone(7_900.0, 16_000, 1000);
        assert_eq!(resample(&signal, 16_000, 16_000).unwrap(), signal);
    }

    #[test]
    fn other_targets_work() {
        let out = resample(&tone(1_000.0, 16_000, 16_000), 16_000, 48_000).unwrap();
        assert_eq!(out.len(), 48_000);
        let want = tone(1_000.0, 48_000, out.len());
        let db = peak_db(middle(&out).iter().zip(middle(&want)).map(|(a, b)| f64::from(a - b)));
        assert!(db < -70.0, "{db}");
    }

    #[test]
    fn rates_that_are_none_are_errors() {
        for rate in [0, 1, 999, 768_001, u32::MAX] {
            assert_eq!(Resampler::new(rate, 16_000).unwrap_err(), RateError { rate });
            assert_eq!(Resampler::new(16_000, rate).unwrap_err(), RateError { rate });
        }
        assert!(RateError { rate: 0 }.to_string().contains("0 Hz"));
    }
}
