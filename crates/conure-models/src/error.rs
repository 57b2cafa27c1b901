//! Why a file cannot be used as a model.

use conure_gguf::GgufError;
use conure_graph::GraphError;

/// Why a file is not a model that Conure can run, or why a graph of it cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file's container or a key of it.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The graph of the model.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The file is a model of another family.
    #[error("{origin}: the architecture is {found:?}; {}", wanted(found, known))]
    Architecture {
        /// The file.
        origin: String,
        /// Value of `general.architecture`.
        found: String,
        /// Architectures that can be run.
        known: &'static str,
    },
    /// A key has a value that makes no sense, or that contradicts another.
    #[error("{origin}: {key} is {found}, expected {expected}")]
    Config {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor is missing, or there is one that the keys do not count.
    #[error("{origin}: tensor `{tensor}`: {why}; fetch or convert the model again")]
    Incomplete {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// What is wrong and how that is seen.
        why: String,
    },
    /// The model cannot hear a stream chunk by chunk.
    #[error(
        "{origin}: this model cannot stream, since {why}: it was trained for whole recordings; transcribe those with it, or take \
         a streaming model"
    )]
    NotStreaming {
        /// Where the model comes from.
        origin: String,
        /// What stands against it.
        why: &'static str,
    },
    /// A stream cannot look ahead so far.
    #[error("{origin}: this model cannot look ahead {right} frames; it can: {allowed}")]
    LookAhead {
        /// Where the model comes from.
        origin: String,
        /// The frames asked for.
        right: usize,
        /// The frames that it can, in words.
        allowed: String,
    },
    /// The model has not the part that was asked for.
    #[error("{origin}: the model has no {what}; it has: {known}")]
    NoSuchPart {
        /// The file.
        origin: String,
        /// The part.
        what: String,
        /// The parts there are.
        known: String,
    },
}

/// What to do with a model of the architecture `found` where one of `known` is needed.
fn wanted(found: &str, known: &str) -> String {
    if found == "parakeet" {
        "it is a speech model: transcribe with it (`conure transcribe`, `SpeechModel`)".to_owned()
    } else if found == crate::silero::ARCHITECTURE {
        "it detects speech: use it with `conure vad --vad` or `conure transcribe --vad`".to_owned()
    } else if crate::decoder::Decoder::knows(found) {
        "it is a language model: generate text with it (`conure generate`, `LanguageModel`)".to_owned()
    } else {
        format!("what can be run here: {known}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_another_kind_says_what_it_is_for() {
        for (found, part) in [
            ("parakeet", "transcribe"),
            ("gemma3", "generate"),
            ("silero_vad", "conure vad"),
            ("bert", "run here: x"),
        ] {
            let error = ModelError::Architecture { origin: "m".into(), found: found.into(), known: "x" };
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
