//! Writing files: version 3, little endian, laid out as the reference writer does.

use crate::error::GgufError;
use crate::meta::Metadata;
use crate::reader::MAX_DIMS;
use crate::types::{TensorType, ValueType};
use crate::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use conure_device::new_file::NewFile;
use conure_tensor::DType;
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The longest tensor name that other readers of the format take, in bytes.
const MAX_TENSOR_NAME: usize = 63;

/// Why a file could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A tensor that no reader would take.
    #[error("cannot write tensor '{name}': {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// `general.alignment` cannot be used.
    #[error(
        "cannot write a GGUF file with general.alignment {found}; it must be a u32 power of two from 8 up"
    )]
    Alignment {
        /// The value that was set.
        found: String,
    },
    /// What gives a tensor's bytes failed.
    #[error("cannot write tensor '{name}': {source}")]
    Source {
        /// The tensor.
        name: String,
        /// The failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tensor's bytes are not as many as its shape and type take.
    #[error("cannot write tensor '{name}': {expected} bytes expected, {found} given")]
    Length {
        /// The tensor.
        name: String,
        /// Bytes that it takes.
        expected: u64,
        /// Bytes that were given.
        found: u64,
    },
    /// The place to write to is something else than a file.
    #[error("cannot write {}: it is there and is not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The stream that is written to refused.
    #[error("cannot write GGUF data: {0}")]
    Io(#[from] io::Error),
}

/// A metadata value to write; made `from` a number, bool, text, or slice or vector of these.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaValue {
    ty: ValueType,
    payload: Vec<u8>,
}

impl MetaValue {
    /// An array of texts.
    pub fn strings<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> MetaValue {
        let (mut payload, mut count) = (array_header(ValueType::String, 0), 0u64);
        for text in texts {
            put_string(&mut payload, text.as_ref());
            count += 1;
        }
        payload[4..12].copy_from_slice(&count.to_le_bytes());
        MetaValue { ty: ValueType::Array, payload }
    }

    /// Its type.
    pub fn value_type(&self) -> ValueType {
        self.ty
    }
}

fn array_header(item: ValueType, count: usize) -> Vec<u8> {
    let mut payload = item.id().to_le_bytes().to_vec();
    payload.extend((count as u64).to_le_bytes());
    payload
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

macro_rules! meta_value_from {
    ($($number:ty, $ty:ident;)*) => {$(
        impl From<$number> for MetaValue {
            fn from(value: $number) -> MetaValue {
                MetaValue { ty: ValueType::$ty, payload: value.to_le_bytes().to_vec() }
            }
        }
        impl From<&[$number]> for MetaValue {
            fn from(values: &[$number]) -> MetaValue {
                let mut payload = array_header(ValueType::$ty, values.len());
                payload.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                MetaValue { ty: ValueType::Array, payload }
            }
        }
        impl From<Vec<$number>> for MetaValue {
            fn from(values: Vec<$number>) -> MetaValue {
                MetaValue::from(&values[..])
            }
        }
    )*};
}

meta_value_from! {
    u8, U8; i8, I8; u16, U16; i16, I16; u32, U32; i32, I32; u64, U64; i64, I64; f32, F32; f64, F64;
}

impl From<bool> for MetaValue {
    fn from(value: bool) -> MetaValue {
        MetaValue { ty: ValueType::Bool, payload: vec![value.into()] }
    }
}

impl From<&[bool]> for MetaValue {
    fn from(values: &[bool]) -> MetaValue {
        let mut payload = array_header(ValueType::Bool, values.len());
        payload.extend(values.iter().map(|&v| u8::from(v)));
        MetaValue { ty: ValueType::Array, payload }
    }
}

impl From<&str> for MetaValue {
    fn from(text: &str) -> MetaValue {
        let mut payload = Vec::with_capacity(8 + text.len());
        put_string(&mut payload, text);
        MetaValue { ty: ValueType::String, payload }
    }
}

impl From<String> for MetaValue {
    fn from(text: String) -> MetaValue {
        MetaValue::from(text.as_str())
    }
}

impl From<&[String]> for MetaValue {
    fn from(texts: &[String]) -> MetaValue {
        MetaValue::strings(texts)
    }
}

impl From<&[&str]> for MetaValue {
    fn from(texts: &[&str]) -> MetaValue {
        MetaValue::strings(texts)
    }
}

/// What a tensor's writer returns.
type SourceResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Writes a tensor's bytes when it is its turn.
type Stream<'a> = Box<dyn FnOnce(&mut dyn Write) -> SourceResult + 'a>;

/// Where a tensor's bytes come from.
enum Source<'a> {
    Bytes(&'a [u8]),
    Stream(Stream<'a>),
}

struct Pending<'a> {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    source: Source<'a>,
}

/// A GGUF file to be written: metadata and tensors in the order they are given.
///
/// Tensors given as bytes are borrowed; tensors given with [`GgufWriter::tensor_with`] make their bytes when it is
/// their turn, so that a model need not be held in memory as a whole.
///
/// ```
/// # use conure_gguf::{GgufFile, GgufWriter};
/// # use conure_tensor::DType;
/// let mut writer = GgufWriter::new();
/// writer.meta("general.architecture", "parakeet").meta("parakeet.encoder.n_layers", 2u32);
/// writer.tensor("bias", DType::F32, &[2], &[0, 0, 0x80, 0x3f, 0, 0, 0, 0]);
/// let mut bytes = Vec::new();
/// writer.write(&mut bytes)?;
/// assert_eq!(GgufFile::from_bytes(bytes)?.tensor("bias")?.shape, [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct GgufWriter<'a> {
    meta: Vec<(String, MetaValue)>,
    tensors: Vec<Pending<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// A file with nothing in it.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter::default()
    }

    /// Adds a metadata value, or replaces the value of a key that is there. The key `general.alignment` (a u32)
    /// decides how the tensors are aligned.
    pub fn meta(&mut self, key: &str, value: impl Into<MetaValue>) -> &mut Self {
        let value = value.into();
        match self.meta.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.meta.push((key.to_owned(), value)),
        }
        self
    }

    /// Leaves out a metadata value that was added.
    pub fn without_meta(&mut self, key: &str) -> &mut Self {
        self.meta.retain(|(k, _)| k != key);
        self
    }

    /// Adds all metadata of another file, byte for byte.
    ///
    /// # Errors
    /// A file that changed since it was opened.
    pub fn copy_meta(&mut self, meta: &Metadata) -> Result<&mut Self, GgufError> {
        for (index, key) in meta.keys().enumerate() {
            let (ty, payload) = meta.raw(index)?;
            self.meta(key, MetaValue { ty, payload: payload.to_vec() });
        }
        Ok(self)
    }

    /// Adds a tensor: `shape` slowest axis first, `data` as many bytes as it takes.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], data: &'a [u8]) -> &mut Self {
        self.push(name, dtype.into(), shape, Source::Bytes(data))
    }

    /// Adds a tensor of any type that a file can hold, for copying what Conure does not compute with.
    pub fn raw_tensor(&mut self, name: &str, ty: TensorType, shape: &[usize], data: &'a [u8]) -> &mut Self {
        self.push(name, ty, shape, Source::Bytes(data))
    }

    /// Adds a tensor whose bytes `source` writes when the file is written: exactly as many as shape and type take.
    pub fn tensor_with(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        source: impl FnOnce(&mut dyn Write) -> SourceResult + 'a,
    ) -> &mut Self {
        self.push(name, dtype.into(), shape, Source::Stream(Box::new(source)))
    }

    fn push(&mut self, name: &str, ty: TensorType, shape: &[usize], source: Source<'a>) -> &mut Self {
        self.tensors.push(Pending { name: name.to_owned(), ty, shape: shape.to_vec(), source });
        self
    }

    /// Writes everything to a stream; returns the number of bytes.
    ///
    /// # Errors
    /// Tensors that cannot be, before anything is written; then what the stream or a tensor's source refuses.
    pub fn write(self, out: &mut dyn Write) -> Result<u64, WriteError> {
        let alignment = self.alignment()?;
        let sizes = self.sizes()?;
        let header = self.header(alignment, &sizes);
        let mut out = Counted { out, count: 0 };
        out.write_all(&header)?;
        for (tensor, &size) in self.tensors.into_iter().zip(&sizes) {
            let start = out.count;
            match tensor.source {
                Source::Bytes(bytes) => out.write_all(bytes)?,
                Source::Stream(source) => {
                    source(&mut out)
                        .map_err(|source| WriteError::Source { name: tensor.name.clone(), source })?;
                }
            }
            let found = out.count - start;
            if found != size {
                return Err(WriteError::Length { name: tensor.name, expected: size, found });
            }
            out.pad(alignment)?;
        }
        out.flush()?;
        Ok(out.count)
    }

    /// Writes the file: first beside it under another name, which becomes the file only when all of it is on disk.
    /// Whatever goes wrong, a file that was there stays as it was and no part of a new one is left. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// As [`GgufWriter::write`], and what the file system refuses.
    pub fn write_to(self, path: impl AsRef<Path>) -> Result<u64, WriteError> {
        let path = path.as_ref();
        let refused = |action| move |source| WriteError::File { action, path: path.to_owned(), source };
        let file = NewFile::create(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::NotAFile { path: path.to_owned() },
            _ => refused("create")(source),
        })?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let count = self.write(&mut out).map_err(|e| match e {
            WriteError::Io(source) => refused("write")(source),
            other => other,
        })?;
        let file = out.into_inner().map_err(|e| refused("write")(e.into_error()))?;
        file.publish().map_err(refused("finish"))?;
        Ok(count)
    }

    fn alignment(&self) -> Result<u64, WriteError> {
        let Some((_, value)) = self.meta.iter().find(|(key, _)| key == ALIGNMENT_KEY) else {
            return Ok(DEFAULT_ALIGNMENT as u64);
        };
        match (value.ty, value.payload.first_chunk().map(|&b| u32::from_le_bytes(b))) {
            (ValueType::U32, Some(n)) if n >= 8 && n.is_power_of_two() => Ok(n.into()),
            (ValueType::U32, Some(n)) => Err(WriteError::Alignment { found: n.to_string() }),
            _ => Err(WriteError::Alignment { found: format!("of type {}", value.ty) }),
        }
    }

    /// The bytes that each tensor takes, after checking that every reader will take the tensor.
    fn sizes(&self) -> Result<Vec<u64>, WriteError> {
        let mut seen = HashSet::new();
        let size = |tensor: &Pending<'a>| {
            let size = tensor_size(tensor.ty, &tensor.shape)?;
            if tensor.name.len() > MAX_TENSOR_NAME {
                return Err(format!("its name is longer than {MAX_TENSOR_NAME} bytes"));
            }
            if !seen.insert(tensor.name.clone()) {
                return Err("a tensor of this name is there already".to_owned());
            }
            match tensor.source {
                Source::Bytes(bytes) if bytes.len() as u64 != size => {
                    Err(format!("{size} bytes expected, {} given", bytes.len()))
                }
                _ => Ok(size),
            }
        };
        let refuse = |(tensor, size): (&Pending<'a>, Result<u64, String>)| {
            size.map_err(|reason| WriteError::Tensor { name: tensor.name.clone(), reason })
        };
        let sizes: Vec<_> = self.tensors.iter().map(size).collect();
        self.tensors.iter().zip(sizes).map(refuse).collect()
    }

    /// Everything before the data of the tensors.
    fn header(&self, alignment: u64, sizes: &[u64]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            put_string(&mut out, key);
            out.extend(value.ty.id().to_le_bytes());
            out.extend(&value.payload);
        }
        let mut offset = 0u64;
        for (tensor, size) in self.tensors.iter().zip(sizes) {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().rev().flat_map(|&n| (n as u64).to_le_bytes()));
            out.extend(tensor.ty.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += size.next_multiple_of(alignment);
        }
        out.resize(out.len().next_multiple_of(alignment as usize), 0);
        out
    }
}

/// Bytes of a tensor, or why it cannot be.
fn tensor_size(ty: TensorType, shape: &[usize]) -> Result<u64, String> {
    if shape.len() > MAX_DIMS || shape.contains(&0) {
        return Err(format!("shape {shape:?} has more than {MAX_DIMS} axes or an empty one"));
    }
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_len()) {
        return Err(format!("rows of {row} elements are not whole {ty} blocks of {}", ty.block_len()));
    }
    // Offsets are sums of sizes; with each below 2^48 they cannot wrap.
    let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n as u64));
    let size = elements.and_then(|n| (n / ty.block_len() as u64).checked_mul(ty.block_bytes() as u64));
    size.filter(|&size| size < 1 << 48).ok_or_else(|| format!("shape {shape:?} is too large"))
}

/// Counts what is written.
struct Counted<'w> {
    out: &'w mut dyn Write,
    count: u64,
}

impl Counted<'_> {
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        const ZEROS: [u8; 64] = [0; 64];
        let mut left = self.count.next_multiple_of(alignment) - self.count;
        while left > 0 {
            let piece = left.min(ZEROS.len() as u64);
            self.write_all(&ZEROS[..piece as usize])?;
            left -= piece;
        }
        Ok(())
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.count += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
