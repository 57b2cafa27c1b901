//! `broadcast` on the CPU.

use super::Broadcast;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::reference;

impl CpuOp for Broadcast {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        reference::run(self, call)
    }
}
