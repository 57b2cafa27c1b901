//! `cast`: to f32.

use crate::infer::{Inputs, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{DType, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "cast";

/// The same numbers as f32.
///
/// Input: `x [...]` f32, f16, bf16 or i32. Output: the same shape, f32; integers beyond 2^24 are rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast;

impl Op for Cast {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        match ins.dtype(0)? {
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => Ok(one(inputs[0].shape.clone())),
            _ => Err(ins.wrong(0, "f32, f16, bf16 or i32")),
        }
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        write(NAME, outputs, 0, read(NAME, inputs, 0)?.data)
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
