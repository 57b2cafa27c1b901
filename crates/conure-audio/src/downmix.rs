//! From any layout to one channel.
//!
//! Mono stays as it is. Stereo, and layouts without places, become the average of all channels. Layouts with places
//! (5.1, 7.1 and the like) are weighted as ITU-R BS.775 folds them down, for the one listener a recogniser is:
//!
//! | channel | weight before normalising |
//! |---|---|
//! | front centre (dialogue) | 1 |
//! | front left, front right, left and right of centre | 1/√2 |
//! | side, back, top | 1/2 |
//! | low-frequency effects | 0 |
//!
//! The weights are then divided by their sum, so that full scale in every channel stays full scale. A layout of which
//! only LFE is left counts it like any other.

use crate::error::AudioErrorKind;
use crate::layout::{ChannelLayout, Speaker};

/// Which one channel is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mix {
    /// All channels together, by their places.
    #[default]
    All,
    /// This channel only, counted from 0 in the order of the file (`--channel N`).
    Channel(usize),
}

/// The weights of a downmix to one channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Downmix {
    weights: Vec<f32>,
}

impl Downmix {
    /// The weights for a layout.
    ///
    /// # Errors
    /// [`AudioErrorKind::NoSuchChannel`].
    pub fn new(layout: &ChannelLayout, mix: Mix) -> Result<Downmix, AudioErrorKind> {
        let channels = layout.channels().max(1);
        let weights = match mix {
            Mix::Channel(wanted) if wanted >= channels => {
                return Err(AudioErrorKind::NoSuchChannel { wanted, channels });
            }
            Mix::Channel(wanted) => (0..channels).map(|c| if c == wanted { 1.0 } else { 0.0 }).collect(),
            Mix::All => weights(layout),
        };
        Ok(Downmix { weights })
    }

    /// The weight of each channel; they add up to 1.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Appends the mix of `samples`, interleaved `[frames, channels]`, to `out`.
    pub fn apply(&self, samples: &[f32], out: &mut Vec<f32>) {
        match self.weights.as_slice() {
            [_] => out.extend_from_slice(samples),
            // Without the multiplication by 1 or 0, so that the channel comes out bit for bit and NaN-free.
            weights => {
                let only = weights.iter().position(|&w| w == 1.0);
                let frames = samples.chunks_exact(weights.len());
                match only {
                    Some(channel) => out.extend(frames.filter_map(|f| f.get(channel).copied())),
                    None => {
                        out.extend(frames.map(|f| f.iter().zip(weights).map(|(s, w)| s * w).sum::<f32>()))
                    }
                }
            }
        }
    }
}

fn weights(layout: &ChannelLayout) -> Vec<f32> {
    let speakers = layout.speakers();
    let n = speakers.len().max(1);
    let plain = vec![1.0 / n as f32; n];
    if n <= 2 || speakers.contains(&Speaker::Unknown) {
        return plain;
    }
    let raw: Vec<f64> = speakers
        .iter()
        .map(|s| match s {
            Speaker::FrontCenter => 1.0,
            Speaker::FrontLeft
            | Speaker::FrontRight
            | Speaker::FrontLeftOfCenter
            | Speaker::FrontRightOfCenter => std::f64::consts::FRAC_1_SQRT_2,
            Speaker::Lfe => 0.0,
            _ => 0.5,
        })
        .collect();
    let sum: f64 = raw.iter().sum();
    if sum == 0.0 { plain } else { raw.iter().map(|w| (w / sum) as f32).collect() }
}

/// Fits samples of one layout into another, for streams that change half-way: the same places are kept, one channel
/// goes to all, and otherwise all get the average.
pub(crate) fn relayout(samples: &[f32], from: &ChannelLayout, to: &ChannelLayout, out: &mut Vec<f32>) {
    let n = from.channels().max(1);
    let mean = weights(from);
    for frame in samples.chunks_exact(n) {
        let mixed: f32 = frame.iter().zip(&mean).map(|(s, w)| s * w).sum();
        for speaker in to.speakers() {
            let same = from.speakers().iter().position(|s| s == speaker && *s != Speaker::Unknown);
            out.push(same.and_then(|i| frame.get(i).copied()).unwrap_or(mixed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_lfe_is_out() {
        for n in 1..=8 {
            let d = Downmix::new(&ChannelLayout::default_for(n), Mix::All).unwrap();
            let sum: f32 = d.weights().iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{n}");
        }
        let d = Downmix::new(&ChannelLayout::default_for(6), Mix::All).unwrap();
        let w = d.weights();
        assert_eq!(w[3], 0.0);
        assert!((f64::from(w[2] / w[0]) - 2f64.sqrt()).abs() < 1e-6);
        assert!((w[2] / w[4] - 2.0).abs() < 1e-6);
        // No layout states a place: the average.
        assert_eq!(Downmix::new(&ChannelLayout::discrete(4), Mix::All).unwrap().weights(), [0.25; 4]);
    }

    #[test]
    fn mixes() {
        let stereo = ChannelLayout::stereo();
        let mut out = Vec::new();
        Downmix::new(&stereo, Mix::All).unwrap().apply(&[1.0, 0.0, -0.5, -0.5], &mut out);
        assert_eq!(out, [0.5, -0.5]);
        out.clear();
        Downmix::new(&stereo, Mix::Channel(1)).unwrap().apply(&[1.0, 0.25, 1.0, 0.5], &mut out);
        assert_eq!(out, [0.25, 0.5]);
        let e = Downmix::new(&stereo, Mix::Channel(2)).unwrap_err();
        assert!(matches!(e, AudioErrorKind::NoSuchChannel { wanted: 2, channels: 2 }), "{e}");
    }

    #[test]
    fn a_changed_layout_keeps_places() {
        let mut out = Vec::new();
        relayout(&[0.5], &ChannelLayout::mono(), &ChannelLayout::stereo(), &mut out);
        assert_eq!(out, [0.5, 0.5]);
        out.clear();
        relayout(&[0.5, 0.25], &ChannelLayout::stereo(), &ChannelLayout::mono(), &mut out);
        assert_eq!(out, [0.375]);
    }
}
