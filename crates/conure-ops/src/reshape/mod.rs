//! `reshape`: the same elements under another shape.

use crate::infer::Inputs;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{gather, input};
use conure_tensor::{Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "reshape";

/// The same elements in the same order under another shape: a view, nothing is computed.
///
/// Input: `x [...]` of any type without blocks. Output: [`Reshape::shape`], with as many elements, symbol for symbol.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::Shape(self.shape.clone()))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.plain(0)?;
        if x.elements() != self.shape.elements() {
            return Err(
                ins.wrong(0, format!("as many elements as {}, {}", self.shape, self.shape.elements()))
            );
        }
        Ok(Outputs::from_iter([ValueType::new(ins.dtype(0)?, self.shape.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = input(NAME, inputs, 0)?;
        gather(NAME, outputs, |k| (x, k))
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        Some(self)
    }

    fn is_view(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
