//! `conv_length` on the CPU.

use super::{ConvLength, NAME};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError};
use crate::values::output;

impl CpuOp for ConvLength {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let lengths = match call.inputs.first() {
            Some(CpuInput::InPlace) => None,
            _ => Some(call.slice::<i32>(NAME, 0)?),
        };
        let out = output(NAME, call.outputs, 0)?.as_mut_slice::<i32>()?;
        for (i, slot) in out.iter_mut().enumerate() {
            let length = lengths.map_or(*slot, |l| l.get(i).copied().unwrap_or(0));
            *slot = self.apply(length);
        }
        Ok(())
    }
}
