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
    /// There is no chat template.
    #[error(
        "{origin}: the file has no chat template (tokenizer.chat_template); name one: {known}, or a file with one"
    )]
    NoTemplate {
        /// The file.
        origin: String,
        /// The templates that are known by name.
        known: String,
    },
    /// A chat template is broken, or refuses the messages.
    #[error("the chat template failed: {reason}{}", line.as_ref().map_or(String::new(), |l| format!("; at: {l}")))]
    Template {
        /// What it said.
        reason: String,
        /// The line of the template.
        line: Option<String>,
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
