//! Why something did not work.

use crate::calibrate::CalibrationError;
use conure_audio::error::AudioError;
use conure_gguf::GgufError;
use conure_graph::openvino::VariableError;
use conure_graph::{GraphError, NoSuchDevice};
use conure_language::LanguageError;
use conure_speech::SpeechError;

/// Why a model could not be loaded or a recording not be transcribed. Messages say what, where, what was expected, and
/// what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The recording.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// The model, or a run of it.
    #[error(transparent)]
    Speech(#[from] SpeechError),
    /// A graph that is not of a model.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The language model, its tokenizer, or a run of it.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// The device.
    #[error(transparent)]
    Device(#[from] NoSuchDevice),
    /// A variable of the environment.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// Something about the samples that a caller gave.
    #[error("{0}")]
    Samples(String),
    /// The part of the recording that was asked for is not in it.
    #[error("{name}: the recording is {seconds:.2} s long, so that nothing starts at {start:.2} s")]
    PastTheEnd {
        /// The recording.
        name: String,
        /// Its length.
        seconds: f64,
        /// The start asked for.
        start: f64,
    },
    /// What a model's products are made of could not be learnt.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// Something panicked, which is a fault of this library; the rest of the work goes on.
    #[error("a fault in this program; please report it, with the recording")]
    Fault,
    /// This build holds no model.
    #[error("this build has no embedded model; name a model file")]
    NoEmbeddedModel,
}

impl Error {
    /// Whether the caller asked to stop, rather than something going wrong.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Speech(e) => e.is_cancelled(),
            Error::Graph(e) => matches!(e, GraphError::Cancelled),
            Error::Language(e) => matches!(e, LanguageError::Graph(GraphError::Cancelled)),
            _ => false,
        }
    }
}
