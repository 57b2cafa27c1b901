//! `sdpa` on the CPU.

use super::{NAME, Sdpa};
use crate::kernel::{dim, out_f32, pack_small, refused, scratch, small_if, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::{Cpu, sdpa as kernels};
use conure_tensor::{DType, TensorView};

impl CpuOp for Sdpa {
    fn supports(&self, inputs: &[&ValueType]) -> Result<(), String> {
        for cache in inputs.iter().skip(1).take(2) {
            if !matches!(cache.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0) {
                return Err(format!("a cache of {}; f32, f16, bf16 and q8_0 can be read", cache.dtype));
            }
        }
        Ok(())
    }

    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        let (Some(q), Some(k), Some(v)) = (inputs.first(), inputs.get(1), inputs.get(2)) else { return 0 };
        4 * kernels::scratch_len(dim(q, 0), dim(q, 1), dim(q, 2), dim(k, 2), dim(v, 3), dim(k, 1))
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == 4 { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (q, k, v) = (call.tensor(NAME, 0)?, call.tensor(NAME, 1)?, call.tensor(NAME, 2)?);
        let args = kernels::Sdpa {
            q: q.as_slice::<f32>()?,
            k: k.bytes(),
            k_dtype: k.dtype(),
            v: v.bytes(),
            v_dtype: v.dtype(),
            at: call.slice::<i32>(NAME, 3)?,
            sinks: small_if(self.sinks, call, NAME, 4)?,
            tokens: dim(q.shape(), 1),
            heads: dim(q.shape(), 2),
            key_heads: dim(k.shape(), 2),
            head_dim: dim(q.shape(), 3),
            value_dim: dim(v.shape(), 3),
            capacity: dim(k.shape(), 1),
            scale: self.scale,
            cap: self.cap,
            window: self.window,
        };
        let (_, room) = scratch(NAME, call.scratch, 0)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        args.run(call.cpu, room, out).map_err(refused(NAME))
    }
}
