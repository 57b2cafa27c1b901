//! Streams: audio as it comes, words as they are spoken.
//!
//! For models trained for it: every chunk goes through the encoder once, with the keys, values and convolution inputs of the
//! frames before it kept as states, so that the cost of a chunk is the same after a second and after an hour.

use crate::decode::{Token, TransducerState};
use crate::error::SpeechError;
use crate::front_end::{item_rows, tensor_error, valid_part};
use crate::options::RecogniseOptions;
use crate::recogniser::Recogniser;
use crate::result::Word;
use crate::timing::{TIGHT_FRAMES, TimingOptions, finished_tokens, words};
use crate::transducer::TransducerSession;
use conure_audio::log_mel::{Normalize, Scratch};
use conure_graph::Session;
use conure_models::StreamingConfig;
use conure_tensor::{Bindings, Symbol, Tensor, TensorView};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const T: Symbol = Symbol::new("T");
const B: Symbol = Symbol::new("B");

/// Mel frames that NeMo's stream drops at the end if there are no more of them.
const DROPPED_TAIL: usize = 8;

/// How a stream is heard.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Encoder frames of look-ahead: more is better and later. `None`: what the model was trained with first.
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
    /// Ends a run soon after it is set, with [`SpeechError::Cancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
}

/// What became known since the last call.
#[derive(Clone, Debug, Default)]
pub struct StreamUpdate {
    /// Words that are complete, in order; times are seconds from the start of the stream.
    pub words: Vec<Word>,
    /// The word that is being spoken; it may grow.
    pub partial: Option<Word>,
    /// Ends that the model heard.
    pub ends: Vec<StreamEnd>,
    /// Tokens, special ones included; frames count from the start of the stream.
    pub tokens: Vec<Token>,
    /// What [`StreamOptions::captures`] asked for, chunk by chunk.
    pub captures: Vec<(String, Tensor)>,
}

/// An end that the model heard.
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
}

/// A stream in progress. It is fed samples as they come, in pieces of any size: how they are cut changes nothing.
#[derive(Debug)]
pub struct Stream {
    recogniser: Arc<Recogniser>,
    config: StreamingConfig,
    options: StreamOptions,
    prompt: Vec<f32>,
    ends: [Option<u32>; 2],
    /// The session of later chunks, once the first is done; before that, of the first.
    session: Session,
    first: bool,
    transducer: TransducerSession,
    state: TransducerState,
    scratch: Scratch,
    /// Samples from `origin` on that frames not yet computed read.
    samples: Vec<f32>,
    origin: usize,
    received: usize,
    /// Mel frames: [`StreamingConfig::mel_before`] old ones, then those not yet run.
    mel: Vec<f32>,
    computed: usize,
    /// Encoder frames so far.
    frames: usize,
    /// Tokens of the word that is being spoken.
    open: Vec<Token>,
    latest: f64,
    computing: Duration,
    finished: bool,
}

impl Recogniser {
    /// Begins a stream of mono samples in -1 ..= 1 at [`Recogniser::sample_rate`].
    ///
    /// # Errors
    /// [`conure_models::ModelError::NotStreaming`] for a model that was trained for whole recordings only, or a look-ahead
    /// that it cannot have; a language that it has not; a model without a transducer.
    pub fn stream(self: &Arc<Self>, options: StreamOptions) -> Result<Stream, SpeechError> {
        let config = self.model().streaming(options.look_ahead)?;
        let mel = self.log_mel().config();
        if mel.normalize != Normalize::None {
            return Err(SpeechError::StreamFeatures { model: self.name().to_owned() });
        }
        let recognise = RecogniseOptions { language: options.language.clone(), ..Default::default() };
        let prompt = self.prompt_row(&recognise)?;
        let transducer = TransducerSession::new(self.model(), self.device(), self.cpu())?;
        self.model().joint()?;
        let session =
            Session::on(self.model().chunk_encoder(&config, true)?, self.device(), self.cpu().clone())?;
        let ends = ["<EOU>", "<EOB>"].map(|piece| self.vocabulary().id(piece));
        Ok(Stream {
            mel: vec![0.0; config.mel_before * mel.n_mels],
            scratch: self.log_mel().scratch(),
            recogniser: self.clone(),
            config,
            options,
            prompt,
            ends,
            session,
            first: true,
            transducer,
            state: TransducerState::default(),
            samples: Vec::new(),
            origin: 0,
            received: 0,
            computed: 0,
            frames: 0,
            open: Vec::new(),
            latest: 0.0,
            computing: Duration::ZERO,
            finished: false,
        })
    }
}

impl Stream {
    /// The geometry of its chunks.
    pub fn config(&self) -> &StreamingConfig {
        &self.config
    }

    /// Seconds of audio received.
    pub fn seconds(&self) -> f64 {
        self.received as f64 / f64::from(self.recogniser.sample_rate())
    }

    /// Seconds from a sound's arrival to the words of its chunk at the most, computing not counted.
    pub fn latency(&self) -> f64 {
        self.config.frames() as f64 * self.recogniser.frame_seconds()
    }

    /// What chunks took to compute so far.
    pub fn computing(&self) -> Duration {
        self.computing
    }

    /// Takes samples and tells what became known by them; most calls tell nothing, one per chunk does.
    ///
    /// # Errors
    /// Samples that are not finite; a run that failed, after which the stream can only be dropped; cancellation.
    pub fn feed(&mut self, samples: &[f32]) -> Result<StreamUpdate, SpeechError> {
        if self.finished {
            return Err(SpeechError::StreamOver);
        }
        if let Some(at) = samples.iter().position(|s| !s.is_finite()) {
            return Err(SpeechError::StreamSample { at: self.received + at, value: samples[at] });
        }
        let mut update = StreamUpdate::default();
        // In pieces, so that a caller who hands over an hour at once does not make an hour of features of it.
        for piece in samples.chunks(self.recogniser.sample_rate() as usize) {
            self.samples.extend_from_slice(piece);
            self.received += piece.len();
            self.compute_mel(false);
            self.run_whole_chunks(&mut update)?;
        }
        self.partial(&mut update);
        Ok(update)
    }

    /// Ends the stream: what is left of it is heard, and the last word is complete.
    ///
    /// # Errors
    /// As [`Stream::feed`].
    pub fn finish(&mut self) -> Result<StreamUpdate, SpeechError> {
        if self.finished {
            return Err(SpeechError::StreamOver);
        }
        self.finished = true;
        let mut update = StreamUpdate::default();
        if self.received == 0 {
            return Ok(update);
        }
        self.compute_mel(true);
        self.run_whole_chunks(&mut update)?;
        let rest = self.waiting();
        let dropped = self.options.exact && rest < DROPPED_TAIL && !self.first;
        if rest > 0 && !dropped {
            self.run_chunk(rest, &mut update)?;
        }
        let open = std::mem::take(&mut self.open);
        self.push_words(&open, &mut update);
        Ok(update)
    }

    fn mels(&self) -> usize {
        self.recogniser.log_mel().config().n_mels
    }

    /// Mel frames that are computed and not yet run.
    fn waiting(&self) -> usize {
        (self.mel.len() / self.mels()).saturating_sub(self.config.mel_before)
    }

    /// Computes the mel frames whose samples are there; at the end also those that reach beyond it.
    fn compute_mel(&mut self, end: bool) {
        let log_mel = self.recogniser.log_mel();
        let have = i64::try_from(self.received).unwrap_or(i64::MAX);
        let mut until = self.computed;
        if end {
            // As for a recording, the frame that begins at the very end is not heard; NeMo's stream hears zeros there.
            until = (log_mel.frame_count(self.received) - 1).max(self.computed);
        } else {
            while log_mel.samples_of_frame(until).end <= have {
                until += 1;
            }
        }
        let count = until.saturating_sub(self.computed);
        if count == 0 {
            if end && self.options.exact {
                self.mel.resize(self.mel.len() + self.mels(), 0.0);
            }
            return;
        }
        let (at, mels) = (self.mel.len(), self.mels());
        self.mel.resize(at + count * mels, 0.0);
        let log_mel = self.recogniser.log_mel();
        let out = &mut self.mel[at..];
        log_mel.frames_into(&self.samples, self.origin, self.computed, out, &mut self.scratch);
        self.computed = until;
        if end && self.options.exact {
            self.mel.resize(self.mel.len() + mels, 0.0);
        }
        // The next frame's samples and, for pre-emphasis, the one before stay.
        let first = log_mel.samples_of_frame(until).start - 1;
        let first = usize::try_from(first).unwrap_or(0).clamp(self.origin, self.received);
        self.samples.drain(..first - self.origin);
        self.origin = first;
    }

    fn run_whole_chunks(&mut self, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        loop {
            let whole = if self.first { self.config.first_mel } else { self.config.mel };
            if self.waiting() < whole {
                return Ok(());
            }
            self.run_chunk(whole, update)?;
        }
    }

    /// The next `mel` frames through encoder and decoder.
    fn run_chunk(&mut self, mel: usize, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        let begun = Instant::now();
        let frames = self.config.frames_of(mel, self.first);
        self.encode(mel, frames, update)?;
        if self.first {
            let later = self.recogniser.model().chunk_encoder(&self.config, false)?;
            let (device, cpu) = (self.recogniser.device(), self.recogniser.cpu().clone());
            let mut session = Session::on(later, device, cpu)?;
            session.restore_states(&self.session.save_states()?)?;
            self.session = session;
            self.first = false;
        }
        self.mel.drain(..mel * self.mels());
        self.frames += frames;

        let mut tokens = Vec::new();
        self.transducer.set_cancel(self.options.cancel.clone());
        self.recogniser.decode_from(&mut self.transducer, self.frames, &mut self.state, &mut tokens)?;
        self.take_tokens(&tokens, update);
        update.tokens.extend(tokens);
        self.computing += begun.elapsed();
        Ok(())
    }

    fn encode(&mut self, mel: usize, frames: usize, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        let mels = self.mels();
        let before = if self.first { 0 } else { self.config.mel_before };
        let start = (self.config.mel_before - before) * mels;
        let window = &self.mel[start..start + (before + mel) * mels];
        let count = |n: usize| [i32::try_from(n).unwrap_or(i32::MAX)];
        let (lengths, valid) = (count(before + mel), count(frames));
        let cached = count(self.frames.min(self.config.left));
        let view = |v| TensorView::of(&[1], v).map_err(tensor_error);
        let mut inputs = vec![
            ("log_mel", TensorView::of(&[1, before + mel, mels], window).map_err(tensor_error)?),
            ("lengths", view(&lengths)?),
            ("frames", view(&valid)?),
            ("cached", view(&cached)?),
        ];
        if !self.prompt.is_empty() {
            let shape = [1, self.prompt.len()];
            inputs.push(("prompt", TensorView::of(&shape, &self.prompt).map_err(tensor_error)?));
        }
        let mut captures = vec!["joint.enc"];
        captures.extend(self.options.captures.iter().map(String::as_str).filter(|c| *c != "joint.enc"));
        self.session.set_cancel(self.options.cancel.clone());
        let bindings = Bindings::new().with(B, 1).with(T, before + mel);
        let outputs = self.session.run_capturing(&bindings, &inputs, &captures)?;
        let rows = outputs.get("joint.enc")?;
        self.transducer.set_frames_from(self.frames, item_rows(&rows, 0, frames)?);
        for name in &self.options.captures {
            update.captures.push((name.clone(), valid_part(&outputs.get(name)?, frames)?));
        }
        Ok(())
    }

    /// Sorts new tokens into words and ends.
    fn take_tokens(&mut self, tokens: &[Token], update: &mut StreamUpdate) {
        let mut ended = false;
        for token in tokens {
            let kind = match self.ends.iter().position(|e| *e == Some(token.id)) {
                Some(0) => EndKind::Utterance,
                Some(_) => EndKind::Backchannel,
                None => {
                    self.open.push(*token);
                    continue;
                }
            };
            ended = true;
            let open = std::mem::take(&mut self.open);
            self.push_words(&open, update);
            let time = token.frame as f64 * self.recogniser.frame_seconds();
            update.ends.push(StreamEnd { kind, frame: token.frame, time, words: update.words.len() });
        }
        let finished = finished_tokens(&self.open, self.recogniser.vocabulary());
        let done: Vec<Token> = self.open.drain(..finished).collect();
        self.push_words(&done, update);
        if ended && !self.options.exact {
            self.state.restart_predictor();
        }
    }

    fn words_of(&self, tokens: &[Token]) -> Vec<Word> {
        let timing = TimingOptions {
            frame_seconds: self.recogniser.frame_seconds(),
            tight_frames: self.options.tight_words.then_some(TIGHT_FRAMES),
            ..TimingOptions::new(f64::MAX)
        };
        let mut words =
            words(tokens, self.recogniser.transducer_head(), self.recogniser.vocabulary(), &timing);
        for word in &mut words {
            word.start = word.start.max(self.latest);
            word.end = word.end.max(word.start);
        }
        words
    }

    fn push_words(&mut self, tokens: &[Token], update: &mut StreamUpdate) {
        let words = self.words_of(tokens);
        self.latest = words.last().map_or(self.latest, |w| w.start);
        update.words.extend(words);
    }

    fn partial(&self, update: &mut StreamUpdate) {
        update.partial = self.words_of(&self.open).pop();
    }
}
