//! `batch_norm` on the CPU: folded to a scale and a shift per channel, anew for each call (four operations a channel).

use super::{BatchNorm, NAME};
use crate::kernel::{last, operand, out_f32, pack_small, refused, rows, scratch, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::{Cpu, elementwise};
use conure_tensor::TensorView;

impl CpuOp for BatchNorm {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        inputs.first().map_or(0, |x| 2 * 4 * last(x))
    }

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
        let (mean, var) = (small(call, NAME, 3)?, small(call, NAME, 4)?);
        let count = call.outputs.first().map_or(0, |o| rows(o.shape()));
        let out = out_f32(NAME, call.outputs, 0)?;
        let (scale, rest) = scratch(NAME, call.scratch, gamma.len())?;
        let shift = rest.get_mut(..gamma.len()).unwrap_or_default();
        elementwise::fold_batch_norm(gamma, beta, mean, var, self.eps, scale, shift)
            .map_err(refused(NAME))?;
        elementwise::scale_shift(call.cpu, x, count, scale, shift, None, out).map_err(refused(NAME))
    }
}
