//! Opening a file: every count, length, offset and type is checked before anything is used.

use crate::cursor::{Cursor, Short};
use crate::error::{GgufError, Problem, TensorProblem, shown};
use crate::meta::Metadata;
use crate::sniff::looks_like;
use crate::types::TensorType;
use crate::value::{BadValue, MAX_DEPTH};
use crate::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use conure_device::map::MappedFile;
use conure_tensor::DType;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The most axes that a tensor can have.
pub const MAX_DIMS: usize = 4;

/// The most metadata keys and tensors of a file (real ones have at most some thousands), and the longest names.
/// Together they bound what is kept of a file in memory to some 60 MB, whatever it says.
const MAX_KEYS: u64 = 1 << 14;
const MAX_KEY: usize = 512;
const MAX_TENSORS: u64 = 1 << 16;
const MAX_NAME: usize = 256;

/// The most bytes before the tensors' data: real vocabularies take up to some 30 MB. Bounds the time for a check.
const MAX_HEADER: usize = 128 << 20;

/// An open GGUF file of version 2 or 3, little endian.
///
/// When opened, all of this is checked, within time and memory that depend on the header's bytes and not on numbers in
/// it: the magic and version; counts against what the file can hold; every key and value to its end, arrays element
/// by element and at most four deep; that keys and tensor names are text and occur once; the alignment; of every
/// tensor the number of axes, their product, its type, that rows are whole blocks, and that its bytes are aligned,
/// inside the file and its own.
///
/// The bytes stay where they are, usually in the mapped file: values and tensors are views of them.
#[derive(Debug)]
pub struct GgufFile {
    map: Arc<MappedFile>,
    file: String,
    version: u32,
    alignment: usize,
    meta: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

/// A tensor's entry.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// How its elements are stored; also types that Conure does not compute with.
    pub ty: TensorType,
    /// Lengths of its axes, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

/// A tensor with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: DType,
    /// Lengths of its axes, slowest first; empty for a scalar.
    pub shape: &'a [usize],
    /// Its elements, row-major, as many bytes as shape and type take. They lie on a multiple of 8 bytes.
    pub data: &'a [u8],
}

impl GgufFile {
    /// Maps and checks a file.
    ///
    /// # Errors
    /// A path that cannot be mapped ([`GgufError::Map`]), and everything that the file is checked for.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        GgufFile::from_map(Arc::new(MappedFile::open(path)?))
    }

    /// Checks bytes in memory.
    ///
    /// # Errors
    /// Everything that the bytes are checked for.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<GgufFile, GgufError> {
        GgufFile::from_map(Arc::new(MappedFile::from_bytes(bytes)?))
    }

    /// Checks a file that is mapped or read already.
    ///
    /// # Errors
    /// Everything that the bytes are checked for.
    pub fn from_map(map: Arc<MappedFile>) -> Result<GgufFile, GgufError> {
        let file = match map.path() {
            Some(path) => path.display().to_string(),
            None => "GGUF data in memory".to_owned(),
        };
        let too_large = map.len() > MAX_HEADER;
        let (version, meta, tensors, alignment) = parse(&map, &file).map_err(|problem| {
            let problem = match problem {
                Problem::Truncated { inside, .. } if too_large => {
                    Problem::Header { inside, limit: MAX_HEADER }
                }
                other => other,
            };
            GgufError::Content { file: file.clone(), problem }
        })?;
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(GgufFile { map, file, version, alignment, meta, tensors, index })
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensors start at multiples of this many bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// The metadata.
    pub fn meta(&self) -> &Metadata {
        &self.meta
    }

    /// The tensors' entries in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's entry; `None` if there is no tensor of this name.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor with its bytes.
    ///
    /// # Errors
    /// A name that is not in the file, a type that Conure does not compute with, or a mapped file that has another
    /// length than when it was opened.
    pub fn tensor(&self, name: &str) -> Result<GgufTensor<'_>, GgufError> {
        let Some(info) = self.tensor_info(name) else {
            return Err(
                self.error(Problem::MissingTensor { name: name.to_owned(), count: self.tensors.len() })
            );
        };
        let Some(dtype) = info.ty.dtype() else {
            return Err(self.error(wrong(name, TensorProblem::Unsupported { ty: info.ty })));
        };
        self.map.check_unchanged()?;
        // The range was checked against the length of these bytes, which do not change theirs.
        let data = &self.map.bytes()[info.range.clone()];
        Ok(GgufTensor { name: &info.name, dtype, shape: &info.shape, data })
    }

    /// The bytes of the whole file, for those who keep a tensor's [`TensorInfo::range`] or want to release pages.
    pub fn map(&self) -> &Arc<MappedFile> {
        &self.map
    }

    /// The file as messages name it.
    pub fn name(&self) -> &str {
        &self.file
    }

    fn error(&self, problem: Problem) -> GgufError {
        GgufError::Content { file: self.file.clone(), problem }
    }
}

type Parsed = (u32, Metadata, Vec<TensorInfo>, usize);

fn parse(map: &Arc<MappedFile>, file: &str) -> Result<Parsed, Problem> {
    let bytes = map.bytes();
    if !bytes.starts_with(b"GGUF") {
        return Err(Problem::NotGguf { looks_like: looks_like(bytes) });
    }
    let mut cursor = Cursor::new(&bytes[..bytes.len().min(MAX_HEADER)], 4);
    let version = read_version(&mut cursor)?;
    let header = |short: Short| truncated("the header", short);
    let tensor_count = cursor.u64().map_err(header)?;
    let key_count = cursor.u64().map_err(header)?;
    // A key takes its length, type and one byte; a tensor its name's length, number of axes, type and offset.
    check_count("metadata keys", key_count, MAX_KEYS, cursor.left() / 13)?;
    check_count("tensors", tensor_count, MAX_TENSORS, cursor.left() / 24)?;
    let mut meta = Metadata::new(map.clone(), file.to_owned());
    for index in 0..key_count {
        read_key_value(&mut cursor, index as usize, &mut meta)?;
    }
    let alignment = read_alignment(&meta)?;
    let mut entries = Vec::new();
    for index in 0..tensor_count {
        entries.push(read_entry(&mut cursor, index as usize)?);
    }
    let data_start = (cursor.at() as u64).next_multiple_of(alignment as u64);
    let tensors = place(entries, data_start, alignment, bytes.len())?;
    check_names(&tensors)?;
    check_overlap(&tensors)?;
    Ok((version, meta, tensors, alignment))
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, Problem> {
    let version = cursor.u32().map_err(|short| truncated("the header", short))?;
    match version {
        2 | 3 => Ok(version),
        _ if version.swap_bytes() < 0x1_0000 && version >= 0x1_0000 => Err(Problem::BigEndian),
        1 => Err(Problem::Version {
            version,
            advice: "convert the model again: version 1 was in use in August 2023",
        }),
        _ => Err(Problem::Version {
            version,
            advice: "a newer version of Conure may read it, or it is damaged",
        }),
    }
}

fn check_count(what: &'static str, count: u64, most: u64, fits: usize) -> Result<(), Problem> {
    let (limit, why) = if (fits as u64) < most { (fits as u64, "fit in it") } else { (most, "are read") };
    if count > limit { Err(Problem::Count { what, count, limit, why }) } else { Ok(()) }
}

fn read_key_value(cursor: &mut Cursor<'_>, index: usize, meta: &mut Metadata) -> Result<(), Problem> {
    let key = read_name(cursor, "metadata key", index, MAX_KEY)?;
    let start = cursor.at();
    cursor.typed_value().map_err(|bad| {
        let key = shown(key);
        match bad {
            BadValue::Short(short) => truncated(&format!("the value of the metadata key '{key}'"), short),
            BadValue::Type(id) => Problem::ValueType { key, id },
            BadValue::Bool(byte) => Problem::Bool { key, byte },
            BadValue::Nesting => Problem::Nesting { key, limit: MAX_DEPTH },
        }
    })?;
    if meta.push(key, start) { Ok(()) } else { Err(Problem::DuplicateKey { key: shown(key) }) }
}

fn read_name<'a>(
    cursor: &mut Cursor<'a>,
    what: &'static str,
    index: usize,
    longest: usize,
) -> Result<&'a str, Problem> {
    let short = |short: Short| truncated(&format!("the name of {what} number {index}"), short);
    let bad = |reason| Problem::Name { what, index, reason };
    let name = cursor.string().map_err(short)?;
    if name.is_empty() {
        return Err(bad("empty".to_owned()));
    }
    if name.len() > longest {
        return Err(bad(format!("{} bytes long (at most {longest} are read)", name.len())));
    }
    std::str::from_utf8(name).map_err(|_| bad("not UTF-8 text".to_owned()))
}

fn read_alignment(meta: &Metadata) -> Result<usize, Problem> {
    let Some(value) = meta.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    match value.as_integer() {
        // The format says a multiple of 8; a larger power of two than this can only leave the file.
        Some(n) if (8..=1 << 31).contains(&n) && n & (n - 1) == 0 => Ok(n as usize),
        _ => Err(Problem::Alignment { found: value.to_string() }),
    }
}

/// A tensor's entry before the start of the data is known.
struct Entry {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    size: usize,
    offset: u64,
}

fn read_entry(cursor: &mut Cursor<'_>, index: usize) -> Result<Entry, Problem> {
    let name = read_name(cursor, "tensor", index, MAX_NAME)?;
    let short = |short: Short| truncated(&format!("the entry of tensor '{}'", shown(name)), short);
    let dims = cursor.u32().map_err(short)?;
    if dims as usize > MAX_DIMS {
        return Err(wrong(name, TensorProblem::Dims { dims }));
    }
    let mut lengths = [0u64; MAX_DIMS];
    let lengths = &mut lengths[..dims as usize];
    for length in lengths.iter_mut() {
        *length = cursor.u64().map_err(short)?;
    }
    lengths.reverse();
    let id = cursor.u32().map_err(short)?;
    let offset = cursor.u64().map_err(short)?;
    let ty = TensorType::from_id(id).ok_or_else(|| wrong(name, TensorProblem::UnknownType { id }))?;
    let (shape, size) = measure(lengths, ty).map_err(|problem| wrong(name, problem))?;
    Ok(Entry { name: name.to_owned(), ty, shape, size, offset })
}

/// Shape and bytes of a tensor with these lengths, slowest first.
fn measure(lengths: &[u64], ty: TensorType) -> Result<(Vec<usize>, usize), TensorProblem> {
    if lengths.contains(&0) {
        return Err(TensorProblem::EmptyAxis { shape: lengths.to_vec() });
    }
    let too_large = || TensorProblem::TooLarge { shape: lengths.to_vec() };
    let shape: Option<Vec<usize>> = lengths.iter().map(|&n| usize::try_from(n).ok()).collect();
    let shape = shape.ok_or_else(too_large)?;
    let row = shape.last().copied().unwrap_or(1);
    if row % ty.block_len() != 0 {
        return Err(TensorProblem::PartialBlock { row, ty });
    }
    let elements =
        shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n)).ok_or_else(too_large)?;
    let size = (elements / ty.block_len()).checked_mul(ty.block_bytes()).ok_or_else(too_large)?;
    Ok((shape, size))
}

/// Gives every tensor its bytes in the file.
fn place(entries: Vec<Entry>, start: u64, alignment: usize, len: usize) -> Result<Vec<TensorInfo>, Problem> {
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, ty, shape, size, offset } in entries {
        if offset % alignment as u64 != 0 {
            return Err(wrong(&name, TensorProblem::Misaligned { offset, alignment }));
        }
        let range = start.checked_add(offset).and_then(|first| {
            let first = usize::try_from(first).ok()?;
            Some(first..first.checked_add(size).filter(|&end| end <= len)?)
        });
        let Some(range) = range else {
            let start = u128::from(start) + u128::from(offset);
            return Err(wrong(&name, TensorProblem::OutsideFile { start, size, file_len: len }));
        };
        tensors.push(TensorInfo { name, ty, shape, range });
    }
    Ok(tensors)
}

fn check_names(tensors: &[TensorInfo]) -> Result<(), Problem> {
    let mut seen = std::collections::HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|t| !seen.insert(t.name.as_str())) {
        Some(twice) => Err(wrong(&twice.name, TensorProblem::Duplicate)),
        None => Ok(()),
    }
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), Problem> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| t.range.start);
    match order.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        Some(pair) => Err(wrong(&pair[1].name, TensorProblem::Overlap { other: shown(&pair[0].name) })),
        None => Ok(()),
    }
}

fn wrong(name: &str, problem: TensorProblem) -> Problem {
    Problem::Tensor { name: shown(name), problem }
}

fn truncated(inside: &str, short: Short) -> Problem {
    Problem::Truncated { inside: inside.to_owned(), at: short.at, wanted: short.wanted, left: short.left }
}
