//! Text from tokens, and tokens from text.
//!
//! A Parakeet model file stores its SentencePiece pieces and nothing else of the tokenizer, which is all that
//! turning token ids into text needs: [`Vocabulary`]. Language models also go the other way: [`Tokenizer`].

mod date;
mod error;
mod template;
mod tokenizer;
mod unicode_punctuation;
mod vocabulary;

pub use error::TextError;
pub use template::{ChatTemplate, Message};
pub use tokenizer::{Kind, TextStream, Tokenizer};
pub use unicode_punctuation::is_punctuation;
pub use vocabulary::Vocabulary;
