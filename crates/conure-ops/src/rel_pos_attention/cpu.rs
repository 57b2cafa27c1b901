//! `rel_pos_attention` on the CPU.

use super::RelPosAttention;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::reference;

impl CpuOp for RelPosAttention {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        reference::run(self, call)
    }
}
