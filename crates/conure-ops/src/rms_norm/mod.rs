//! `rms_norm`: every row divided by its root mean square, then scaled.

use crate::count::elements;
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "rms_norm";

/// Root-mean-square normalisation over the last axis (Zhang, Sennrich 2019): `x / sqrt(mean(x^2) + eps) * gamma`.
///
/// Inputs: `x [..., D]` f32, `gamma [D]`, then `residual [..., D]` f32 if [`RmsNorm::residual`]. Output: `[..., D]` f32, with
/// the residual added.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Whether there is a residual.
    pub residual: bool,
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("eps", Attr::Float(self.eps)), ("residual", Attr::Int(i64::from(self.residual)))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2 + usize::from(self.residual))?;
        let x = ins.f32_from(0, 1, "[..., D]")?;
        ins.vector(1, Axis::D, dim(x, last(x)))?;
        if self.residual {
            ins.f32(2, "[..., D]")?;
            ins.same_shape(0, 2)?;
        }
        Ok(one(x.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, gamma) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let residual = if self.residual { Some(read(NAME, inputs, 2)?) } else { None };
        let mut out = Vec::with_capacity(x.data.len());
        for row in x.rows() {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / x.last() as f64;
            let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
            for (v, g) in row.iter().zip(&gamma.data) {
                out.push(v * scale * g + residual.as_ref().map_or(0.0, |r| r.data[out.len()]));
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        // Square and sum, two products, and the residual.
        (4.0 + f64::from(u8::from(self.residual))) * elements(outputs, 0)
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
