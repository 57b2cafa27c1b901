//! `reshape` on the CPU: nothing, or a copy where a plan could not make it a view.

use super::{NAME, Reshape};
use crate::kernel::copy;
use crate::op::{CpuCall, CpuInput, CpuOp, OpError};
use conure_tensor::DType;

impl CpuOp for Reshape {
    /// Elements are moved, whatever they are.
    fn reads(&self, _input: usize, _dtype: DType) -> bool {
        true
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        if let Some(CpuInput::InPlace) = call.inputs.first() {
            return Ok(());
        }
        let from = call.tensor(NAME, 0)?.bytes();
        copy(NAME, from, crate::values::output(NAME, call.outputs, 0)?.bytes_mut())
    }
}
