//! `softmax` on the CPU.

use super::{NAME, Softmax};
use crate::kernel::{last, operand, out_f32, refused, rows};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::rows as kernels;

impl CpuOp for Softmax {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = operand(call, NAME, 0)?;
        let (count, width) = call.outputs.first().map_or((0, 0), |o| (rows(o.shape()), last(o.shape())));
        let out = out_f32(NAME, call.outputs, 0)?;
        kernels::softmax(call.cpu, x, count, width, out).map_err(refused(NAME))
    }
}
