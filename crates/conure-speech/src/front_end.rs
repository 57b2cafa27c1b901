//! The front end that a model's file asks for, and rows of what its encoder gave.

use crate::error::SpeechError;
use conure_audio::log_mel::{LogMel, LogMelConfig, Normalize};
use conure_gguf::GgufFile;
use conure_graph::GraphError;
use conure_models::Parakeet;
use conure_tensor::{DType, Tensor, TensorError, TensorView};

/// The log-mel front end of `model`: with the file's filterbank and window, or computed ones if it has none.
pub(crate) fn log_mel(file: &GgufFile, origin: &str, model: &Parakeet) -> Result<LogMel, SpeechError> {
    let p = &model.config().preprocessor;
    let config = LogMelConfig {
        sample_rate: p.sample_rate,
        n_fft: p.n_fft,
        win_length: p.win_length,
        hop_length: p.hop_length,
        n_mels: p.n_mels,
        preemphasis: p.preemphasis,
        mag_power: p.mag_power,
        log_zero_guard: p.log_zero_guard,
        normalize: if p.per_feature { Normalize::PerFeature } else { Normalize::None },
    };
    let (fb, window) = ("preprocessor.featurizer.fb", "preprocessor.featurizer.window");
    let made = if file.tensor_info(fb).is_some() && file.tensor_info(window).is_some() {
        LogMel::new(config, &floats(file, origin, fb)?, &floats(file, origin, window)?)
    } else {
        LogMel::slaney(config)
    };
    made.map_err(|source| SpeechError::LogMel { origin: origin.to_owned(), source })
}

fn floats(file: &GgufFile, origin: &str, name: &'static str) -> Result<Vec<f32>, SpeechError> {
    let tensor = file.tensor(name).map_err(conure_models::ModelError::from)?;
    if tensor.dtype != DType::F32 {
        let found = tensor.dtype.name().to_owned();
        return Err(SpeechError::FrontEndType { origin: origin.to_owned(), name, found });
    }
    Ok(tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

pub(crate) fn tensor_error(source: TensorError) -> SpeechError {
    SpeechError::Graph(GraphError::Tensor { path: "encoder".into(), source })
}

/// The first `frames` rows of item `item` of a `[B, T', ...]` tensor.
pub(crate) fn item_rows<'a>(
    tensor: &TensorView<'a>,
    item: usize,
    frames: usize,
) -> Result<&'a [f32], SpeechError> {
    let data = tensor.as_slice::<f32>().map_err(tensor_error)?;
    let per_row: usize = tensor.shape().iter().skip(2).product();
    let per_item = tensor.shape().get(1).copied().unwrap_or(0) * per_row;
    let start = item * per_item;
    Ok(data.get(start..start + (frames * per_row).min(per_item)).unwrap_or(&[]))
}

/// The first `rows` rows of a `[T, ...]` tensor.
pub(crate) fn first_rows(tensor: &TensorView<'_>, rows: usize) -> Result<Tensor, SpeechError> {
    let mut shape = tensor.shape().to_vec();
    let data = tensor.as_slice::<f32>().map_err(tensor_error)?;
    let per_row: usize = shape.iter().skip(1).product();
    if let Some(first) = shape.first_mut() {
        *first = rows.min(*first);
    }
    let kept = shape.first().copied().unwrap_or(1) * per_row;
    Tensor::from_slice(&shape, &data[..kept]).map_err(tensor_error)
}

/// A captured value of a batch of one without its batch axis, cut to the valid frames.
pub(crate) fn valid_part(tensor: &TensorView<'_>, frames: usize) -> Result<Tensor, SpeechError> {
    match tensor.shape() {
        [1, rest @ ..] if !rest.is_empty() => {
            first_rows(&tensor.reshape(rest).map_err(tensor_error)?, frames)
        }
        _ => Ok(Tensor::from_view(tensor)),
    }
}
