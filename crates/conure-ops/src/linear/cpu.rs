//! `linear` on the CPU: a packed product with everything that follows it in its last step.

use super::{Linear, NAME};
use crate::activation::Activation;
use crate::kernel::{
    MATRIX, MATRIX_GLU, function, fused, last, matrix, out_f32, pack_matrix, pack_small, refused, rows,
    small_if, small_key,
};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use conure_kernels::gemm::{self, Epilogue, Residual};
use conure_kernels::{Cpu, elementwise};
use conure_tensor::TensorView;

impl CpuOp for Linear {
    fn in_place(&self) -> &'static [usize] {
        match self.residual_at() {
            // A product does not end in tanh: it is applied in the output, which must be free for that.
            _ if self.activation == Activation::Tanh => &[],
            Some(2) => &[2],
            Some(_) => &[3],
            None => &[],
        }
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        match input {
            1 if self.activation == Activation::Glu => Some(MATRIX_GLU),
            1 => Some(MATRIX),
            2 if self.bias => small_key(weight),
            _ => None,
        }
    }

    fn pack_on(&self, cpu: &Cpu, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        match input {
            1 => pack_matrix(NAME, cpu, weight, self.activation == Activation::Glu),
            _ => pack_small(NAME, weight),
        }
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let (m, k, x) = (rows(x.shape()), last(x.shape()), x.as_slice::<f32>()?);
        let w = matrix(call, NAME, 1)?;
        let bias = small_if(self.bias, call, NAME, 2)?;
        let residual = match self.residual_at().map(|i| (i, call.inputs.get(i))) {
            None => Residual::None,
            Some((_, Some(CpuInput::InPlace))) => Residual::InPlace,
            Some((i, _)) => Residual::Add(call.slice::<f32>(NAME, i)?),
        };
        let scale = self.residual.unwrap_or(1.0);
        let width = call.outputs.first().map_or(1, |o| last(o.shape()));
        let n = if self.activation == Activation::Glu { 2 * width } else { width };
        let out = out_f32(NAME, call.outputs, 0)?;
        if let Some(activation) = fused(self.activation) {
            let epilogue = Epilogue { bias, activation, scale, residual };
            return w.product(NAME, call.cpu, x, [m, n, k], &epilogue, out);
        }
        let epilogue = Epilogue { bias, activation: gemm::Activation::None, ..Epilogue::default() };
        w.product(NAME, call.cpu, x, [m, n, k], &epilogue, out)?;
        if let Some(function) = function(self.activation) {
            elementwise::unary_in_place(call.cpu, function, out).map_err(refused(NAME))?;
        }
        if let Residual::Add(residual) = residual {
            elementwise::scale_in_place(call.cpu, scale, out).map_err(refused(NAME))?;
            elementwise::binary_in_place(call.cpu, elementwise::Binary::Add, out, residual)
                .map_err(refused(NAME))?;
        }
        Ok(())
    }
}
