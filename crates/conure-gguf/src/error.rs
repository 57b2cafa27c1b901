//! What can be wrong with a file, or with what is asked of it.

use crate::types::TensorType;
use conure_device::map::MapError;
use thiserror::Error;

/// Why a GGUF file, or something in it, could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened, mapped or read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// What it holds is wrong, or is not what was asked for.
    #[error("{file}: {problem}")]
    Content {
        /// The file's path, or a description of the bytes.
        file: String,
        /// What is wrong.
        problem: Problem,
    },
}

impl GgufError {
    /// What is wrong with the content; `None` if the file could not be had at all.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            GgufError::Content { problem, .. } => Some(problem),
            GgufError::Map(_) => None,
        }
    }
}

/// What is wrong with the content of a file.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The first bytes are not `GGUF`.
    #[error("this is not a GGUF file: {looks_like}")]
    NotGguf {
        /// What the bytes look like, with advice.
        looks_like: String,
    },
    /// A version that is not read.
    #[error("GGUF version {version} is not supported (Conure reads 2 and 3); {advice}")]
    Version {
        /// The version in the file.
        version: u32,
        /// What to do.
        advice: &'static str,
    },
    /// The numbers in the file are big endian.
    #[error(
        "this GGUF file is big-endian, made for another kind of machine; convert the model again on this kind"
    )]
    BigEndian,
    /// The file ends too early.
    #[error(
        "the file ends inside {inside}: {wanted} bytes expected at byte {at}, {left} left; \
         it is damaged or was not downloaded completely"
    )]
    Truncated {
        /// The part of the file.
        inside: String,
        /// Where in the file.
        at: usize,
        /// Bytes that should be there.
        wanted: u64,
        /// Bytes that are there.
        left: usize,
    },
    /// The metadata do not end.
    #[error(
        "{inside} lies beyond the first {limit} bytes, which no model's metadata fill; the file is damaged"
    )]
    Header {
        /// The part of the file.
        inside: String,
        /// The most bytes that are read as metadata.
        limit: usize,
    },
    /// A count in the header that the rest of the file cannot hold.
    #[error(
        "the header announces {count} {what}, more than {limit}, the most that {why}; the file is damaged"
    )]
    Count {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// The most that can be.
        limit: u64,
        /// Whose limit that is.
        why: &'static str,
    },
    /// A key or tensor name that is not text or too long.
    #[error("{what} number {index} has a name that is {reason}; the file is damaged")]
    Name {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// Position from 0.
        index: usize,
        /// What is wrong with the name.
        reason: String,
    },
    /// A key that occurs twice.
    #[error("the metadata key '{key}' occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that the format does not know.
    #[error("the metadata key '{key}' has the unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// The number in the file.
        id: u32,
    },
    /// Arrays in arrays in arrays.
    #[error("the metadata key '{key}' nests arrays more than {limit} deep")]
    Nesting {
        /// The key.
        key: String,
        /// The deepest that is read.
        limit: usize,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("the metadata key '{key}' holds a bool of value {byte}, which is neither 0 nor 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        byte: u8,
    },
    /// An alignment that cannot be used.
    #[error("general.alignment is {found}; it must be a power of two from 8 up")]
    Alignment {
        /// The value in the file.
        found: String,
    },
    /// A tensor that cannot be.
    #[error("tensor '{name}' {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: TensorProblem,
    },
    /// A key that was asked for and is not there.
    #[error(
        "the metadata key '{key}' ({expected}) is missing; the file is not a model of this kind, or was made by a converter that does not write it"
    )]
    MissingKey {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// A value that is not of the type that was asked for.
    #[error("the metadata key '{key}' is {found}, expected {expected}")]
    WrongValue {
        /// The key.
        key: String,
        /// What the file holds.
        found: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// A tensor that was asked for and is not there.
    #[error("the tensor '{name}' is missing (the file has {count} tensors)")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// How many tensors there are.
        count: usize,
    },
    /// The bytes are not the ones that were checked when the file was opened.
    #[error(
        "the metadata key '{key}' is no longer what it was when the file was opened; do not write over a file that is loaded"
    )]
    Changed {
        /// The key.
        key: String,
    },
}

/// What is wrong with one tensor's entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// More axes than the format has.
    #[error("has {dims} dimensions; at most {limit} are possible", limit = crate::reader::MAX_DIMS)]
    Dims {
        /// The number in the file.
        dims: u32,
    },
    /// An axis without elements.
    #[error("has an axis of length 0 (shape {shape:?})")]
    EmptyAxis {
        /// The lengths, slowest first.
        shape: Vec<u64>,
    },
    /// More elements or bytes than can be addressed.
    #[error("has a size that no memory holds (shape {shape:?})")]
    TooLarge {
        /// The lengths, slowest first.
        shape: Vec<u64>,
    },
    /// A type whose size is not known.
    #[error("has the unknown type number {id}; the file may need a newer version of Conure")]
    UnknownType {
        /// The number in the file.
        id: u32,
    },
    /// Rows that do not consist of whole blocks.
    #[error("has rows of {row} elements, which are not whole {ty} blocks of {}", ty.block_len())]
    PartialBlock {
        /// Elements in a row.
        row: usize,
        /// The type.
        ty: TensorType,
    },
    /// An offset that is not a multiple of the alignment.
    #[error("starts at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// From the start of the data.
        offset: u64,
        /// The file's alignment.
        alignment: usize,
    },
    /// Bytes beyond the end of the file.
    #[error(
        "takes {size} bytes from byte {start} on, but the file has {file_len}; \
         it is damaged or was not downloaded completely"
    )]
    OutsideFile {
        /// First byte in the file.
        start: u128,
        /// Bytes it takes.
        size: usize,
        /// Bytes in the file.
        file_len: usize,
    },
    /// Bytes that belong to another tensor too.
    #[error("shares bytes with tensor '{other}'")]
    Overlap {
        /// The other one.
        other: String,
    },
    /// A name that occurs twice.
    #[error("occurs twice")]
    Duplicate,
    /// A type that Conure does not compute with.
    #[error("is of type {ty}, which Conure does not compute with; convert the model to another type")]
    Unsupported {
        /// The type.
        ty: TensorType,
    },
}

/// A name from a file as messages show it: without control characters, and not endless.
pub(crate) fn shown(name: &str) -> String {
    const MOST: usize = 100;
    let mut shown: String =
        name.chars().take(MOST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if name.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}
