//! Sound whose rate changes on the way (a podcast with advertisements put in, a chain of recordings) is resampled to the
//! rate of its beginning: an input has one rate.

use crate::resample::Resampler;

/// Makes interleaved samples at one rate into the same at another.
pub(crate) struct Conform {
    from: u32,
    /// One for each channel; all give the same number of samples.
    resamplers: Vec<Resampler>,
    plane: Vec<f32>,
    planes: Vec<Vec<f32>>,
}

impl Conform {
    /// `None` for a rate that no recording has.
    pub(crate) fn new(from: u32, to: u32, channels: usize) -> Option<Conform> {
        let resamplers = (0..channels).map(|_| Resampler::new(from, to).ok()).collect::<Option<Vec<_>>>()?;
        Some(Conform { from, resamplers, plane: Vec::new(), planes: vec![Vec::new(); channels] })
    }

    /// The rate that it takes, in Hz.
    pub(crate) fn rate(&self) -> u32 {
        self.from
    }

    /// Takes `samples`, `[frames, channels]`, and appends what is ready to `out`.
    pub(crate) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let channels = self.resamplers.len();
        for (c, (resampler, made)) in self.resamplers.iter_mut().zip(&mut self.planes).enumerate() {
            self.plane.clear();
            self.plane.extend(samples.iter().skip(c).step_by(channels));
            resampler.push(&self.plane, made);
        }
        self.give(out);
    }

    /// Takes `frames` samples of silence.
    pub(crate) fn push_silence(&mut self, mut frames: u64, out: &mut Vec<f32>) {
        const PIECE: u64 = 4096;
        let zeros = vec![0.0; PIECE as usize * self.resamplers.len()];
        while frames > 0 {
            let now = frames.min(PIECE);
            self.push(zeros.get(..now as usize * self.resamplers.len()).unwrap_or_default(), out);
            frames -= now;
        }
    }

    /// Appends what was held back.
    pub(crate) fn finish(mut self, out: &mut Vec<f32>) {
        for (resampler, made) in self.resamplers.iter_mut().zip(&mut self.planes) {
            resampler.finish(made);
        }
        self.give(out);
    }

    fn give(&mut self, out: &mut Vec<f32>) {
        let frames = self.planes.iter().map(Vec::len).min().unwrap_or(0);
        out.reserve(frames * self.planes.len());
        for i in 0..frames {
            out.extend(self.planes.iter().filter_map(|plane| plane.get(i)));
        }
        self.planes.iter_mut().for_each(Vec::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_stay_apart_and_lengths_right() {
        let mut conform = Conform::new(48_000, 16_000, 2).unwrap();
        let stereo: Vec<f32> = (0..9600).flat_map(|_| [0.5, -0.25]).collect();
        let mut out = Vec::new();
        stereo.chunks(202).for_each(|piece| conform.push(piece, &mut out));
        conform.push_silence(4800, &mut out);
        conform.finish(&mut out);
        assert_eq!(out.len(), 2 * (3200 + 1600));
        assert!((out[2 * 1600] - 0.5).abs() < 1e-3 && (out[2 * 1600 + 1] + 0.25).abs() < 1e-3);
        assert!(out[2 * 4400].abs() < 1e-3);
        assert!(Conform::new(0, 16_000, 1).is_none());
    }
}
