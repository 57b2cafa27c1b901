//! `binary` on the CPU.

use super::{Binary, BinaryKind, NAME};
use crate::kernel::{moved, operand, out_f32, pack_small, refused, small, small_key};
use crate::op::{CpuCall, CpuOp, OpError, Packed, ValueType};
use conure_kernels::{Cpu, elementwise};
use conure_tensor::TensorView;

/// A right side shorter than this is not worth a kernel call for each repetition.
const SHORT: usize = 32;

impl CpuOp for Binary {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        if input == 1 { small_key(weight) } else { None }
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        pack_small(NAME, weight)
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (a, b) = (operand(call, NAME, 0)?, small(call, NAME, 1)?);
        let function = match self.kind {
            BinaryKind::Add => elementwise::Binary::Add,
            BinaryKind::Sub => elementwise::Binary::Sub,
            BinaryKind::Mul => elementwise::Binary::Mul,
            BinaryKind::Div => return each(a, b, call, |x, y| x / y),
        };
        let repeated = call.outputs.first_mut().is_some_and(|o| o.bytes_mut().len() != 4 * b.len());
        if repeated && b.len() < SHORT {
            return match self.kind {
                BinaryKind::Add => each(a, b, call, |x, y| x + y),
                BinaryKind::Sub => each(a, b, call, |x, y| x - y),
                _ => each(a, b, call, |x, y| x * y),
            };
        }
        if let (Some(a), false) = (a, repeated) {
            let out = out_f32(NAME, call.outputs, 0)?;
            return elementwise::binary(call.cpu, function, a, b, out).map_err(refused(NAME));
        }
        for part in moved(NAME, a, call.outputs)?.chunks_mut(b.len().max(1)) {
            elementwise::binary_in_place(call.cpu, function, part, b).map_err(refused(NAME))?;
        }
        Ok(())
    }
}

fn each(
    a: Option<&[f32]>,
    b: &[f32],
    call: &mut CpuCall<'_, '_>,
    function: impl Fn(f32, f32) -> f32,
) -> Result<(), OpError> {
    for part in moved(NAME, a, call.outputs)?.chunks_mut(b.len().max(1)) {
        part.iter_mut().zip(b).for_each(|(x, &y)| *x = function(*x, y));
    }
    Ok(())
}
