//! `rel_pos_attention` on the CPU: in tiles, so that memory does not grow with the square of the length.

use super::{AttentionMask, NAME, RelPosAttention};
use crate::infer;
use crate::kernel::{dim, out_f32, pack_small, refused, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::attention::{Mask, RelPosAttention as Kernel};
use conure_tensor::TensorView;

/// The widest head whose rows the kernel keeps in its tiles.
const WIDEST_HEAD: usize = 512;

impl AttentionMask {
    /// The same as the kernels have it.
    pub(crate) fn kernel(self) -> Mask {
        match self {
            AttentionMask::Full => Mask::Full,
            AttentionMask::ChunkedLimited { left, right } => {
                Mask::ChunkedLimited { left: left.unwrap_or(usize::MAX), right }
            }
            AttentionMask::Banded { left, right } => Mask::Banded { left, right },
        }
    }
}

impl CpuOp for RelPosAttention {
    fn fits(&self, inputs: &[&ValueType]) -> Result<(), String> {
        let d = inputs.first().and_then(|q| infer::dim(&q.shape, 2).as_constant()).unwrap_or(0);
        let width = d / self.heads.max(1);
        if width > WIDEST_HEAD {
            return Err(format!("heads are {width} wide, the kernel takes up to {WIDEST_HEAD}"));
        }
        Ok(())
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if matches!(input, 4 | 5) { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let q = call.tensor(NAME, 0)?;
        let kernel = Kernel {
            q: q.as_slice()?,
            k: call.slice(NAME, 1)?,
            v: call.slice(NAME, 2)?,
            positions: call.slice(NAME, 3)?,
            bias_u: small(call, NAME, 4)?,
            bias_v: small(call, NAME, 5)?,
            lengths: call.slice(NAME, 6)?,
            frames: dim(q.shape(), 1),
            context: self.context,
            cached: if self.context > 0 { call.slice(NAME, 7)? } else { &[] },
            heads: self.heads,
            head_dim: dim(q.shape(), 2) / self.heads.max(1),
            mask: self.mask.kernel(),
        };
        kernel.run(call.cpu, out_f32(NAME, call.outputs, 0)?).map_err(refused(NAME))
    }
}
