//! `reshape` on the CPU.

use super::Reshape;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::reference;

impl CpuOp for Reshape {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        reference::run(self, call)
    }
}
