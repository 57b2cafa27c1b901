//! Text from tokens.
//!
//! A Parakeet model file stores its SentencePiece pieces and nothing else of the tokenizer, which is all that
//! turning token ids into text needs: [`Vocabulary`].

mod unicode_punctuation;
mod vocabulary;

pub use unicode_punctuation::is_punctuation;
pub use vocabulary::Vocabulary;
