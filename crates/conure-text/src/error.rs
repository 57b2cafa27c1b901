//! Why a tokenizer cannot be made of a file, or a text cannot be tokenised.

use conure_gguf::GgufError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A key of the file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key has a value that makes no sense, or that contradicts another.
    #[error("{origin}: {key} is {found}, expected {expected}")]
    Key {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A character that no token can stand for: neither a token, nor tokens of its bytes.
    #[error("the vocabulary has no token for {0:?}, nor for its bytes")]
    NoToken(String),
    /// The pattern that cuts text into words gave up.
    #[error("the text could not be cut into words at byte {at} ({reason}); give it in parts")]
    Split {
        /// Where.
        at: usize,
        /// What it said.
        reason: String,
    },
}
