//! `im2col` on the CPU.

use super::{Im2col, NAME};
use crate::kernel::refused;
use crate::op::{CpuCall, CpuOp, OpError};
use crate::values::output;
use conure_kernels::im2col::im2col;
use conure_tensor::DType;

impl CpuOp for Im2col {
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (image, x) = (Im2col::image(x.shape()), x.as_slice::<f32>()?);
        let axes = [0, 1].map(|i| self.window().axis(i));
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
