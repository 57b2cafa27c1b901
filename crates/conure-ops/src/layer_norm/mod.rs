//! `layer_norm`: every row brought to mean 0 and variance 1, then scaled and shifted.

use crate::activation::Activation;
use crate::binary::{Binary, BinaryKind};
use crate::count::elements;
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim, last, one};
use crate::linear::Linear;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::unary::{Unary, UnaryKind};
use crate::values::{read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

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

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let x = Part::Input(0);
        let shape = d.shape(x)?;
        let Some(width) = dim(&shape, last(&shape)).as_constant().filter(|&w| w > 0) else { return Ok(None) };
        // A mean is a product with 1/D.
        let each = d.constant(&[1, width], &vec![1.0 / width as f32; width])?;
        let eps = d.constant(&[1], &[self.eps])?;
        let mean_of = Linear { activation: Activation::None, bias: false, residual: None };
        let binary = |kind| Binary { kind };
        let mean = d.apply(mean_of.clone(), &[x, each])?; // [..., 1]
        let centred = d.apply(binary(BinaryKind::Sub), &[x, mean])?;
        let squares = d.apply(binary(BinaryKind::Mul), &[centred, centred])?;
        let var = d.apply(mean_of, &[squares, each])?;
        let var = d.apply(binary(BinaryKind::Add), &[var, eps])?;
        let deviation = d.apply(Unary { kind: UnaryKind::Sqrt }, &[var])?;
        let y = d.apply(binary(BinaryKind::Div), &[centred, deviation])?;
        let y = d.apply(binary(BinaryKind::Mul), &[y, Part::Input(1)])?;
        let y = d.apply(binary(BinaryKind::Add), &[y, Part::Input(2)])?;
        Ok(d.done(&[y]))
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
