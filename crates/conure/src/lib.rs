//! Speech recognition with NVIDIA Parakeet models from one GGUF file, on whatever the machine has.
//!
//! [`SpeechModel`] is the way in: load a model, hand it a recording, get a [`Transcript`] with words and times. Models in
//! other formats are converted once, with the crate `conure-convert` or the command `conure convert`.

pub mod audio;
mod bench;
mod calibrate;
mod conv_bench;
mod embedded;
mod error;
mod info;
mod inspect;
mod language;
mod language_measure;
mod live;
mod many;
mod model;
mod process;
mod profile;
mod speakers;
mod vad;

pub use audio::{AudioOptions, AudioSource, Recording, Samples};
pub use bench::{BatchBench, Bench, Times, roofline};
pub use calibrate::{Calibration, CalibrationError, CalibrationOptions};
pub use conure_audio::decode::DecodeOptions;
pub use conure_audio::vad::SpanOptions;
pub use conure_device::new_file::NewFile;
pub use conure_device::start::stdout_was_closed;
pub use conure_device::store::{Entry as CompiledModel, Store as CompiledModels};
pub use conure_graph::openvino::Notices;
pub use conure_graph::{Compilations, DeviceInfo, Drawing, Passes, Placement, devices};
pub use conure_kernels::roofline::Roofline;
pub use conure_kernels::{Precision, ThreadBudget};
pub use conure_language::{
    BatchPiece, Finish, GenerateOptions, Generation, Grammar, LanguageBatch, LanguageError, LanguageSession,
    Perplexity, Piece, Sampling, SessionOptions, Timings, perplexity,
};
pub use conure_speech::result::{Alternative, Segment, TokenInfo, Transcript, Word};
pub use conure_speech::timing::Segmentation;
pub use conure_speech::{
    Decoder, EndKind, HotWords, OnProgress, Progress, RecogniseOptions, STREAM_WINDOW_SECONDS, Search, Stage,
    Stream, StreamEnd, StreamOptions, StreamUpdate, TranscribeOptions, Vad, WHOLE_SECONDS, WINDOW_SECONDS,
    format,
};
pub use conure_tensor::{DType, Tensor};
pub use conure_text::{ChatTemplate, Message, TextError, TextStream, Tokenizer};
pub use conv_bench::{ConvBench, ConvFigure, bench_convolutions};
pub use error::Error;
pub use info::{DtypeInfo, EncoderInfo, ModelInfo, PreprocessorInfo, TokenizerInfo, TransducerInfo};
pub use inspect::{Lengths, Part};
pub use language::{LanguageInfo, LanguageModel};
pub use language_measure::{LanguageBench, LanguageLengths, LanguageLoad, LanguageProfile};
pub use live::Heard;
pub use many::{FileClip, FilesEvent};
pub use model::{DeviceForms, LoadOptions, MemoryOptions, SpeechModel, compiled_models};
pub use process::{peak_memory, resident_memory};
pub use profile::{Profile, Share, Shares, TraceArgs, TraceEvent};
pub use vad::{DetectOptions, Detected, Span, detect_speech, load_vad};
