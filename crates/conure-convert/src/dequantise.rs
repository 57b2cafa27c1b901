//! GGUF to GGUF: the same model with every weight in f32, at the values that it has.

use crate::TargetType;
use crate::convert::{ConvertOptions, ConvertReport, Counter, finish, gguf_error, nothing, tensor_error};
use crate::error::ConvertError;
use crate::requantise::{AT_ONCE, FILE_TYPE, scope};
use conure_gguf::{GgufFile, GgufTensor, GgufWriter};
use conure_tensor::{DType, quant};
use std::error::Error;
use std::io::Write;
use std::path::Path;

/// Writes the GGUF file `input`, of a Parakeet or a language model, to `output` with all numbers that are no integers in f32.
///
/// # Errors
/// As [`crate::convert()`]; also if they all are f32.
pub(crate) fn dequantise(
    input: &Path,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    let gguf = |e: &dyn Error| gguf_error(input, e);
    let file = GgufFile::open(input).map_err(|e| gguf(&e))?;
    let architecture = file.meta().str("general.architecture").map_err(|e| gguf(&e))?;
    scope(input, architecture, false)?;
    let arch = file.meta().opt_str("parakeet.arch").map_err(|e| gguf(&e))?.unwrap_or(architecture);
    let mut report = ConvertReport::new("GGUF file", arch, Vec::new());
    let counter = Counter::new(file.tensors().len(), options.progress);
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).map_err(|e| gguf(&e))?;
    if file.meta().contains(FILE_TYPE) {
        // All f32.
        writer.meta(FILE_TYPE, 0u32);
    }
    options.describe(&mut writer);
    let mut changed = false;
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).map_err(|e| gguf(&e))?;
        let to = if matches!(tensor.dtype, DType::I32 | DType::I64) { tensor.dtype } else { DType::F32 };
        changed |= to != tensor.dtype;
        report.count(to, tensor.shape);
        let (counter, shape) = (&counter, tensor.shape);
        writer.tensor_with(&info.name, to, shape, move |out| {
            counter.step(&info.name)?;
            if to == tensor.dtype {
                return Ok(out.write_all(tensor.data)?);
            }
            decoded(&tensor, out).map_err(|e| tensor_error(input, tensor.name, &*e).into())
        });
    }
    if !changed {
        return Err(nothing(input, TargetType::F32, &[]));
    }
    report.bytes = finish(writer, output)?;
    Ok(report)
}

/// Writes the tensor's values.
fn decoded(tensor: &GgufTensor<'_>, out: &mut dyn Write) -> Result<(), Box<dyn Error + Send + Sync>> {
    let count: usize = tensor.shape.iter().product();
    let stored = tensor.dtype.bytes_for(AT_ONCE).unwrap_or(tensor.data.len()).max(1);
    let mut values = vec![0f32; AT_ONCE.min(count)];
    let mut left = count;
    for data in tensor.data.chunks(stored) {
        let values = &mut values[..AT_ONCE.min(left)];
        left -= values.len();
        quant::decode(tensor.dtype, data, values)?;
        out.write_all(&quant::encoded(DType::F32, values)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{QuantiseOptions, convert, quantise};

    #[test]
    fn a_quantised_model_gets_the_values_that_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let [small, large, again] = ["q.gguf", "f.gguf", "x.gguf"].map(|name| dir.path().join(name));
        let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle/hybrid_tdt80.gguf");
        // Matrices of the heads and the predictor too, which are none of those that a conversion stores in small types.
        for target in [TargetType::Q8_0, TargetType::Q4K, TargetType::F16] {
            quantise(&oracle, &small, &QuantiseOptions { target, ..Default::default() }).unwrap();
            let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
            let report = convert(&small, &large, &options).unwrap();
            let (before, after) = (GgufFile::open(&small).unwrap(), GgufFile::open(&large).unwrap());
            assert_eq!(report.tensors.keys().copied().collect::<Vec<_>>(), [DType::F32], "{target:?}");
            assert_eq!(report.bytes, std::fs::metadata(&large).unwrap().len());
            assert_eq!((report.arch.as_str(), after.meta().len()), ("hybrid_tdt_ctc", before.meta().len()));
            for info in before.tensors() {
                let (a, b) = (before.tensor(&info.name).unwrap(), after.tensor(&info.name).unwrap());
                let mut values = vec![0f32; a.shape.iter().product()];
                quant::decode(a.dtype, a.data, &mut values).unwrap();
                assert_eq!((b.dtype, a.shape), (DType::F32, b.shape), "{}", info.name);
                assert!(quant::encoded(DType::F32, &values).unwrap() == b.data, "{}", info.name);
            }
            let error = convert(&large, &again, &options).unwrap_err();
            assert!(matches!(error, ConvertError::NothingToDo { .. }) && !again.exists(), "{error}");
        }
    }

    #[test]
    fn what_stays_small_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let [small, other] = ["q.gguf", "x.gguf"].map(|name| dir.path().join(name));
        let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle/hybrid_tdt80.gguf");
        let q8 = QuantiseOptions { target: TargetType::Q8_0, ..Default::default() };
        quantise(&oracle, &small, &q8).unwrap();
        let report = convert(&small, &other, &ConvertOptions::default()).unwrap();
        let head = |(name, why): &(String, String)| name.starts_with("ctc_decoder") && why.contains("q8_0");
        assert!(report.kept.iter().any(head), "{:?}", report.kept);
        let all = |target| QuantiseOptions { target, ..Default::default() };
        for (options, says) in [
            (all(TargetType::F32), "to have all in f32, convert the file"),
            (all(TargetType::F16), "convert what the model was made of"),
            (QuantiseOptions { keep: vec!["*".into()], ..all(TargetType::Q4_0) }, "keep fewer"),
        ] {
            let error = quantise(&small, &other, &options).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("use f32"), "{error}");
        }
    }
}
