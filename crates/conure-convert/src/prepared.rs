//! An input that is understood: its configuration, and the tensors that will be written.

use crate::error::ConvertError;
use crate::mel;
use crate::schema::ModelConfig;
use crate::source::TensorSource;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// ggml keeps names in 64 bytes with the final zero, and tensors in four axes.
const MAX_NAME: usize = 63;
const MAX_RANK: usize = 4;

const FILTERBANK: &str = "preprocessor.featurizer.fb";
const WINDOW: &str = "preprocessor.featurizer.window";

/// Where a tensor's values come from.
#[derive(Clone, Debug)]
enum Origin {
    Source(usize),
    Computed(Vec<f32>),
}

/// A tensor that will be written.
#[derive(Clone, Debug)]
pub struct OutTensor {
    /// Its name in the GGUF file.
    pub name: String,
    /// Lengths, slowest axis first.
    pub shape: Vec<usize>,
    origin: Origin,
}

/// An opened and checked input.
pub struct Prepared {
    /// The input.
    pub path: PathBuf,
    /// What kind of input it is, in words.
    pub format: &'static str,
    /// The model.
    pub model: ModelConfig,
    /// What will be written, in order.
    pub tensors: Vec<OutTensor>,
    /// What will not, and why.
    pub dropped: Vec<(String, String)>,
    source: Box<dyn TensorSource>,
}

impl Prepared {
    /// Chooses the tensors to write and checks them against the configuration. The whole state dict is written but
    /// for scalars, the preprocessor's other buffers, and what GGUF cannot hold.
    ///
    /// # Errors
    /// If a tensor that the model needs is missing or has another shape.
    pub fn new(
        path: &Path,
        format: &'static str,
        model: ModelConfig,
        source: Box<dyn TensorSource>,
    ) -> Result<Prepared, ConvertError> {
        let fail =
            |(tensor, reason): (String, String)| ConvertError::Tensor { path: path.into(), tensor, reason };
        let mut tensors = Vec::new();
        let mut dropped = Vec::new();
        let mut seen = HashSet::new();
        for (i, t) in source.tensors().iter().enumerate() {
            if let Some(reason) = drop_reason(&t.name, &t.shape) {
                dropped.push((t.name.clone(), reason));
                continue;
            }
            if !seen.insert(t.name.clone()) {
                return Err(fail((t.name.clone(), "it comes twice".into())));
            }
            tensors.push(OutTensor {
                name: t.name.clone(),
                shape: t.shape.clone(),
                origin: Origin::Source(i),
            });
        }
        add_computed(&mut tensors, &seen, &model);
        let shapes: HashMap<&str, &[usize]> =
            tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
        model.check_tensors(&shapes).map_err(fail)?;
        Ok(Prepared { path: path.into(), format, model, tensors, dropped, source })
    }

    /// The values of a tensor, row-major.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn values(&self, tensor: &OutTensor) -> Result<Vec<f32>, ConvertError> {
        let values = match &tensor.origin {
            Origin::Source(i) => self.source.read_f32(*i)?,
            Origin::Computed(values) => values.clone(),
        };
        let wanted: usize = tensor.shape.iter().product();
        if values.len() == wanted {
            return Ok(values);
        }
        let reason = format!("{} values were read for shape {:?}", values.len(), tensor.shape);
        Err(ConvertError::Tensor { path: self.path.clone(), tensor: tensor.name.clone(), reason })
    }
}

fn drop_reason(name: &str, shape: &[usize]) -> Option<String> {
    if shape.is_empty() {
        return Some("a scalar, which the schema does not keep".into());
    }
    if name.starts_with("preprocessor.") && name != FILTERBANK && name != WINDOW {
        return Some("a buffer of the preprocessor that the schema does not keep".into());
    }
    if shape.len() > MAX_RANK {
        return Some(format!("{} axes, and GGUF holds {MAX_RANK}", shape.len()));
    }
    if name.len() > MAX_NAME {
        return Some(format!("its name has {} bytes, and readers hold {MAX_NAME}", name.len()));
    }
    if shape.contains(&0) {
        return Some("it has no elements".into());
    }
    None
}

/// Filterbank and window where the checkpoint leaves them out, as Hugging Face's do.
fn add_computed(tensors: &mut Vec<OutTensor>, seen: &HashSet<String>, model: &ModelConfig) {
    let p = &model.preprocessor;
    if !seen.contains(FILTERBANK) {
        let (n_fft, mels) = (p.n_fft as usize, p.n_mels as usize);
        let values = mel::filterbank(p.sample_rate, n_fft, mels);
        let tensor = OutTensor {
            name: FILTERBANK.into(),
            shape: vec![1, mels, n_fft / 2 + 1],
            origin: Origin::Computed(values),
        };
        tensors.insert(0, tensor);
    }
    if !seen.contains(WINDOW) {
        let values = mel::hann(p.win_length as usize);
        let tensor =
            OutTensor { name: WINDOW.into(), shape: vec![values.len()], origin: Origin::Computed(values) };
        tensors.insert(0, tensor);
    }
}
