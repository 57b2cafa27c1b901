//! `rel_pos_encoding` on the CPU.

use super::{NAME, RelPosEncoding};
use crate::kernel::{dim, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::positions;

impl CpuOp for RelPosEncoding {
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let rows = call.outputs.first().map_or(0, |o| dim(o.shape(), 0));
        let before = self.before(rows);
        let out = out_f32(NAME, call.outputs, 0)?;
        positions::relative_sinusoids(before, rows.saturating_sub(before + 1), self.d_model, out)
            .map_err(refused(NAME))
    }
}
