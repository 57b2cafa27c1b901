//! `layer_norm`: every row brought to mean 0 and variance 1, then scaled and shifted.

use crate::count::elements;
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "layer_norm";

/// Layer normalisation over the last axis (Ba, Kiros, Hinton 2016): `(x - mean) / sqrt(var + eps) * gamma + beta`,
/// with the variance that divides by D.
///
/// Inputs: `x [..., D]` f32, `gamma [D]`, `beta [D]`. Output: `[..., D]` f32.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance; 1e-5 in NeMo.
    pub eps: f32,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("eps", Attr::Float(self.eps))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 3)?;
        let x = ins.f32_from(0, 1, "[..., D]")?;
        ins.vector(1, Axis::D, dim(x, last(x)))?;
        ins.vector(2, Axis::D, dim(x, last(x)))?;
        Ok(one(x.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, gamma, beta) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let d = x.last() as f64;
        let mut out = Vec::with_capacity(x.data.len());
        for row in x.rows() {
            let mean = row.iter().sum::<f64>() / d;
            let var = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / d;
            let scale = 1.0 / (var + f64::from(self.eps)).sqrt();
            out.extend(
                row.iter().enumerate().map(|(i, v)| (v - mean) * scale * gamma.data[i] + beta.data[i]),
            );
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        // Mean, variance (subtract, square, add), scale and shift.
        7.0 * elements(outputs, 0)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
