//! `scale`: every element times one number.

use crate::count::elements;
use crate::infer::{Inputs, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "scale";

/// Every element times one number, such as the `sqrt(D)` of x-scaling.
///
/// Input: `x [...]` f32. Output: the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The number.
    pub factor: f32,
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("factor", Attr::Float(self.factor))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        Ok(one(ins.f32(0, "[...]")?.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = read(NAME, inputs, 0)?;
        write(NAME, outputs, 0, x.data.iter().map(|v| v * f64::from(self.factor)))
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        elements(outputs, 0)
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
