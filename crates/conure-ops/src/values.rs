//! What references are made of: tensors read as f64 and results rounded to f32 once, at the end.

use crate::op::OpError;
use conure_tensor::{DType, Dims, TensorMut, TensorView, quant};

/// A tensor as real numbers.
pub(crate) struct Values {
    /// Lengths, slowest axis first.
    pub(crate) shape: Dims,
    /// The elements, row-major.
    pub(crate) data: Vec<f64>,
}

impl Values {
    /// Length of axis `i`; 1 past the end.
    pub(crate) fn dim(&self, i: usize) -> usize {
        self.shape.get(i).copied().unwrap_or(1)
    }

    /// Length of the last axis; 1 for a scalar.
    pub(crate) fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The rows along the last axis.
    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.data.chunks_exact(self.last().max(1))
    }

    /// Row `i` along the last axis.
    pub(crate) fn row(&self, i: usize) -> &[f64] {
        let n = self.last();
        self.data.get(i * n..(i + 1) * n).unwrap_or_default()
    }
}

/// Input `i`.
pub(crate) fn input<'a, 'b>(
    op: &'static str,
    inputs: &'b [TensorView<'a>],
    i: usize,
) -> Result<&'b TensorView<'a>, OpError> {
    inputs.get(i).ok_or_else(|| OpError::Arity {
        op,
        expected: format!("more than {i}"),
        found: inputs.len(),
    })
}

/// Output `i`.
pub(crate) fn output<'a, 'b>(
    op: &'static str,
    outputs: &'b mut [TensorMut<'a>],
    i: usize,
) -> Result<&'b mut TensorMut<'a>, OpError> {
    outputs.get_mut(i).ok_or_else(|| OpError::Kernel { op, what: format!("output {i} is missing") })
}

/// Input `i` as real numbers.
pub(crate) fn read(op: &'static str, inputs: &[TensorView<'_>], i: usize) -> Result<Values, OpError> {
    let view = input(op, inputs, i)?;
    let data = match view.dtype() {
        DType::I32 => view.as_slice::<i32>()?.iter().map(|&v| f64::from(v)).collect(),
        _ => decode(op, view)?.iter().map(|&v| f64::from(v)).collect(),
    };
    Ok(Values { shape: Dims::from_slice(view.shape()), data })
}

/// Input `i`, which is i32, as integers.
pub(crate) fn ints(op: &'static str, inputs: &[TensorView<'_>], i: usize) -> Result<Vec<i32>, OpError> {
    Ok(input(op, inputs, i)?.as_slice::<i32>()?.to_vec())
}

/// A weight in any stored form as f32. Its bytes need no alignment.
pub(crate) fn decode(op: &'static str, view: &TensorView<'_>) -> Result<Vec<f32>, OpError> {
    let mut out = vec![0f32; view.elements()];
    quant::decode(view.dtype(), view.bytes(), &mut out)
        .map_err(|e| OpError::Kernel { op, what: e.to_string() })?;
    Ok(out)
}

/// Writes f32 output `i` from real numbers.
pub(crate) fn write(
    op: &'static str,
    outputs: &mut [TensorMut<'_>],
    i: usize,
    data: impl IntoIterator<Item = f64>,
) -> Result<(), OpError> {
    let out = output(op, outputs, i)?.as_mut_slice::<f32>()?;
    let mut written = 0;
    for (slot, v) in out.iter_mut().zip(data) {
        *slot = v as f32;
        written += 1;
    }
    if written == out.len() {
        return Ok(());
    }
    Err(OpError::Kernel {
        op,
        what: format!("output {i} has {} elements, {written} were computed", out.len()),
    })
}

/// Moves whole elements: element `k` of output 0 becomes element `from(k)` of the returned input.
pub(crate) fn gather<'a>(
    op: &'static str,
    outputs: &mut [TensorMut<'_>],
    mut from: impl FnMut(usize) -> (&'a TensorView<'a>, usize),
) -> Result<(), OpError> {
    let out = output(op, outputs, 0)?;
    let size = out.dtype().block_bytes();
    for (k, slot) in out.bytes_mut().chunks_exact_mut(size).enumerate() {
        let (view, at) = from(k);
        let element = view.bytes().get(at * size..(at + 1) * size).ok_or_else(|| OpError::Kernel {
            op,
            what: format!("element {at} is outside the input of shape {:?}", view.shape()),
        })?;
        slot.copy_from_slice(element);
    }
    Ok(())
}

/// The number of frames of item `b` that count: its length, within `0 ..= frames`.
pub(crate) fn valid(lengths: &[i32], b: usize, frames: usize) -> usize {
    usize::try_from(lengths.get(b).copied().unwrap_or(0)).unwrap_or(0).min(frames)
}
