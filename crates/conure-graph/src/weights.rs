//! Where weights come from, and the packed forms made of them.

use crate::error::GraphError;
use conure_device::map::MappedFile;
use conure_kernels::Isa;
use conure_ops::{OpError, Packed};
use conure_tensor::{DType, Dims, TensorView};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A weight as its source describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Its number in the source.
    pub index: usize,
    /// Element type.
    pub dtype: DType,
    /// Lengths, slowest axis first.
    pub shape: Vec<usize>,
}

/// Where weights come from: usually a mapped file, sometimes another program's memory.
pub trait WeightSource: Send + Sync {
    /// What messages call it: the path of the file.
    fn origin(&self) -> &str;
    /// The weight of this name.
    fn find(&self, name: &str) -> Option<WeightInfo>;
    /// The bytes of weight `index`; empty if there is none.
    fn bytes(&self, index: usize) -> &[u8];
    /// Says that the bytes of weight `index` are not needed soon: a mapped file gives its pages back. They can still
    /// be read.
    fn release(&self, index: usize);
    /// The file that all weights lie in, numbered in the order that its own header gives them; `None` if there is no such
    /// file. What was made of the weights can then be found again at the next start.
    fn file(&self) -> Option<&MappedFile> {
        None
    }
}

/// Which packed form of a weight: the layout, the shape in which the kernel sees the weight (a graph may look at one weight in
/// several), the instruction set, and whether matrices are those of [`Precision::Int8`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub key: &'static str,
    pub dims: Dims,
    pub isa: Isa,
    pub int8: bool,
}

/// The weights of one model, shared by its graphs and by all sessions: the source, and each packed form once.
pub struct Weights {
    source: Arc<dyn WeightSource>,
    packed: Mutex<HashMap<(usize, Form), Packed>>,
    identity: OnceLock<String>,
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("origin", &self.source.origin()).finish_non_exhaustive()
    }
}

impl Weights {
    /// The weights of `source`.
    pub fn new(source: Arc<dyn WeightSource>) -> Arc<Weights> {
        Arc::new(Weights { source, packed: Mutex::new(HashMap::new()), identity: OnceLock::new() })
    }

    /// The same weights for one look at them: what is packed goes with it, and no pages are given back.
    pub(crate) fn borrowed(&self) -> Arc<Weights> {
        Weights::new(Arc::new(Borrowed(self.source.clone())))
    }

    /// What tells the file's bytes from those of others, as `find` found out the first time.
    pub(crate) fn identity(&self, find: impl FnOnce(&MappedFile) -> String) -> Option<&str> {
        let file = self.source.file()?;
        Some(self.identity.get_or_init(|| find(file)))
    }

    /// What messages call the source.
    pub fn origin(&self) -> &str {
        self.source.origin()
    }

    /// The weight of this name.
    pub fn find(&self, name: &str) -> Option<WeightInfo> {
        self.source.find(name)
    }

    /// The weight of this name.
    ///
    /// # Errors
    /// [`GraphError::MissingWeight`].
    pub fn get(&self, name: &str) -> Result<WeightInfo, GraphError> {
        self.find(name)
            .ok_or_else(|| GraphError::MissingWeight { origin: self.origin().into(), name: name.into() })
    }

    /// The bytes of a weight.
    pub fn bytes(&self, index: usize) -> &[u8] {
        self.source.bytes(index)
    }

    /// Says that the bytes of a weight are not needed soon; they can still be read.
    pub(crate) fn release(&self, index: usize) {
        self.source.release(index);
    }

    /// The packed `form` of weight `index`, made with `pack` the first time.
    ///
    /// The pages of a mapped source are given back afterwards, so that the weight is resident once.
    ///
    /// # Errors
    /// What `pack` says.
    pub(crate) fn packed(
        &self,
        index: usize,
        form: Form,
        pack: impl FnOnce(&[u8]) -> Result<Packed, OpError>,
    ) -> Result<Packed, OpError> {
        // The lock is held while packing: two sessions that start at once must not both pack.
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (index, form);
        if let Some(p) = packed.get(&key) {
            return Ok(p.clone());
        }
        let p = pack(self.source.bytes(index))?;
        self.source.release(index);
        packed.insert(key, p.clone());
        Ok(p)
    }
}

/// A source whose pages stay as they are.
struct Borrowed(Arc<dyn WeightSource>);

impl WeightSource for Borrowed {
    fn origin(&self) -> &str {
        self.0.origin()
    }

    fn find(&self, name: &str) -> Option<WeightInfo> {
        self.0.find(name)
    }

    fn bytes(&self, index: usize) -> &[u8] {
        self.0.bytes(index)
    }

    fn release(&self, _index: usize) {}
}

/// Weights in memory, for tests and for graphs made by hand.
#[derive(Debug, Default)]
pub struct MemoryWeights {
    tensors: Vec<(String, conure_tensor::Tensor)>,
}

impl MemoryWeights {
    /// No weights.
    pub fn new() -> MemoryWeights {
        MemoryWeights::default()
    }

    /// Adds a weight.
    pub fn with(mut self, name: &str, tensor: conure_tensor::Tensor) -> MemoryWeights {
        self.tensors.push((name.to_owned(), tensor));
        self
    }
}

impl WeightSource for MemoryWeights {
    fn origin(&self) -> &str {
        "memory"
    }

    fn find(&self, name: &str) -> Option<WeightInfo> {
        let index = self.tensors.iter().position(|(n, _)| n == name)?;
        let t = &self.tensors[index].1;
        Some(WeightInfo { index, dtype: t.dtype(), shape: t.shape().to_vec() })
    }

    fn bytes(&self, index: usize) -> &[u8] {
        self.tensors.get(index).map_or(&[], |(_, t)| TensorView::bytes(&t.view()))
    }

    fn release(&self, _index: usize) {}
}
