//! Speech models: loaded once, used by any number of threads.

use crate::audio::{AudioOptions, AudioSource, Blocks, Recording, Samples, read};
use crate::error::Error;
use crate::info::ModelInfo;
use crate::many::placed;
use conure_device::map::MappedFile;
use conure_device::store::Store as CompiledModels;
use conure_gguf::GgufFile;
use conure_graph::openvino::{Notices, OpenVinoOptions, OpenVinoPrecision};
use conure_graph::{Compilations, Device, Passes, Registry};
use conure_kernels::{Cpu, Precision, ThreadBudget};
use conure_speech::result::Transcript;
use conure_speech::{
    HotWords, RecogniseOptions, Recogniser, SpeechError, Stream, StreamOptions, TranscribeOptions, shift,
};
use conure_tensor::Tensor;
use std::path::Path;
use std::sync::Arc;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The device, as [`crate::devices`] names it; `None`: what `CONURE_DEVICE`, else `PARAKEET_DEVICE` names; those unset,
    /// or `auto`: the best there is.
    pub device: Option<String>,
    /// Threads to compute with, the caller's among them; `None`, or more than that: as many as the budget has.
    pub threads: Option<usize>,
    /// Where the threads come from: models that are loaded with clones of one budget never start more than that together. By
    /// default one of their own, of as many threads as the process may use.
    pub budget: ThreadBudget,
    /// Whether the file is read into memory instead of mapped: for files on a network share that may go away.
    pub no_mmap: bool,
    /// Rewrites of the model's graphs: all of them by default. Results are the same within rounding.
    pub passes: Passes,
    /// How products with quantised weights are computed: exactly by default. Of no account for f32, f16 and bf16 weights.
    pub precision: Precision,
    /// How devices that compile models deal with memory.
    pub memory: MemoryOptions,
    /// In which form such devices run models.
    pub forms: DeviceForms,
    /// Whether such devices keep what each of their kernels takes, for [`SpeechModel::profile`].
    pub profiling: bool,
    /// Who is told what a user may want to know while the model is made ready.
    pub notices: Notices,
}

/// How devices that compile models deal with memory. What is not set here is as the environment says; see
/// `docs/openvino.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Spares memory at the cost of time: sets both of the others that are not set themselves.
    pub optimize: bool,
    /// Whether compiling needs less memory at its peak.
    pub reduce_compile_mem: Option<bool>,
    /// Whether the memory of weights that the device has copied is given back.
    pub release_weights: Option<bool>,
}

/// In which form devices that compile models run them. What is not set here is as the environment says, else as is fastest; see
/// `docs/openvino.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceForms {
    /// Whether the device keeps a language model's keys and values in states of its own, beside the session's.
    pub stateful: Option<bool>,
    /// Whether models have fixed lengths, one for each of a few, to which runs are padded.
    pub fixed: Option<bool>,
    /// Rows of such a model: tokens of a prompt that are read at once, and the least frames of audio.
    pub prefill_chunk: Option<usize>,
}

/// A speech-recognition model, ready to transcribe.
///
/// It can be shared by threads: each call takes buffers of its own, and the weights are in memory once.
///
/// ```
/// use conure::{AudioSource, SpeechModel, TranscribeOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
/// let model = SpeechModel::embedded(&Default::default())?; // or SpeechModel::load("model.gguf")?
/// let transcript = model.transcribe_file(AudioSource::path(clip), &Default::default(), &TranscribeOptions::default())?;
/// assert!(!transcript.text.is_empty());
/// for word in transcript.segments.iter().flat_map(|s| &s.words) {
///     println!("{:6.2} {:6.2} {}", word.start, word.end, word.word);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SpeechModel {
    recogniser: Arc<Recogniser>,
    info: ModelInfo,
}

impl SpeechModel {
    /// The model in the GGUF file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read or is no speech model, with what is missing or does not fit.
    pub fn load(path: impl AsRef<Path>) -> Result<SpeechModel, Error> {
        SpeechModel::load_with(path, &LoadOptions::default())
    }

    /// As [`SpeechModel::load`], on a device and with as many threads as `options` say.
    ///
    /// # Errors
    /// As [`SpeechModel::load`], and a device that is not there.
    pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<SpeechModel, Error> {
        let path = path.as_ref();
        let file = open(path, options)?;
        SpeechModel::from_file(file, &path.display().to_string(), options)
    }

    /// The model that is part of this library: small, English, for first steps; not a good general recogniser.
    ///
    /// # Errors
    /// [`Error::NoEmbeddedModel`] in a build without it, and a device that is not there.
    pub fn embedded(options: &LoadOptions) -> Result<SpeechModel, Error> {
        let bytes = crate::embedded::MODEL.ok_or(Error::NoEmbeddedModel)?;
        let map = MappedFile::from_static(bytes).map_err(conure_gguf::GgufError::from)?;
        SpeechModel::from_file(GgufFile::from_map(Arc::new(map))?, "embedded", options)
    }

    fn from_file(file: GgufFile, name: &str, options: &LoadOptions) -> Result<SpeechModel, Error> {
        let (device, cpu) = hardware(options)?;
        let file = Arc::new(file);
        let passes = options.passes.for_device(&device);
        let recogniser = Arc::new(Recogniser::load(file.clone(), name, device, cpu, &passes)?);
        let decoders = recogniser.heads().iter().map(|h| h.name().to_owned()).collect();
        let info = ModelInfo::new(&file, name, recogniser.model().config(), decoders);
        Ok(SpeechModel { recogniser, info })
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// How many parts of the model the device compiled so far, and how many came from its cache; none on the CPU.
    pub fn compilations(&self) -> Compilations {
        self.recogniser.device().compilations()
    }

    /// Samples per second that the model takes; recordings of other rates are resampled.
    pub fn sample_rate(&self) -> u32 {
        self.recogniser.sample_rate()
    }

    /// Transcribes samples.
    ///
    /// # Errors
    /// Samples that make no sense; a decoder or language that the model has not; memory that cannot be had;
    /// cancellation.
    pub fn transcribe(&self, samples: Samples<'_>, options: &TranscribeOptions) -> Result<Transcript, Error> {
        Ok(self.recogniser.transcribe(&samples.at(self.sample_rate())?, options)?)
    }

    /// Transcribes a recording: a file, a pipe, or bytes in memory, of any format that Conure reads.
    ///
    /// However long it is, no more of it is in memory than [`TranscribeOptions::window`] says. It can be watched, and stopped:
    ///
    /// ```
    /// use conure::{AudioSource, OnProgress, SpeechModel, TranscribeOptions};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
    /// let model = SpeechModel::embedded(&Default::default())?;
    /// let cancel = Arc::new(AtomicBool::new(false));
    /// let mut options = TranscribeOptions::default();
    /// options.recognise.cancel = Some(cancel.clone());
    /// options.recognise.progress = Some(OnProgress::new(move |progress| {
    ///     println!("{}: {:.0} %", progress.stage, progress.fraction * 100.0);
    ///     if progress.seconds > 600.0 {
    ///         cancel.store(true, Ordering::Relaxed); // ten minutes are enough
    ///     }
    /// }));
    /// let transcript = model.transcribe_file(AudioSource::path(clip), &Default::default(), &options)?;
    /// # assert!(!transcript.text.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`], and what cannot be read.
    pub fn transcribe_file(
        &self,
        source: AudioSource,
        audio: &AudioOptions,
        options: &TranscribeOptions,
    ) -> Result<Transcript, Error> {
        if audio.speakers {
            return self.transcribe_speakers(&source, audio, options);
        }
        let mut blocks = Blocks::open(source, self.sample_rate(), audio)?;
        let expected = blocks.expected_seconds();
        let mut transcript =
            self.recogniser.transcribe_pieces(expected, |samples| blocks.next(samples), options)?;
        shift(&mut transcript, blocks.start());
        transcript.warnings.extend(blocks.warnings().iter().map(ToString::to_string));
        Ok(transcript)
    }

    /// Reads a recording as this model takes it.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn read(&self, source: AudioSource, options: &AudioOptions) -> Result<Recording, Error> {
        read(source, self.sample_rate(), options)
    }

    /// Transcribes a recording that [`SpeechModel::read`] gave. Times count from the start of its file.
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`].
    pub fn transcribe_recording(
        &self,
        recording: &Recording,
        options: &TranscribeOptions,
    ) -> Result<Transcript, Error> {
        let samples = Samples::mono(&recording.samples, recording.sample_rate);
        let transcript = if recording.sample_rate == self.sample_rate() {
            self.recogniser.transcribe(&recording.samples, options)?
        } else {
            self.transcribe(samples, options)?
        };
        Ok(placed(transcript, recording))
    }

    /// Transcribes many clips; the results are in their order, and the same as of each alone.
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`].
    pub fn transcribe_batch(
        &self,
        clips: &[Samples<'_>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>, Error> {
        let clips = clips.iter().map(|c| c.at(self.sample_rate())).collect::<Result<Vec<_>, _>>()?;
        let clips: Vec<&[f32]> = clips.iter().map(Vec::as_slice).collect();
        Ok(self.recogniser.transcribe_batch(&clips, options)?)
    }

    /// Phrases that decoding is to prefer, each with its weight in nats a character, such as 0.5. Preferred is one
    /// word over another, never a word over none, so that no phrase appears in silence.
    ///
    /// ```
    /// use conure::{RecogniseOptions, Search, SpeechModel, TranscribeOptions};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = SpeechModel::embedded(&Default::default())?;
    /// let hot_words = Some(model.hot_words([("conure", 0.5), ("new york", 1.0)])?);
    /// let search = Search { beam: 4, hot_words, ..Search::default() };
    /// let recognise = RecogniseOptions { search, ..Default::default() };
    /// let options = TranscribeOptions { recognise, ..Default::default() };
    /// # let _ = options;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Phrases that the model cannot write, weights that are none.
    pub fn hot_words<'a>(
        &self,
        phrases: impl IntoIterator<Item = (&'a str, f32)>,
    ) -> Result<Arc<HotWords>, Error> {
        Ok(Arc::new(self.recogniser.hot_words(phrases)?))
    }

    /// Named intermediates of the model on samples, in f32, frames first: `log_mel`, `subsampling`,
    /// `encoder.layers.N`, `encoder`, `ctc.log_probs`, `joint.logits` and more; see [`SpeechModel::node_names`].
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`]; a name that the model has not.
    pub fn capture(
        &self,
        samples: Samples<'_>,
        names: &[&str],
        options: &RecogniseOptions,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        Ok(self.recogniser.capture(&samples.at(self.sample_rate())?, names, options)?)
    }

    /// The names that [`SpeechModel::capture`] takes, in the order of the computation.
    ///
    /// # Errors
    /// If the graph cannot be built.
    pub fn node_names(&self) -> Result<Vec<String>, Error> {
        Ok(self.recogniser.node_names()?)
    }

    /// Begins a stream of mono samples at [`SpeechModel::sample_rate`], for models trained for it: words come as they are
    /// spoken.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let microphone = std::iter::empty::<Vec<f32>>();
    /// let model = conure::SpeechModel::load("parakeet_realtime_eou_120m.gguf")?;
    /// let mut stream = model.stream(Default::default())?;
    /// for samples in microphone {
    ///     for word in stream.feed(&samples)?.words {
    ///         print!("{} ", word.word);
    ///     }
    /// }
    /// stream.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A look-ahead, a window or a language that the model cannot have.
    pub fn stream(&self, options: StreamOptions) -> Result<Stream, Error> {
        Ok(self.recogniser.stream(options)?)
    }

    /// The parts of the model, for programs that put them together in their own way.
    pub fn recogniser(&self) -> &Recogniser {
        &self.recogniser
    }
}

/// The models that devices compiled and keep for the next start, where the environment says that they are kept; `None` if it
/// says that none are.
///
/// # Errors
/// [`Error::Variable`] for a variable whose value makes no sense.
pub fn compiled_models() -> Result<Option<CompiledModels>, Error> {
    Ok(OpenVinoOptions::from_env()?.cache)
}

/// The GGUF file at `path`, mapped or read.
pub(crate) fn open(path: &Path, options: &LoadOptions) -> Result<GgufFile, Error> {
    if options.no_mmap {
        let read = MappedFile::read(path).map_err(conure_gguf::GgufError::from)?;
        return Ok(GgufFile::from_map(Arc::new(read))?);
    }
    Ok(GgufFile::open(path)?)
}

/// The device and the threads that `options` ask for.
pub(crate) fn hardware(options: &LoadOptions) -> Result<(Device, Arc<Cpu>), Error> {
    let cpu = Cpu::within(&options.budget, options.threads).map_err(SpeechError::from)?;
    let cpu = Arc::new(cpu.with_precision(options.precision));
    let (set, memory) = (OpenVinoOptions::from_env()?, options.memory);
    let mut openvino = OpenVinoOptions {
        threads: Some(cpu.threads().count()),
        profiling: set.profiling || options.profiling,
        memory_optimize: set.memory_optimize || memory.optimize,
        reduce_compile_mem: memory.reduce_compile_mem.or(set.reduce_compile_mem),
        release_weights: memory.release_weights.or(set.release_weights),
        stateful: options.forms.stateful.or(set.stateful),
        fixed: options.forms.fixed.or(set.fixed),
        prefill_chunk: options.forms.prefill_chunk.or(set.prefill_chunk),
        notices: options.notices.clone(),
        ..set
    };
    // There `fast` has one scale for each output already.
    if options.precision != Precision::Exact {
        openvino.precision = OpenVinoPrecision::Fast;
    }
    let device = Registry::probe_with(openvino).pick(options.device.as_deref())?;
    Ok((device, cpu))
}
