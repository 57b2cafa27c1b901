//! `im2col` on the CPU.

use super::{Im2col, NAME};
use crate::kernel::refused;
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::values::output;
use conure_kernels::conv2d::Axis;
use conure_kernels::im2col::im2col;
use conure_tensor::DType;

impl CpuOp for Im2col {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (image, x) = (Im2col::image(x.shape()), x.as_slice::<f32>()?);
        let axes = [0, 1].map(|i| Axis {
            kernel: self.kernel[i],
            stride: self.stride[i],
            dilation: self.dilation[i],
            before: self.pad[2 * i],
            after: self.pad[2 * i + 1],
        });
        let out = output(NAME, call.outputs, 0)?;
        if out.bytes_mut().is_empty() {
            return Ok(());
        }
        match self.dtype {
            DType::F16 => im2col(call.cpu, x, image, axes, out.as_mut_slice::<half::f16>()?),
            _ => im2col(call.cpu, x, image, axes, out.as_mut_slice::<f32>()?),
        }
        .map_err(refused(NAME))
    }
}
