//! `gated` on the CPU.

use super::{Gated, NAME};
use crate::kernel::{operand, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::gated::gated;

impl CpuOp for Gated {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (gate, up) = (operand(call, NAME, 0)?, call.slice::<f32>(NAME, 1)?);
        let out = out_f32(NAME, call.outputs, 0)?;
        gated(call.cpu, self.kind, gate, up, out).map_err(refused(NAME))
    }
}
