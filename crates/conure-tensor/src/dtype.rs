//! Element types: what a tensor's bytes mean.

use std::fmt;

/// The type of a tensor's elements. Block formats store a fixed number of elements in a fixed number of bytes,
/// along the last (fastest) axis; their layouts are in [`crate::quant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// 32 elements in 18 bytes: f16 scale, 4-bit values offset by 8.
    Q4_0,
    /// 32 elements in 20 bytes: f16 scale, f16 minimum, 4-bit values.
    Q4_1,
    /// 32 elements in 22 bytes: f16 scale, 5-bit values offset by 16.
    Q5_0,
    /// 32 elements in 24 bytes: f16 scale, f16 minimum, 5-bit values.
    Q5_1,
    /// 32 elements in 34 bytes: f16 scale, 8-bit values.
    Q8_0,
    /// 256 elements in 144 bytes: 4-bit values, 6-bit scales and minima per 32.
    Q4_K,
    /// 256 elements in 176 bytes: 5-bit values, 6-bit scales and minima per 32.
    Q5_K,
    /// 256 elements in 210 bytes: 6-bit values, 8-bit scales per 16.
    Q6_K,
    /// 32 elements in 18 bytes: f16 scale, 4-bit places in a table.
    IQ4_NL,
    /// 32 elements in 17 bytes: a power of two as scale, 4-bit floats.
    MXFP4,
}

impl DType {
    /// Every type, in the order of the enum.
    pub const ALL: [DType; 15] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::IQ4_NL,
        DType::MXFP4,
    ];

    /// Elements in one block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::I64 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::IQ4_NL | DType::MXFP4 => 32,
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// Bytes of one block; the element size for plain types.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I64 => 8,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
            DType::IQ4_NL => 18,
            DType::MXFP4 => 17,
        }
    }

    /// Whether values are stored in blocks with shared scales.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `elements` contiguous elements, or `None` if they do not fill whole blocks or the size
    /// does not fit in `usize`.
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name used in files, options and messages: `f32`, `q8_0`, `q4_k`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::Q4_0 => "q4_0",
            DType::Q4_1 => "q4_1",
            DType::Q5_0 => "q5_0",
            DType::Q5_1 => "q5_1",
            DType::Q8_0 => "q8_0",
            DType::Q4_K => "q4_k",
            DType::Q5_K => "q5_k",
            DType::Q6_K => "q6_k",
            DType::IQ4_NL => "iq4_nl",
            DType::MXFP4 => "mxfp4",
        }
    }

    /// The type of this name, in either case.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
