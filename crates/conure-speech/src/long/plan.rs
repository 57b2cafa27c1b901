//! Which windows of a recording are recognised, and where they meet.

use super::feed::Feed;
use crate::error::SpeechError;
use conure_audio::vad::{SpanOptions, longest_pause, speech};
use std::ops::Range;

/// Sizes of windows, in samples; all but `skip` and `pad` are multiples of an encoder frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// The longest window.
    pub window: usize,
    /// What both windows hear on each side of a cut.
    pub context: usize,
    /// How far back from the last possible place a pause is looked for.
    pub search: usize,
    /// Windows that are cut have a multiple of this length.
    pub step: usize,
    /// Samples of an encoder frame: every window begins on the grid of frames of the whole recording.
    pub frame: usize,
    /// A pause from which on silence is skipped, and what is kept of it on either side of speech.
    pub skip: usize,
    pub pad: usize,
}

/// Both windows hear so much on either side of a cut, about ten words, but no more than a sixth of a window.
const CONTEXT_SECONDS: f64 = 4.0;
/// A pause is looked for in the last so many seconds of a window, but no more than a quarter of it.
const SEARCH_SECONDS: f64 = 20.0;
/// Windows have at most so many lengths.
const STEPS: f64 = 12.0;
/// Silence longer than this is skipped, all but this much on either side.
const SKIP_SECONDS: f64 = 1.0;
const PAD_SECONDS: f64 = 0.3;

impl Sizes {
    /// For windows of `window` seconds.
    pub fn new(window: f64, sample_rate: u32, frame: usize) -> Sizes {
        let frame = frame.max(1);
        let samples = |seconds: f64| (seconds * f64::from(sample_rate)).round() as usize;
        let whole = |seconds: f64| (samples(seconds) / frame).max(1) * frame;
        Sizes {
            window: whole(window),
            context: whole(CONTEXT_SECONDS.min(window / 6.0)),
            search: whole(SEARCH_SECONDS.min(window / 4.0)),
            step: whole(window / STEPS),
            frame,
            skip: samples(SKIP_SECONDS),
            pad: samples(PAD_SECONDS),
        }
    }
}

/// A window to be recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub range: Range<usize>,
    /// The cut that parts it from the window before, which overlaps with it.
    pub cut: Option<usize>,
}

/// Finds the windows of a recording, one after the other.
#[derive(Debug)]
pub(super) struct Planner {
    sizes: Sizes,
    /// Whether only speech is recognised.
    skip_silence: bool,
    /// Where the next window begins, and the cut before it.
    start: usize,
    cut: Option<usize>,
}

impl Planner {
    pub fn new(sizes: Sizes, skip_silence: bool) -> Planner {
        Planner { sizes, skip_silence, start: 0, cut: None }
    }

    /// The next window, whose samples are then in the feed; `None` when there is none left.
    pub fn next<E: From<SpeechError>>(&mut self, feed: &mut Feed<'_, E>) -> Result<Option<Window>, E> {
        feed.forget(self.start);
        if self.skip_silence && self.cut.is_none() && !self.find_speech(feed)? {
            return Ok(None);
        }
        let begin = self.start;
        let most = begin + self.sizes.window;
        // A sample more tells whether the recording goes on.
        feed.fill(most + 1 + if self.skip_silence { self.sizes.skip } else { 0 })?;
        if begin >= feed.end() {
            return Ok(None);
        }
        let end = if self.skip_silence { self.speech_end(feed, begin) } else { feed.end() };
        let cut = self.cut.take();
        if end <= most {
            self.start = end;
            return Ok(Some(Window { range: begin..end, cut }));
        }
        let place = self.place_to_cut(feed, begin);
        self.cut = Some(place);
        self.start = place - self.sizes.context;
        // Lengths in a few steps: a plan is kept for every length.
        let step = self.sizes.step;
        let length = (place + self.sizes.context - begin).div_ceil(step) * step;
        Ok(Some(Window { range: begin..begin + length.min(self.sizes.window), cut }))
    }

    /// The middle of the longest pause in the last part of a window that begins at `begin`.
    fn place_to_cut<E: From<SpeechError>>(&self, feed: &Feed<'_, E>, begin: usize) -> usize {
        let last = begin + self.sizes.window - self.sizes.context;
        let range = last - self.sizes.search..last;
        let probabilities = feed.probabilities(&range);
        let pause = longest_pause(probabilities, SpanOptions::default().release);
        let middle =
            pause.map_or(last, |p| feed.frame_at(range.start) + p.start.midpoint(p.end) * feed.frame());
        (middle.clamp(range.start, last) / self.sizes.frame) * self.sizes.frame
    }

    /// Moves the start to the next speech; `false` if there is none.
    fn find_speech<E: From<SpeechError>>(&mut self, feed: &mut Feed<'_, E>) -> Result<bool, E> {
        let second = self.sizes.skip;
        loop {
            feed.fill(self.start + 10 * second)?;
            if let Some(first) = spans(feed, self.start).first() {
                let padded = first.start.saturating_sub(self.sizes.pad).max(self.start);
                // Down to the grid, but never into what was recognised.
                let on_grid = padded / self.sizes.frame * self.sizes.frame;
                let up = on_grid + if on_grid < self.start { self.sizes.frame } else { 0 };
                self.start = up;
                feed.forget(self.start);
                return Ok(true);
            }
            if feed.ended() {
                return Ok(false);
            }
            // The last second may be the beginning of speech.
            self.start = self.start.max(feed.decided().saturating_sub(second));
            feed.forget(self.start);
        }
    }

    /// Where the speech that begins at `begin` ends: at the first pause that is skipped.
    fn speech_end<E: From<SpeechError>>(&self, feed: &Feed<'_, E>, begin: usize) -> usize {
        let mut end = begin;
        for span in spans(feed, begin) {
            if end > begin && span.start.saturating_sub(end) >= self.sizes.skip {
                break;
            }
            end = span.end;
        }
        (end + self.sizes.pad).min(feed.end())
    }
}

/// The spans of speech from `start` on, in samples.
fn spans<E: From<SpeechError>>(feed: &Feed<'_, E>, start: usize) -> Vec<Range<usize>> {
    let range = start..feed.decided();
    let (first, frame) = (feed.frame_at(start), feed.frame());
    let spans = speech(feed.probabilities(&range), &SpanOptions::default());
    spans.into_iter().map(|s| first + s.start * frame..first + s.end * frame).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::options::RecogniseOptions;
    use crate::vad::Vad;

    const RATE: usize = 16_000;

    /// Bursts of noise, as (start, length) in seconds, over a faint ground.
    fn recording(bursts: &[(f64, f64)], seconds: f64) -> Vec<f32> {
        let mut state = 1u32;
        let mut samples: Vec<f32> = (0..(seconds * RATE as f64) as usize)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect();
        for (i, sample) in samples.iter_mut().enumerate() {
            let at = i as f64 / RATE as f64;
            // Syllables: speech is never steady.
            let burst = bursts.iter().any(|(start, length)| (*start..start + length).contains(&at));
            let loud = burst && (at * 4.0).fract() < 0.75;
            *sample *= if loud { 0.1 } else { 1e-3 };
        }
        samples
    }

    /// The windows of `samples` in seconds, with their cuts, and the most samples that were in memory.
    fn windows(samples: &[f32], window: f64, skip: bool) -> (Vec<(f64, f64, Option<f64>)>, usize) {
        let mut blocks = samples.chunks(997);
        let mut next = |out: &mut Vec<f32>| -> Result<bool, SpeechError> {
            let block = blocks.next();
            out.extend_from_slice(block.unwrap_or_default());
            Ok(block.is_some())
        };
        let options = RecogniseOptions::default();
        let mut feed = Feed::new(&mut next, &options, RATE as u32);
        feed.detect(Vad::Energy.detector(RATE as u32).unwrap()).unwrap();
        let mut planner = Planner::new(Sizes::new(window, RATE as u32, 1280), skip);
        let (mut out, mut most) = (Vec::new(), 0);
        let seconds = |place: usize| place as f64 / RATE as f64;
        while let Some(w) = planner.next(&mut feed).unwrap() {
            assert_eq!(feed.samples(&w.range), &samples[w.range.clone()]);
            most = most.max(feed.samples(&(0..usize::MAX)).len());
            assert!(w.range.start.is_multiple_of(1280) && w.range.len() <= (window * RATE as f64) as usize);
            out.push((seconds(w.range.start), seconds(w.range.end), w.cut.map(seconds)));
        }
        (out, most)
    }

    #[test]
    fn long_recordings_are_cut_in_pauses_and_memory_does_not_grow() {
        // Half a second of silence after every 4 to 6 s of speech.
        let (mut bursts, mut at) = (Vec::new(), 0.0);
        let mut pauses = Vec::new();
        for i in 0..60 {
            let (speech, pause) = (4.0 + f64::from(i % 3), 0.5);
            bursts.push((at, speech));
            pauses.push((at + speech, at + speech + pause));
            at += speech + pause;
        }
        let samples = recording(&bursts, at);
        let (found, most) = windows(&samples, 60.0, false);
        assert!(found.len() > 5, "{found:?}");
        assert_eq!((found[0].0, found[0].2), (0.0, None));
        assert!((found.last().unwrap().1 - at).abs() < 1e-3);
        for pair in found.windows(2) {
            let cut = pair[1].2.unwrap();
            assert!(pauses.iter().any(|(a, b)| (*a..*b).contains(&cut)), "{cut}");
            assert!((3.99..9.01).contains(&(pair[0].1 - cut)) && (cut - pair[1].0 - 4.0).abs() < 1e-9);
        }
        // A window, the 5 s that the detector looks ahead, and a block.
        assert!(most <= 66 * RATE, "{most}");
    }

    #[test]
    fn sound_without_pauses_is_cut_too_and_what_fits_is_not() {
        let samples = recording(&[(0.0, 100.0)], 100.0);
        let (found, _) = windows(&samples, 30.0, false);
        assert!(
            found.len() > 3 && found.windows(2).all(|p| p[1].2.is_some_and(|c| p[1].0 < c && c < p[0].1))
        );
        assert_eq!(windows(&samples, 100.0, false).0, [(0.0, 100.0, None)]);
        assert_eq!(windows(&[], 30.0, false).0, []);
        assert_eq!(windows(&[], 30.0, true).0, []);
    }

    #[test]
    fn silence_is_skipped() {
        let bursts = [(3.0, 2.0), (5.5, 1.0), (40.0, 4.0), (50.0, 0.1), (90.0, 50.0), (159.5, 0.5)];
        let samples = recording(&bursts, 160.0);
        let (found, _) = windows(&samples, 30.0, true);
        let near = |a: f64, b: f64| (a - b).abs() < 0.2;
        assert!(near(found[0].0, 2.7) && near(found[0].1, 6.8), "{found:?}");
        assert!(near(found[1].0, 39.7) && near(found[1].1, 44.3), "{found:?}");
        assert!(near(found[2].0, 89.7) && found[3].2.is_some(), "{found:?}");
        let last = found.last().unwrap();
        assert!(near(last.0, 159.2) && (last.1 - 160.0).abs() < 1e-3, "{found:?}");
        assert!(near(found[found.len() - 2].1, 140.3), "{found:?}");
        assert_eq!(windows(&recording(&[], 60.0), 30.0, true).0, []);
    }
}
