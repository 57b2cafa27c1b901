//! The weights of an ONNX file: its initializers, by name. The graph in it is not read.
//!
//! Protocol buffers: a key (field number, wire type) and a value, again and again; what is not known is stepped over by its length,
//! which must lie within the message around it. `ModelProto.graph` is field 7, `GraphProto.initializer` field 5, and of a
//! `TensorProto` `dims` is 1, `data_type` 2, `name` 8, `raw_data` 9.

use std::ops::Range;

/// More initializers than any model has that is converted from ONNX.
const MAX_TENSORS: usize = 10_000;
/// `TensorProto.DataType.FLOAT`.
const FLOAT: u64 = 1;

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// A field reaches past its message, or a number does not end.
    #[error("the ONNX file is damaged at byte {at}: fetch it again")]
    Damaged {
        /// Where in the file.
        at: usize,
    },
    /// There is no graph in it.
    #[error("there is no graph with weights in the ONNX file")]
    NoGraph,
    /// It has more weights than are read.
    #[error("the ONNX file lists more than {MAX_TENSORS} weights")]
    TooMany,
}

/// A weight: plain f32 values in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxTensor {
    /// Its name.
    pub name: String,
    /// Lengths, slowest axis first.
    pub shape: Vec<usize>,
    /// Where in the file its values are, if they are f32 and stored plainly.
    pub values: Option<Range<usize>>,
}

/// One field of a message.
enum Field {
    Number(u64),
    Bytes(Range<usize>),
    Other,
}

/// Reads a message field by field.
struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Message<'_> {
    fn damaged<T>(&self) -> Result<T, OnnxError> {
        Err(OnnxError::Damaged { at: self.at })
    }

    fn varint(&mut self) -> Result<u64, OnnxError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let Some(&byte) = self.bytes[..self.end].get(self.at) else { return self.damaged() };
            self.at += 1;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.damaged()
    }

    fn skip(&mut self, count: u64) -> Result<Range<usize>, OnnxError> {
        let end = usize::try_from(count).ok().and_then(|n| self.at.checked_add(n)).filter(|e| *e <= self.end);
        let Some(end) = end else { return self.damaged() };
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    /// The next field and its number; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Field)>, OnnxError> {
        if self.at == self.end {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.skip(8).map(|_| Field::Other)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Field::Other)?,
            _ => return self.damaged(),
        };
        Ok(Some((key >> 3, field)))
    }
}

/// Whether a file that begins so may be ONNX: `ir_version` is its first field, and a small number.
pub fn may_be_onnx(head: &[u8]) -> bool {
    matches!(head, [0x08, 1..=31, next, ..] if next & 7 == 2 && (0x12..=0x7a).contains(next))
}

/// The weights of an ONNX file in memory.
///
/// # Errors
/// [`OnnxError`].
pub fn initializers(bytes: &[u8]) -> Result<Vec<OnnxTensor>, OnnxError> {
    let mut model = Message { bytes, at: 0, end: bytes.len() };
    let (mut tensors, mut graphs) = (Vec::new(), 0);
    while let Some((number, field)) = model.next()? {
        let (7, Field::Bytes(range)) = (number, field) else { continue };
        graphs += 1;
        let mut graph = Message { bytes, at: range.start, end: range.end };
        while let Some((number, field)) = graph.next()? {
            let (5, Field::Bytes(range)) = (number, field) else { continue };
            if tensors.len() == MAX_TENSORS {
                return Err(OnnxError::TooMany);
            }
            tensors.push(tensor(Message { bytes, at: range.start, end: range.end })?);
        }
    }
    if graphs == 0 { Err(OnnxError::NoGraph) } else { Ok(tensors) }
}

fn tensor(mut message: Message<'_>) -> Result<OnnxTensor, OnnxError> {
    let (mut name, mut shape, mut kind, mut raw) = (String::new(), Vec::new(), 0, None);
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            // A list of numbers comes one by one, or packed.
            (1, Field::Number(n)) => shape.push(usize::try_from(n).unwrap_or(usize::MAX)),
            (1, Field::Bytes(range)) => {
                let mut packed = Message { bytes: message.bytes, at: range.start, end: range.end };
                while packed.at < packed.end {
                    shape.push(usize::try_from(packed.varint()?).unwrap_or(usize::MAX));
                }
            }
            (2, Field::Number(n)) => kind = n,
            (8, Field::Bytes(range)) => name = String::from_utf8_lossy(&message.bytes[range]).into_owned(),
            (9, Field::Bytes(range)) => raw = Some(range),
            _ => {}
        }
    }
    let count = shape.iter().try_fold(4usize, |n, d| n.checked_mul(*d));
    let values = raw.filter(|r| kind == FLOAT && count == Some(r.len()));
    Ok(OnnxTensor { name, shape, values })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    /// Two weights, one of them of whole numbers, among fields that are not read.
    fn file() -> Vec<u8> {
        let values: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let float = [&[0x08, 3, 0x10, 1][..], &field(8, b"w"), &field(9, &values)].concat();
        let whole = [&field(1, &[1, 1])[..], &[0x10, 7], &field(8, b"n"), &field(9, &[0; 8])].concat();
        let graph = [field(1, b"a node"), field(5, &float), field(5, &whole)].concat();
        [&[0x08, 8][..], &field(2, b"maker"), &[0x0d, 1, 2, 3, 4], &field(7, &graph)].concat()
    }

    #[test]
    fn weights_are_found() {
        let bytes = file();
        assert!(may_be_onnx(&bytes) && !may_be_onnx(b"GGUF") && !may_be_onnx(&[8, 1]));
        let found = initializers(&bytes).unwrap();
        assert_eq!((found[0].name.as_str(), &found[0].shape[..]), ("w", &[3][..]));
        assert_eq!(bytes[found[0].values.clone().unwrap()][4..8], 2.0f32.to_le_bytes());
        assert_eq!(
            (found[1].name.as_str(), &found[1].shape[..], &found[1].values),
            ("n", &[1, 1][..], &None)
        );
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_or_shorter_and_never_a_panic() {
        let bytes = file();
        for cut in 0..bytes.len() {
            assert!(initializers(&bytes[..cut]).is_err(), "{cut}");
        }
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut wild = bytes.clone();
                wild[at] = value;
                let _ = initializers(&wild);
            }
        }
        assert_eq!(initializers(&[0x08, 8]), Err(OnnxError::NoGraph));
    }
}
