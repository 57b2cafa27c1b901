//! Recordings of any length: windows that overlap, cut in pauses, and stitched to one transcript.
//!
//! Samples come piece by piece; in memory are those of one window, and the tokens. A recording that models are made for is
//! recognised whole, as NeMo does. Every window begins on the recording's grid of encoder frames, so that a token's frame is the same as if
//! the recording had been recognised whole; what comes after, words and times, does not know of windows.
//!
//! Features that are normalised over a recording (`per_feature`) are normalised over a window here.

mod feed;
mod holes;
mod plan;
pub(crate) mod stitch;

use crate::decode::Token;
use crate::error::SpeechError;
use crate::progress::Reporter;
use crate::recogniser::{Recogniser, Recognition};
use crate::result::Transcript;
use crate::transcribe::TranscribeOptions;
use crate::vad::Vad;
use feed::{Feed, Next};
use plan::{Planner, Sizes, Window};
use std::ops::Range;
use std::sync::Arc;
use stitch::{Seam, append, join};

/// Seconds of the longest recording that is recognised at once where nothing else is asked for: the 5000 positions of 80 ms that
/// Parakeet models have a table for. Up to there the text is NeMo's.
pub const WHOLE_SECONDS: f64 = 400.0;

/// Seconds of the longest window of a longer recording where nothing else is asked for. Measured with the embedded model on 20 minutes of 223 clips,
/// whose error rate alone is 42.1 %, in windows of 30, 60, 120, 300 s and at once: 41.8, 43.0, 46.9, 50.6 and 48.4 %, in 24.8, 21.9,
/// 22.3, 31.4 and 105 s of processor time. No key of a file says how long the recordings were that a model was trained on.
pub const WINDOW_SECONDS: f64 = 60.0;

/// The shortest window that makes sense, in seconds: words in the middle of it are heard with some context.
pub const SHORTEST_WINDOW: f64 = 5.0;

/// Shorter windows are not searched for holes.
const HOLES_FROM_SECONDS: f64 = 20.0;

/// A window with its samples, waiting to be recognised with others.
struct Waiting {
    window: Window,
    clip: Vec<f32>,
    probabilities: Vec<f32>,
}

/// What was recognised so far.
struct Heard<'a> {
    recogniser: &'a Recogniser,
    options: &'a TranscribeOptions,
    sizes: Sizes,
    tokens: Vec<Token>,
    faint: bool,
    waiting: Vec<Waiting>,
    /// Where the window before ended.
    before: usize,
    /// Who is told, and how many seconds a whole job has for it.
    reporter: Option<(Arc<Reporter>, f64)>,
}

impl Recogniser {
    /// Transcribes a recording that comes piece by piece: `next` appends mono samples in -1 ..= 1 at
    /// [`Recogniser::sample_rate`], and says `false` when there are no more. Whatever its length, only a window of it
    /// ([`TranscribeOptions::window`]) is in memory at a time. `expected` is its length in seconds, where something is
    /// known of it, for the progress.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`], and what `next` gives.
    pub fn transcribe_pieces<E: From<SpeechError>>(
        &self,
        expected: Option<f64>,
        mut next: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        options: &TranscribeOptions,
    ) -> Result<Transcript, E> {
        self.transcribe_from(expected, &mut next, options)
    }

    fn transcribe_from<E: From<SpeechError>>(
        &self,
        expected: Option<f64>,
        next: Next<'_, E>,
        options: &TranscribeOptions,
    ) -> Result<Transcript, E> {
        let recognise = &options.recognise;
        let limit = options.whole_seconds()?;
        let rate = self.sample_rate();
        let whole = limit.map_or(usize::MAX, |w| (w * f64::from(rate)) as usize);
        let mut feed = Feed::new(next, recognise, rate);
        let reading = recognise.progress.as_ref().map(|p| p.reading());
        while feed.end() <= whole && feed.read()? {
            if let Some(reporter) = &reading {
                reporter.read(feed.end() as f64 / f64::from(rate));
            }
        }
        if options.vad.is_none() && feed.end() <= whole {
            return Ok(self.transcribe_whole(&feed.into_samples(), options)?);
        }
        // Silence is skipped in recordings of any length, also where windows are not wanted.
        let window = match limit {
            Some(_) => options.window.unwrap_or(WINDOW_SECONDS),
            None => feed.end() as f64 / f64::from(rate) + 1.0,
        };
        let vad = options.vad.clone().unwrap_or(Vad::Energy);
        feed.detect(vad.detector(rate)?)?;
        let read = feed.end() as f64 / f64::from(rate);
        let seconds = if feed.ended() { Some(read) } else { expected.filter(|e| *e >= read) };
        let mut heard = Heard::new(self, options, window, seconds);
        let mut planner = Planner::new(heard.sizes.clone(), options.vad.is_some());
        while let Some(window) = planner.next(&mut feed)? {
            heard.take(window, &feed)?;
        }
        heard.flush()?;
        Ok(heard.finish(feed.end() as f64 / f64::from(rate))?)
    }

    /// The tokens of a window, with its holes filled. (A recording that is recognised whole is left as NeMo would have it.)
    fn without_holes(
        &self,
        recognition: &mut Recognition,
        clip: &[f32],
        options: &TranscribeOptions,
        probabilities: &[f32],
    ) -> Result<(), SpeechError> {
        if self.seconds(clip) < HOLES_FROM_SECONDS {
            return Ok(());
        }
        let frame_seconds = self.frame_seconds();
        let frame = self.samples_of(1);
        let frames = clip.len() / frame;
        for hole in holes::holes(&recognition.tokens, frames, frame_seconds, probabilities) {
            let heard = holes::again(&hole, frames, frame_seconds);
            let part = &clip[heard.start * frame..heard.end * frame];
            // The caller is told of whole windows; this is a small part of one.
            let quiet = crate::RecogniseOptions { progress: None, ..options.recognise.clone() };
            let found = self.recognise(part, &quiet)?;
            let found = shifted(&found, heard.start, frame_seconds);
            holes::fill(&mut recognition.tokens, &hole, &found, &heard, self.vocabulary());
        }
        Ok(())
    }

    /// Samples of so many encoder frames.
    pub(crate) fn samples_of(&self, frames: usize) -> usize {
        (self.frame_seconds() * f64::from(self.sample_rate())).round() as usize * frames
    }
}

/// Tokens of a clip that begins at encoder frame `start` of a recording, in frames of the recording.
pub(crate) fn shifted(recognition: &Recognition, start: usize, frame_seconds: f64) -> Vec<Token> {
    let padding = (recognition.padding / frame_seconds).round() as usize;
    let place = |t: &Token| Token { frame: (start + t.frame).saturating_sub(padding), ..*t };
    recognition.tokens.iter().map(place).collect()
}

impl<'a> Heard<'a> {
    fn new(
        recogniser: &'a Recogniser,
        options: &'a TranscribeOptions,
        window: f64,
        seconds: Option<f64>,
    ) -> Heard<'a> {
        let sizes =
            Sizes::new(window.max(SHORTEST_WINDOW), recogniser.sample_rate(), recogniser.samples_of(1));
        let reporter = options.recognise.progress.as_ref().map(|p| match seconds {
            Some(seconds) => (Arc::new(p.recognising(seconds)), seconds),
            None => (Arc::new(p.recognising_on()), Reporter::ENDLESS),
        });
        let (tokens, waiting) = (Vec::new(), Vec::new());
        Heard { recogniser, options, sizes, tokens, faint: false, waiting, before: 0, reporter }
    }

    /// Puts a window with those that are recognised together: no more of them than have the samples of one long one.
    fn take<E: From<SpeechError>>(&mut self, window: Window, feed: &Feed<'_, E>) -> Result<(), SpeechError> {
        let clip = feed.samples(&window.range).to_vec();
        let probabilities = feed.probabilities(&window.range).to_vec();
        let longest = self.waiting.iter().map(|w| w.clip.len()).chain([clip.len()]).max().unwrap_or(0);
        if (self.waiting.len() + 1) * longest > self.sizes.window {
            self.flush()?;
        }
        self.waiting.push(Waiting { window, clip, probabilities });
        Ok(())
    }

    /// Recognises what waits.
    fn flush(&mut self) -> Result<(), SpeechError> {
        let waiting = std::mem::take(&mut self.waiting);
        let clips: Vec<&[f32]> = waiting.iter().map(|w| w.clip.as_slice()).collect();
        let rate = f64::from(self.recogniser.sample_rate());
        let job = self.reporter.as_ref().zip(waiting.first().zip(waiting.last())).map(
            |((reporter, whole), (first, last))| {
                let whole = whole.max(f64::MIN_POSITIVE) * rate;
                let begin = self.before.max(first.window.range.start);
                let share = last.window.range.end.saturating_sub(begin);
                (reporter, begin as f64 / whole, share as f64 / whole)
            },
        );
        let found = self.recogniser.recognise_part(&clips, &self.options.recognise, job)?;
        for (waiting, recognition) in waiting.iter().zip(found) {
            self.add(waiting, recognition)?;
        }
        Ok(())
    }

    fn add(&mut self, waiting: &Waiting, mut recognition: Recognition) -> Result<(), SpeechError> {
        let Waiting { window, clip, probabilities } = waiting;
        let frame = |place: usize| place / self.sizes.frame;
        if self.recogniser.is_invented(&recognition, clip) {
            self.faint = true;
            recognition.tokens.clear();
        } else {
            self.recogniser.without_holes(&mut recognition, clip, self.options, probabilities)?;
        }
        let found = shifted(&recognition, frame(window.range.start), self.recogniser.frame_seconds());
        match window.cut {
            // The window before heard all of it.
            Some(_) if window.range.end <= self.before => return Ok(()),
            Some(cut) => {
                let Range { start, .. } = window.range;
                let seam = Seam { from: frame(start), cut: frame(cut), to: frame(self.before) };
                join(&mut self.tokens, &found, &seam, self.recogniser.vocabulary());
            }
            None => append(&mut self.tokens, &found),
        }
        self.before = window.range.end;
        Ok(())
    }

    fn finish(self, seconds: f64) -> Result<Transcript, SpeechError> {
        if let Some((reporter, _)) = &self.reporter {
            reporter.finish_at(seconds);
        }
        let head = self.recogniser.head(self.options.recognise.decoder)?;
        let recognition =
            Recognition { tokens: self.tokens, head, padding: 0.0, frames: 0, alternatives: Vec::new() };
        self.recogniser.transcript_of(&recognition, seconds, self.faint, self.options)
    }
}
