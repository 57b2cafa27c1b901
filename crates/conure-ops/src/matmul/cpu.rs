//! `matmul` on the CPU: one product after another where they are large, many at once where they are small.

use super::{MatMul, NAME, batch_at};
use crate::kernel::{last, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::gemm::Rhs;
use conure_kernels::matmul::batched;
use conure_tensor::{DType, Dims, TensorView};

impl CpuOp for MatMul {
    /// f16 is widened in the scratch.
    fn reads(&self, _input: usize, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F16)
    }

    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        // Room to widen both operands, if they are f16; which is not known here.
        inputs.iter().map(|shape| 4 * shape.iter().product::<usize>()).sum()
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (a, b) = (call.tensor(NAME, 0)?, call.tensor(NAME, 1)?);
        let shape = call.outputs.first().map(|o| Dims::from_slice(o.shape())).unwrap_or_default();
        let Some((batch, &[m, n])) = shape.split_last_chunk::<2>() else { return Ok(()) };
        let k = last(a.shape());
        let (room_a, room_b) = crate::kernel::scratch(NAME, call.scratch, a.elements())?;
        let (a_rows, b_rows) = (widened(a, room_a)?, widened(b, room_b)?);
        let of = |shape: &[usize]| Dims::from_slice(&shape[..shape.len().saturating_sub(2)]);
        let (a_batch, b_batch) = (of(a.shape()), of(b.shape()));
        let place = |i: usize| (batch_at(&a_batch, batch, i), batch_at(&b_batch, batch, i));
        let layout = if self.transpose_b { Rhs::Nk } else { Rhs::Kn };
        let out = out_f32(NAME, call.outputs, 0)?;
        batched(call.cpu, (a_rows, b_rows), layout, [m, n, k], place, out).map_err(refused(NAME))
    }
}

/// The elements as f32: where they are, or widened in `room`.
fn widened<'b>(x: &'b TensorView<'_>, room: &'b mut [f32]) -> Result<&'b [f32], OpError> {
    if x.dtype() == DType::F32 {
        return Ok(x.as_slice::<f32>()?);
    }
    let count = x.elements();
    let room = room.get_mut(..count).ok_or_else(|| OpError::Kernel {
        op: NAME,
        what: format!("scratch is too short for {count} elements"),
    })?;
    conure_tensor::quant::decode(x.dtype(), x.bytes(), room)
        .map_err(|e| OpError::Kernel { op: NAME, what: e.to_string() })?;
    Ok(room)
}
