//! How well a model foresees a text.

use crate::error::LanguageError;
use crate::sampler::log_probability;
use crate::session::LanguageSession;

/// Tokens whose logits are in memory at once: 64 rows of 262144 are 64 MiB.
const ROWS: usize = 64;

/// Perplexity of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Perplexity {
    /// The exponential of the mean surprise.
    pub perplexity: f64,
    /// The standard error of it.
    pub error: f64,
    /// The surprise of each scored token, in natural units.
    pub surprises: Vec<f64>,
    /// Chunks that the text was cut into.
    pub chunks: usize,
}

/// Perplexity of `ids` as llama.cpp measures it: in chunks of `chunk` tokens, each read from nothing, the second half of each
/// scored; what is left at the end is not used. If the model's texts begin with a BOS, it takes the place of the first token
/// of every chunk.
///
/// # Errors
/// A text of less than two chunks, a chunk that does not fit in the context; what reading says.
pub fn perplexity(
    session: &mut LanguageSession,
    ids: &[u32],
    chunk: usize,
) -> Result<Perplexity, LanguageError> {
    if chunk < 4 {
        let (option, found) = ("the chunk", chunk.to_string());
        return Err(LanguageError::Option { option, found, expected: "at least 4 tokens" });
    }
    if ids.len() < 2 * chunk {
        return Err(LanguageError::TooShort { tokens: ids.len(), needed: 2 * chunk });
    }
    let vocabulary = session.model().config().vocab_size;
    let tokenizer = session.model().tokenizer();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut surprises = Vec::new();
    let mut chunks = 0;
    for text in ids.chunks_exact(chunk) {
        let mut read = text.to_vec();
        read[0] = bos.unwrap_or(read[0]);
        session.rewind(0);
        session.read(&read[..chunk / 2])?;
        let mut at = chunk / 2;
        while at < chunk - 1 {
            let end = (at + ROWS).min(chunk - 1);
            let logits = session.read_all(&read[at..end])?;
            for (row, &next) in logits.chunks_exact(vocabulary).zip(&text[at + 1..]) {
                surprises.push(-f64::from(log_probability(row, next)));
            }
            at = end;
        }
        chunks += 1;
    }
    let count = surprises.len() as f64;
    let mean = surprises.iter().sum::<f64>() / count;
    let spread = surprises.iter().map(|s| s * s).sum::<f64>() / count - mean * mean;
    let perplexity = mean.exp();
    let error = perplexity * (spread.max(0.0) / (count - 1.0)).sqrt();
    Ok(Perplexity { perplexity, error, surprises, chunks })
}
