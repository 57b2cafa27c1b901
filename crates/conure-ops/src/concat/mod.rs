//! `concat`: tensors one after the other along an axis.

use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{gather, input, output};
use conure_tensor::{TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "concat";

/// Tensors one after the other along one axis.
///
/// Inputs: one or more tensors of one type (without blocks) that differ in that axis only. Output: their lengths
/// added in that axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// The axis, from 0, slowest first.
    pub axis: usize,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("axis", Attr::Int(i64::try_from(self.axis).unwrap_or(i64::MAX)))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::some(NAME, inputs)?;
        let first = ins.plain(0)?;
        if self.axis >= first.rank() {
            return Err(ins.attribute(format!("axis {} of a tensor with {} axes", self.axis, first.rank())));
        }
        let mut length = dim(first, self.axis).clone();
        for i in 1..inputs.len() {
            let next = ins.plain(i)?;
            if ins.dtype(i)? != ins.dtype(0)? || next.rank() != first.rank() {
                return Err(ins.wrong(i, format!("{} with {} axes", ins.dtype(0)?, first.rank())));
            }
            for axis in (0..first.rank()).filter(|&a| a != self.axis) {
                ins.same(first.axis(axis), dim(first, axis), dim(next, axis))?;
            }
            length = &length + dim(next, self.axis);
        }
        let shape = first.with(self.axis, first.axis(self.axis), length);
        Ok(Outputs::from_iter([ValueType::new(ins.dtype(0)?, shape)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let shape = output(NAME, outputs, 0)?.shape().to_vec();
        let inner: usize = shape.iter().skip(self.axis + 1).product();
        let total = shape.get(self.axis).copied().unwrap_or(1);
        let first = input(NAME, inputs, 0)?;
        gather(NAME, outputs, |k| {
            let (outer, mut at, rest) = (k / inner / total, k / inner % total, k % inner);
            for x in inputs {
                let length = x.shape().get(self.axis).copied().unwrap_or(1);
                if at < length {
                    return (x, (outer * length + at) * inner + rest);
                }
                at -= length;
            }
            (first, usize::MAX / 16)
        })
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
