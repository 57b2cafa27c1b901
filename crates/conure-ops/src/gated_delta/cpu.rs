//! `gated_delta` on the CPU.

use super::{GatedDelta, NAME};
use crate::kernel::{dim, pack_small, refused, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::gated_delta::{Inputs, Sizes, gated_delta};
use conure_tensor::TensorView;

impl CpuOp for GatedDelta {
    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if matches!(input, 3 | 4) { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (qkv, state) = (call.tensor(NAME, 0)?, call.tensor(NAME, 5)?);
        let shape = state.shape();
        let sizes = Sizes {
            batch: dim(qkv.shape(), 0),
            tokens: dim(qkv.shape(), 1),
            key_heads: self.key_heads,
            heads: dim(shape, 1),
            key_dim: dim(shape, 2),
            value_dim: dim(shape, 3),
        };
        let (qkv, state, at) =
            (qkv.as_slice::<f32>()?, state.as_slice::<f32>()?, call.slice::<i32>(NAME, 6)?);
        let inputs = Inputs {
            qkv,
            alpha: call.slice::<f32>(NAME, 1)?,
            beta: call.slice::<f32>(NAME, 2)?,
            decay: small(call, NAME, 3)?,
            bias: small(call, NAME, 4)?,
            eps: self.eps,
        };
        let [out, next] = call.outputs else {
            return Err(OpError::Kernel { op: NAME, what: "needs two outputs".into() });
        };
        let (out, next) = (out.as_mut_slice::<f32>()?, next.as_mut_slice::<f32>()?);
        let item = sizes.heads * sizes.key_dim * sizes.value_dim;
        if state.len() < sizes.batch * item || next.len() != state.len() || at.len() < sizes.batch {
            let what = format!("a state of {} values for {} items of {item}", state.len(), sizes.batch);
            return Err(OpError::Kernel { op: NAME, what });
        }
        next.copy_from_slice(state);
        let read = &mut next[..sizes.batch * item];
        for (state, _) in read.chunks_exact_mut(item.max(1)).zip(at).filter(|(_, at)| **at == 0) {
            state.fill(0.0);
        }
        gated_delta(call.cpu, sizes, &inputs, read, out).map_err(refused(NAME))
    }
}
