//! `binary` on the CPU.

use super::{Binary, BinaryKind, NAME};
use crate::kernel::{moved, operand, out_f32, refused};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use crate::values::decode;
use conure_kernels::{Cpu, elementwise};
use conure_tensor::{DType, Dims, TensorView};
use std::sync::Arc;

/// A right side shorter than this is not worth a kernel call for each repetition.
const SHORT: usize = 32;

/// A right side that was not stored as f32, widened.
struct Right {
    values: Vec<f32>,
    shape: Dims,
}

/// The right side as f32.
fn right<'a>(call: &CpuCall<'a, '_>) -> Result<&'a [f32], OpError> {
    match call.inputs.get(1) {
        Some(CpuInput::Packed(_)) => Ok(call.packed::<Right>(NAME, 1)?.values.as_slice()),
        _ => call.slice::<f32>(NAME, 1),
    }
}

impl CpuOp for Binary {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        (input == 1 && weight.dtype != DType::F32).then_some("f32_shaped")
    }

    fn pack_on(&self, _cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        Ok(Arc::new(Right { values: decode(NAME, weight)?, shape: Dims::from_slice(weight.shape()) }))
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let (a, b) = (operand(call, NAME, 0)?, right(call)?);
        if let Some(spread) = self.spread(call) {
            return self.run_spread(a, b, &spread, call);
        }
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

/// How a right side with axes of 1 is used: an axis of it, or a run of axes, is repeated `inner` times within each of its
/// elements.
struct Spread {
    a: Dims,
    b: Dims,
    /// Elements of a that meet one element of b in a row.
    inner: usize,
}

impl Binary {
    /// The shapes, if b has axes of 1 where a has longer ones.
    fn spread(&self, call: &CpuCall<'_, '_>) -> Option<Spread> {
        let a = Dims::from_slice(call.outputs.first()?.shape());
        let b = match call.inputs.get(1)? {
            CpuInput::Tensor(b) => Dims::from_slice(b.shape()),
            CpuInput::Packed(p) => p.downcast_ref::<Right>()?.shape.clone(),
            CpuInput::InPlace => return None,
        };
        // Leading axes of 1 are those of a shorter shape.
        let from = b.iter().position(|&d| d != 1).unwrap_or(b.len());
        let tail = &b[from..];
        if tail.iter().rev().zip(a.iter().rev()).all(|(b, a)| a == b) {
            return None;
        }
        let ones = tail.iter().rev().take_while(|&&d| d == 1).count();
        let inner = a.iter().rev().take(ones).product();
        Some(Spread { a, b, inner })
    }

    fn run_spread(
        &self,
        a: Option<&[f32]>,
        b: &[f32],
        spread: &Spread,
        call: &mut CpuCall<'_, '_>,
    ) -> Result<(), OpError> {
        let kind = self.kind;
        let (shape, inner) = (&spread.a, spread.inner.max(1));
        let out = moved(NAME, a, call.outputs)?;
        for (i, part) in out.chunks_mut(inner).enumerate() {
            let y = b.get(super::repeated(shape, &spread.b, i * inner)).copied().unwrap_or(f32::NAN);
            match kind {
                BinaryKind::Add => part.iter_mut().for_each(|x| *x += y),
                BinaryKind::Sub => part.iter_mut().for_each(|x| *x -= y),
                BinaryKind::Mul => part.iter_mut().for_each(|x| *x *= y),
                BinaryKind::Div => part.iter_mut().for_each(|x| *x /= y),
            }
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
