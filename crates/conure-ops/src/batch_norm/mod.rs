//! `batch_norm`: every channel shifted and scaled by statistics of the training data.

use crate::binary::{Binary, BinaryKind};
use crate::count::elements;
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::unary::{Unary, UnaryKind};
use crate::values::{read, write};
use conure_tensor::{Axis, DType, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

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

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let [x, gamma, beta, mean, var] = [0, 1, 2, 3, 4].map(Part::Input);
        if d.ty(var)?.dtype != DType::F32 {
            return Ok(None);
        }
        let eps = d.constant(&[1], &[self.eps])?;
        let binary = |kind| Binary { kind };
        let centred = d.apply(binary(BinaryKind::Sub), &[x, mean])?;
        let var = d.apply(binary(BinaryKind::Add), &[var, eps])?;
        let deviation = d.apply(Unary { kind: UnaryKind::Sqrt }, &[var])?;
        let y = d.apply(binary(BinaryKind::Div), &[centred, deviation])?;
        let y = d.apply(binary(BinaryKind::Mul), &[y, gamma])?;
        let y = d.apply(binary(BinaryKind::Add), &[y, beta])?;
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
