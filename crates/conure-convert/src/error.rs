//! What can go wrong with a conversion. Every message names the file, the place in it, and what to do.

use crate::config::ConfigError;
use crate::safetensors::SafetensorsError;
use crate::tar::TarError;
use crate::tokenizer::TokenizerError;
use crate::torch::TorchError;
use std::io;
use std::path::PathBuf;

/// Why a conversion failed. No output file was made or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file could not be opened, read or written.
    #[error("{}: cannot {action}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The input is not a model that can be converted.
    #[error("{}: {reason}", .path.display())]
    Input {
        /// The input.
        path: PathBuf,
        /// What it is and what to give instead.
        reason: String,
    },
    /// The tar archive is refused.
    #[error("{}: {source}", .path.display())]
    Tar {
        /// The archive.
        path: PathBuf,
        /// What is wrong.
        source: TarError,
    },
    /// The PyTorch checkpoint is refused.
    #[error("{}: {member}: {source}", .path.display())]
    Torch {
        /// The archive or folder.
        path: PathBuf,
        /// The checkpoint in it.
        member: String,
        /// What is wrong.
        source: Box<TorchError>,
    },
    /// A safetensors file is refused.
    #[error("{}: {source}", .path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SafetensorsError,
    },
    /// A configuration cannot be used.
    #[error("{}: {member}: {source}", .path.display())]
    Config {
        /// The archive or folder.
        path: PathBuf,
        /// The configuration in it.
        member: String,
        /// What is wrong.
        source: ConfigError,
    },
    /// The tokenizer cannot be used.
    #[error("{}: {member}: {source}", .path.display())]
    Tokenizer {
        /// The archive or folder.
        path: PathBuf,
        /// The tokenizer in it.
        member: String,
        /// What is wrong.
        source: TokenizerError,
    },
    /// A tensor is missing or has another shape than the configuration asks for.
    #[error("{}: tensor `{tensor}`: {reason}", .path.display())]
    Tensor {
        /// The input.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// The GGUF file could not be read or written.
    #[error("{}: {reason}", .path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Nothing would change: no tensor can be stored in the type asked for.
    #[error("{}: nothing to do: {reason}", .path.display())]
    NothingToDo {
        /// The input.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// What the products of the model are made of could not be learnt.
    #[error("{}: cannot calibrate: {source}", .path.display())]
    Calibration {
        /// The model.
        path: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The progress callback asked to stop.
    #[error("the conversion was cancelled; no file was written")]
    Cancelled,
}
