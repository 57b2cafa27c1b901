//! `broadcast` on the CPU.

use super::{Broadcast, NAME};
use crate::kernel::{copy, dim};
use crate::op::{CpuCall, CpuOp, OpError};
use crate::values::output;
use conure_tensor::DType;

impl CpuOp for Broadcast {
    /// Elements are moved, whatever they are.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (row, from) = (dim(x.shape(), 1) * x.dtype().block_bytes(), x.bytes());
        let out = output(NAME, call.outputs, 0)?;
        let frames = dim(out.shape(), 1);
        if row * frames == 0 {
            return Ok(());
        }
        for (from, item) in from.chunks_exact(row).zip(out.bytes_mut().chunks_exact_mut(row * frames)) {
            for to in item.chunks_exact_mut(row) {
                copy(NAME, from, to)?;
            }
        }
        Ok(())
    }
}
