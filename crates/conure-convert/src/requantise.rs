//! GGUF to GGUF: the same model with its matrices in another type.

use crate::calibrate::{self, Calibrated, Calibrator, ProductError, part};
use crate::convert::{Counter, OnProgress, encode, finish, gguf_error, nothing, tensor_error};
use crate::error::ConvertError;
use crate::language;
use crate::quantise::{Scope, TargetType, stored_as};
use conure_gguf::{GgufFile, GgufTensor, GgufWriter};
use conure_kernels::{Cpu, KernelError, ThreadBudget, Threads};
use conure_tensor::{DType, quant, tensor_bytes};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

/// What to make of a GGUF file.
#[derive(Clone, Default)]
pub struct QuantiseOptions<'a> {
    /// Type of the matrices.
    pub target: TargetType,
    /// Tensors that stay as they are: names in which `*` stands for any letters and `?` for one.
    pub keep: Vec<String>,
    /// Whether only those tensors are stored in another type that parakeet.cpp reads so.
    pub compatible: bool,
    /// What the model's products are made of: then roundings are those that change products least, not each weight.
    pub calibrated: Option<Calibrated<'a>>,
    /// The threads that encode; by default as many as the process may use.
    pub budget: ThreadBudget,
    /// Called before every tensor; `false` stops, and no file is written.
    pub progress: Option<OnProgress<'a>>,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantiseReport {
    /// `parakeet.arch` of the model, or the architecture of a language model.
    pub arch: String,
    /// The tensors, in the order of the file.
    pub tensors: Vec<TensorChange>,
    /// Size of the input in bytes.
    pub bytes_before: u64,
    /// Size of the output in bytes.
    pub bytes_after: u64,
}

/// What became of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorChange {
    /// Its name.
    pub name: String,
    /// Its axes, slowest first, as written.
    pub shape: Vec<usize>,
    /// How it was stored.
    pub from: DType,
    /// How it is.
    pub to: DType,
    /// Bytes it took.
    pub bytes_before: u64,
    /// Bytes it takes.
    pub bytes_after: u64,
    /// Root of the sum of squared differences to what was stored, as a part of that of the squares; `None` where nothing
    /// changed.
    pub error: Option<f64>,
    /// What that does to its products, where it was calibrated.
    pub products: Option<ProductError>,
    /// Why its type is not the one asked for, where it was meant.
    pub note: Option<String>,
}

/// Writes the GGUF file `input`, of a Parakeet or a language model, to `output` with every matrix in the type asked for; everything
/// else is copied byte for byte, but that a `general.file_type` says what most values are stored as then. Matrices are all weights
/// of products, also of pointwise convolutions, of the LSTM, of joint and CTC head, of experts, and the embedding; not norms,
/// biases, routers, and convolutions over several places. A matrix whose rows do not fill the type's blocks takes the next
/// best type, and one that is small already stays as it is. The output appears when it is complete.
///
/// Each weight goes to its nearest value, unless [`QuantiseOptions::calibrated`] says what the matrices are multiplied with: then a
/// row's weights make up for each other's errors, so that its products change least, and a key tells of it. Such a row is never
/// worse in that than with the nearest values.
///
/// # Errors
/// [`ConvertError`]: also if nothing would change, if a pattern of [`QuantiseOptions::keep`] fits no tensor, or if
/// [`QuantiseOptions::compatible`] and the type do not go together.
pub fn quantise(
    input: &Path,
    output: &Path,
    options: &QuantiseOptions<'_>,
) -> Result<QuantiseReport, ConvertError> {
    let refuse = |reason: String| Err(ConvertError::Input { path: input.into(), reason });
    crate::convert::spare(input, output)?;
    if options.compatible && !options.target.is_compatible() {
        let name = options.target.dtype().name();
        return refuse(format!(
            "parakeet.cpp reads no {name}: choose f16, q8_0, q4_0, q5_0, q4_k, q5_k or q6_k, or do without compatibility"
        ));
    }
    if options.calibrated.is_some() && !options.target.dtype().is_quantised() {
        let name = options.target.dtype().name();
        return refuse(format!(
            "{name} leaves no choice of roundings to calibrate: choose q8_0 or smaller, or do without"
        ));
    }
    // Types, pipes and folders are told apart by the reader of all inputs.
    crate::open(input)?;
    rewrite(input, output, options, |_| {})
}

/// As [`quantise`], with more metadata.
pub(crate) fn rewrite(
    input: &Path,
    output: &Path,
    options: &QuantiseOptions<'_>,
    meta: impl FnOnce(&mut GgufWriter<'_>),
) -> Result<QuantiseReport, ConvertError> {
    let gguf = |e: &dyn Error| gguf_error(input, e);
    let file = GgufFile::open(input).map_err(|e| gguf(&e))?;
    let architecture = file.meta().str("general.architecture").map_err(|e| gguf(&e))?;
    let scope = scope(input, architecture, options.compatible)?;
    let language = scope == Scope::Language;
    if language && options.calibrated.is_some() {
        let reason = "it is a language model, and only speech models are calibrated: do without".into();
        return Err(ConvertError::Input { path: input.into(), reason });
    }
    let arch = match file.meta().opt_str("parakeet.arch").map_err(|e| gguf(&e))? {
        _ if language => architecture.to_owned(),
        arch => arch.unwrap_or_default().to_owned(),
    };
    let tensors = changes(&file, input, options, scope)?;
    if tensors.iter().all(|t| t.from == t.to) {
        let kept: Vec<_> = tensors.into_iter().filter_map(|t| Some((t.name, t.note?))).collect();
        return Err(nothing(input, options.target, &kept));
    }
    let cpu = Cpu::within(&options.budget, None).map_err(|e| no_threads(input, e))?;
    let calibrator = options.calibrated.map(|calibrated| Calibrator::new(&cpu, input, calibrated));
    let counter = Counter::new(tensors.len(), options.progress);
    let errors = RefCell::new(vec![None; tensors.len()]);
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).map_err(|e| gguf(&e))?;
    if file.meta().contains(FILE_TYPE) {
        writer.meta(FILE_TYPE, file_type(&tensors));
    }
    match &options.calibrated {
        Some(calibrated) => {
            writer.meta(calibrate::KEY, u32::try_from(calibrated.recordings).unwrap_or(u32::MAX))
        }
        // What was said of the input's roundings is not true of these.
        None => writer.without_meta(calibrate::KEY),
    };
    meta(&mut writer);
    for (i, change) in tensors.iter().enumerate() {
        let tensor = file.tensor(&change.name).map_err(|e| gguf(&e))?;
        let (counter, errors, threads, calibrator) = (&counter, &errors, cpu.threads(), &calibrator);
        writer.tensor_with(&change.name, change.to, &change.shape, move |out| {
            counter.step(&change.name)?;
            if change.from == change.to {
                return Ok(out.write_all(tensor.data)?);
            }
            let moments = match calibrator {
                Some(calibrator) => calibrator.moments(&tensor, change.to, &change.shape)?,
                None => None,
            };
            errors.borrow_mut()[i] = Some(match (calibrator, moments) {
                (Some(calibrator), Some(moments)) => {
                    let (error, products) = calibrator.write(&tensor, change.to, &moments, out)?;
                    (error, Some(products))
                }
                _ => (stored_anew(threads, input, &tensor, change.to, out)?, None),
            });
            Ok(())
        });
    }
    let bytes_after = finish(writer, output)?;
    let mut tensors = tensors;
    for (tensor, errors) in tensors.iter_mut().zip(errors.into_inner()) {
        let Some((error, products)) = errors else { continue };
        (tensor.error, tensor.products) = (Some(error), products);
    }
    Ok(QuantiseReport { arch, tensors, bytes_before: file.map().bytes().len() as u64, bytes_after })
}

/// The key that says what a file mostly holds.
pub(crate) const FILE_TYPE: &str = "general.file_type";

/// The number in GGUF's list of file types of what most values are stored as.
fn file_type(tensors: &[TensorChange]) -> u32 {
    let number = |dtype: DType| match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(1),
        DType::Q4_0 => Some(2),
        DType::Q4_1 => Some(3),
        DType::Q8_0 => Some(7),
        DType::Q5_0 => Some(8),
        DType::Q5_1 => Some(9),
        // All matrices alike is what the list calls small.
        DType::Q4_K => Some(14),
        DType::Q5_K => Some(16),
        DType::Q6_K => Some(18),
        DType::IQ4_NL => Some(25),
        DType::BF16 => Some(32),
        DType::MXFP4 => Some(38),
        DType::I32 | DType::I64 => None,
    };
    let mut values: BTreeMap<u32, usize> = BTreeMap::new();
    for t in tensors {
        if let Some(number) = number(t.to) {
            *values.entry(number).or_default() += t.shape.iter().product::<usize>();
        }
    }
    values.into_iter().max_by_key(|&(_, count)| count).map_or(0, |(number, _)| number)
}

/// Whether the file at `path` holds a language model; not if it cannot be read.
pub(crate) fn is_language(path: &Path) -> bool {
    let file = GgufFile::open(path).ok();
    file.is_some_and(|f| f.meta().str("general.architecture").is_ok_and(language::knows))
}

/// Which tensors of a model of this architecture are stored anew.
pub(crate) fn scope(input: &Path, architecture: &str, compatible: bool) -> Result<Scope, ConvertError> {
    let refuse = |reason: String| Err(ConvertError::Input { path: input.into(), reason });
    match architecture {
        "parakeet" if compatible => Ok(Scope::Compatible),
        "parakeet" => Ok(Scope::All),
        other if !language::knows(other) => refuse(format!(
            "its architecture is {other:?}: only parakeet models and language models that Conure runs are stored anew"
        )),
        _ if compatible => refuse(
            "it is a language model, which parakeet.cpp does not read: do without compatibility".into(),
        ),
        _ => Ok(Scope::Language),
    }
}

/// How every tensor will be stored.
fn changes(
    file: &GgufFile,
    input: &Path,
    options: &QuantiseOptions<'_>,
    scope: Scope,
) -> Result<Vec<TensorChange>, ConvertError> {
    let mut used = vec![false; options.keep.len()];
    let mut changes = Vec::new();
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).map_err(|e| gguf_error(input, &e))?;
        let mut stored = stored_as(&info.name, tensor.shape, options.target, scope);
        for (pattern, used) in options.keep.iter().zip(&mut used) {
            if fits(pattern, &info.name) {
                *used = true;
                if stored.dtype.take().is_some() {
                    stored.note = Some(format!("kept: {pattern}"));
                }
            }
        }
        let before = tensor.data.len() as u64;
        let mut to = stored.dtype.unwrap_or(tensor.dtype);
        let mut after = tensor_bytes(to, &stored.shape).map_or(before, |n| n as u64);
        if scope != Scope::Compatible && to != tensor.dtype && after >= before {
            stored.note = Some(format!("{} is as small", tensor.dtype));
            (to, after) = (tensor.dtype, before);
        }
        changes.push(TensorChange {
            name: info.name.clone(),
            shape: if to == tensor.dtype { tensor.shape.to_vec() } else { stored.shape },
            from: tensor.dtype,
            to,
            bytes_before: before,
            bytes_after: after,
            error: None,
            products: None,
            note: stored.note,
        });
    }
    match options.keep.iter().zip(used).find(|(_, used)| !used) {
        Some((pattern, _)) => {
            let reason = format!("no tensor has a name like {pattern:?}, which is to be kept");
            Err(ConvertError::Input { path: input.into(), reason })
        }
        None => Ok(changes),
    }
}

/// Values of a tensor in memory at once, whole blocks of any type: 64 MiB of them, where an embedding may have 4 GB.
pub(crate) const AT_ONCE: usize = 1 << 24;

/// Writes the tensor in another type; the error.
fn stored_anew(
    threads: &Threads,
    input: &Path,
    tensor: &GgufTensor<'_>,
    to: DType,
    out: &mut dyn Write,
) -> Result<f64, Box<dyn Error + Send + Sync>> {
    let fail = |e: &dyn Error| tensor_error(input, tensor.name, e);
    let count: usize = tensor.shape.iter().product();
    let stored = tensor.dtype.bytes_for(AT_ONCE).unwrap_or(tensor.data.len()).max(1);
    let mut piece = vec![0f32; to.block_len().max(1024)];
    let piece_bytes = to.bytes_for(piece.len()).unwrap_or(piece.len());
    let (mut error, mut size) = (0f64, 0f64);
    for (i, data) in tensor.data.chunks(stored).enumerate() {
        let mut values = vec![0f32; AT_ONCE.min(count - i * AT_ONCE)];
        quant::decode(tensor.dtype, data, &mut values).map_err(|e| fail(&e))?;
        let bytes = encode_on_all(threads, input, tensor.name, to, &values)?;
        for (values, bytes) in values.chunks(piece.len()).zip(bytes.chunks(piece_bytes)) {
            let decoded = &mut piece[..values.len()];
            quant::decode(to, bytes, decoded).map_err(|e| fail(&e))?;
            for (&value, &decoded) in values.iter().zip(&*decoded) {
                error += (f64::from(value) - f64::from(decoded)).powi(2);
                size += f64::from(value).powi(2);
            }
        }
        out.write_all(&bytes)?;
    }
    Ok(part(error, size))
}

/// Blocks that are worth a task of their own: the search for the scales of Q4_K takes 50 ns a value.
const PIECE: usize = 256;

/// Encodes pieces on all threads.
pub(crate) fn encode_on_all(
    threads: &Threads,
    input: &Path,
    name: &str,
    to: DType,
    values: &[f32],
) -> Result<Vec<u8>, ConvertError> {
    let pieces: Vec<&[f32]> = values.chunks(PIECE * to.block_len()).collect();
    let encoded: Vec<OnceLock<Result<Vec<u8>, ConvertError>>> =
        pieces.iter().map(|_| OnceLock::new()).collect();
    let run = threads.run(pieces.len(), |i, _| {
        encoded[i].get_or_init(|| encode(input, name, to, pieces[i]));
    });
    run.map_err(|e| no_threads(input, e))?;
    let mut bytes = Vec::with_capacity(to.bytes_for(values.len()).unwrap_or(0));
    for part in encoded.into_iter().filter_map(OnceLock::into_inner) {
        bytes.extend(part?);
    }
    Ok(bytes)
}

fn no_threads(input: &Path, error: KernelError) -> ConvertError {
    let source = std::io::Error::other(error);
    ConvertError::Io { path: input.into(), action: "convert it", source }
}

/// Whether a name fits a pattern of letters, `*` (any letters, also none) and `?` (one).
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star is, and what it has taken so far: the only place to go back to.
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*", "", true),
            ("joint.*", "joint.pred.weight", true),
            ("*.weight", "joint.pred.weight", true),
            ("encoder.layers.?.*linear1*", "encoder.layers.3.feed_forward1.linear1.weight", true),
            ("encoder.layers.?.*linear1*", "encoder.layers.13.feed_forward1.linear1.weight", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
        // As long a search as there is: one way back only, so no explosion.
        assert!(!fits(&"*a".repeat(30), &"a".repeat(29)));
    }

    #[test]
    fn pieces_encoded_apart_are_the_whole() {
        let values: Vec<f32> = (0..256 * 700).map(|i| (i as f32 * 0.37).sin()).collect();
        for dtype in [DType::Q4_K, DType::Q8_0] {
            let whole = quant::encoded(dtype, &values).unwrap();
            for count in [1, 3] {
                let threads = Threads::new(count).unwrap();
                assert!(encode_on_all(&threads, Path::new("x"), "x", dtype, &values).unwrap() == whole);
            }
        }
    }
}
