//! The part of a recording that is in memory: samples that come piece by piece, and how likely each frame of them is speech.

use crate::error::SpeechError;
use crate::options::RecogniseOptions;
use crate::vad::VadDetector;
use conure_audio::vad::frame_samples;
use std::ops::Range;

/// Where samples come from: appends the next ones; `false` at the end, when it may have appended some too.
pub(super) type Next<'a, E> = &'a mut dyn FnMut(&mut Vec<f32>) -> Result<bool, E>;

/// Samples and probabilities, by their places in the recording.
pub(super) struct Feed<'a, E> {
    next: Next<'a, E>,
    options: &'a RecogniseOptions,
    samples: Vec<f32>,
    /// The place of the first of `samples`; a multiple of the detector's frame.
    origin: usize,
    ended: bool,
    detector: Option<VadDetector>,
    probabilities: Vec<f32>,
    /// Samples of a detector's frame.
    frame: usize,
}

impl<'a, E: From<SpeechError>> Feed<'a, E> {
    /// Without a detector yet: see [`Feed::detect`].
    pub fn new(next: Next<'a, E>, options: &'a RecogniseOptions, sample_rate: u32) -> Feed<'a, E> {
        let frame = frame_samples(sample_rate);
        let (samples, probabilities) = (Vec::new(), Vec::new());
        Feed { next, options, samples, origin: 0, ended: false, detector: None, probabilities, frame }
    }

    /// Has `detector` hear all that was read and all that will be.
    pub fn detect(&mut self, mut detector: VadDetector) -> Result<(), E> {
        detector.push(&self.samples, &mut self.probabilities)?;
        if self.ended {
            detector.finish(&mut self.probabilities)?;
        }
        self.detector = Some(detector);
        Ok(())
    }

    /// Reads one piece; `false` at the end.
    pub fn read(&mut self) -> Result<bool, E> {
        if self.ended {
            return Ok(false);
        }
        if self.options.cancelled() {
            return Err(SpeechError::Cancelled.into());
        }
        let before = self.samples.len();
        self.ended = !(self.next)(&mut self.samples)?;
        if let Some(detector) = &mut self.detector {
            detector.push(&self.samples[before..], &mut self.probabilities)?;
            if self.ended {
                detector.finish(&mut self.probabilities)?;
            }
        }
        Ok(true)
    }

    /// Reads until the samples before `place` are there and decided on, or all are.
    pub fn fill(&mut self, place: usize) -> Result<(), E> {
        while self.decided() < place && self.read()? {}
        Ok(())
    }

    /// Where the samples in memory end.
    pub fn end(&self) -> usize {
        self.origin + self.samples.len()
    }

    /// Whether [`Feed::end`] is the end of the recording.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Where the samples end that the detector has decided on.
    pub fn decided(&self) -> usize {
        (self.origin + self.probabilities.len() * self.frame).min(self.end())
    }

    /// The samples of a range, as far as they are in memory.
    pub fn samples(&self, range: &Range<usize>) -> &[f32] {
        let at = |place: usize| place.saturating_sub(self.origin).min(self.samples.len());
        &self.samples[at(range.start)..at(range.end).max(at(range.start))]
    }

    /// All samples, where none were dropped.
    pub fn into_samples(self) -> Vec<f32> {
        self.samples
    }

    /// The probabilities of the frames that begin in a range.
    pub fn probabilities(&self, range: &Range<usize>) -> &[f32] {
        let at = |place: usize| {
            place.saturating_sub(self.origin).div_ceil(self.frame).min(self.probabilities.len())
        };
        &self.probabilities[at(range.start)..at(range.end).max(at(range.start))]
    }

    /// The place of the first frame that [`Feed::probabilities`] gives for a range from `start` on.
    pub fn frame_at(&self, start: usize) -> usize {
        self.origin + start.saturating_sub(self.origin).div_ceil(self.frame) * self.frame
    }

    /// Samples of a detector's frame.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Forgets what lies before `place`, to a frame.
    pub fn forget(&mut self, place: usize) {
        let frames = (place.saturating_sub(self.origin) / self.frame).min(self.probabilities.len());
        self.probabilities.drain(..frames);
        self.samples.drain(..(frames * self.frame).min(self.samples.len()));
        self.origin += frames * self.frame;
    }
}
