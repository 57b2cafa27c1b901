//! Model families, each in one file that reads like its paper, and the building blocks that papers name.
//!
//! A model file is configuration, weights, forward and tensor names. It knows no device, no batching policy, no cache
//! and no quantisation: it builds graphs.

mod conformer;
pub mod decoder;
mod error;
mod keys;
mod layers;
pub mod parakeet;
pub mod silero;
mod source;

pub use decoder::{CacheSpec, Decoder, DecoderConfig};
pub use error::ModelError;
pub use parakeet::{Attention, Parakeet, ParakeetConfig, StreamingConfig, TabulatedPredictor};
pub use silero::{Silero, SileroConfig};
pub use source::GgufWeights;
