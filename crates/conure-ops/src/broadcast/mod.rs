//! `broadcast`: one row per item, repeated for every frame.

use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{gather, input, output};
use conure_tensor::{Axis, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "broadcast";

/// A row per item repeated for every frame, as a prompt-conditioned encoder does with its language vector.
///
/// Inputs: `x [B, N]` of any type without blocks, `like [B, T, ...]` of any type, of which only T counts.
/// Output: `[B, T, N]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Broadcast;

impl Op for Broadcast {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let (x, like) = (ins.plain(0)?, &inputs[1].shape);
        if x.rank() != 2 {
            return Err(ins.wrong(0, "[B, N]"));
        }
        if like.rank() < 2 {
            return Err(ins.wrong(1, "[B, T, ...]"));
        }
        ins.same(Axis::B, dim(x, 0), dim(like, 0))?;
        let shape = Shape::new([
            (x.axis(0), dim(x, 0).clone()),
            (like.axis(1), dim(like, 1).clone()),
            (x.axis(1), dim(x, 1).clone()),
        ]);
        Ok(Outputs::from_iter([ValueType::new(ins.dtype(0)?, shape)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = input(NAME, inputs, 0)?;
        let shape = output(NAME, outputs, 0)?.shape().to_vec();
        let (frames, n) = (shape.get(1).copied().unwrap_or(1), shape.get(2).copied().unwrap_or(1));
        gather(NAME, outputs, |k| (x, k / n / frames * n + k % n))
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
