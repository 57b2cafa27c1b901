//! Whether anything is lost in the mix of channels to one: channels of opposite phase cancel each other out, and the channel of low
//! frequencies is left out.

use crate::downmix::Downmix;
use crate::error::{Warning, WarningKind};

/// A mix with less of a channel's power than this (-40 dB) is as good as without it.
const LOST: f64 = 1e-4;
/// Less power than this (-70 dB of full scale) is taken for noise.
const NOISE: f64 = 1e-7;

/// Compares a mix with the channels that go into it, second by second.
#[derive(Debug, Clone)]
pub struct Balance {
    weights: Vec<f32>,
    rate: u32,
    /// The place of the first sample, that of the next, and how many there are of this second.
    begin: u64,
    at: u64,
    frames: u32,
    /// Power of each channel, and of the mix, in this second.
    second: (Vec<f64>, f64),
    /// The same in all seconds so far.
    all: (Vec<f64>, f64),
    /// The same of each channel in the seconds that cancelled out.
    cancelled: Vec<f64>,
    /// Seconds that cancelled out, the beginning of the first and the end of the last.
    seconds: f64,
    span: (f64, f64),
}

impl Balance {
    /// For a mix of sound at `rate` Hz that begins at `start` samples; `None` where nothing is mixed.
    pub fn new(downmix: &Downmix, rate: u32, start: u64) -> Option<Balance> {
        let weights = downmix.weights().to_vec();
        let zeros = vec![0.0; weights.len()];
        (weights.len() > 1 && !weights.contains(&1.0)).then(|| Balance {
            weights,
            rate: rate.max(1),
            begin: start,
            at: start,
            frames: 0,
            second: (zeros.clone(), 0.0),
            all: (zeros.clone(), 0.0),
            cancelled: zeros,
            seconds: 0.0,
            span: (0.0, 0.0),
        })
    }

    /// Takes `samples`, interleaved `[frames, channels]`, and their `mix`, `[frames]`.
    pub fn push(&mut self, mut samples: &[f32], mut mix: &[f32]) {
        let channels = self.weights.len();
        while !mix.is_empty() {
            let now = mix.len().min((self.rate - self.frames) as usize);
            let (these, rest) = samples.split_at((now * channels).min(samples.len()));
            let (mixed, later) = mix.split_at(now);
            for frame in these.chunks_exact(channels) {
                for (sum, &s) in self.second.0.iter_mut().zip(frame) {
                    *sum += f64::from(s) * f64::from(s);
                }
            }
            self.second.1 += mixed.iter().map(|&s| f64::from(s) * f64::from(s)).sum::<f64>();
            self.frames += now as u32;
            self.at += now as u64;
            if self.frames == self.rate {
                self.end_second();
            }
            (samples, mix) = (rest, later);
        }
    }

    fn end_second(&mut self) {
        let (rate, frames) = (f64::from(self.rate), f64::from(self.frames));
        let (powers, mix) = &mut self.second;
        let heard = powers.iter().zip(&self.weights).filter(|(_, w)| **w > 0.0);
        let loudest = heard.fold(0.0, |most: f64, (p, _)| most.max(*p));
        if loudest > NOISE * frames && *mix < LOST * loudest {
            let end = self.at as f64 / rate;
            let start = end - frames / rate;
            self.span = (if self.seconds > 0.0 { self.span.0 } else { start }, end);
            self.seconds += frames / rate;
            self.cancelled.iter_mut().zip(powers.iter()).for_each(|(sum, p)| *sum += p);
        }
        self.all.0.iter_mut().zip(powers.iter()).for_each(|(sum, p)| *sum += p);
        self.all.1 += *mix;
        powers.fill(0.0);
        *mix = 0.0;
        self.frames = 0;
    }

    /// What is to be said at the end of the sound.
    pub fn finish(mut self) -> Option<Warning> {
        if self.frames > 0 {
            self.end_second();
        }
        if self.seconds > 0.0 {
            let message = format!(
                "the channels cancel each other out when they are mixed to one, in {:.1} s of the sound; --channel {} takes one of \
                 them, --speakers channel each",
                self.seconds,
                loudest(&self.cancelled)
            );
            let (start, end) = self.span;
            return Some(Warning { kind: WarningKind::Note, message, start, end: Some(end) });
        }
        let channel = loudest(&self.all.0);
        let power = self.all.0.get(channel).copied().unwrap_or(0.0);
        let left_out = self.weights.get(channel) == Some(&0.0);
        // The mean over all of it: this is about recordings that have their sound nowhere else.
        let frames = (self.at - self.begin) as f64;
        (left_out && power > NOISE * frames && self.all.1 < LOST * power).then(|| Warning {
            kind: WarningKind::Note,
            message: format!(
                "all of the sound is in channel {channel}, which is meant for low frequencies only and is left out of the mix; \
                 --channel {channel} takes it"
            ),
            start: 0.0,
            end: None,
        })
    }
}

/// Where the greatest number is, the first of equal ones.
fn loudest(powers: &[f64]) -> usize {
    let greatest = powers.iter().copied().fold(0.0, f64::max);
    powers.iter().position(|&p| p == greatest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downmix::Mix;
    use crate::layout::ChannelLayout;

    /// What is said of `seconds` of a tone that each channel has times `gains`, and times `later` in their second half.
    fn said(gains: &[f32], later: &[f32], mix: Mix) -> Option<Warning> {
        let (rate, seconds) = (1000u32, 4);
        let downmix = Downmix::new(&ChannelLayout::default_for(gains.len()), mix).unwrap();
        let mut balance = Balance::new(&downmix, rate, 0)?;
        let samples: Vec<f32> = (0..rate * seconds)
            .flat_map(|i| {
                let tone = (i as f32 * 0.3).sin();
                let gains = if i < rate * seconds / 2 { gains } else { later };
                gains.iter().map(move |g| g * tone).collect::<Vec<_>>()
            })
            .collect();
        for block in samples.chunks(gains.len() * 333) {
            let mut mono = Vec::new();
            downmix.apply(block, &mut mono);
            balance.push(block, &mono);
        }
        balance.finish()
    }

    #[test]
    fn what_is_lost_in_a_mix_is_said() {
        let lfe = [0.0, 0.0, 0.0, 0.3, 0.0, 0.0];
        for (gains, later, channel, expected) in [
            (&[0.3, -0.3][..], &[0.3, -0.3][..], Some((0.0, 4.0)), "--channel 0"),
            // Half of it; nearly opposite, by the louder one.
            (&[0.3, 0.3], &[0.3, -0.304], Some((2.0, 4.0)), "in 2.0 s of the sound; --channel 1"),
            (&lfe, &lfe, None, "--channel 3"),
        ] {
            let warning = said(gains, later, Mix::All).unwrap();
            assert!(warning.message.contains(expected), "{warning}");
            assert_eq!(warning.end.map(|end| (warning.start, end)), channel, "{warning}");
            assert!(!warning.kind.is_damage());
        }
        for (gains, mix) in [
            (&[0.3, 0.3][..], Mix::All),
            (&[0.3, 0.0], Mix::All),
            // Opposite, but 6 % apart: -30 dB are left.
            (&[0.3, -0.32], Mix::All),
            // Noise below all hearing, silence, a single channel, one that was asked for.
            (&[0.0003, -0.0003], Mix::All),
            (&[0.0, 0.0], Mix::All),
            (&[0.3], Mix::All),
            (&[0.3, -0.3], Mix::Channel(1)),
            (&[0.0, 0.0, 0.1, 0.3, 0.0, 0.0], Mix::All),
        ] {
            assert_eq!(said(gains, gains, mix), None, "{gains:?}");
        }
    }
}
