//! Streams of models trained for them: every chunk goes through the encoder once, with the keys, values and convolution inputs
//! of the frames before it kept as states, so that the cost of a chunk is the same after a second and after an hour.

use super::{EndKind, Spoken, StreamEnd, StreamOptions, StreamUpdate};
use crate::decode::{Token, TransducerState};
use crate::error::SpeechError;
use crate::front_end::{item_rows, tensor_error, valid_part};
use crate::options::RecogniseOptions;
use crate::recogniser::Recogniser;
use crate::timing::finished_tokens;
use crate::transducer::TransducerSession;
use conure_audio::log_mel::Scratch;
use conure_graph::Session;
use conure_models::StreamingConfig;
use conure_tensor::{Bindings, Symbol, TensorView};
use std::sync::Arc;

const T: Symbol = Symbol::new("T");
const B: Symbol = Symbol::new("B");

/// Mel frames that NeMo's stream drops at the end if there are no more of them.
const DROPPED_TAIL: usize = 8;

/// A stream at work.
#[derive(Debug)]
pub(super) struct Cached {
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
    /// Mel frames: [`StreamingConfig::mel_before`] old ones, then those not yet run.
    mel: Vec<f32>,
    computed: usize,
    /// Encoder frames so far.
    frames: usize,
    /// Tokens of the word that is being spoken.
    open: Vec<Token>,
    spoken: Spoken,
}

impl Cached {
    /// # Errors
    /// A language that the model has not; a model without a transducer.
    pub(super) fn new(
        recogniser: &Arc<Recogniser>,
        config: StreamingConfig,
        options: StreamOptions,
    ) -> Result<Cached, SpeechError> {
        let recognise = RecogniseOptions { language: options.language.clone(), ..Default::default() };
        let prompt = recogniser.prompt_row(&recognise)?;
        let model = recogniser.model();
        let transducer = recogniser.transducer_session()?;
        model.joint()?;
        let encoder = model.chunk_encoder(&config, true)?;
        let session = Session::on(encoder, recogniser.device(), recogniser.cpu().clone())?;
        let log_mel = recogniser.log_mel();
        Ok(Cached {
            mel: vec![0.0; config.mel_before * log_mel.config().n_mels],
            scratch: log_mel.scratch(),
            config,
            prompt,
            ends: ["<EOU>", "<EOB>"].map(|piece| recogniser.vocabulary().id(piece)),
            session,
            first: true,
            transducer,
            state: TransducerState::default(),
            samples: Vec::new(),
            origin: 0,
            computed: 0,
            frames: 0,
            open: Vec::new(),
            spoken: Spoken::new(recogniser, recogniser.transducer_head(), options.tight_words),
            recogniser: recogniser.clone(),
            options,
        })
    }

    pub(super) fn config(&self) -> &StreamingConfig {
        &self.config
    }

    pub(super) fn push(&mut self, samples: &[f32], update: &mut StreamUpdate) -> Result<(), SpeechError> {
        // In pieces, so that a caller who hands over an hour at once does not make an hour of features of it.
        for piece in samples.chunks(self.recogniser.sample_rate() as usize) {
            self.samples.extend_from_slice(piece);
            self.compute_mel(false);
            self.run_whole_chunks(update)?;
        }
        update.partial = self.spoken.words(&self.open);
        Ok(())
    }

    pub(super) fn end(&mut self, update: &mut StreamUpdate) -> Result<(), SpeechError> {
        self.compute_mel(true);
        self.run_whole_chunks(update)?;
        let rest = self.waiting();
        let dropped = self.options.exact && rest < DROPPED_TAIL && !self.first;
        if rest > 0 && !dropped {
            self.run_chunk(rest, update)?;
        }
        let open = std::mem::take(&mut self.open);
        self.spoken.push(&open, update);
        Ok(())
    }

    /// Samples of the stream so far.
    fn received(&self) -> usize {
        self.origin + self.samples.len()
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
        let received = self.received();
        let have = i64::try_from(received).unwrap_or(i64::MAX);
        let mut until = self.computed;
        if end {
            // As for a recording, the frame that begins at the very end is not heard; NeMo's stream hears zeros there.
            until = (log_mel.frame_count(received) - 1).max(self.computed);
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
        let first = usize::try_from(first).unwrap_or(0).clamp(self.origin, received);
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
            self.spoken.push(&open, update);
            let time = token.frame as f64 * self.recogniser.frame_seconds();
            update.ends.push(StreamEnd { kind, frame: token.frame, time, words: update.words.len() });
        }
        let finished = finished_tokens(&self.open, self.recogniser.vocabulary());
        let done: Vec<Token> = self.open.drain(..finished).collect();
        self.spoken.push(&done, update);
        if ended && !self.options.exact {
            self.state.restart_predictor();
        }
    }
}
