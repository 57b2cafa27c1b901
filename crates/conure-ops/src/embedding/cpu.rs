//! `embedding` on the CPU: rows decoded where they are stored, so that the table is never copied.

use super::{Embedding, NAME, row_of};
use crate::kernel::{dim, last, out_f32};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_tensor::{DType, quant};

impl CpuOp for Embedding {
    /// Rows of the table are decoded as they are looked up.
    fn reads(&self, input: usize, dtype: DType) -> bool {
        input == 1 || dtype == DType::I32
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let ids = call.slice::<i32>(NAME, 0)?;
        let table = call.tensor(NAME, 1)?;
        let (count, width) = (dim(table.shape(), 0), last(table.shape()));
        let bytes = table.bytes().len() / count.max(1);
        let out = out_f32(NAME, call.outputs, 0)?;
        if width == 0 {
            return Ok(());
        }
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
            match row_of(id, count)? {
                None => out.fill(0.0),
                Some(row) => {
                    let stored = table.bytes().get(row * bytes..(row + 1) * bytes).unwrap_or_default();
                    quant::decode(table.dtype(), stored, out)
                        .map_err(|e| OpError::Kernel { op: NAME, what: e.to_string() })?;
                }
            }
        }
        Ok(())
    }
}
