//! The numbers by which a file names the types of metadata values and of tensors.

use conure_tensor::DType;
use std::fmt;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// In the order of their numbers, from 0.
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type of this number in a file.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(id as usize).copied()
    }

    /// Its number in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The fewest bytes that a value takes; all of them, for numbers.
    pub(crate) const fn min_bytes(self) -> usize {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        })
    }
}

/// The type of a tensor in a file: all whose size is known, also those that Conure does not compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    id: u32,
    name: &'static str,
    block_len: u16,
    block_bytes: u16,
    dtype: Option<DType>,
}

/// Number, name, elements and bytes of a block, of the types that Conure does not compute with.
const OTHER: [(u32, &str, u16, u16); 16] = [
    (10, "q2_k", 256, 84),
    (11, "q3_k", 256, 110),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (40, "nvfp4", 64, 36),
];

impl TensorType {
    /// The type of this number in a file, if its size is known.
    pub fn from_id(id: u32) -> Option<TensorType> {
        if let Some(dtype) = DType::ALL.into_iter().find(|&d| dtype_id(d) == id) {
            return Some(TensorType::from(dtype));
        }
        let &(id, name, block_len, block_bytes) = OTHER.iter().find(|other| other.0 == id)?;
        Some(TensorType { id, name, block_len, block_bytes, dtype: None })
    }

    /// Its number in a file.
    pub fn id(self) -> u32 {
        self.id
    }

    /// Its name: `f32`, `q4_k`, `iq4_nl`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The same as a [`DType`]; `None` if Conure does not compute with it.
    pub fn dtype(self) -> Option<DType> {
        self.dtype
    }

    /// Elements in one block; 1 for plain types.
    pub fn block_len(self) -> usize {
        usize::from(self.block_len)
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        usize::from(self.block_bytes)
    }
}

impl From<DType> for TensorType {
    fn from(dtype: DType) -> TensorType {
        TensorType {
            id: dtype_id(dtype),
            name: dtype.name(),
            // Blocks are at most 256 elements and 210 bytes.
            block_len: dtype.block_len() as u16,
            block_bytes: dtype.block_bytes() as u16,
            dtype: Some(dtype),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The number of a [`DType`] in a file.
const fn dtype_id(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        DType::IQ4_NL => 20,
        DType::I32 => 26,
        DType::I64 => 27,
        DType::BF16 => 30,
        DType::MXFP4 => 39,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_types_have_the_numbers_of_the_format() {
        for (id, name) in [(0, "u8"), (4, "u32"), (7, "bool"), (8, "string"), (9, "array"), (12, "f64")] {
            let ty = ValueType::from_id(id).unwrap();
            assert_eq!((ty.id(), ty.to_string().as_str()), (id, name));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn tensor_types_are_distinct_and_survive_their_number() {
        let known: Vec<TensorType> = (0..1000).filter_map(TensorType::from_id).collect();
        assert_eq!(known.len(), DType::ALL.len() + OTHER.len());
        for ty in known {
            assert_eq!(TensorType::from_id(ty.id()), Some(ty));
            if let Some(dtype) = ty.dtype() {
                assert_eq!((ty.block_len(), ty.block_bytes()), (dtype.block_len(), dtype.block_bytes()));
            }
        }
        // Withdrawn, and for activations only.
        assert_eq!([4, 5, 9, 15, 31, 36].map(TensorType::from_id), [None; 6]);
    }
}
