//! From an input to a GGUF file.

use crate::dequantise::dequantise;
use crate::error::ConvertError;
use crate::prepared::Prepared;
use crate::quantise::{Scope, TargetType, stored_as};
use crate::requantise::{self, QuantiseOptions};
use crate::schema::Meta;
use crate::section::Section;
use crate::{hf, language, nemo, silero};
use conure_gguf::{GgufWriter, MetaValue, WriteError};
use conure_tensor::{DType, quant};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// How far a conversion is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Tensors written so far.
    pub done: usize,
    /// Tensors in all.
    pub total: usize,
    /// The tensor that comes next.
    pub tensor: &'a str,
}

/// Called before every tensor; `false` stops.
pub type OnProgress<'a> = &'a dyn Fn(&Progress<'_>) -> bool;

/// What to make of an input.
#[derive(Clone, Default)]
pub struct ConvertOptions<'a> {
    /// Type of the linear layers' weights; the rest stays f32.
    pub dtype: TargetType,
    /// `general.name`; the input's file name without `.nemo` if left out.
    pub name: Option<String>,
    /// Further texts under `general.` keys, such as `general.license`, `general.description`, `general.author`: a
    /// model that is passed on must name its sources.
    pub general: Vec<(String, String)>,
    /// Called before every tensor; `false` stops the conversion, and no file is written.
    pub progress: Option<OnProgress<'a>>,
}

impl ConvertOptions<'_> {
    /// Gives the new file the texts that are asked for.
    pub(crate) fn describe(&self, writer: &mut GgufWriter<'_>) {
        if let Some(name) = &self.name {
            writer.meta("general.name", name.as_str());
        }
        for (key, text) in &self.general {
            writer.meta(key, text.as_str());
        }
    }
}

/// What was converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertReport {
    /// What the input was, in words.
    pub format: &'static str,
    /// `parakeet.arch` of the model: `ctc`, `rnnt`, `tdt`, `hybrid_rnnt_ctc` or `hybrid_tdt_ctc`; of others their
    /// `general.architecture`.
    pub arch: String,
    /// Number of tensors by type.
    pub tensors: BTreeMap<DType, usize>,
    /// Number of values in all tensors.
    pub parameters: u64,
    /// Size of the output in bytes.
    pub bytes: u64,
    /// Tensors that the type asked for was meant for and that stayed as they are, and why.
    pub kept: Vec<(String, String)>,
    /// Tensors of the input that were left out, and why.
    pub dropped: Vec<(String, String)>,
}

/// Refuses an output that would replace what is read: the input, or a file in it if it is a folder, whatever it is called by. A GGUF
/// file in a folder is no part of the model there.
///
/// # Errors
/// [`ConvertError::Input`].
pub(crate) fn spare(input: &Path, output: &Path) -> Result<(), ConvertError> {
    let Ok(real) = output.canonicalize() else { return Ok(()) };
    let inside = std::fs::read_dir(input).into_iter().flatten().flatten().map(|entry| entry.path());
    let inside = inside.filter(|path| path.extension().is_none_or(|e| !e.eq_ignore_ascii_case("gguf")));
    if std::iter::once(input.to_owned())
        .chain(inside)
        .any(|path| path.canonicalize().is_ok_and(|p| p == real))
    {
        let reason = "it is input and output: give the output another name".into();
        return Err(ConvertError::Input { path: output.into(), reason });
    }
    Ok(())
}

/// Converts `input` (a `.nemo` file or unpacked folder, a Hugging Face Parakeet folder, a file of Silero VAD, or a
/// Parakeet GGUF file) to
/// the GGUF file `output`. The output is written beside its place and renamed when complete; a file that was there is
/// replaced then and not touched before. Memory: about three times the largest tensor.
///
/// # Errors
/// [`ConvertError`], which names the file, the place in it and what to do; no output is written then.
pub fn convert(
    input: &Path,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    spare(input, output)?;
    if let Some((key, _)) = options.general.iter().find(|(key, _)| !key.starts_with("general.")) {
        let reason = format!("key `{key}` cannot be set: texts may be added under `general.` only");
        return Err(ConvertError::Gguf { path: output.into(), reason });
    }
    if detect(input)? == Kind::Gguf {
        return match options.dtype {
            TargetType::F32 => dequantise(input, output, options),
            _ => requantise(input, output, options),
        };
    }
    if detect(input)? == Kind::Silero {
        return silero::convert(input, output, options);
    }
    if detect(input)? == Kind::HuggingFace && language::is_language(input)? {
        return language::convert(input, output, options);
    }
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prepared = prepare(input, folder)?;
    write(&prepared, output, options)
}

fn write(
    prepared: &Prepared,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    let counter = Counter::new(prepared.tensors.len(), options.progress);
    let mut writer = GgufWriter::new();
    writer.meta("general.architecture", "parakeet");
    writer.meta("general.name", options.name.clone().unwrap_or_else(|| default_name(&prepared.path)));
    for (key, text) in &options.general {
        writer.meta(key, text.as_str());
    }
    for (key, value) in prepared.model.metadata() {
        writer.meta(&key, meta_value(value));
    }
    let mut report =
        ConvertReport::new(prepared.format, prepared.model.arch.label(), prepared.dropped.clone());
    for tensor in &prepared.tensors {
        let stored = stored_as(&tensor.name, &tensor.shape, options.dtype, Scope::Compatible);
        let dtype = stored.dtype.unwrap_or(DType::F32);
        report.kept.extend(stored.note.map(|note| (tensor.name.clone(), note)));
        report.count(dtype, &tensor.shape);
        let counter = &counter;
        writer.tensor_with(&tensor.name, dtype, &tensor.shape, move |out| {
            counter.step(&tensor.name)?;
            let values = prepared.values(tensor)?;
            Ok(out.write_all(&encode(&prepared.path, &tensor.name, dtype, &values)?)?)
        });
    }
    if options.dtype != TargetType::F32 && !report.tensors.contains_key(&options.dtype.dtype()) {
        return Err(nothing(&prepared.path, options.dtype, &report.kept));
    }
    report.bytes = finish(writer, output)?;
    Ok(report)
}

/// A Parakeet GGUF file with its linear layers in another type; everything else is copied byte for byte.
fn requantise(
    input: &Path,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    let quantise = QuantiseOptions {
        target: options.dtype,
        compatible: !requantise::is_language(input),
        progress: options.progress,
        ..QuantiseOptions::default()
    };
    let done = requantise::rewrite(input, output, &quantise, |writer| options.describe(writer))?;
    let mut report = ConvertReport {
        format: "GGUF file",
        arch: done.arch,
        tensors: BTreeMap::new(),
        parameters: 0,
        bytes: done.bytes_after,
        kept: Vec::new(),
        dropped: Vec::new(),
    };
    for tensor in done.tensors {
        report.count(tensor.to, &tensor.shape);
        let small =
            tensor.from == tensor.to && tensor.to.is_quantised() && tensor.to != options.dtype.dtype();
        let why = tensor.note.or_else(|| small.then(|| format!("it is {} in the input", tensor.to)));
        report.kept.extend(why.map(|why| (tensor.name, why)));
    }
    Ok(report)
}

impl ConvertReport {
    pub(crate) fn new(format: &'static str, arch: &str, dropped: Vec<(String, String)>) -> ConvertReport {
        let (tensors, arch) = (BTreeMap::new(), arch.to_owned());
        ConvertReport { format, arch, tensors, parameters: 0, bytes: 0, kept: Vec::new(), dropped }
    }

    pub(crate) fn count(&mut self, dtype: DType, shape: &[usize]) {
        *self.tensors.entry(dtype).or_default() += 1;
        self.parameters += shape.iter().map(|&n| n as u64).product::<u64>();
    }
}

/// What a model is called whose name nobody said.
pub(crate) fn default_name(input: &Path) -> String {
    let name = if input.extension().is_some_and(|e| e.eq_ignore_ascii_case("nemo")) {
        input.file_stem()
    } else {
        input.file_name()
    };
    name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Reports progress, and carries a wish to stop.
pub(crate) struct Counter<'a> {
    total: usize,
    done: Cell<usize>,
    progress: Option<OnProgress<'a>>,
}

impl<'a> Counter<'a> {
    pub(crate) fn new(total: usize, progress: Option<OnProgress<'a>>) -> Counter<'a> {
        Counter { total, done: Cell::new(0), progress }
    }

    pub(crate) fn step(&self, tensor: &str) -> Result<(), ConvertError> {
        let done = self.done.replace(self.done.get() + 1);
        match self.progress {
            Some(progress) if !progress(&Progress { done, total: self.total, tensor }) => {
                Err(ConvertError::Cancelled)
            }
            _ => Ok(()),
        }
    }
}

/// The values in `dtype`. What is no number there, or becomes none, is an error: no model was trained so.
pub(crate) fn encode(path: &Path, name: &str, dtype: DType, values: &[f32]) -> Result<Vec<u8>, ConvertError> {
    let most = if dtype == DType::F16 { F16_MAX } else { f32::MAX };
    if let Some((i, value)) = values.iter().enumerate().find(|(_, v)| v.is_nan() || v.abs() > most) {
        let reason = if value.is_finite() {
            format!("value {i} is {value}, more than f16 holds; use f32 or bf16")
        } else {
            format!("value {i} is {value}: the checkpoint is damaged; fetch it again")
        };
        return Err(ConvertError::Tensor { path: path.into(), tensor: name.to_owned(), reason });
    }
    quant::encoded(dtype, values).map_err(|e| tensor_error(path, name, &e))
}

/// Greatest number that f16 holds.
const F16_MAX: f32 = 65_504.0;

pub(crate) fn tensor_error(path: &Path, name: &str, e: &dyn Error) -> ConvertError {
    ConvertError::Tensor { path: path.into(), tensor: name.to_owned(), reason: e.to_string() }
}

/// An error of the GGUF crate, which names the file itself where it can.
pub(crate) fn gguf_error(path: &Path, e: &dyn Error) -> ConvertError {
    let shown = e.to_string();
    let reason = shown.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&shown);
    ConvertError::Gguf { path: path.into(), reason: reason.to_owned() }
}

pub(crate) fn nothing(path: &Path, target: TargetType, kept: &[(String, String)]) -> ConvertError {
    let name = target.dtype().name();
    let reason = match kept.first() {
        Some((tensor, reason)) => {
            let advice = match reason.as_str() {
                why if !why.ends_with("is as small") && !why.starts_with("kept: ") => "use f32",
                why if why.starts_with("kept: ") => "keep fewer",
                _ if target == TargetType::F32 => {
                    "weights are only made smaller here: to have all in f32, convert the file to that type"
                }
                _ => {
                    "weights are only made smaller here: for a larger type convert what the model was made of"
                }
            };
            format!("no tensor can be stored as {name} ({tensor}: {reason}); {advice}")
        }
        None => format!("no tensor would be stored in another type; all that may be {name} are"),
    };
    ConvertError::NothingToDo { path: path.into(), reason }
}

/// Writes the file; an error of ours that passed through the writer comes out as it went in.
pub(crate) fn finish(writer: GgufWriter<'_>, output: &Path) -> Result<u64, ConvertError> {
    writer.write_to(output).map_err(|e| match e {
        WriteError::Source { name, source } => match source.downcast::<ConvertError>() {
            Ok(ours) => *ours,
            Err(other) => {
                let reason = format!("cannot write tensor `{name}`: {other}");
                ConvertError::Gguf { path: output.into(), reason }
            }
        },
        other => gguf_error(output, &other),
    })
}

fn meta_value(value: Meta) -> MetaValue {
    match value {
        Meta::U32(v) => v.into(),
        Meta::I32(v) => v.into(),
        Meta::F32(v) => v.into(),
        Meta::Bool(v) => v.into(),
        Meta::Str(v) => v.into(),
        Meta::I32s(v) => v.into(),
        Meta::Strs(v) => MetaValue::strings(v),
    }
}

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NemoArchive,
    NemoFolder,
    HuggingFace,
    Gguf,
    Silero,
}

/// Opens and checks an input without writing anything. A gzipped archive is inflated into a nameless file in
/// `folder`.
///
/// # Errors
/// [`ConvertError`] if it is no model, hostile, or of a kind that is not supported.
pub fn prepare(input: &Path, folder: &Path) -> Result<Prepared, ConvertError> {
    match detect(input)? {
        Kind::NemoArchive => nemo::open_archive(input, &crate::open(input)?, folder),
        Kind::NemoFolder => nemo::open_folder(input),
        Kind::HuggingFace => hf::open_folder(input),
        Kind::Gguf => Err(ConvertError::Input { path: input.into(), reason: "it is GGUF already".into() }),
        Kind::Silero => {
            Err(ConvertError::Input { path: input.into(), reason: "it is no speech recogniser".into() })
        }
    }
}

fn detect(input: &Path) -> Result<Kind, ConvertError> {
    let bad = |reason: &str| ConvertError::Input { path: input.into(), reason: reason.to_owned() };
    let meta = std::fs::metadata(input).map_err(|source| ConvertError::Io {
        path: input.into(),
        action: "open it",
        source,
    })?;
    if meta.is_dir() {
        if input.join("model_config.yaml").is_file() {
            return Ok(Kind::NemoFolder);
        }
        if input.join("config.json").is_file() {
            return Ok(Kind::HuggingFace);
        }
        return Err(bad(
            "the folder holds neither model_config.yaml (an unpacked .nemo) nor config.json (a Hugging Face model)",
        ));
    }
    let section = crate::open(input)?;
    match start(&section).map_err(|source| ConvertError::Io {
        path: input.into(),
        action: "read it",
        source,
    })? {
        Start::Kind(kind) => Ok(kind),
        Start::Safetensors | Start::Onnx if silero::is_silero(input)? => Ok(Kind::Silero),
        Start::Onnx => Err(bad(
            "it is an ONNX file, and of these only silero_vad_16k_op15.onnx of the package silero-vad is converted; give the \
             .nemo file or the folder of a Hugging Face model",
        )),
        Start::Safetensors => Err(bad(
            "it is a bare safetensors file: give the folder that also holds config.json, tokenizer.json and \
             processor_config.json",
        )),
        Start::Other(reason) => Err(bad(reason)),
    }
}

enum Start {
    Kind(Kind),
    Safetensors,
    Onnx,
    Other(&'static str),
}

/// What a file's first bytes say.
fn start(section: &Section) -> std::io::Result<Start> {
    let mut head = [0u8; 512];
    let n = usize::try_from(section.len()).unwrap_or(usize::MAX).min(head.len());
    section.read_at(0, &mut head[..n])?;
    let head = &head[..n];
    let length = head.first_chunk().map(|b| u64::from_le_bytes(*b));
    let text = || std::str::from_utf8(&head[..head.len().min(64)]).map(str::trim_start).unwrap_or_default();
    Ok(Start::Other(if head.is_empty() {
        "the file is empty: fetch it again"
    } else if head.starts_with(b"GGUF") {
        return Ok(Start::Kind(Kind::Gguf));
    } else if head.starts_with(&[0x1f, 0x8b])
        || head.get(257..262) == Some(b"ustar")
        || n == 512 && head[0] != 0 && head[156] == b'0'
    {
        return Ok(Start::Kind(Kind::NemoArchive));
    } else if head.starts_with(b"PK\x03\x04") {
        "it is a zip archive, such as a bare PyTorch checkpoint: without its configuration and tokenizer it cannot be \
         converted; give the .nemo file"
    } else if head.starts_with(b"version https://git-lfs") {
        "it is a Git LFS pointer, not the model: fetch the file itself (git lfs pull)"
    } else if text().starts_with('<') {
        "it is a web page, not a model: the download gave a page instead of the file"
    } else if length.is_some_and(|l| l < 1 << 30) && head.get(8..).is_some_and(|h| h.starts_with(b"{")) {
        return Ok(Start::Safetensors);
    } else if crate::onnx::may_be_onnx(head) {
        return Ok(Start::Onnx);
    } else if text().starts_with('{') {
        "it is JSON, not a model: give the folder of a Hugging Face model"
    } else {
        "it is neither a .nemo archive (tar) nor GGUF; give a .nemo file, the folder of a Hugging Face Parakeet model \
         or a GGUF file"
    }))
}
