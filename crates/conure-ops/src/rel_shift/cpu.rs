//! `rel_shift` on the CPU: a run of each row.

use super::{NAME, RelShift};
use crate::kernel::{last, out_f32};
use crate::op::{CpuCall, CpuOp, OpError};

impl CpuOp for RelShift {
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (width, x) = (last(x.shape()), x.as_slice::<f32>()?);
        let frames = call.outputs.first().map_or(1, |o| last(o.shape()));
        let out = out_f32(NAME, call.outputs, 0)?;
        if width == 0 || frames == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let greatest = self.left.unwrap_or(frames - 1);
        for (row, (out, x)) in out.chunks_exact_mut(frames).zip(x.chunks_exact(width)).enumerate() {
            let i = row % frames;
            // Keys from..to have a column.
            let from = i.saturating_sub(greatest).min(frames);
            let to = width.saturating_add(i).saturating_sub(greatest).clamp(from, frames);
            out[..from].fill(0.0);
            out[to..].fill(0.0);
            if from < to {
                let column = greatest + from - i;
                out[from..to].copy_from_slice(&x[column..column + to - from]);
            }
        }
        Ok(())
    }
}
