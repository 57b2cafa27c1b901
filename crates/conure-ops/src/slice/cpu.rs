//! `slice` on the CPU.

use super::{NAME, Slice, past_the_end};
use crate::kernel::{copy, dim};
use crate::op::{CpuCall, CpuOp, OpError};
use crate::values::output;
use conure_tensor::DType;

impl CpuOp for Slice {
    /// Elements are moved, whatever they are.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let length = dim(x.shape(), self.axis);
        let inner = x.shape().iter().skip(self.axis + 1).product::<usize>() * x.dtype().block_bytes();
        let from = x.bytes();
        let out = output(NAME, call.outputs, 0)?;
        let kept = dim(out.shape(), self.axis);
        if self.start.saturating_add(kept) > length {
            return Err(past_the_end(self.start, kept, length));
        }
        if kept * inner == 0 {
            return Ok(());
        }
        let runs = from.chunks_exact(length * inner).zip(out.bytes_mut().chunks_exact_mut(kept * inner));
        for (from, to) in runs {
            copy(NAME, from.get(self.start * inner..(self.start + kept) * inner).unwrap_or_default(), to)?;
        }
        Ok(())
    }
}
