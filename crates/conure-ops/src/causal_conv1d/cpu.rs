//! `causal_conv1d` on the CPU: the values before the piece and the piece in one row, then the kernel of all depthwise
//! convolutions.

use super::{CausalConv1d, NAME};
use crate::kernel::{TAPS_MAJOR, dim, pack_taps, refused, scratch, taps};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::conv1d::DepthwiseConv1d;
use conure_tensor::TensorView;

impl CpuOp for CausalConv1d {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        let of = |i: usize, axis: usize| inputs.get(i).map_or(0, |s| dim(s, axis));
        let weight: usize = inputs.get(1).map_or(0, |w| w.iter().product());
        // One item's values, and the weight where it is computed; each on lines of its own.
        4 * ((of(2, 1) + of(0, 1)) * of(0, 2)).next_multiple_of(16) + 4 * weight
    }

    fn pack_key(&self, input: usize, _weight: &ValueType) -> Option<&'static str> {
        (input == 1).then_some(TAPS_MAJOR)
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_taps(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, state) = (call.tensor(NAME, 0)?, call.tensor(NAME, 2)?);
        let (shape, before) = (x.shape(), dim(state.shape(), 1));
        let (batch, tokens, channels) = (dim(shape, 0), dim(shape, 1), dim(shape, 2));
        let (x, state, at) = (x.as_slice::<f32>()?, state.as_slice::<f32>()?, call.slice::<i32>(NAME, 3)?);
        let count = (before + tokens) * channels;
        let (values, rest) = scratch(NAME, call.scratch, count.next_multiple_of(16))?;
        let (weights, w) = taps(call.inputs, NAME, 1, bytemuck::cast_slice_mut(rest))?;
        let (kernel, values) = (dim(w, 2), &mut values[..count]);
        let conv =
            DepthwiseConv1d { weights, kernel, left: 0, right: 0, bias: None, scale_shift: None, silu: true };
        let (item, kept) = (tokens * channels, before * channels);
        let [out, next] = call.outputs else {
            return Err(OpError::Kernel { op: NAME, what: "needs two outputs".into() });
        };
        let (out, next) = (out.as_mut_slice::<f32>()?, next.as_mut_slice::<f32>()?);
        if state.len() < batch * kept || at.len() < batch {
            let what = format!("a state of {} values for {batch} items of {kept}", state.len());
            return Err(OpError::Kernel { op: NAME, what });
        }
        next[batch * kept..].copy_from_slice(&state[batch * kept..]);
        for b in 0..batch {
            if at[b] == 0 {
                values[..kept].fill(0.0);
            } else {
                values[..kept].copy_from_slice(&state[b * kept..(b + 1) * kept]);
            }
            values[kept..].copy_from_slice(&x[b * item..(b + 1) * item]);
            let out = &mut out[b * item..(b + 1) * item];
            conv.run(call.cpu, values, 1, before + tokens, channels, out).map_err(refused(NAME))?;
            next[b * kept..(b + 1) * kept].copy_from_slice(&values[item..]);
        }
        Ok(())
    }
}
