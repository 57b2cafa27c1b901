//! Conversion without Python: NeMo archives (`.nemo`) and Hugging Face folders to GGUF, and GGUF to another type.
//!
//! ```text
//! .nemo       gzip? ─▶ tar ─▶ yaml, tokenizer.model, zip ─▶ pickle ─▶ tensors ─┐
//! folder      config.json, tokenizer.json, safetensors ───────────▶ tensors ─┤─▶ schema ─▶ GGUF
//! Silero VAD  safetensors or ONNX ─────────────────────────────────▶ tensors ─┤
//! .gguf       metadata as it is ──────────────────────────────────▶ tensors ─┘
//! ```
//!
//! Every reader here only makes data: nothing in an input is run, imported, or unpacked under a name of its own, and
//! every length is held to the file's before memory is taken. One tensor is in memory at a time. The output appears
//! when it is complete, or not at all.
//!
//! [`convert`] does it all, and [`quantise`] stores a GGUF file's weights in a smaller type; the modules are public for those who want a part.

mod calibrate;
pub mod config;
mod convert;
mod dequantise;
pub mod error;
pub mod gzip;
mod hf;
mod language;
pub mod mel;
mod nemo;
pub mod onnx;
pub mod pickle;
pub mod prepared;
mod quantise;
mod requantise;
mod rounding;
pub mod safetensors;
pub mod schema;
pub mod section;
mod silero;
pub mod source;
pub mod tar;
pub mod tokenizer;
pub mod torch;

pub use calibrate::{Calibrated, OnMoments, ProductError};
pub use convert::{ConvertOptions, ConvertReport, OnProgress, Progress, convert, prepare};
pub use error::ConvertError;
pub use quantise::TargetType;
pub use requantise::{QuantiseOptions, QuantiseReport, TensorChange, quantise};

use section::Section;
use std::path::Path;

/// Opens a regular file; a pipe or device, which could block for ever, is refused before it is opened.
pub(crate) fn open(path: &Path) -> Result<Section, ConvertError> {
    let io = |action| move |source| ConvertError::Io { path: path.to_owned(), action, source };
    let meta = std::fs::metadata(path).map_err(io("open it"))?;
    if !meta.is_file() {
        return Err(ConvertError::Input {
            path: path.into(),
            reason: "it is no regular file (but a folder, pipe or device)".into(),
        });
    }
    Section::of_file(std::fs::File::open(path).map_err(io("open it"))?).map_err(io("read it"))
}
