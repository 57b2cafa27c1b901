//! `depthwise_conv1d` on the CPU.

use super::{DepthwiseConv1d, NAME};
use crate::activation::Activation;
use crate::kernel::{
    TAPS_MAJOR, dim, function, out_f32, pack_small, pack_taps, refused, small_if, small_key, taps,
};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::conv1d::DepthwiseConv1d as Kernel;
use conure_kernels::{Cpu, elementwise};
use conure_tensor::TensorView;

impl CpuOp for DepthwiseConv1d {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        // For a computed weight, as in `conv2d`.
        inputs.get(1).map_or(0, |w| 4 * w.iter().product::<usize>())
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        match input {
            1 => Some(TAPS_MAJOR),
            2..=4 => small_key(weight),
            _ => None,
        }
    }

    fn pack_on(&self, _cpu: &Cpu, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        if input == 1 { pack_taps(NAME, weight) } else { pack_small(NAME, weight) }
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (shape, x) = (x.shape(), x.as_slice::<f32>()?);
        let bias = small_if(self.bias, call, NAME, 2)?;
        let scale = small_if(self.scale_shift, call, NAME, self.scale_at())?;
        let shift = small_if(self.scale_shift, call, NAME, self.scale_at() + 1)?;
        let (weights, w) = taps(call.inputs, NAME, 1, call.scratch)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        if out.is_empty() {
            return Ok(());
        }
        let kernel = Kernel {
            weights,
            kernel: dim(w, 2),
            left: self.pad_before,
            right: self.pad_after,
            bias,
            scale_shift: scale.zip(shift),
            silu: self.activation == Activation::Silu,
        };
        kernel.run(call.cpu, x, dim(shape, 0), dim(shape, 1), dim(shape, 2), out).map_err(refused(NAME))?;
        match function(self.activation) {
            Some(f) if self.activation != Activation::Silu => {
                elementwise::unary_in_place(call.cpu, f, out).map_err(refused(NAME))
            }
            _ => Ok(()),
        }
    }
}
