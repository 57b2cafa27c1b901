//! Silero VAD: a file of the package `silero-vad` to GGUF, `silero_vad_16k_op15.onnx` or `silero_vad_16k.safetensors`.
//!
//! Of the package's version 6.2.3 the ONNX file has the weights that the package runs; those of the safetensors file are of
//! another training.

use crate::convert::{ConvertOptions, ConvertReport, Counter, default_name, encode, finish, nothing};
use crate::error::ConvertError;
use crate::onnx;
use crate::pickle::ScalarType;
use crate::quantise::TargetType;
use crate::safetensors::{self, SafetensorsFile};
use crate::source::to_f32;
use conure_gguf::{GgufWriter, MetaValue};
use conure_tensor::DType;
use std::path::Path;

/// The value of `general.architecture`.
const ARCHITECTURE: &str = "silero_vad";

/// Names: the package's, the file's, and the shape.
const TENSORS: [(&str, &str, &[usize]); 15] = [
    ("stft_conv.weight", "vad16k.stft.forward_basis_buffer", &[258, 1, 256]),
    ("conv1.weight", "vad16k.encoder.0.reparam_conv.weight", &[128, 129, 3]),
    ("conv1.bias", "vad16k.encoder.0.reparam_conv.bias", &[128]),
    ("conv2.weight", "vad16k.encoder.1.reparam_conv.weight", &[64, 128, 3]),
    ("conv2.bias", "vad16k.encoder.1.reparam_conv.bias", &[64]),
    ("conv3.weight", "vad16k.encoder.2.reparam_conv.weight", &[64, 64, 3]),
    ("conv3.bias", "vad16k.encoder.2.reparam_conv.bias", &[64]),
    ("conv4.weight", "vad16k.encoder.3.reparam_conv.weight", &[128, 64, 3]),
    ("conv4.bias", "vad16k.encoder.3.reparam_conv.bias", &[128]),
    ("lstm_cell.weight_ih", "vad16k.decoder.rnn.weight_ih", &[512, 128]),
    ("lstm_cell.weight_hh", "vad16k.decoder.rnn.weight_hh", &[512, 128]),
    ("lstm_cell.bias_ih", "vad16k.decoder.rnn.bias_ih", &[512]),
    ("lstm_cell.bias_hh", "vad16k.decoder.rnn.bias_hh", &[512]),
    ("final_conv.weight", "vad16k.decoder.decoder.2.weight", &[1, 128, 1]),
    ("final_conv.bias", "vad16k.decoder.decoder.2.bias", &[1]),
];

/// What the weights do not say: they are the same for every version 5 and 6.
const SIZES: [(&str, u32); 8] = [
    ("encoder.n_layers", 4),
    ("encoder.kernel", 3),
    ("lstm.hidden", 128),
    ("16000.chunk_samples", 512),
    ("16000.context_samples", 64),
    ("16000.stft.n_fft", 256),
    ("16000.stft.hop", 128),
    ("16000.stft.right_reflect_pad", 64),
];
const STRIDES: [i32; 4] = [1, 2, 2, 1];
const CHANNELS: [i32; 4] = [128, 64, 64, 128];

/// The largest ONNX file that is read: the model has 1.3 MB.
const MAX_ONNX: u64 = 64 << 20;

/// The weights of an input.
enum Input {
    Safetensors(SafetensorsFile),
    Onnx(Vec<u8>, Vec<onnx::OnnxTensor>),
}

impl Input {
    fn open(path: &Path) -> Result<Input, ConvertError> {
        let section = crate::open(path)?;
        let mut head = [0u8; 4];
        let read = |source| ConvertError::Io { path: path.into(), action: "read it", source };
        section.read_at(0, &mut head).map_err(read)?;
        if !onnx::may_be_onnx(&head) {
            return safetensors::open_path(path).map(Input::Safetensors);
        }
        let bytes = section.read_all(MAX_ONNX).map_err(read)?;
        let tensors = onnx::initializers(&bytes);
        let tensors =
            tensors.map_err(|e| ConvertError::Input { path: path.into(), reason: e.to_string() })?;
        Ok(Input::Onnx(bytes, tensors))
    }

    fn format(&self) -> &'static str {
        match self {
            Input::Safetensors(_) => "Silero VAD, safetensors",
            Input::Onnx(..) => "Silero VAD, ONNX",
        }
    }

    /// Names and shapes.
    fn tensors(&self) -> Vec<(&str, &[usize])> {
        match self {
            Input::Safetensors(file) => {
                file.tensors().iter().map(|t| (t.name.as_str(), &t.shape[..])).collect()
            }
            Input::Onnx(_, tensors) => tensors.iter().map(|t| (t.name.as_str(), &t.shape[..])).collect(),
        }
    }

    /// What a tensor is called here that the package's safetensors file and the GGUF file call so.
    fn name(&self, safetensors: &str, ours: &str) -> String {
        match self {
            Input::Safetensors(_) => safetensors.to_owned(),
            Input::Onnx(..) => ours.replacen("vad16k.", "model.", 1),
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.tensors().iter().position(|(n, _)| *n == name)
    }

    fn values(&self, path: &Path, index: usize) -> Result<Vec<f32>, ConvertError> {
        match self {
            Input::Safetensors(file) => {
                file.read_f32(index).map_err(|source| ConvertError::Safetensors { path: path.into(), source })
            }
            Input::Onnx(bytes, tensors) => match tensors[index].values.clone() {
                Some(range) => Ok(to_f32(ScalarType::F32, &bytes[range])),
                None => {
                    let (tensor, reason) =
                        (tensors[index].name.clone(), "it is not stored as plain f32".into());
                    Err(ConvertError::Tensor { path: path.into(), tensor, reason })
                }
            },
        }
    }
}

/// Whether a safetensors or an ONNX file holds this model.
pub(crate) fn is_silero(path: &Path) -> Result<bool, ConvertError> {
    let input = Input::open(path)?;
    let first_and_last = [&TENSORS[0], &TENSORS[9]];
    Ok(first_and_last.iter().all(|(theirs, ours, _)| input.find(&input.name(theirs, ours)).is_some()))
}

/// Converts the file `path`. f16 and bf16 are for the convolutions and the LSTM; other types are not for this model.
///
/// # Errors
/// A tensor that is missing or has another shape, by name.
pub(crate) fn convert(
    path: &Path,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    let input = Input::open(path)?;
    let wrong = |tensor: &str, reason: String| ConvertError::Tensor {
        path: path.into(),
        tensor: tensor.into(),
        reason,
    };
    let used: Vec<String> = TENSORS.iter().map(|(theirs, ours, _)| input.name(theirs, ours)).collect();
    let tensors = input.tensors();
    let dropped = tensors.iter().filter(|(name, _)| !used.iter().any(|u| u == name));
    let dropped =
        dropped.map(|(name, _)| ((*name).to_owned(), "the model does not use it".to_owned())).collect();
    let mut report = ConvertReport::new(input.format(), ARCHITECTURE, dropped);
    let counter = Counter::new(TENSORS.len(), options.progress);
    let mut writer = GgufWriter::new();
    metadata(&mut writer, path, options);
    for (name, (_, ours, shape)) in used.iter().zip(TENSORS) {
        let index = input.find(name).ok_or_else(|| wrong(name, "it is missing".into()))?;
        let found = tensors[index].1;
        if found != shape {
            return Err(wrong(name, format!("its shape is {found:?}, expected {shape:?}")));
        }
        let (dtype, kept) = stored_as(ours, shape, options.dtype);
        report.kept.extend(kept.map(|reason| (ours.to_owned(), reason.to_owned())));
        report.count(dtype, shape);
        let (counter, input) = (&counter, &input);
        writer.tensor_with(ours, dtype, shape, move |out| {
            counter.step(name)?;
            Ok(out.write_all(&encode(path, ours, dtype, &input.values(path, index)?)?)?)
        });
    }
    if options.dtype != TargetType::F32 && !report.tensors.contains_key(&options.dtype.dtype()) {
        return Err(nothing(path, options.dtype, &report.kept));
    }
    report.bytes = finish(writer, output)?;
    Ok(report)
}

fn metadata(writer: &mut GgufWriter<'_>, input: &Path, options: &ConvertOptions<'_>) {
    writer.meta("general.architecture", ARCHITECTURE);
    writer.meta("general.name", options.name.clone().unwrap_or_else(|| default_name(input)));
    writer.meta("general.license", "mit");
    writer.meta("general.url", "https://github.com/snakers4/silero-vad");
    for (key, text) in &options.general {
        writer.meta(key, text.as_str());
    }
    writer.meta("silero_vad.sample_rates", MetaValue::from(vec![16_000i32]));
    writer.meta("silero_vad.encoder.strides", MetaValue::from(STRIDES.to_vec()));
    writer.meta("silero_vad.encoder.channels", MetaValue::from(CHANNELS.to_vec()));
    for (key, value) in SIZES {
        writer.meta(&format!("silero_vad.{key}"), value);
    }
}

/// The type for a tensor, and why a large one stays f32 all the same. The Fourier basis stays exact.
fn stored_as(name: &str, shape: &[usize], target: TargetType) -> (DType, Option<&'static str>) {
    let wanted = target.dtype();
    let large = shape.len() > 1 && !name.contains(".stft.") && shape[0] > 1;
    match wanted {
        DType::F16 | DType::BF16 if large => (wanted, None),
        DType::F32 | DType::F16 | DType::BF16 => (DType::F32, None),
        _ if large => (DType::F32, Some("this model is stored in f32, f16 or bf16 only")),
        _ => (DType::F32, None),
    }
}
