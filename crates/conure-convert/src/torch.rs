//! A PyTorch checkpoint: a zip archive with a pickle (`data.pkl`) and one entry per storage (`data/0`, ...).
//!
//! The zip directory is read and checked by the `zip` crate; entries are then read by offset, one tensor at a time.

use crate::pickle::{self, PickleError, TensorRef};
use crate::section::Section;
use crate::source::{SourceTensor, to_f32};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use zip::{CompressionMethod, ZipArchive};

/// The directory of a checkpoint of 2,000 tensors has 0.3 MB; local headers are padded by up to 64 bytes.
const MAX_DIRECTORY: u64 = 64 << 20;
const MAX_PICKLE: u64 = 32 << 20;
/// Weights hardly shrink; entries below the floor may be constant.
const MAX_DEFLATE_RATIO: u64 = 50;
const DEFLATE_FLOOR: u64 = 16 << 20;

/// Why a checkpoint is refused.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// The file could not be read.
    #[error("cannot read the checkpoint: {0}")]
    Io(#[from] io::Error),
    /// The zip directory is damaged or made to be read in two ways.
    #[error("the checkpoint's zip directory is refused: {0}")]
    Zip(#[from] zip::result::ZipError),
    /// Not a checkpoint.
    #[error("{0}")]
    Format(String),
    /// One entry is refused.
    #[error("zip entry `{entry}` is refused: {reason}")]
    Entry {
        /// Its name.
        entry: String,
        /// What is wrong.
        reason: String,
    },
    /// The pickle is refused.
    #[error("{entry}: {source}")]
    Pickle {
        /// Its name.
        entry: String,
        /// What is wrong.
        source: PickleError,
    },
    /// A tensor does not fit its storage entry.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    offset: u64,
    packed: u64,
    size: u64,
    deflated: bool,
    crc: u32,
}

/// An opened checkpoint.
#[derive(Debug)]
pub struct TorchFile {
    section: Section,
    root: String,
    entries: HashMap<String, Entry>,
    tensors: Vec<(String, TensorRef)>,
}

impl TorchFile {
    /// Reads the directory and the pickle, and checks that every tensor lies in its storage.
    ///
    /// # Errors
    /// [`TorchError`] for anything but a plain state dict of dense tensors.
    pub fn open(section: &Section) -> Result<TorchFile, TorchError> {
        check_magic(section)?;
        let entries = directory(section)?;
        let pickles: Vec<&str> = entries
            .keys()
            .map(String::as_str)
            .filter(|n| *n == "data.pkl" || n.ends_with("/data.pkl"))
            .collect();
        let [name] = pickles[..] else {
            return Err(TorchError::Format(format!(
                "a PyTorch checkpoint has one data.pkl, this archive has {}",
                pickles.len()
            )));
        };
        let root = name.strip_suffix("data.pkl").unwrap_or_default().to_owned();
        let name = name.to_owned();
        let mut file = TorchFile { section: section.clone(), root, entries, tensors: Vec::new() };
        file.check_byte_order()?;
        let bytes = file.read_entry(&name, 0, None, MAX_PICKLE)?;
        file.tensors =
            pickle::state_dict(&bytes).map_err(|source| TorchError::Pickle { entry: name, source })?;
        file.check_storages()?;
        Ok(file)
    }

    /// The tensors, in the order of the state dict.
    pub fn tensors(&self) -> Vec<SourceTensor> {
        self.tensors
            .iter()
            .map(|(name, t)| SourceTensor { name: name.clone(), shape: t.shape.clone(), dtype: t.dtype })
            .collect()
    }

    /// Tensor `index` as f32, row-major.
    ///
    /// # Errors
    /// If its storage cannot be read or fails its checksum.
    pub fn read_f32(&self, index: usize) -> Result<Vec<f32>, TorchError> {
        let Some((_, tensor)) = self.tensors.get(index) else {
            return Err(TorchError::Format(format!("there is no tensor {index}")));
        };
        let size = tensor.dtype.size();
        let entry = self.storage_name(tensor);
        let start = tensor.offset.saturating_mul(size as u64);
        let span = tensor.span() * size;
        let bytes = self.read_entry(&entry, start, Some(span as u64), u64::MAX)?;
        if tensor.is_contiguous() {
            return Ok(to_f32(tensor.dtype, &bytes));
        }
        Ok(gather(tensor, &to_f32(tensor.dtype, &bytes)))
    }

    fn storage_name(&self, tensor: &TensorRef) -> String {
        format!("{}data/{}", self.root, tensor.storage.key)
    }

    fn check_byte_order(&self) -> Result<(), TorchError> {
        let name = format!("{}byteorder", self.root);
        if self.entries.contains_key(&name) {
            let order = self.read_entry(&name, 0, None, 64)?;
            if order != b"little" {
                return Err(TorchError::Format(format!(
                    "its byte order is {:?}; only little-endian checkpoints are read: save it on a little-endian machine",
                    String::from_utf8_lossy(&order)
                )));
            }
        }
        Ok(())
    }

    /// Every storage must have exactly the bytes that the pickle says, and one element type.
    fn check_storages(&self) -> Result<(), TorchError> {
        let mut known = HashMap::new();
        for (name, tensor) in &self.tensors {
            let bad = |reason: String| TorchError::Tensor { tensor: name.clone(), reason };
            let entry_name = self.storage_name(tensor);
            let Some(entry) = self.entries.get(&entry_name) else {
                return Err(bad(format!("its storage `{entry_name}` is missing from the archive")));
            };
            let stated = match tensor.storage.dtype {
                Some(t) => tensor.storage.len.checked_mul(t.size() as u64),
                None => Some(tensor.storage.len),
            };
            if stated != Some(entry.size) {
                return Err(bad(format!(
                    "the pickle says that storage `{entry_name}` has {} elements ({} bytes), the archive holds {} bytes",
                    tensor.storage.len,
                    stated.map_or("too many".to_owned(), |n| n.to_string()),
                    entry.size
                )));
            }
            let first = known.entry(tensor.storage.key.as_str()).or_insert(&tensor.storage);
            if **first != tensor.storage {
                return Err(bad(format!("storage `{entry_name}` is described in two ways")));
            }
        }
        Ok(())
    }

    /// `len` bytes (or all) of an entry from `start`; a whole entry is held to its checksum.
    fn read_entry(
        &self,
        name: &str,
        start: u64,
        len: Option<u64>,
        limit: u64,
    ) -> Result<Vec<u8>, TorchError> {
        let bad = |reason: String| TorchError::Entry { entry: name.to_owned(), reason };
        let entry = self.entries.get(name).ok_or_else(|| bad("it is missing".into()))?;
        let len = len.unwrap_or(entry.size);
        if start.checked_add(len).is_none_or(|end| end > entry.size) {
            return Err(bad(format!("{len} bytes at {start} reach past its {}", entry.size)));
        }
        if len > limit {
            return Err(bad(format!("it has {len} bytes, more than the {limit} expected of it")));
        }
        let mut out = vec![0u8; usize::try_from(len).map_err(io::Error::other)?];
        if entry.deflated {
            let packed = self
                .section
                .sub(entry.offset, entry.packed)
                .ok_or_else(|| bad("it reaches past the end of the archive".into()))?;
            let mut unpacked = DeflateDecoder::new(BufReader::new(packed));
            io::copy(&mut (&mut unpacked).take(start), &mut io::sink())?;
            unpacked.read_exact(&mut out).map_err(|e| bad(format!("it cannot be inflated: {e}")))?;
        } else {
            self.section.read_at(entry.offset.saturating_add(start), &mut out)?;
        }
        if len == entry.size {
            let mut crc = Crc::new();
            crc.update(&out);
            if crc.sum() != entry.crc {
                return Err(bad("its checksum is wrong: the file is damaged, fetch it again".into()));
            }
        }
        Ok(out)
    }
}

fn check_magic(section: &Section) -> Result<(), TorchError> {
    let mut magic = [0u8; 4];
    if section.len() >= 4 {
        section.read_at(0, &mut magic)?;
    }
    if magic == *b"PK\x03\x04" {
        return Ok(());
    }
    Err(TorchError::Format(if magic[0] == 0x80 {
        "the checkpoint is in PyTorch's old format (before 1.6), which is not a zip archive; load it with a newer NeMo \
         and save it again with save_to()"
            .into()
    } else {
        "this is no PyTorch checkpoint (a zip archive that starts with PK)".into()
    }))
}

/// The entries of the archive, its headers checked against each other.
fn directory(section: &Section) -> Result<HashMap<String, Entry>, TorchError> {
    let mut archive = ZipArchive::new(section.with_budget(MAX_DIRECTORY))?;
    if archive.has_duplicate_names() {
        return Err(TorchError::Format(
            "two zip entries have one name, and which one counts is unclear".into(),
        ));
    }
    archive.validate_header_consistency()?;
    let mut out = HashMap::new();
    for i in 0..archive.len() {
        let file = archive.by_index_raw(i)?;
        let name = std::str::from_utf8(file.name_raw())
            .map_err(|_| TorchError::Format("the name of a zip entry is not UTF-8".into()))?
            .to_owned();
        let bad = |reason: &str| TorchError::Entry {
            entry: name.chars().take(80).flat_map(char::escape_default).collect(),
            reason: reason.to_owned(),
        };
        if name.starts_with('/') || name.contains(['\\', ':', '\0']) || name.split('/').any(|p| p == "..") {
            return Err(bad("its name leaves the archive"));
        }
        if file.encrypted() {
            return Err(bad("it is encrypted"));
        }
        let deflated = match file.compression() {
            CompressionMethod::Stored => false,
            CompressionMethod::Deflated => true,
            _ => {
                return Err(bad(
                    "it is packed by a method that PyTorch does not use (stored and deflated are read)",
                ));
            }
        };
        let (packed, size) = (file.compressed_size(), file.size());
        if !deflated && packed != size {
            return Err(bad("it is stored, but its two sizes differ"));
        }
        if deflated && size > DEFLATE_FLOOR && size / MAX_DEFLATE_RATIO > packed {
            return Err(bad("it would grow more than fifty-fold when unpacked, which weights do not"));
        }
        let offset = file.data_start().ok_or_else(|| bad("its data has no place"))?;
        if offset.checked_add(packed).is_none_or(|end| end > section.len()) {
            return Err(bad("it reaches past the end of the archive"));
        }
        out.insert(name.clone(), Entry { offset, packed, size, deflated, crc: file.crc32() });
    }
    Ok(out)
}

/// The elements of a strided tensor in row-major order; `span` starts at its first element.
fn gather(tensor: &TensorRef, span: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(tensor.elements());
    let mut index = vec![0usize; tensor.shape.len()];
    for _ in 0..tensor.elements() {
        let at: usize = index.iter().zip(&tensor.stride).map(|(i, s)| i * s).sum();
        out.push(span.get(at).copied().unwrap_or(f32::NAN));
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < tensor.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}
