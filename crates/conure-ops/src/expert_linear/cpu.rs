//! `expert_linear` on the CPU: the rows of each expert at once, each expert's matrix packed by itself.

use super::{ExpertLinear, NAME};
use crate::kernel::{dim, last, out_f32, pack_small, refused, scratch, small_if, small_key};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::gemm::{ExpertMatrices, ExpertProduct, PackedMatrix, expert_linear, expert_scratch};
use conure_tensor::TensorView;
use std::sync::Arc;

/// The key of experts' matrices packed for products, one by one.
const EXPERTS: &str = "experts";

impl CpuOp for ExpertLinear {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        let (Some(w), Some(ids)) = (inputs.get(1), inputs.get(2)) else { return 0 };
        4 * expert_scratch(ids.iter().product(), self.experts, dim(w, 1), dim(w, 2))
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        match input {
            1 => Some(EXPERTS),
            3 => small_key(weight),
            _ => None,
        }
    }

    fn pack_on(&self, cpu: &Cpu, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        if input == 3 {
            return pack_small(NAME, weight);
        }
        let (n, k) = (dim(weight.shape(), 1), dim(weight.shape(), 2));
        let each = weight.bytes().len() / self.experts.max(1);
        let matrix = |e: usize| {
            let bytes = weight.bytes().get(e * each..(e + 1) * each).unwrap_or_default();
            PackedMatrix::new(cpu, weight.dtype(), bytes, n, k).map_err(refused(NAME))
        };
        let packed = (0..self.experts).map(matrix).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(packed))
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (x, ids) = (call.tensor(NAME, 0)?, call.tensor(NAME, 2)?);
        let matrices = match call.inputs.get(1) {
            Some(CpuInput::Packed(_)) => ExpertMatrices::Packed(call.packed::<Vec<PackedMatrix>>(NAME, 1)?),
            _ => ExpertMatrices::Plain(call.slice::<f32>(NAME, 1)?),
        };
        let own = x.shape().len() > ids.shape().len();
        let product = ExpertProduct {
            matrices,
            count: self.experts,
            n: call.outputs.first().map_or(1, |o| last(o.shape())),
            k: last(x.shape()),
            bias: small_if(self.bias, call, NAME, 3)?,
            ids: ids.as_slice::<i32>()?,
            shared: if own { 1 } else { last(ids.shape()) },
        };
        let floats = expert_scratch(product.ids.len(), product.count, product.n, product.k);
        let (room, _) = scratch(NAME, call.scratch, floats)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        expert_linear(call.cpu, x.as_slice::<f32>()?, &product, room, out).map_err(refused(NAME))
    }
}
