//! `mask_scores`: keys that a query does not see get no weight.

use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::rel_pos_attention::AttentionMask;
use crate::values::{ints, read, valid, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "mask_scores";

/// Sets the scores of keys that a query does not see to minus infinity, whatever they were: what the mask hides, and what lies
/// past the end of the item. A query past the end sees nothing.
///
/// Inputs: `scores [B, H, T, T]` f32 (query, key), `lengths [B]` i32. Output: the shape of the scores.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskScores {
    /// What a query sees.
    pub mask: AttentionMask,
}

impl Op for MaskScores {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.mask.attrs()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let x = ins.f32_of(0, 4, "[B, H, T, T]")?;
        ins.same(Axis::T, dim(x, 2), dim(x, 3))?;
        let lengths = ins.i32(1, Some(1), "[B]")?;
        ins.same(Axis::B, dim(x, 0), dim(lengths, 0))?;
        Ok(one(x.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, lengths) = (read(NAME, inputs, 0)?, ints(NAME, inputs, 1)?);
        let (heads, frames) = (x.dim(1), x.dim(2));
        let out = x.data.iter().enumerate().map(|(at, &score)| {
            let (j, i, b) = (at % frames, at / frames % frames, at / frames / frames / heads);
            let end = valid(&lengths, b, frames);
            if i < end && j < end && self.mask.sees(i, j) { score } else { f64::NEG_INFINITY }
        });
        write(NAME, outputs, 0, out)
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
