//! Speech told by its level: what is clearly louder than the quietest parts around it.

use super::frame_samples;
use std::collections::VecDeque;

/// Frames that the levels around a frame are taken from: 15 s before it and 5 s after it. The quietest part of so long a
/// time lies in pauses or in closures of consonants, also where somebody speaks on and on.
const BEFORE: usize = 469;
const AFTER: usize = 156;
/// Parts of these levels that count as background and as speech.
const FLOOR: f64 = 0.05;
const TOP: f64 = 0.95;
/// Decibels above the background from which on a frame is speech: a share of the range that the levels span, between these.
/// Steady sound, however loud, spans about 1 dB and so never reaches them.
const SHARE: f64 = 0.35;
const MARGIN: (f64, f64) = (7.0, 15.0);
/// Fainter frames (dB of full scale, after pre-emphasis) are silence, whatever is around them.
const FAINTEST: f64 = -72.0;
/// Decibels over which the probability goes from 1/2 to 3/4.
const SOFTNESS: f64 = 2.2;
/// Pre-emphasis: takes away constants and most of a mains hum.
const PREEMPHASIS: f32 = 0.97;
/// Levels are counted in steps of 1 dB from this one up.
const LOWEST: f64 = -120.0;
const STEPS: usize = 160;

/// A detector of speech by level, for samples that come in blocks of any size. Its memory is that of 20 s of levels.
///
/// ```
/// let mut vad = conure_audio::vad::EnergyVad::new(16_000);
/// let mut probabilities = Vec::new();
/// vad.push(&vec![0.0; 16_000], &mut probabilities);
/// vad.finish(&mut probabilities);
/// assert!(probabilities.len() == 32 && probabilities.iter().all(|p| *p < 0.01));
/// ```
#[derive(Debug, Clone)]
pub struct EnergyVad {
    frame: usize,
    /// Samples of the frame that is being filled: how many, the sum of their squares, and the sample before.
    filled: usize,
    power: f64,
    last: f32,
    /// Levels of the frames around the next one to be decided, and which of them that is.
    levels: VecDeque<f64>,
    next: usize,
    counts: [u32; STEPS],
}

impl EnergyVad {
    /// For samples at `sample_rate` Hz.
    pub fn new(sample_rate: u32) -> EnergyVad {
        EnergyVad {
            frame: frame_samples(sample_rate),
            filled: 0,
            power: 0.0,
            last: 0.0,
            levels: VecDeque::new(),
            next: 0,
            counts: [0; STEPS],
        }
    }

    /// Takes samples in -1 ..= 1 and appends the probabilities of the frames that are decided: those 5 s back.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        for &sample in samples {
            let emphasised = if self.filled == 0 && self.levels.is_empty() {
                0.0
            } else {
                sample - PREEMPHASIS * self.last
            };
            self.last = sample;
            self.power += f64::from(emphasised) * f64::from(emphasised);
            self.filled += 1;
            if self.filled == self.frame {
                self.close_frame();
                if self.levels.len() - self.next > AFTER {
                    out.push(self.decide());
                }
            }
        }
    }

    /// Decides what is left, the begun frame among it, and is as new afterwards.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if self.filled > 0 {
            self.close_frame();
        }
        while self.next < self.levels.len() {
            out.push(self.decide());
        }
        self.levels.clear();
        self.counts = [0; STEPS];
        (self.next, self.last) = (0, 0.0);
    }

    fn close_frame(&mut self) {
        let mean = self.power / self.filled as f64;
        let level = 10.0 * mean.max(1e-12).log10();
        (self.filled, self.power) = (0, 0.0);
        self.levels.push_back(level);
        self.counts[step(level)] += 1;
    }

    /// The probability of the next frame; forgets what lies too far before it.
    fn decide(&mut self) -> f32 {
        let level = self.levels.get(self.next).copied().unwrap_or(LOWEST);
        let (floor, top) = (self.quantile(FLOOR), self.quantile(TOP));
        let margin = (SHARE * (top - floor)).clamp(MARGIN.0, MARGIN.1);
        let threshold = (floor + margin).max(FAINTEST);
        self.next += 1;
        if self.next > BEFORE
            && let Some(gone) = self.levels.pop_front()
        {
            self.counts[step(gone)] -= 1;
            self.next -= 1;
        }
        (1.0 / (1.0 + (-(level - threshold) / SOFTNESS).exp())) as f32
    }

    /// The level below which `part` of the frames lie.
    fn quantile(&self, part: f64) -> f64 {
        let below = (part * (self.levels.len().max(1) - 1) as f64) as u32;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen > below
        });
        LOWEST + found.unwrap_or(0) as f64 + 0.5
    }
}

/// The step of a level.
fn step(level: f64) -> usize {
    ((level - LOWEST).max(0.0) as usize).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vad::{SpanOptions, speech};

    struct Noise(u32);

    impl Noise {
        fn take(&mut self, seconds: f64, level: f32) -> Vec<f32> {
            (0..(seconds * 16_000.0) as usize)
                .map(|_| {
                    self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0) * level
                })
                .collect()
        }
    }

    fn probabilities(samples: &[f32], block: usize) -> Vec<f32> {
        let (mut vad, mut out) = (EnergyVad::new(16_000), Vec::new());
        samples.chunks(block.max(1)).for_each(|b| vad.push(b, &mut out));
        vad.finish(&mut out);
        out
    }

    #[test]
    fn nothing_steady_is_speech() {
        let n = 60 * 16_000;
        for (what, samples) in [
            ("zeros", vec![0.0; n]),
            ("noise at -60 dB", Noise(1).take(60.0, 1e-3)),
            ("loud noise", Noise(1).take(60.0, 0.5)),
            ("a constant", vec![0.5; n]),
            ("a square wave", (0..n).map(|i| if i / 40 % 2 == 0 { 1.0 } else { -1.0 }).collect()),
        ] {
            let p = probabilities(&samples, 4096);
            assert_eq!(p.len(), n.div_ceil(512), "{what}");
            assert!(p.iter().all(|p| *p < 0.5), "{what}");
        }
    }

    /// Bursts as long as words, 20 dB over the noise: found to a frame, wherever in the recording.
    #[test]
    fn bursts_are_found() {
        let mut noise = Noise(7);
        let (mut samples, mut expected) = (Vec::new(), Vec::new());
        for i in 0..30 {
            samples.extend(noise.take(0.4 + f64::from(i % 5) * 0.7, 3e-3));
            let start = samples.len() as f64 / 512.0;
            samples.extend(noise.take(0.5 + f64::from(i % 3), 3e-2));
            expected.push((start, samples.len() as f64 / 512.0));
        }
        let found = speech(&probabilities(&samples, 997), &SpanOptions::default());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (span, (start, end)) in found.iter().zip(expected) {
            assert!((span.start as f64 - start).abs() <= 1.0 && (span.end as f64 - end).abs() <= 1.0);
        }
    }

    #[test]
    fn blocks_change_nothing_and_finish_makes_it_new() {
        let samples = Noise(3).take(33.0, 0.1);
        let whole = probabilities(&samples, samples.len());
        for block in [1, 160, 997] {
            assert_eq!(probabilities(&samples, block), whole);
        }
        let (mut vad, mut out) = (EnergyVad::new(16_000), Vec::new());
        for _ in 0..2 {
            out.clear();
            vad.push(&samples, &mut out);
            vad.finish(&mut out);
            assert_eq!(out, whole);
        }
        vad.finish(&mut out);
        assert_eq!(out, whole);
    }
}
