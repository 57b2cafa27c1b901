//! `glu` on the CPU.

use super::{Glu, NAME};
use crate::kernel::{last, out_f32, refused, rows};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::elementwise;

impl CpuOp for Glu {
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.slice::<f32>(NAME, 0)?;
        let (count, width) = call.outputs.first().map_or((0, 0), |o| (rows(o.shape()), last(o.shape())));
        let out = out_f32(NAME, call.outputs, 0)?;
        elementwise::glu(call.cpu, x, count, width, out).map_err(refused(NAME))
    }
}
