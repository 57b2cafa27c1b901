//! `slice`: a range of an axis.

use crate::infer::Inputs;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{gather, input, output};
use conure_tensor::{Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "slice";

/// The indices `start .. end` of one axis.
///
/// Input: `x [...]` of any type without blocks. Output: the same with that axis cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The axis, from 0, slowest first.
    pub axis: usize,
    /// The first index kept.
    pub start: usize,
    /// The first index no longer kept.
    pub end: Dim,
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let end = Shape::new([(conure_tensor::Axis::ANY, self.end.clone())]);
        vec![("axis", int(self.axis)), ("start", int(self.start)), ("end", Attr::Shape(end))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.plain(0)?;
        let Some(length) = x.get(self.axis) else {
            return Err(ins.attribute(format!("axis {} of a tensor with {} axes", self.axis, x.rank())));
        };
        // Lengths with symbols are checked when they are bound: here only what is already a number, or a difference
        // that is.
        let past_end = &self.end - length;
        let backwards = &Dim::from(self.start) - &self.end;
        if past_end.as_constant().is_some_and(|n| n > 0) || backwards.as_constant().is_some_and(|n| n > 0) {
            return Err(ins.attribute(format!("{}..{} of an axis of length {length}", self.start, self.end)));
        }
        let kept = self.end.plus(-i64::try_from(self.start).unwrap_or(i64::MAX));
        let shape = x.with(self.axis, x.axis(self.axis), kept);
        Ok(Outputs::from_iter([ValueType::new(ins.dtype(0)?, shape)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = input(NAME, inputs, 0)?;
        let kept = output(NAME, outputs, 0)?.shape().get(self.axis).copied().unwrap_or(1);
        let length = x.shape().get(self.axis).copied().unwrap_or(1);
        let inner: usize = x.shape().iter().skip(self.axis + 1).product();
        if self.start + kept > length {
            return Err(past_the_end(self.start, kept, length));
        }
        gather(NAME, outputs, |k| {
            let (outer, at, rest) = (k / inner / kept, k / inner % kept, k % inner);
            (x, (outer * length + self.start + at) * inner + rest)
        })
    }

    fn moves(&self, _inputs: &[u64], outputs: &[u64]) -> u64 {
        2 * outputs.iter().sum::<u64>()
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

fn past_the_end(start: usize, kept: usize, length: usize) -> OpError {
    OpError::Kernel { op: NAME, what: format!("{start}..{} of an axis of length {length}", start + kept) }
}
