//! `rotary_angles` on the CPU.

use super::{NAME, RotaryAngles};
use crate::kernel::{out_f32, pack_small, refused, small_if, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::Cpu;
use conure_kernels::rotary::angles;
use conure_tensor::TensorView;

impl CpuOp for RotaryAngles {
    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == 1 { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let positions = call.slice::<i32>(NAME, 0)?;
        let factors = small_if(self.factors, call, NAME, 1)?;
        let freqs = self.frequencies(factors);
        let rows = positions.len() / if self.sections.is_some() { 4 } else { 1 };
        let position = |row: usize, j: usize| match self.sections {
            None => positions[row],
            Some(sections) => positions[sections.of(j) * rows + row],
        };
        let out = out_f32(NAME, call.outputs, 0)?;
        angles(call.cpu, rows, &freqs, self.magnitude, position, out).map_err(refused(NAME))
    }
}
