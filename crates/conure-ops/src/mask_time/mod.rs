//! `mask_time`: what lies past the end of each item becomes zero.

use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{ints, read, valid, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "mask_time";

/// Sets the frames past the end of each item to zero, whatever they held (NaN too).
///
/// Inputs: `x [B, T, ...]` f32, `lengths [B]` i32; a negative length counts as 0. Output: the shape of `x`, with
/// frames `t >= lengths[b]` zero.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskTime;

impl Op for MaskTime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let x = ins.f32_from(0, 2, "[B, T, ...]")?;
        let lengths = ins.i32(1, Some(1), "[B]")?;
        ins.same(Axis::B, dim(x, 0), dim(lengths, 0))?;
        Ok(one(x.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, lengths) = (read(NAME, inputs, 0)?, ints(NAME, inputs, 1)?);
        let frames = x.dim(1);
        let row = x.shape.iter().skip(2).product::<usize>().max(1);
        let out = x.data.iter().enumerate().map(|(i, &v)| {
            let frame = i / row;
            let (b, t) = (frame / frames, frame % frames);
            if t < valid(&lengths, b, frames) { v } else { 0.0 }
        });
        write(NAME, outputs, 0, out)
    }

    fn moves(&self, inputs: &[u64], outputs: &[u64]) -> u64 {
        // In place only what lies past the ends is written, which is mostly nothing.
        let copied = inputs.first().is_some_and(|&x| x > 0);
        inputs.iter().sum::<u64>() + if copied { outputs.iter().sum() } else { 0 }
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
