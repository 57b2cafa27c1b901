//! Why speech cannot be recognised.

use crate::decode::DecodeError;
use crate::decode::hot_words::HotWordError;
use conure_audio::log_mel::LogMelError;
use conure_graph::GraphError;
use conure_models::ModelError;

/// Why a model cannot be used for speech, or a clip not be recognised.
#[derive(Debug, thiserror::Error)]
pub enum SpeechError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A run of one of its graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The decoder.
    #[error(transparent)]
    Decode(DecodeError),
    /// Hot words that cannot be preferred.
    #[error(transparent)]
    HotWords(#[from] HotWordError),
    /// The front end that the model's file asks for.
    #[error("{origin}: {source}")]
    LogMel {
        /// The model's file.
        origin: String,
        /// What is wrong with it.
        #[source]
        source: LogMelError,
    },
    /// A tensor of the front end has a type it cannot have.
    #[error("{origin}: the tensor {name} is {found}, expected f32")]
    FrontEndType {
        /// The model's file.
        origin: String,
        /// Name of the tensor.
        name: &'static str,
        /// Its type.
        found: String,
    },
    /// The decoder asked for is not in the model.
    #[error(
        "the model {model} has no {wanted} decoder; it has: {known}. Leave the decoder out, or use another model"
    )]
    NoDecoder {
        /// The model.
        model: String,
        /// The decoder asked for.
        wanted: &'static str,
        /// The decoders there are.
        known: String,
    },
    /// A language was asked for that the model's prompt does not know, or the model takes none.
    #[error("the model {model} cannot be told the language {wanted:?}; {known}")]
    Language {
        /// The model.
        model: String,
        /// The language asked for.
        wanted: String,
        /// What could be asked for instead.
        known: String,
    },
    /// The window of local attention is no window.
    #[error("local attention over {0} frames makes no sense; use 1 or more, 128 is usual")]
    LocalAttention(usize),
    /// The window for long recordings is none.
    #[error(
        "a window of {seconds} s makes no sense; use 5 s or more, 60 to 300 is usual, or 0 for the whole recording at once"
    )]
    Window {
        /// What was asked for.
        seconds: f64,
    },
    /// A detector of speech takes another rate.
    #[error(
        "the model that detects speech takes {expected} Hz, not {found} Hz; detect speech by level (energy)"
    )]
    VadRate {
        /// The rate of the recording.
        found: u32,
        /// That of the model.
        expected: u32,
    },
    /// A detector of speech that decides on frames of another length.
    #[error(
        "{origin}: it decides on {samples} samples at a time, expected 512, as version 5 and later do at 16 kHz"
    )]
    VadChunk {
        /// The file.
        origin: String,
        /// Samples of its frames.
        samples: usize,
    },
    /// The CPU's kernels cannot be set up.
    #[error(transparent)]
    Kernel(#[from] conure_kernels::KernelError),
    /// The features of a clip do not fit in memory.
    #[error(
        "there is no memory for the {} MiB that the features of {seconds:.0} s of audio take; transcribe it in parts",
        bytes / (1 << 20)
    )]
    OutOfMemory {
        /// Bytes wanted.
        bytes: usize,
        /// Length of the clip, or of the longest of a batch.
        seconds: f64,
    },
    /// The encoder's intermediates for a clip do not fit in memory.
    #[error(
        "the encoder needs {} MiB for {seconds:.0} s of audio and they cannot be had; {}",
        bytes / (1 << 20), fits.map_or("transcribe it in shorter parts".to_owned(), |s| format!("parts of {s:.0} s would fit"))
    )]
    EncoderMemory {
        /// Bytes wanted.
        bytes: usize,
        /// Length of the clip, or of the longest of a batch.
        seconds: f64,
        /// What would fit now.
        fits: Option<f64>,
        /// What the graph said.
        #[source]
        source: GraphError,
    },
    /// An option of streams that is for models trained to stream.
    #[error(
        "{model}: {option} cannot be had of this model's streams: it was trained for whole recordings, of \
         which it hears the last seconds again and again"
    )]
    StreamOption {
        /// What messages call the model.
        model: String,
        /// What was asked for.
        option: &'static str,
    },
    /// A window of a stream that makes no sense.
    #[error("a stream cannot be heard in windows of {seconds} s: they are of 5 to 400 s")]
    StreamWindow {
        /// What was asked for.
        seconds: f64,
    },
    /// A sample of a stream is not a number.
    #[error("sample {at} of the stream is {value}; samples are numbers, best in -1 ..= 1")]
    StreamSample {
        /// Its number, from the start of the stream.
        at: usize,
        /// What it is.
        value: f32,
    },
    /// The stream was ended before.
    #[error("the stream is over: begin another one")]
    StreamOver,
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl From<DecodeError> for SpeechError {
    fn from(error: DecodeError) -> SpeechError {
        match error {
            DecodeError::Cancelled { .. } => SpeechError::Cancelled,
            other => SpeechError::Decode(other),
        }
    }
}

impl SpeechError {
    /// Whether the caller asked to stop, rather than something going wrong.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, SpeechError::Cancelled | SpeechError::Graph(GraphError::Cancelled))
    }
}
