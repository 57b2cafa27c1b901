//! `scale` on the CPU.

use super::{NAME, Scale};
use crate::kernel::{operand, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::elementwise;

impl CpuOp for Scale {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = operand(call, NAME, 0)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        match x {
            Some(x) => elementwise::scale(call.cpu, self.factor, x, out),
            None => elementwise::scale_in_place(call.cpu, self.factor, out),
        }
        .map_err(refused(NAME))
    }
}
