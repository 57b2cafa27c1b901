//! Language models at work: a model, its tokenizer, and sessions that remember what they have read.
//!
//! [`LanguageModel::load`] reads a file; a [`LanguageSession`] keeps keys and values of the tokens so far;
//! [`LanguageSession::generate`] continues a prompt piece by piece.

mod batch;
mod error;
mod generate;
mod grammar;
mod model;
mod perplexity;
mod sampler;
mod session;
mod stops;

pub use batch::{BatchPiece, LanguageBatch};
pub use error::LanguageError;
pub use generate::{Finish, GenerateOptions, Generation, Piece, Timings};
pub use grammar::Grammar;
pub use model::{LanguageModel, SessionOptions};
pub use perplexity::{Perplexity, perplexity};
pub use sampler::Sampling;
pub use session::LanguageSession;
