//! `unary` on the CPU.

use super::{NAME, Unary, UnaryKind};
use crate::kernel::{moved, operand, out_f32, refused};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::elementwise::{self, Unary as Function};

impl CpuOp for Unary {
    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = operand(call, NAME, 0)?;
        let function = match self.kind {
            UnaryKind::Relu => Function::Relu,
            UnaryKind::Silu => Function::Silu,
            UnaryKind::Sigmoid => Function::Sigmoid,
            UnaryKind::Tanh => Function::Tanh,
            UnaryKind::Exp => Function::Exp,
            // No speech model spends time in these.
            UnaryKind::Log => return each(x, call, f32::ln),
            UnaryKind::Neg => return each(x, call, |v| -v),
            UnaryKind::Sqrt => return each(x, call, f32::sqrt),
        };
        let out = out_f32(NAME, call.outputs, 0)?;
        match x {
            Some(x) => elementwise::unary(call.cpu, function, x, out),
            None => elementwise::unary_in_place(call.cpu, function, out),
        }
        .map_err(refused(NAME))
    }
}

fn each(x: Option<&[f32]>, call: &mut CpuCall<'_, '_>, function: impl Fn(f32) -> f32) -> Result<(), OpError> {
    moved(NAME, x, call.outputs)?.iter_mut().for_each(|v| *v = function(*v));
    Ok(())
}
