//! Weights from a GGUF file.

use conure_device::map::MappedFile;
use conure_gguf::GgufFile;
use conure_graph::{WeightInfo, WeightSource};
use std::collections::HashMap;
use std::sync::Arc;

/// The tensors of a GGUF file as weights: read where the file is mapped, never copied.
#[derive(Debug)]
pub struct GgufWeights {
    file: Arc<GgufFile>,
    origin: String,
    index: HashMap<String, usize>,
}

impl GgufWeights {
    /// The tensors of `file`, which messages call `origin`.
    pub fn new(file: Arc<GgufFile>, origin: &str) -> GgufWeights {
        let index = file.tensors().iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        GgufWeights { file, origin: origin.to_owned(), index }
    }
}

impl WeightSource for GgufWeights {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn find(&self, name: &str) -> Option<WeightInfo> {
        let &index = self.index.get(name)?;
        let info = self.file.tensors().get(index)?;
        Some(WeightInfo { index, dtype: info.ty.dtype()?, shape: info.shape.clone() })
    }

    fn bytes(&self, index: usize) -> &[u8] {
        let range = self.file.tensors().get(index).map(|t| t.range.clone()).unwrap_or_default();
        self.file.map().bytes().get(range).unwrap_or(&[])
    }

    fn release(&self, index: usize) {
        if let Some(tensor) = self.file.tensors().get(index) {
            self.file.map().release(tensor.range.clone());
        }
    }

    fn file(&self) -> Option<&MappedFile> {
        Some(self.file.map())
    }
}
