//! `cast` on the CPU.

use super::{Cast, NAME};
use crate::kernel::out_f32;
use crate::op::{CpuCall, CpuOp, OpError};
use conure_tensor::{DType, quant};

impl CpuOp for Cast {
    /// Every type that can be decoded.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        if x.dtype() == DType::I32 {
            for (slot, &v) in out.iter_mut().zip(x.as_slice::<i32>()?) {
                *slot = v as f32;
            }
            return Ok(());
        }
        quant::decode(x.dtype(), x.bytes(), out)
            .map_err(|e| OpError::Kernel { op: NAME, what: e.to_string() })
    }
}
