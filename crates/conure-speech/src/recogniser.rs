//! From samples to tokens: the front end, the encoder and a decoder of one model, for any number of callers at once.

use crate::decode::{Hypothesis, Search, Token};
use crate::error::SpeechError;
use crate::front_end::{first_rows, log_mel, tensor_error, valid_part};
use crate::options::{Decoder, RecogniseOptions};
use crate::progress::{Part, Reporter, Watching};
use crate::timing::Head;
use crate::token_gates::TokenGates;
use crate::transducer::TransducerSession;
use crate::worker::{Encoded, Worker};
use conure_audio::log_mel::{Features, LogMel};
use conure_gguf::GgufFile;
use conure_graph::{Device, Passes};
use conure_kernels::Cpu;
use conure_models::{Attention, Parakeet};
use conure_tensor::Tensor;
use conure_text::Vocabulary;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the decoder made of a clip.
#[derive(Clone, Debug, PartialEq)]
pub struct Recognition {
    /// The tokens in order.
    pub tokens: Vec<Token>,
    /// The decoder that made them.
    pub head: Head,
    /// Silence in seconds that was put before the clip: frame 0 lies so long before its start.
    pub padding: f64,
    /// Encoder frames of the clip, padding included.
    pub frames: usize,
    /// What a beam search found, the likeliest first: as many as were asked for, `tokens` among them. Empty after greedy
    /// decoding.
    pub alternatives: Vec<Hypothesis>,
}

/// A speech model ready to run. Shared by threads: each call takes a set of sessions of its own.
#[derive(Debug)]
pub struct Recogniser {
    model: Parakeet,
    name: String,
    log_mel: LogMel,
    vocabulary: Vocabulary,
    cpu: Arc<Cpu>,
    device: Device,
    token_gates: Arc<TokenGates>,
    idle: Mutex<Vec<Worker>>,
}

impl Recogniser {
    /// The speech model in `file`, which messages call `name`, its graphs rewritten by `passes`.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name.
    pub fn load(
        file: Arc<GgufFile>,
        name: &str,
        device: Device,
        cpu: Arc<Cpu>,
        passes: &Passes,
    ) -> Result<Recogniser, SpeechError> {
        let model = Parakeet::load_with(file.clone(), name, passes)?;
        let log_mel = log_mel(&file, name, &model)?;
        let vocabulary = Vocabulary::new(model.config().pieces.iter().map(String::as_str));
        Ok(Recogniser {
            model,
            name: name.to_owned(),
            log_mel,
            vocabulary,
            cpu,
            device,
            token_gates: Arc::default(),
            idle: Mutex::default(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Parakeet {
        &self.model
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pieces.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The instruction set and the threads it runs on.
    pub fn cpu(&self) -> &Arc<Cpu> {
        &self.cpu
    }

    /// Its front end.
    pub(crate) fn log_mel(&self) -> &LogMel {
        &self.log_mel
    }

    /// The kind of its transducer.
    pub(crate) fn transducer_head(&self) -> Head {
        self.heads().into_iter().find(|h| *h != Head::Ctc).unwrap_or(Head::Rnnt)
    }

    /// The prompt of one item, one-hot; empty for a model that takes none.
    pub(crate) fn prompt_row(&self, options: &RecogniseOptions) -> Result<Vec<f32>, SpeechError> {
        let prompt = self.prompt_index(options)?;
        let Some(((_, index), config)) = prompt.zip(self.model.config().prompt.as_ref()) else {
            return Ok(Vec::new());
        };
        let mut row = vec![0.0; config.num_prompts];
        if let Some(hot) = row.get_mut(index) {
            *hot = 1.0;
        }
        Ok(row)
    }

    /// The device it runs on; what that one does not take, the CPU does.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Samples per second of the clips that it takes.
    pub fn sample_rate(&self) -> u32 {
        self.log_mel.config().sample_rate
    }

    /// Seconds of an encoder frame: 0.08 for Parakeet.
    pub fn frame_seconds(&self) -> f64 {
        let config = self.log_mel.config();
        let samples = config.hop_length * self.model.config().subsampling_factor;
        samples as f64 / f64::from(config.sample_rate)
    }

    /// The decoders that the model has.
    pub fn heads(&self) -> Vec<Head> {
        let config = self.model.config();
        let transducer =
            config.transducer.as_ref().map(|t| if t.durations.is_empty() { Head::Rnnt } else { Head::Tdt });
        transducer.into_iter().chain(config.ctc_head.map(|_| Head::Ctc)).collect()
    }

    /// The head that `decoder` means for this model.
    ///
    /// # Errors
    /// [`SpeechError::NoDecoder`].
    pub fn head(&self, decoder: Decoder) -> Result<Head, SpeechError> {
        let heads = self.heads();
        let (wanted, name) = match decoder {
            Decoder::Auto => (heads.first().copied(), "auto"),
            Decoder::Ctc => (Some(Head::Ctc), "ctc"),
            Decoder::Rnnt => (Some(Head::Rnnt), "rnnt"),
            Decoder::Tdt => (Some(Head::Tdt), "tdt"),
        };
        wanted.filter(|head| heads.contains(head)).ok_or_else(|| SpeechError::NoDecoder {
            model: self.name.clone(),
            wanted: name,
            known: heads.iter().map(|h| h.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The language that `options` come to: `None` if the model is told none.
    ///
    /// # Errors
    /// [`SpeechError::Language`].
    pub fn language(&self, options: &RecogniseOptions) -> Result<Option<String>, SpeechError> {
        Ok(self.prompt_index(options)?.map(|(language, _)| language))
    }

    fn prompt_index(&self, options: &RecogniseOptions) -> Result<Option<(String, usize)>, SpeechError> {
        let refuse = |wanted: &str, known: String| SpeechError::Language {
            model: self.name.clone(),
            wanted: wanted.to_owned(),
            known,
        };
        // A model that knows "auto" means something by it.
        let knows = |l: &str| self.model.config().prompt.as_ref().is_some_and(|p| p.index(Some(l)).is_some());
        let wanted = options.language.as_deref().filter(|l| !l.eq_ignore_ascii_case("auto") || knows(l));
        match (&self.model.config().prompt, wanted) {
            (None, None) => Ok(None),
            (None, Some(wanted)) => {
                Err(refuse(wanted, "it takes no language: leave the language out".into()))
            }
            (Some(prompt), wanted) => match prompt.index(wanted) {
                Some(index) => Ok(Some((wanted.unwrap_or(&prompt.default).to_owned(), index))),
                None => {
                    let known: Vec<&str> = prompt.dictionary.iter().map(|(k, _)| k.as_str()).collect();
                    Err(refuse(wanted.unwrap_or_default(), format!("it knows: {}", known.join(", "))))
                }
            },
        }
    }

    /// Recognises a clip: mono samples in -1 ..= 1 at [`Recogniser::sample_rate`].
    ///
    /// # Errors
    /// A decoder or language that the model has not, memory that cannot be had, cancellation.
    pub fn recognise(&self, samples: &[f32], options: &RecogniseOptions) -> Result<Recognition, SpeechError> {
        let mut all = self.recognise_batch(&[samples], options)?;
        all.pop().ok_or(SpeechError::Cancelled)
    }

    /// Recognises clips together: each is padded to the longest and the padding masked, so that a clip's result is the
    /// same in any company.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn recognise_batch(
        &self,
        clips: &[&[f32]],
        options: &RecogniseOptions,
    ) -> Result<Vec<Recognition>, SpeechError> {
        let seconds = clips.iter().map(|c| self.seconds(c)).sum();
        let reporter = options.progress.as_ref().map(|p| Arc::new(p.recognising(seconds)));
        let results = self.recognise_part(clips, options, reporter.as_ref().map(|r| (r, 0.0, 1.0)))?;
        if let Some(reporter) = reporter {
            reporter.finish();
        }
        Ok(results)
    }

    /// Length of a clip.
    pub(crate) fn seconds(&self, clip: &[f32]) -> f64 {
        clip.len() as f64 / f64::from(self.sample_rate())
    }

    /// Recognises clips that are a part of a job: where in it they begin, and how much of it they are.
    pub(crate) fn recognise_part(
        &self,
        clips: &[&[f32]],
        options: &RecogniseOptions,
        job: Option<(&Arc<Reporter>, f64, f64)>,
    ) -> Result<Vec<Recognition>, SpeechError> {
        if clips.is_empty() {
            return Ok(Vec::new());
        }
        let head = self.head(options.decoder)?;
        let part = job.map(|(reporter, begin, share)| Part::new(reporter, begin, share, head == Head::Ctc));
        let mut worker = self.take_worker()?;
        let watch = Watching { part: part.as_ref(), observer: None };
        let encoded = self.encode(&mut worker, clips, options, &[head.capture()], watch)?;
        let results = self.decode(&mut worker, &encoded, head, options, watch)?;
        self.give_back(worker);
        Ok(results)
    }

    /// The named intermediates of a clip, frames first and valid frames only, in f32; see [`Recogniser::node_names`].
    ///
    /// # Errors
    /// As [`Recogniser::recognise`]; a name that the model has not.
    pub fn capture(
        &self,
        samples: &[f32],
        names: &[&str],
        options: &RecogniseOptions,
    ) -> Result<Vec<(String, Tensor)>, SpeechError> {
        let mut worker = self.take_worker()?;
        let joint = names.contains(&"joint.logits");
        if joint {
            self.model.joint()?;
        }
        let mut wanted: Vec<&str> =
            names.iter().copied().filter(|n| !["log_mel", "joint.logits"].contains(n)).collect();
        if joint && !wanted.contains(&"joint.enc") {
            wanted.push("joint.enc");
        }
        let encoded = self.encode(&mut worker, &[samples], options, &wanted, Watching::default())?;
        let mut captured = Vec::new();
        for &name in names {
            let tensor = match name {
                "log_mel" => first_rows(&worker.features_view()?, worker.features.valid)?,
                "joint.logits" => self.capture_joint(&mut worker, &encoded)?,
                node => {
                    let outputs = worker.encoders[encoded.session].1.outputs()?;
                    valid_part(&outputs.get(node)?, encoded.frames[0])?
                }
            };
            captured.push((name.to_owned(), tensor));
        }
        self.give_back(worker);
        Ok(captured)
    }

    /// The names that [`Recogniser::capture`] takes, in the order of the computation.
    ///
    /// # Errors
    /// If the encoder cannot be built.
    pub fn node_names(&self) -> Result<Vec<String>, SpeechError> {
        let encoder = self.model.encoder(Attention::Model)?;
        let mut names = vec!["log_mel".to_owned()];
        names.extend(
            encoder.graph().node_names().into_iter().filter(|n| *n != "encoder_lengths").map(str::to_owned),
        );
        if self.model.config().transducer.is_some() {
            names.push("joint.logits".into());
        }
        Ok(names)
    }

    /// Bytes that the arenas of idle sessions hold.
    pub fn arena_bytes(&self) -> usize {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.iter().map(Worker::arena_bytes).sum()
    }

    /// Gives the memory of idle sessions back.
    pub fn shrink(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.token_gates.clear();
    }

    pub(crate) fn transducer_session(&self) -> Result<TransducerSession, SpeechError> {
        Ok(TransducerSession::new(&self.model, &self.device, &self.cpu, &self.token_gates)?)
    }

    pub(crate) fn take_worker(&self) -> Result<Worker, SpeechError> {
        if let Some(worker) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(worker);
        }
        let transducer = match self.model.config().transducer {
            Some(_) => Some(self.transducer_session()?),
            None => None,
        };
        Ok(Worker {
            encoders: Vec::new(),
            transducer,
            features: Features::default(),
            scratch: self.log_mel.scratch(),
            batch: Vec::new(),
            lengths: Vec::new(),
            prompt: Vec::new(),
            features_took: Duration::ZERO,
        })
    }

    /// Keeps a worker for the next call. One whose run failed is dropped instead, so that nothing half done is reused.
    pub(crate) fn give_back(&self, worker: Worker) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
    }

    pub(crate) fn blank(&self) -> u32 {
        u32::try_from(self.model.config().blank_id).unwrap_or(u32::MAX)
    }

    /// Every row of logits of a greedy decoding, `[steps, V+1+durations]`.
    fn capture_joint(&self, worker: &mut Worker, encoded: &Encoded) -> Result<Tensor, SpeechError> {
        let transducer = worker.load_frames(encoded)?;
        transducer.start_record();
        self.decode_together(transducer, &encoded.frames, &Search::default(), &|_| true)?;
        let rows = transducer.take_record();
        let config = self.model.config();
        let width = config.vocab_size + 1 + config.transducer.as_ref().map_or(0, |t| t.durations.len());
        Tensor::from_slice(&[rows.len() / width, width], &rows).map_err(tensor_error)
    }
}
