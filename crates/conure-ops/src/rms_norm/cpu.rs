//! `rms_norm` on the CPU.

use super::{NAME, RmsNorm};
use crate::kernel::{operand, out_f32, pack_small, refused, rows, small, small_key};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::rms_norm::{Added, rms_norm};
use conure_tensor::TensorView;

impl CpuOp for RmsNorm {
    fn in_place(&self) -> &'static [usize] {
        if self.residual { &[2, 0] } else { &[0] }
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == 1 { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, gamma) = (operand(call, NAME, 0)?, small(call, NAME, 1)?);
        let added = match call.inputs.get(2) {
            _ if !self.residual => Added::Nothing,
            Some(CpuInput::InPlace) => Added::InPlace,
            _ => Added::Rows(call.slice::<f32>(NAME, 2)?),
        };
        let count = call.outputs.first().map_or(0, |o| rows(o.shape()));
        let out = out_f32(NAME, call.outputs, 0)?;
        rms_norm(call.cpu, x, count, gamma, self.eps, added, out).map_err(refused(NAME))
    }
}
