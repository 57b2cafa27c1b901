//! `mask_time` on the CPU.

use super::{MaskTime, NAME};
use crate::kernel::{dim, moved, operand, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::elementwise;

impl CpuOp for MaskTime {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = operand(call, NAME, 0)?;
        let lengths = call.slice::<i32>(NAME, 1)?;
        let (frames, row) = call
            .outputs
            .first()
            .map_or((0, 0), |o| (dim(o.shape(), 1), o.shape().iter().skip(2).product::<usize>()));
        let out = moved(NAME, x, call.outputs)?;
        elementwise::mask_time(out, lengths, frames, row).map_err(refused(NAME))
    }
}
