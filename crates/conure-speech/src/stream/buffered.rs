//! Streams of models that were trained for whole recordings: the last seconds are heard again every second.
//!
//! What two hearings in a row agree on is final once a second of sound has followed it, and so is what is 4 s old; final words never
//! change, and a hearing continues them after the last one that it heard too. The window that is heard is at most so long, whatever the
//! length of the stream: when it is full, it begins anew in its middle.

use super::{EndKind, Spoken, StreamEnd, StreamOptions, StreamUpdate};
use crate::decode::Token;
use crate::error::SpeechError;
use crate::long::stitch::{APART, alignment, starts};
use crate::long::{SHORTEST_WINDOW, WHOLE_SECONDS, shifted};
use crate::options::RecogniseOptions;
use crate::recogniser::Recogniser;
use conure_text::Vocabulary;
use std::sync::Arc;

/// Seconds of the longest window that is heard again, where nothing else is asked for.
pub const STREAM_WINDOW_SECONDS: f64 = 20.0;

/// Encoder frames between two hearings: 0.96 s.
const STEP: usize = 12;
/// Frames of sound that must follow what two hearings agree on: as much as between them, so that both heard all of it.
const AFTER: usize = 12;
/// Frames after which words are final, agreed on or not: 4 s, as much as windows of long recordings hear on either side of a cut.
const OLD: usize = 50;
/// Frames at the beginning of a window in which a word may be cut.
const EDGE: usize = 6;
/// Frames without a word that are a pause: 1.5 s. Speakers stop for less within a sentence.
const PAUSE: usize = 19;

/// Frames until words are final that hearings agree on.
pub(super) const LATENCY_FRAMES: usize = STEP + AFTER;

/// A stream at work. Frames are encoder frames from the start of the stream.
#[derive(Debug)]
pub(super) struct Buffered {
    recogniser: Arc<Recogniser>,
    options: RecogniseOptions,
    /// Samples of a frame.
    frame: usize,
    /// Frames of the longest window.
    window: usize,
    /// Samples of the window, which begins at the frame `origin`.
    samples: Vec<f32>,
    origin: usize,
    /// Samples of the stream when it was heard last.
    heard: usize,
    /// Final tokens that lie in the window, or the last one.
    committed: Vec<Token>,
    /// What the last hearing has after them.
    open: Vec<Token>,
    /// Whether the pause after the last word was told.
    paused: bool,
    spoken: Spoken,
}

impl Buffered {
    /// # Errors
    /// A window or a language that cannot be.
    pub(super) fn new(
        recogniser: &Arc<Recogniser>,
        options: &StreamOptions,
    ) -> Result<Buffered, SpeechError> {
        let seconds = options.window.unwrap_or(STREAM_WINDOW_SECONDS);
        if !(SHORTEST_WINDOW..=WHOLE_SECONDS).contains(&seconds) {
            return Err(SpeechError::StreamWindow { seconds });
        }
        let recognise = RecogniseOptions {
            language: options.language.clone(),
            cancel: options.cancel.clone(),
            ..Default::default()
        };
        recogniser.prompt_row(&recognise)?;
        let head = recogniser.head(recognise.decoder)?;
        Ok(Buffered {
            frame: recogniser.samples_of(1),
            window: (seconds / recogniser.frame_seconds()) as usize,
            options: recognise,
            samples: Vec::new(),
            origin: 0,
            heard: 0,
            committed: Vec::new(),
            open: Vec::new(),
            paused: true,
            spoken: Spoken::new(recogniser, head, options.tight_words),
            recogniser: recogniser.clone(),
        })
    }

    /// Samples of the stream so far.
    fn received(&self) -> usize {
        self.origin * self.frame + self.samples.len()
    }

    pub(super) fn push(&mut self, mut samples: &[f32], update: &mut StreamUpdate) -> Result<(), SpeechError> {
        while !samples.is_empty() {
            // Where it is heard does not depend on how the samples are cut.
            let due = self.heard + STEP * self.frame;
            let (now, later) = samples.split_at(samples.len().min(due - self.received()));
            self.samples.extend_from_slice(now);
            samples = later;
            if self.received() == due {
                self.hear_again(update)?;
            }
        }
        update.partial = self.spoken.words(&self.open);
        Ok(())
    }

    pub(super) fn end(&mut self, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        if self.received() > self.heard {
            self.open = self.hear()?;
        }
        self.commit(self.open.len(), update);
        Ok(())
    }

    fn hear_again(&mut self, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        let found = self.hear()?;
        let before = std::mem::replace(&mut self.open, found);
        self.heard = self.received();
        let now = self.heard / self.frame;
        let ended = |age: usize| self.open.partition_point(|t| end(t) + age <= now);
        let sure = ended(AFTER).min(agreed(&before, &self.open)).max(ended(OLD));
        self.commit(whole(&self.open, sure, self.recogniser.vocabulary()), update);
        if now + STEP > self.origin + self.window {
            self.slide(now - self.window / 2, update);
        }
        self.tell_pause(now, update);
        Ok(())
    }

    /// Hears the window: what it has after the final tokens.
    fn hear(&self) -> Result<Vec<Token>, SpeechError> {
        let recognition = self.recogniser.recognise(&self.samples, &self.options)?;
        if self.recogniser.is_invented(&recognition, &self.samples) {
            return Ok(Vec::new());
        }
        let found = shifted(&recognition, self.origin, self.recogniser.frame_seconds());
        Ok(continuation(&self.committed, &found, self.recogniser.vocabulary()).to_vec())
    }

    /// Makes the first so many open tokens final.
    fn commit(&mut self, count: usize, update: &mut StreamUpdate) {
        if count == 0 {
            return;
        }
        let tokens: Vec<Token> = self.open.drain(..count).collect();
        self.spoken.push(&tokens, update);
        self.committed.extend_from_slice(&tokens);
        update.tokens.extend(tokens);
        self.paused = false;
    }

    /// Lets the window begin at this frame.
    fn slide(&mut self, origin: usize, update: &mut StreamUpdate) {
        // Words that it will not hear whole any more are as they are.
        let mut cut = self.open.partition_point(|t| t.frame < origin + EDGE);
        while cut < self.open.len() && !starts(&self.open[cut], self.recogniser.vocabulary()) {
            cut += 1;
        }
        self.commit(cut, update);
        self.samples.drain(..(origin - self.origin) * self.frame);
        self.origin = origin;
        let gone = self.committed.partition_point(|t| t.frame + APART < origin);
        self.committed.drain(..gone.min(self.committed.len().saturating_sub(1)));
    }

    fn tell_pause(&mut self, now: usize, update: &mut StreamUpdate) {
        let Some(last) = self.committed.last().filter(|_| self.open.is_empty() && !self.paused) else {
            return;
        };
        let frame = end(last);
        if now >= frame + PAUSE {
            let time = frame as f64 * self.recogniser.frame_seconds();
            update.ends.push(StreamEnd { kind: EndKind::Pause, frame, time, words: update.words.len() });
            self.paused = true;
        }
    }
}

/// The frame after a token.
fn end(token: &Token) -> usize {
    token.frame + token.duration.max(1)
}

/// How many tokens two hearings begin with alike.
fn agreed(before: &[Token], now: &[Token]) -> usize {
    let same = |(a, b): &(&Token, &Token)| a.id == b.id && a.frame.abs_diff(b.frame) <= APART;
    before.iter().zip(now).take_while(same).count()
}

/// The greatest number up to `most` of tokens that are whole words.
fn whole(tokens: &[Token], most: usize, vocabulary: &Vocabulary) -> usize {
    let cut = |n: &usize| tokens.get(*n).is_none_or(|t| starts(t, vocabulary));
    (1..=most).rev().find(cut).unwrap_or(0)
}

/// What of a hearing comes after the final tokens: after the last of them that it heard too, and after its time, from the beginning of a
/// word on.
fn continuation<'a>(committed: &[Token], found: &'a [Token], vocabulary: &Vocabulary) -> &'a [Token] {
    let Some(last) = committed.last() else { return found };
    let after = match alignment(committed, found, vocabulary).last() {
        Some(&(i, j)) if i + 1 == committed.len() => j + 1,
        pair => {
            let common = pair.map_or(0, |&(_, j)| j + 1);
            common.max(found.partition_point(|t| t.frame <= last.frame))
        }
    };
    let rest = &found[after..];
    let begin = rest.iter().position(|t| starts(t, vocabulary)).unwrap_or(rest.len());
    &rest[begin..]
}
