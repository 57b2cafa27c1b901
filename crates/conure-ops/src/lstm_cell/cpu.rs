//! `lstm_cell` on the CPU: two products into the gates, then the cell.

use super::{LstmCell, NAME};
use crate::kernel::{MATRIX, dim, last, matrix, pack_matrix, pack_small, refused, scratch, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::gemm::{Epilogue, Residual};
use conure_kernels::{Cpu, lstm};
use conure_tensor::TensorView;

impl CpuOp for LstmCell {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        inputs.get(1).map_or(0, |h| 4 * 4 * h.iter().product::<usize>())
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        match input {
            3 => Some(MATRIX),
            4 if !self.projected => Some(MATRIX),
            4..=6 => small_key(weight),
            _ => None,
        }
    }

    fn pack_on(&self, cpu: &Cpu, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        let is_matrix = input == 3 || input == 4 && !self.projected;
        if is_matrix { pack_matrix(NAME, cpu, weight, false) } else { pack_small(NAME, weight) }
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, h) = (call.tensor(NAME, 0)?, call.tensor(NAME, 1)?);
        let (batch, inputs, units) = (dim(h.shape(), 0), last(x.shape()), last(h.shape()));
        let (x, h, c) = (x.as_slice::<f32>()?, h.as_slice::<f32>()?, call.slice::<f32>(NAME, 2)?);
        let (w_hh, b_hh) = self.recurrent();
        let (w_hh, b_hh) = (matrix(call, NAME, w_hh)?, small(call, NAME, b_hh)?);
        let of_input =
            if self.projected { None } else { Some((matrix(call, NAME, 3)?, small(call, NAME, 5)?)) };
        let (gates, _) = scratch(NAME, call.scratch, batch * 4 * units)?;
        let residual = match of_input {
            Some((w_ih, b_ih)) => {
                let epilogue = Epilogue { bias: Some(b_ih), ..Epilogue::default() };
                w_ih.product(NAME, call.cpu, x, [batch, 4 * units, inputs], &epilogue, gates)?;
                Residual::InPlace
            }
            None => Residual::Add(x),
        };
        let epilogue = Epilogue { bias: Some(b_hh), residual, ..Epilogue::default() };
        w_hh.product(NAME, call.cpu, h, [batch, 4 * units, units], &epilogue, gates)?;
        let [new_h, new_c] = call.outputs else {
            return Err(OpError::Kernel { op: NAME, what: "needs two outputs".into() });
        };
        let (new_h, new_c) = (new_h.as_mut_slice::<f32>()?, new_c.as_mut_slice::<f32>()?);
        lstm::cells(call.cpu, gates, c, batch, units, new_h, new_c).map_err(refused(NAME))
    }
}
