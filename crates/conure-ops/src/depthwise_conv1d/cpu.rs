//! `depthwise_conv1d` on the CPU.

use super::DepthwiseConv1d;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::reference;

impl CpuOp for DepthwiseConv1d {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        reference::run(self, call)
    }
}
