//! `concat` on the CPU.

use super::{Concat, NAME};
use crate::kernel::{copy, dim};
use crate::op::{CpuCall, CpuOp, OpError};
use crate::values::output;
use conure_tensor::DType;

impl CpuOp for Concat {
    /// Elements are moved, whatever they are.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let shape = call.outputs.first().map_or(&[][..], |o| o.shape());
        let total = dim(shape, self.axis);
        let outer: usize = shape.iter().take(self.axis).product();
        let count = call.inputs.len();
        let size = call.outputs.first_mut().map_or(0, |o| o.bytes_mut().len());
        // Bytes of one index of the axis.
        let inner = size / (outer * total).max(1);
        for o in 0..outer {
            let mut start = o * total * inner;
            for i in 0..count {
                let x = call.tensor(NAME, i)?;
                let run = dim(x.shape(), self.axis) * inner;
                let from = x.bytes().get(o * run..(o + 1) * run).unwrap_or_default();
                let to = output(NAME, call.outputs, 0)?.bytes_mut().get_mut(start..start + run);
                copy(NAME, from, to.unwrap_or_default())?;
                start += run;
            }
        }
        Ok(())
    }
}
