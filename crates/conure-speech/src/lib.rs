//! From samples to transcripts: front end, encoder, greedy decoders, word times, output formats.

pub mod decode;
mod decoding;
mod encoding;
mod error;
pub mod format;
mod front_end;
mod long;
mod measure;
mod options;
pub mod progress;
mod recogniser;
pub mod result;
mod split;
mod stream;
pub mod timing;
mod token_gates;
mod transcribe;
mod transducer;
pub mod vad;
mod worker;

pub use decode::Search;
pub use decode::hot_words::{HotWordError, HotWords};
pub use error::SpeechError;
pub use long::{SHORTEST_WINDOW, WHOLE_SECONDS, WINDOW_SECONDS};
pub use measure::{BatchTimes, StageTimes};
pub use options::{Decoder, RecogniseOptions};
pub use progress::{OnProgress, Progress, Stage};
pub use recogniser::{Recogniser, Recognition};
pub use stream::{EndKind, STREAM_WINDOW_SECONDS, Stream, StreamEnd, StreamOptions, StreamUpdate};
pub use transcribe::{TranscribeOptions, shift};
pub use vad::{SileroVad, Vad, VadDetector};
