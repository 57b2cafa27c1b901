//! `rope` on the CPU.

use super::{NAME, Rope};
use crate::kernel::{dim, operand, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::rotary::rope;

impl CpuOp for Rope {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, angles) = (operand(call, NAME, 0)?, call.slice::<f32>(NAME, 1)?);
        let dims = call.outputs.first().map_or([0; 3], |o| {
            let s = o.shape();
            [dim(s, 0) * dim(s, 1), dim(s, 2), dim(s, 3)]
        });
        let out = out_f32(NAME, call.outputs, 0)?;
        rope(call.cpu, self.pairs, x, dims, angles, out).map_err(refused(NAME))
    }
}
