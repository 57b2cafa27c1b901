//! `mask_scores` on the CPU.

use super::{MaskScores, NAME};
use crate::kernel::{dim, moved, operand};
use crate::op::{CpuCall, CpuOp, OpError};
use crate::values::valid;

impl CpuOp for MaskScores {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, lengths) = (operand(call, NAME, 0)?, call.slice::<i32>(NAME, 1)?);
        let (heads, frames) = call.outputs.first().map_or((0, 0), |o| (dim(o.shape(), 1), dim(o.shape(), 2)));
        let out = moved(NAME, x, call.outputs)?;
        for (row, out) in out.chunks_exact_mut(frames.max(1)).enumerate() {
            let (i, b) = (row % frames, row / frames / heads.max(1));
            let end = valid(lengths, b, frames);
            if i >= end {
                out.fill(f32::NEG_INFINITY);
                continue;
            }
            out[end..].fill(f32::NEG_INFINITY);
            for (j, score) in out[..end].iter_mut().enumerate() {
                if !self.mask.sees(i, j) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }
}
