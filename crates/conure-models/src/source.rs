//! Weights from a GGUF file.

use conure_gguf::GgufFile;
use conure_graph::{WeightInfo, WeightSource};
use std::sync::Arc;

/// The tensors of a GGUF file as weights: read where the file is mapped, never copied.
#[derive(Debug)]
pub struct GgufWeights {
    file: Arc<GgufFile>,
    origin: String,
}

impl GgufWeights {
    /// The tensors of `file`, which messages call `origin`.
    pub fn new(file: Arc<GgufFile>, origin: &str) -> GgufWeights {
        GgufWeights { file, origin: origin.to_owned() }
    }
}

impl WeightSource for GgufWeights {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn find(&self, name: &str) -> Option<WeightInfo> {
        let index = self.file.tensor_index(name)?;
        let info = self.file.tensors().get(index)?;
        // A type that Conure has no kernels for is as good as missing; the reader names it in its own error.
        Some(WeightInfo { index, dtype: info.dtype()?, shape: info.shape().to_vec() })
    }

    fn bytes(&self, index: usize) -> &[u8] {
        self.file.tensor_bytes(index)
    }

    fn release(&self, index: usize) {
        self.file.release_tensor(index);
    }
}
