//! Why a model cannot be loaded, or cannot go on.

use conure_graph::GraphError;
use conure_kernels::KernelError;
use conure_models::ModelError;
use conure_text::TextError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum LanguageError {
    /// The file, or the graph of the model in it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The compute threads.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The tokenizer and the model do not belong together.
    #[error("{origin}: tokenizer.ggml.tokens has {tokens} tokens, but token_embd.weight {rows} rows")]
    Vocabulary {
        /// The file.
        origin: String,
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// There is nothing to continue.
    #[error("the prompt has no tokens, and this model's texts begin with none; give a text")]
    EmptyPrompt,
    /// The context cannot hold the tokens.
    #[error(
        "{tokens} tokens do not fit in a context of {context}; shorten the text, or ask for a longer context (this model \
         was trained for {trained})"
    )]
    ContextFull {
        /// Tokens that there would be.
        tokens: usize,
        /// Tokens that there is room for.
        context: usize,
        /// Tokens that the model was trained for.
        trained: usize,
    },
    /// A token that the model does not know.
    #[error("token {id} is outside the vocabulary of {tokens}")]
    UnknownToken {
        /// Its number.
        id: u32,
        /// How many there are.
        tokens: usize,
    },
    /// An option makes no sense.
    #[error("{option} is {found}, expected {expected}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A grammar cannot be used, or not be kept within.
    #[error("the grammar cannot be used: {reason}")]
    Grammar {
        /// Why.
        reason: String,
    },
    /// The model computed what is no number.
    #[error(
        "the logits after token {position} are no numbers; the file may be damaged, or its weights too large for their type"
    )]
    NotFinite {
        /// The position.
        position: usize,
    },
    /// Perplexity of too short a text.
    #[error("the text has {tokens} tokens; {needed} are needed to measure its perplexity")]
    TooShort {
        /// Its tokens.
        tokens: usize,
        /// Tokens needed.
        needed: usize,
    },
}
