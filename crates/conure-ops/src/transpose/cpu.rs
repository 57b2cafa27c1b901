//! `transpose` on the CPU.

use super::{NAME, Transpose};
use crate::kernel::refused;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::values::output;
use conure_kernels::permute::permute;
use conure_tensor::{DType, Dims};

impl CpuOp for Transpose {
    fn fits(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        if self.perm.len() > 8 { Err("it has more than eight axes".into()) } else { Ok(()) }
    }

    /// Elements are moved, whatever they are.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let strides = self.strides(x.shape());
        let out = output(NAME, call.outputs, 0)?;
        let shape = Dims::from_slice(out.shape());
        let (from, size) = (x.bytes(), out.dtype().block_bytes());
        let to = out.bytes_mut();
        match size {
            2 => permute(call.cpu, from.as_chunks::<2>().0, &shape, &strides, to.as_chunks_mut::<2>().0),
            4 => permute(call.cpu, from.as_chunks::<4>().0, &shape, &strides, to.as_chunks_mut::<4>().0),
            _ => permute(call.cpu, from.as_chunks::<8>().0, &shape, &strides, to.as_chunks_mut::<8>().0),
        }
        .map_err(refused(NAME))
    }
}
