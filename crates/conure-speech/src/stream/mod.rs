//! Streams: audio as it comes, words as they are spoken.
//!
//! Models trained for it hear every chunk once (`cached.rs`); of others the last seconds are heard again and again, and what two hearings
//! agree on is final (`buffered.rs`).

mod buffered;
mod cached;

use crate::decode::Token;
use crate::error::SpeechError;
use crate::recogniser::Recogniser;
use crate::result::Word;
use crate::timing::{Head, TIGHT_FRAMES, TimingOptions, words};
use buffered::Buffered;
pub use buffered::STREAM_WINDOW_SECONDS;
use cached::Cached;
use conure_audio::log_mel::Normalize;
use conure_models::{ModelError, StreamingConfig};
use conure_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How a stream is heard.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Encoder frames of look-ahead, for models trained to stream: more is better and later. `None`: what the model was trained with
    /// first.
    pub look_ahead: Option<usize>,
    /// The language, for models that are told it; `None` or `auto`: the model's default.
    pub language: Option<String>,
    /// As NeMo streams: a frame of zeros ends the stream, a tail of less than an encoder frame is dropped, and the predictor
    /// goes on after an end of utterance.
    pub exact: bool,
    /// Whether words end where their last token is spoken.
    pub tight_words: bool,
    /// Encoder values of each chunk to hand out, by name.
    pub captures: Vec<String>,
    /// For models that hear the last seconds again: the longest window in seconds; `None`: [`STREAM_WINDOW_SECONDS`].
    /// Others need none.
    pub window: Option<f64>,
    /// Ends a run soon after it is set, with [`SpeechError::Cancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
}

/// What became known since the last call.
#[derive(Clone, Debug, Default)]
pub struct StreamUpdate {
    /// Words that are complete, in order; times are seconds from the start of the stream.
    pub words: Vec<Word>,
    /// What was said after them as far as it is known: the word that is being spoken, which may grow, and where a window is heard
    /// again also words that may still be others.
    pub partial: Vec<Word>,
    /// Ends that were heard.
    pub ends: Vec<StreamEnd>,
    /// Tokens that will not change, special ones included; frames count from the start of the stream.
    pub tokens: Vec<Token>,
    /// What [`StreamOptions::captures`] asked for, chunk by chunk.
    pub captures: Vec<(String, Tensor)>,
}

/// An end that was heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamEnd {
    /// What ended.
    pub kind: EndKind,
    /// The encoder frame.
    pub frame: usize,
    /// Seconds from the start of the stream.
    pub time: f64,
    /// How many of the update's [`StreamUpdate::words`] were spoken before it.
    pub words: usize,
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// What the speaker had to say: `<EOU>`.
    Utterance,
    /// A short word of a listener: `<EOB>`.
    Backchannel,
    /// Nothing: nobody has spoken for 1.5 s. Models that were not trained to stream tell no more than that.
    Pause,
}

/// A stream in progress. It is fed samples as they come, in pieces of any size: how they are cut changes nothing.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    rate: u32,
    frame_seconds: f64,
    received: usize,
    computing: Duration,
    finished: bool,
}

#[derive(Debug)]
enum Kind {
    Cached(Box<Cached>),
    Buffered(Box<Buffered>),
}

impl Recogniser {
    /// Begins a stream of mono samples in -1 ..= 1 at [`Recogniser::sample_rate`].
    ///
    /// # Errors
    /// A look-ahead, a language or a window that the model cannot have, and other options that are not for its kind; a model trained to
    /// stream without a transducer.
    pub fn stream(self: &Arc<Self>, options: StreamOptions) -> Result<Stream, SpeechError> {
        let config = match self.model().streaming(options.look_ahead) {
            // Features that are normalised over a recording cannot be had chunk by chunk.
            Ok(config) => Some(config).filter(|_| self.log_mel().config().normalize == Normalize::None),
            Err(ModelError::NotStreaming { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let refuse = |option| Err(SpeechError::StreamOption { model: self.name().to_owned(), option });
        let kind = match config {
            Some(config) => Kind::Cached(Box::new(Cached::new(self, config, options)?)),
            None if options.look_ahead.is_some() => return refuse("a look-ahead"),
            None if options.exact => return refuse("the exact mode"),
            None if !options.captures.is_empty() => return refuse("a capture of chunks"),
            None => Kind::Buffered(Box::new(Buffered::new(self, &options)?)),
        };
        let (rate, frame_seconds) = (self.sample_rate(), self.frame_seconds());
        Ok(Stream { kind, rate, frame_seconds, received: 0, computing: Duration::ZERO, finished: false })
    }
}

impl Stream {
    /// The geometry of its chunks; `None`: the model was not trained to stream, and the last seconds are heard again.
    pub fn config(&self) -> Option<&StreamingConfig> {
        match &self.kind {
            Kind::Cached(cached) => Some(cached.config()),
            Kind::Buffered(_) => None,
        }
    }

    /// Seconds of audio received.
    pub fn seconds(&self) -> f64 {
        self.received as f64 / f64::from(self.rate)
    }

    /// Seconds from a sound's arrival to its words at the most, computing not counted; where the last seconds are heard again, to words
    /// that two hearings agree on, and others may take up to 5 s.
    pub fn latency(&self) -> f64 {
        let frames = match &self.kind {
            Kind::Cached(cached) => cached.config().frames(),
            Kind::Buffered(_) => buffered::LATENCY_FRAMES,
        };
        frames as f64 * self.frame_seconds
    }

    /// What it took to compute so far.
    pub fn computing(&self) -> Duration {
        self.computing
    }

    /// Takes samples and tells what became known by them; most calls tell nothing, one per chunk does.
    ///
    /// # Errors
    /// Samples that are not finite; a run that failed, after which the stream can only be dropped; cancellation.
    pub fn feed(&mut self, samples: &[f32]) -> Result<StreamUpdate, SpeechError> {
        if let Some(at) = samples.iter().position(|s| !s.is_finite()) {
            return Err(SpeechError::StreamSample { at: self.received + at, value: samples[at] });
        }
        self.received += samples.len();
        self.run(|kind, update| match kind {
            Kind::Cached(cached) => cached.push(samples, update),
            Kind::Buffered(buffered) => buffered.push(samples, update),
        })
    }

    /// Ends the stream: what is left of it is heard, and the last word is complete.
    ///
    /// # Errors
    /// As [`Stream::feed`].
    pub fn finish(&mut self) -> Result<StreamUpdate, SpeechError> {
        let nothing = self.received == 0;
        let update = self.run(|kind, update| match kind {
            _ if nothing => Ok(()),
            Kind::Cached(cached) => cached.end(update),
            Kind::Buffered(buffered) => buffered.end(update),
        });
        self.finished = true;
        update
    }

    fn run(
        &mut self,
        work: impl FnOnce(&mut Kind, &mut StreamUpdate) -> Result<(), SpeechError>,
    ) -> Result<StreamUpdate, SpeechError> {
        if self.finished {
            return Err(SpeechError::StreamOver);
        }
        let begun = Instant::now();
        let mut update = StreamUpdate::default();
        work(&mut self.kind, &mut update)?;
        self.computing += begun.elapsed();
        Ok(update)
    }
}

/// Words of tokens, with times that never go back.
#[derive(Debug)]
struct Spoken {
    recogniser: Arc<Recogniser>,
    head: Head,
    timing: TimingOptions,
    latest: f64,
}

impl Spoken {
    fn new(recogniser: &Arc<Recogniser>, head: Head, tight: bool) -> Spoken {
        let timing = TimingOptions {
            frame_seconds: recogniser.frame_seconds(),
            tight_frames: tight.then_some(TIGHT_FRAMES),
            ..TimingOptions::new(f64::MAX)
        };
        Spoken { recogniser: recogniser.clone(), head, timing, latest: 0.0 }
    }

    fn words(&self, tokens: &[Token]) -> Vec<Word> {
        let mut words = words(tokens, self.head, self.recogniser.vocabulary(), &self.timing);
        for word in &mut words {
            word.start = word.start.max(self.latest);
            word.end = word.end.max(word.start);
        }
        words
    }

    /// Adds the words of these tokens to those that are complete.
    fn push(&mut self, tokens: &[Token], update: &mut StreamUpdate) {
        let words = self.words(tokens);
        self.latest = words.last().map_or(self.latest, |w| w.start);
        update.words.extend(words);
    }
}
