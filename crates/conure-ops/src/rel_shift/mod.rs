//! `rel_shift`: scores by distance become scores by key.

use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{Axis, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "rel_shift";

/// The shift of relative positions (Dai et al., "Transformer-XL", 2019), without its padding: row `i` of the input holds a query's
/// scores by distance `i - j`, greatest first; the output holds them by key `j`.
///
/// Input: `x [..., T, P]` f32. With [`RelShift::left`] `None`, `P = 2T - 1` and the distances are `T-1 ..= -(T-1)`; otherwise they
/// are `left ..= left + 1 - P`. Output: `[..., T, T]`, 0 at distances that x does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct RelShift {
    /// The greatest distance, if it is not T - 1.
    pub left: Option<usize>,
}

impl RelShift {
    /// Column of x for query `i` and key `j`, if there is one.
    fn column(&self, i: usize, j: usize, frames: usize, width: usize) -> Option<usize> {
        let greatest = self.left.unwrap_or(frames.saturating_sub(1));
        (greatest.saturating_add(j)).checked_sub(i).filter(|&c| c < width)
    }
}

impl Op for RelShift {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let left = self.left.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        vec![("left", Attr::Int(left))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.f32_from(0, 2, "[..., T, P]")?;
        let frames = dim(x, last(x) - 1).clone();
        if self.left.is_none() {
            ins.same(Axis::P, &(&frames * &Dim::from(2)).plus(-1), dim(x, last(x)))?;
        }
        Ok(one(x.with(last(x), Axis::T, frames)))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = read(NAME, inputs, 0)?;
        let (width, frames) = (x.last(), x.dim(x.shape.len().saturating_sub(2)));
        let out = x.rows().enumerate().flat_map(|(row, scores)| {
            let i = row % frames.max(1);
            (0..frames).map(move |j| self.column(i, j, frames, width).map_or(0.0, |c| scores[c]))
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
