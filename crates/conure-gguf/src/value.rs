//! Metadata values, as views of the file's bytes: an array takes no memory of its own.

use crate::cursor::{Cursor, Short};
use crate::types::ValueType;
use std::fmt;

/// How deep arrays may lie in arrays.
pub(crate) const MAX_DEPTH: usize = 4;

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the names say it
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Should be UTF-8; files exist where a token of the vocabulary is not.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// An integer of any width; a bool counts as 0 or 1.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            Value::Bool(v) => v.into(),
            Value::F32(_) | Value::F64(_) | Value::String(_) | Value::Array(_) => return None,
        })
    }

    /// A float of either width, or an integer, as the nearest f32.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            Value::Bool(_) => None,
            _ => self.as_integer().map(|v| v as f32),
        }
    }

    /// A bool, or an integer that is 0 or 1.
    pub fn as_bool(&self) -> Option<bool> {
        match self.as_integer()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// As messages show a value: with its type, long ones cut.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::F32(v) => write!(f, "f32 {v}"),
            Value::F64(v) => write!(f, "f64 {v}"),
            Value::Bool(v) => write!(f, "bool {v}"),
            Value::String(bytes) => {
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
                let text: String = shown.chars().take(40).collect();
                let cut = if text.len() < bytes.len() { "…" } else { "" };
                write!(f, "string {text:?}{cut}")?;
                if std::str::from_utf8(bytes).is_err() { f.write_str(", which is not UTF-8") } else { Ok(()) }
            }
            Value::Array(array) => write!(f, "array of {} {}", array.len(), array.item_type()),
            other => write!(f, "{} {}", other.value_type(), other.as_integer().unwrap_or_default()),
        }
    }
}

/// An array in a file, read element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array<'a> {
    item: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of its elements.
    pub fn item_type(&self) -> ValueType {
        self.item
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { item: self.item, left: self.len, cursor: Cursor::new(self.bytes, 0) }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    item: ValueType,
    left: usize,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The elements were walked when the array was made, so this fails only if the file changed since.
        let value = self.cursor.value(self.item, MAX_DEPTH).ok();
        if value.is_none() {
            self.left = 0;
        }
        value
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

/// Why bytes are not a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadValue {
    Short(Short),
    Type(u32),
    Bool(u8),
    Nesting,
}

impl From<Short> for BadValue {
    fn from(short: Short) -> BadValue {
        BadValue::Short(short)
    }
}

impl<'a> Cursor<'a> {
    /// Reads a value of a type, arrays to the end of their last element, with at most `depth` arrays in each other.
    pub fn value(&mut self, ty: ValueType, depth: usize) -> Result<Value<'a>, BadValue> {
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array()?)),
            ValueType::U32 => Value::U32(self.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array()?)),
            ValueType::U64 => Value::U64(self.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array()?)),
            ValueType::String => Value::String(self.string()?),
            ValueType::Bool => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [byte] => return Err(BadValue::Bool(byte)),
            },
            ValueType::Array => Value::Array(self.elements(depth)?),
        })
    }

    /// The type of a value, and the value.
    pub fn typed_value(&mut self) -> Result<Value<'a>, BadValue> {
        let ty = self.value_type()?;
        self.value(ty, MAX_DEPTH)
    }

    fn value_type(&mut self) -> Result<ValueType, BadValue> {
        let id = self.u32()?;
        ValueType::from_id(id).ok_or(BadValue::Type(id))
    }

    fn elements(&mut self, depth: usize) -> Result<Array<'a>, BadValue> {
        let depth = depth.checked_sub(1).ok_or(BadValue::Nesting)?;
        let item = self.value_type()?;
        let count = self.u64()?;
        let wanted = count.saturating_mul(item.min_bytes() as u64);
        let start = self.at();
        match item {
            ValueType::String | ValueType::Array | ValueType::Bool => {
                // No count is walked that the rest of the file cannot hold.
                if wanted > self.left() as u64 {
                    return Err(Short { at: start, wanted, left: self.left() }.into());
                }
                for _ in 0..count {
                    self.value(item, depth)?;
                }
            }
            _ => {
                self.take(wanted)?;
            }
        }
        // The elements lie in memory, so their count fits.
        Ok(Array { item, len: count as usize, bytes: self.since(start) })
    }
}
