//! GGUF, the file format of the models: read without copying, every length checked, and written.
//!
//! A file is a list of metadata (key, typed value) and a list of named tensors, then the tensors' bytes:
//!
//! ```text
//! "GGUF"  version u32  tensor count u64  metadata count u64
//! metadata   key: string   type u32   value
//! tensors    name: string  dims u32   lengths u64 each, fastest axis first   type u32   offset u64
//! padding to a multiple of `general.alignment` (32 if the key is missing)
//! data       each tensor at its offset from here, a multiple of the alignment
//! string = length u64, bytes;   array = element type u32, count u64, elements
//! ```
//!
//! All numbers are little endian. [`GgufFile`] reads versions 2 and 3, [`GgufWriter`] writes version 3. Shapes in
//! this crate are row-major, slowest axis first, the reverse of the file.
//!
//! Nothing in a file is trusted: see [`GgufFile`] for what is checked when it is opened.

mod cursor;
mod error;
mod meta;
mod reader;
mod sniff;
mod types;
mod value;
mod writer;

pub use error::{GgufError, Problem, TensorProblem};
pub use meta::Metadata;
pub use reader::{GgufFile, GgufTensor, TensorInfo};
pub use types::{TensorType, ValueType};
pub use value::{Array, ArrayIter, Value};
pub use writer::{GgufWriter, MetaValue, WriteError};

/// The key that holds the alignment of the tensors' data.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of a file without [`ALIGNMENT_KEY`].
pub const DEFAULT_ALIGNMENT: usize = 32;
