//! `rel_pos_projection`: sinusoids of relative positions times a weight.

use crate::activation::Activation;
use crate::count::elements;
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim};
use crate::linear::Linear;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::rel_pos_encoding::RelPosEncoding;
use crate::values::{output, read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "rel_pos_projection";

/// [`RelPosEncoding`] through a linear layer without bias: what attention with relative positions reads.
///
/// Inputs: any f32 `x [B, T, ...]`, of which only T counts, and `w [N, D]` in any stored form. Output: `[P, N]` f32. A row
/// depends on its position and the weight only, so that a device may keep rows from run to run, whatever T is.
#[derive(Clone, Debug, PartialEq)]
pub struct RelPosProjection {
    /// The encoding.
    pub encoding: RelPosEncoding,
}

impl Op for RelPosProjection {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.encoding.attrs()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let mut out = self.encoding.infer(&inputs[..1])?;
        let w = ins.weight(1, 2, "[N, D]")?;
        ins.same(Axis::D, &self.encoding.d_model.into(), dim(w, 1))?;
        if let Some(out) = out.first_mut() {
            out.shape = out.shape.with(1, w.axis(0), dim(w, 0).clone());
        }
        Ok(out)
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let w = read(NAME, inputs, 1)?;
        let rows = output(NAME, outputs, 0)?.shape().first().copied().unwrap_or(0);
        let farthest = self.encoding.before(rows) as f64;
        let mut out = Vec::new();
        for r in 0..rows {
            let position = farthest - r as f64;
            let encoded: Vec<f64> = (0..self.encoding.d_model)
                .map(|column| {
                    let angle = position * self.encoding.frequency(column / 2);
                    if column % 2 == 0 { angle.sin() } else { angle.cos() }
                })
                .collect();
            out.extend(w.rows().map(|w| w.iter().zip(&encoded).map(|(w, e)| w * e).sum::<f64>()));
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        elements(outputs, 0) * 2.0 * self.encoding.d_model as f64
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let encoded = d.apply(self.encoding.clone(), &[Part::Input(0)])?;
        let linear = Linear { activation: Activation::None, bias: false, residual: None };
        let y = d.apply(linear, &[encoded, Part::Input(1)])?;
        Ok(d.done(&[y]))
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
