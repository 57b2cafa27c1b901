//! Where tensors come from, whatever the container: names, shapes, and one tensor at a time as f32.

use crate::error::ConvertError;
use crate::pickle::ScalarType;
use half::{bf16, f16};

/// A tensor of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its name in the input.
    pub name: String,
    /// Lengths, slowest axis first.
    pub shape: Vec<usize>,
    /// Element type in the input.
    pub dtype: ScalarType,
}

impl SourceTensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An opened input.
pub trait TensorSource {
    /// Its tensors.
    fn tensors(&self) -> &[SourceTensor];
    /// Tensor `index`, row-major.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_f32(&self, index: usize) -> Result<Vec<f32>, ConvertError>;
}

/// Little-endian elements as f32. f16, bf16 and small integers are exact; f64 and wide integers round to nearest.
pub fn to_f32(dtype: ScalarType, bytes: &[u8]) -> Vec<f32> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|&b| f(b)).collect()
    }
    match dtype {
        ScalarType::F32 => each(bytes, f32::from_le_bytes),
        ScalarType::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
        ScalarType::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
        ScalarType::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        ScalarType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
        ScalarType::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
        ScalarType::I16 => each(bytes, |b| f32::from(i16::from_le_bytes(b))),
        ScalarType::I8 => each(bytes, |b| f32::from(i8::from_le_bytes(b))),
        ScalarType::U8 => each(bytes, |[b]| f32::from(b)),
        ScalarType::Bool => each(bytes, |[b]| f32::from(u8::from(b != 0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types() {
        let cases: [(ScalarType, &[u8], f32); 10] = [
            (ScalarType::F32, &1.5f32.to_le_bytes(), 1.5),
            (ScalarType::F64, &(-2.25f64).to_le_bytes(), -2.25),
            (ScalarType::F16, &[0x00, 0x3e], 1.5),
            (ScalarType::BF16, &[0xc0, 0x3f], 1.5),
            (ScalarType::I64, &(-3i64).to_le_bytes(), -3.0),
            (ScalarType::I32, &7i32.to_le_bytes(), 7.0),
            (ScalarType::I16, &(-9i16).to_le_bytes(), -9.0),
            (ScalarType::I8, &[0xff], -1.0),
            (ScalarType::U8, &[0xff], 255.0),
            (ScalarType::Bool, &[2], 1.0),
        ];
        for (dtype, bytes, want) in cases {
            assert_eq!(bytes.len(), dtype.size());
            assert_eq!(to_f32(dtype, bytes), [want], "{dtype:?}");
        }
    }
}
