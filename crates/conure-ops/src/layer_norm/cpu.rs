//! `layer_norm` on the CPU.

use super::{LayerNorm, NAME};
use crate::kernel::{operand, out_f32, pack_small, refused, rows, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::{Cpu, rows as kernels};
use conure_tensor::TensorView;

impl CpuOp for LayerNorm {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == 0 { None } else { small_key(weight) }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = operand(call, NAME, 0)?;
        let (gamma, beta) = (small(call, NAME, 1)?, small(call, NAME, 2)?);
        let count = call.outputs.first().map_or(0, |o| rows(o.shape()));
        let out = out_f32(NAME, call.outputs, 0)?;
        kernels::layer_norm(call.cpu, x, count, gamma, Some(beta), self.eps, out).map_err(refused(NAME))
    }
}
