//! `batch_norm`: every channel shifted and scaled by statistics of the training data.

use crate::count::elements;
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "batch_norm";

/// Batch normalisation as it is after training: `(x - mean) / sqrt(var + eps) * gamma + beta` for every channel.
///
/// Inputs: `x [..., C]` f32, then `gamma`, `beta`, `mean`, `var`, each `[C]`. Output: `[..., C]` f32.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance; 1e-5 in NeMo.
    pub eps: f32,
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("eps", Attr::Float(self.eps))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 5)?;
        let x = ins.f32_from(0, 1, "[..., C]")?;
        for i in 1..5 {
            ins.vector(i, Axis::C, dim(x, last(x)))?;
        }
        Ok(one(x.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = read(NAME, inputs, 0)?;
        let (gamma, beta) = (read(NAME, inputs, 1)?.data, read(NAME, inputs, 2)?.data);
        let (mean, var) = (read(NAME, inputs, 3)?.data, read(NAME, inputs, 4)?.data);
        let eps = f64::from(self.eps);
        let out = x
            .rows()
            .flat_map(|row| row.iter().enumerate())
            .map(|(c, v)| (v - mean[c]) / (var[c] + eps).sqrt() * gamma[c] + beta[c]);
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        2.0 * elements(outputs, 0)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
