//! `conv2d` on the CPU.

use super::Conv2d;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::reference;

impl CpuOp for Conv2d {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        reference::run(self, call)
    }
}
