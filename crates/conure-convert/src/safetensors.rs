//! A safetensors file by offset: the header is read and held to the format, then one tensor at a time.
//!
//! The `safetensors` crate checks offsets, sizes, gaps and overlaps; what it takes on trust is checked here first: the
//! header's length before memory is taken for it, and names that come twice.

use crate::config::{self, Value};
use crate::error::ConvertError;
use crate::pickle::ScalarType;
use crate::section::Section;
use crate::source::{SourceTensor, to_f32};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use std::path::Path;

/// A header of 2,000 tensors has 0.3 MB.
const MAX_HEADER: u64 = 8 << 20;
const MAX_TENSORS: usize = 100_000;

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The file could not be read.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// The header is damaged.
    #[error("its header is damaged: {0}")]
    Header(String),
    /// The header states more than there is, or more than any model has.
    #[error("its header says it has {stated} bytes, but {why}")]
    HeaderLength {
        /// Stated length.
        stated: u64,
        /// What speaks against it.
        why: String,
    },
    /// A tensor of the header cannot be.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// Offsets, sizes, gaps, overlaps.
    #[error("its tensors do not fill the file as they should: {0}")]
    Layout(SafeTensorError),
    /// The file is longer or shorter than its header says.
    #[error(
        "its tensors take {stated} bytes, the file has {found} for them: it is cut off or damaged, fetch it again"
    )]
    DataLength {
        /// By the header.
        stated: u64,
        /// In the file.
        found: u64,
    },
}

/// An opened file.
#[derive(Debug)]
pub struct SafetensorsFile {
    section: Section,
    data_at: u64,
    tensors: Vec<SourceTensor>,
    offsets: Vec<(u64, u64)>,
}

impl SafetensorsFile {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// [`SafetensorsError`].
    pub fn open(section: &Section) -> Result<SafetensorsFile, SafetensorsError> {
        let mut length = [0u8; 8];
        section
            .read_at(0, &mut length)
            .map_err(|_| SafetensorsError::Header("it is shorter than 8 bytes".into()))?;
        let stated = u64::from_le_bytes(length);
        let available = section.len().saturating_sub(8);
        if stated > MAX_HEADER {
            let why = format!("no model's has more than {MAX_HEADER}");
            return Err(SafetensorsError::HeaderLength { stated, why });
        }
        if stated > available {
            return Err(SafetensorsError::HeaderLength {
                stated,
                why: format!("only {available} follow: the file is cut off"),
            });
        }
        let mut header = vec![0u8; stated as usize];
        section.read_at(8, &mut header)?;
        let header = config::from_json(&header).map_err(|e| SafetensorsError::Header(e.to_string()))?;
        let mut infos = tensor_infos(&header)?;
        infos.sort_by_key(|(_, _, info)| info.data_offsets);
        let plain = infos.iter().map(|(name, _, info)| (name.clone(), info.clone())).collect();
        let metadata = Metadata::new(None, plain).map_err(SafetensorsError::Layout)?;
        let data_at = 8 + stated;
        let (stated, found) = (metadata.data_len() as u64, section.len() - data_at);
        if stated != found {
            return Err(SafetensorsError::DataLength { stated, found });
        }
        let offsets =
            infos.iter().map(|(_, _, i)| (i.data_offsets.0 as u64, i.data_offsets.1 as u64)).collect();
        let tensors = infos
            .into_iter()
            .map(|(name, dtype, info)| SourceTensor { name, shape: info.shape, dtype })
            .collect();
        Ok(SafetensorsFile { section: section.clone(), data_at, tensors, offsets })
    }

    /// The tensors, in the order of their data.
    pub fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    /// Tensor `index`, row-major.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_f32(&self, index: usize) -> Result<Vec<f32>, SafetensorsError> {
        let bytes = self.read_part(index, 0, 1)?;
        Ok(self.tensors.get(index).map_or_else(Vec::new, |tensor| to_f32(tensor.dtype, &bytes)))
    }

    /// Part `i` of `count` equal ones of the bytes of tensor `index`.
    ///
    /// # Errors
    /// If there is no such part, or the file cannot be read.
    pub fn read_part(&self, index: usize, i: usize, count: usize) -> Result<Vec<u8>, SafetensorsError> {
        let Some(&(from, to)) = self.offsets.get(index) else {
            return Err(SafetensorsError::Header(format!("there is no tensor {index}")));
        };
        let (len, i, parts) = (to.saturating_sub(from), i as u64, count as u64);
        if i >= parts || len % parts != 0 {
            let what = format!("tensor {index} of {len} bytes has no part {i} of {parts}");
            return Err(SafetensorsError::Header(what));
        }
        let mut bytes = vec![0u8; usize::try_from(len / parts).map_err(std::io::Error::other)?];
        self.section.read_at(self.data_at.saturating_add(from + len / parts * i), &mut bytes)?;
        Ok(bytes)
    }
}

/// Opens the safetensors file at `path`.
///
/// # Errors
/// [`ConvertError`] with the path.
pub fn open_path(path: &Path) -> Result<SafetensorsFile, ConvertError> {
    let section = crate::open(path)?;
    SafetensorsFile::open(&section)
        .map_err(|source| ConvertError::Safetensors { path: path.to_owned(), source })
}

fn tensor_infos(header: &Value) -> Result<Vec<(String, ScalarType, TensorInfo)>, SafetensorsError> {
    let Value::Map(entries) = header else {
        return Err(SafetensorsError::Header(format!("it is {header}, not a map of tensors")));
    };
    if entries.len() > MAX_TENSORS {
        return Err(SafetensorsError::Header(format!("it lists more than {MAX_TENSORS} tensors")));
    }
    entries.iter().filter(|(name, _)| name != "__metadata__").map(|(name, v)| tensor_info(name, v)).collect()
}

fn tensor_info(name: &str, value: &Value) -> Result<(String, ScalarType, TensorInfo), SafetensorsError> {
    let bad = |reason: String| SafetensorsError::Tensor { tensor: name.chars().take(120).collect(), reason };
    let Value::Map(fields) = value else {
        return Err(bad(format!("it is {value}, not a description")));
    };
    let field = |key: &str| fields.iter().find(|(k, _)| k == key).map(|(_, v)| v);
    let (scalar, dtype) = match field("dtype") {
        Some(Value::Str(s)) => {
            scalar_type(s).ok_or_else(|| bad(format!("its element type {s:?} is not read")))?
        }
        _ => return Err(bad("its dtype is missing".into())),
    };
    let list = |key: &str| -> Result<Vec<usize>, SafetensorsError> {
        let Some(Value::List(items)) = field(key) else {
            return Err(bad(format!("its {key} is no list")));
        };
        items
            .iter()
            .map(|v| match v {
                Value::Int(n) => usize::try_from(*n).ok(),
                _ => None,
            })
            .collect::<Option<Vec<usize>>>()
            .ok_or_else(|| bad(format!("its {key} is no list of whole numbers from 0")))
    };
    let shape = list("shape")?;
    if shape.len() > 8 {
        return Err(bad(format!("it has {} axes", shape.len())));
    }
    let offsets = list("data_offsets")?;
    let [from, to] = offsets[..] else {
        return Err(bad("its data_offsets are not two numbers".into()));
    };
    Ok((name.to_owned(), scalar, TensorInfo { dtype, shape, data_offsets: (from, to) }))
}

fn scalar_type(name: &str) -> Option<(ScalarType, Dtype)> {
    Some(match name {
        "F64" => (ScalarType::F64, Dtype::F64),
        "F32" => (ScalarType::F32, Dtype::F32),
        "F16" => (ScalarType::F16, Dtype::F16),
        "BF16" => (ScalarType::BF16, Dtype::BF16),
        "I64" => (ScalarType::I64, Dtype::I64),
        "I32" => (ScalarType::I32, Dtype::I32),
        "I16" => (ScalarType::I16, Dtype::I16),
        "I8" => (ScalarType::I8, Dtype::I8),
        "U8" => (ScalarType::U8, Dtype::U8),
        "BOOL" => (ScalarType::Bool, Dtype::BOOL),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        out.resize(out.len() + data, 1);
        out
    }

    fn t(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    }

    #[test]
    fn reads_what_the_crate_writes() {
        let a: Vec<u8> = [1f32, -2.0, 3.5].iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![3, 1], &a).unwrap();
        let bytes = safetensors::serialize([("w", view)], None).unwrap();
        let f = SafetensorsFile::open(&Section::of_bytes(bytes)).unwrap();
        assert_eq!(
            f.tensors(),
            [SourceTensor { name: "w".into(), shape: vec![3, 1], dtype: ScalarType::F32 }]
        );
        assert_eq!(f.read_f32(0).unwrap(), [1.0, -2.0, 3.5]);
    }

    #[test]
    fn refuses_hostile_headers() {
        let with = |entries: &[String], data| file(&format!("{{{}}}", entries.join(",")), data);
        let million = file(
            &format!(
                "{{{}}}",
                (0..150_000).map(|i| t(&i.to_string(), "F32", "[]", 0, 4)).collect::<Vec<_>>().join(",")
            ),
            4,
        );
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("no model's", [(1u64 << 63).to_le_bytes().as_slice(), b"{}"].concat()),
            ("no model's", [101_000_000u64.to_le_bytes().as_slice(), b"{}"].concat()),
            ("cut off", [1000u64.to_le_bytes().as_slice(), b"{}"].concat()),
            ("8 bytes", b"{}".to_vec()),
            ("no model's", million),
            (
                "100000 tensors",
                file(
                    &format!(
                        "{{{}}}",
                        (0..100_002).map(|i| format!("\"{i}\":0")).collect::<Vec<_>>().join(",")
                    ),
                    0,
                ),
            ),
            ("damaged", file(&"[".repeat(100_000), 0)),
            ("damaged", file("{", 0)),
            ("not a map", file("[]", 0)),
            ("twice", with(&[t("a", "F32", "[1]", 0, 4), t("a", "F32", "[1]", 4, 8)], 8)),
            ("as they should", with(&[t("a", "F32", "[1]", 0, 4), t("b", "F32", "[1]", 8, 12)], 12)),
            ("as they should", with(&[t("a", "F32", "[2]", 0, 8), t("b", "F32", "[2]", 4, 12)], 12)),
            ("as they should", with(&[t("a", "F32", "[1]", 4, 8)], 8)),
            ("as they should", with(&[t("a", "F32", "[3]", 0, 8)], 8)),
            ("as they should", with(&[t("a", "F32", "[4294967296,4294967296,4]", 0, 8)], 8)),
            ("as they should", with(&[t("a", "F32", "[1]", 8, 0)], 8)),
            ("cut off or damaged", with(&[t("a", "F32", "[2]", 0, 8)], 7)),
            ("cut off or damaged", with(&[t("a", "F32", "[2]", 0, 8)], 9)),
            ("not read", with(&[t("a", "F4", "[2]", 0, 1)], 1)),
            ("whole numbers", with(&[t("a", "F32", "[-1]", 0, 4)], 4)),
            ("9 axes", with(&[t("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4)], 4)),
            ("not two", file(r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0]}}"#, 4)),
            ("dtype is missing", file(r#"{"a":{"shape":[],"data_offsets":[0,4]}}"#, 4)),
        ];
        for (want, bytes) in cases {
            let started = std::time::Instant::now();
            let e = SafetensorsFile::open(&Section::of_bytes(bytes)).unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
            assert!(started.elapsed().as_secs() < 2, "{want:?}: {:?}", started.elapsed());
        }
    }
}
