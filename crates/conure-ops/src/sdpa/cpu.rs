//! `sdpa` on the CPU.

use super::{NAME, Sdpa, SdpaKeys};
use crate::infer;
use crate::kernel::{dim, out_f32, pack_small, refused, scratch, small_if, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::{Cpu, sdpa as kernels};
use conure_tensor::{DType, TensorView};

/// The widest head whose rows the kernel keeps in its tiles.
const WIDEST_HEAD: usize = 512;

impl CpuOp for Sdpa {
    fn fits(&self, inputs: &[&ValueType]) -> Result<(), String> {
        for cache in inputs.iter().skip(1).take(2) {
            match infer::dim(&cache.shape, 3).as_constant() {
                Some(width) if width <= WIDEST_HEAD => {}
                _ => return Err(format!("heads of {cache}; up to {WIDEST_HEAD} wide can be read")),
            }
        }
        Ok(())
    }

    /// Caches are widened row by row.
    fn reads(&self, input: usize, dtype: DType) -> bool {
        match input {
            1 | 2 => matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0),
            3 if self.keys != SdpaKeys::All => dtype == DType::I32,
            _ => dtype == DType::F32,
        }
    }

    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        let (Some(q), Some(k), Some(v)) = (inputs.first(), inputs.get(1), inputs.get(2)) else { return 0 };
        4 * kernels::scratch_len(dim(q, 0), dim(q, 1), dim(q, 2), dim(k, 2), dim(v, 3), dim(k, 1))
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == self.sinks_at() { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (q, k, v) = (call.tensor(NAME, 0)?, call.tensor(NAME, 1)?, call.tensor(NAME, 2)?);
        let keys = match self.keys {
            SdpaKeys::Cached => {
                kernels::Keys::Cached { at: call.slice::<i32>(NAME, 3)?, window: self.window }
            }
            SdpaKeys::Frames(mask) => {
                kernels::Keys::Frames { lengths: call.slice::<i32>(NAME, 3)?, mask: mask.kernel() }
            }
            SdpaKeys::All => kernels::Keys::All { batch: dim(q.shape(), 0) },
        };
        let args = kernels::Sdpa {
            q: q.as_slice::<f32>()?,
            k: k.bytes(),
            k_dtype: k.dtype(),
            v: v.bytes(),
            v_dtype: v.dtype(),
            keys,
            sinks: small_if(self.sinks, call, NAME, self.sinks_at())?,
            tokens: dim(q.shape(), 1),
            heads: dim(q.shape(), 2),
            key_heads: dim(k.shape(), 2),
            head_dim: dim(q.shape(), 3),
            value_dim: dim(v.shape(), 3),
            capacity: dim(k.shape(), 1),
            scale: self.scale,
            cap: self.cap,
        };
        let (_, room) = scratch(NAME, call.scratch, 0)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        args.run(call.cpu, room, out).map_err(refused(NAME))
    }
}
