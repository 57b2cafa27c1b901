//! `transpose`: the axes in another order.

use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{gather, input};
use conure_tensor::{Dims, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "transpose";

/// The axes in another order: axis `i` of the output is axis `perm[i]` of the input.
///
/// Input: `x [...]` of any type without blocks. Output: the same elements, moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Transpose {
    /// Every axis of the input once.
    pub perm: Vec<usize>,
}

impl Transpose {
    /// For every axis of the output, how far apart its neighbours lie in the input, in elements.
    fn strides(&self, input: &[usize]) -> Dims {
        self.perm.iter().map(|&axis| input.iter().skip(axis + 1).product()).collect()
    }
}

impl Op for Transpose {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("perm", Attr::Ints(self.perm.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect()))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.plain(0)?;
        let once = (0..x.rank()).all(|axis| self.perm.contains(&axis));
        if self.perm.len() != x.rank() || !once {
            return Err(ins.attribute(format!(
                "perm {:?} must name each of the {} axes once",
                self.perm,
                x.rank()
            )));
        }
        let shape = Shape::new(self.perm.iter().map(|&a| (x.axis(a), dim(x, a).clone())));
        Ok(Outputs::from_iter([ValueType::new(ins.dtype(0)?, shape)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = input(NAME, inputs, 0)?;
        let strides = self.strides(x.shape());
        let shape: Dims = self.perm.iter().filter_map(|&axis| x.shape().get(axis).copied()).collect();
        gather(NAME, outputs, |k| {
            let (mut rest, mut at) = (k, 0);
            for (&length, &stride) in shape.iter().zip(&strides).rev() {
                at += rest % length * stride;
                rest /= length;
            }
            (x, at)
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
