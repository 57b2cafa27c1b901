//! What a caller asks of a recogniser.

use crate::decode::Search;
use crate::progress::OnProgress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which decoder is to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decoder {
    /// The transducer if the model has one, else CTC.
    #[default]
    Auto,
    /// Connectionist temporal classification.
    Ctc,
    /// A transducer without durations.
    Rnnt,
    /// A token-and-duration transducer.
    Tdt,
}

/// How clips are recognised.
#[derive(Clone, Debug, Default)]
pub struct RecogniseOptions {
    /// The decoder.
    pub decoder: Decoder,
    /// The language, for models that are told it; `None` or `auto`: the model's default.
    pub language: Option<String>,
    /// Encoder frames that attention sees to each side; `None`: as the model was trained.
    pub local_attention: Option<usize>,
    /// How tokens are searched for: greedily by default. Streams are always decoded greedily, without hot words.
    pub search: Search,
    /// Ends the run soon after it is set, with [`crate::SpeechError::Cancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
    /// Told how far the work is.
    pub progress: Option<OnProgress>,
}

impl RecogniseOptions {
    /// Whether [`RecogniseOptions::cancel`] is set.
    pub fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }
}
