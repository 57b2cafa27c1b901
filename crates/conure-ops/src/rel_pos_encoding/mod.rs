//! `rel_pos_encoding`: sinusoids of relative positions.

use crate::count::elements;
use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{output, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "rel_pos_encoding";

/// The encoding of relative positions of Transformer-XL (Dai et al. 2019) as NeMo tabulates it.
///
/// Input: any f32 `x [B, T, ...]`, of which only T counts. Output: `[P, D]` f32. Without a window the rows stand for
/// the positions `C+T-1, ..., -(T-1)` (P = C+2T-1, C frames before those of `x`); with window W for `W, ..., -W` (P = 2W+1). Columns `2i` and
/// `2i+1` are the sine and cosine of `position * exp(-2i * ln(10000) / D)`.
#[derive(Clone, Debug, PartialEq)]
pub struct RelPosEncoding {
    /// Columns D; even.
    pub d_model: usize,
    /// The farthest position, where attention is local.
    pub window: Option<usize>,
    /// Frames before those of `x` that are attended to.
    pub context: usize,
}

impl RelPosEncoding {
    /// The position of the first of `rows` rows.
    pub(crate) fn before(&self, rows: usize) -> usize {
        // Without a window rows = C + 2T - 1, and the first is C + T - 1.
        self.window.unwrap_or_else(|| (rows + self.context) / 2)
    }

    /// Radians per position in columns `2i` and `2i+1`.
    pub(crate) fn frequency(&self, i: usize) -> f64 {
        (-(2.0 * i as f64) * (10000f64.ln() / self.d_model as f64)).exp()
    }
}

impl Op for RelPosEncoding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let mut attrs = vec![("d_model", int(self.d_model))];
        attrs.extend(self.window.map(|w| ("window", int(w))));
        if self.context > 0 {
            attrs.push(("context", int(self.context)));
        }
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.f32_from(0, 2, "[B, T, ...]")?;
        if !self.d_model.is_multiple_of(2) {
            return Err(ins.attribute(format!("d_model is {}, must be even", self.d_model)));
        }
        let rows = match self.window {
            Some(window) => (&Dim::from(window) * &Dim::from(2)).plus(1),
            None => (&(dim(x, 1) * &Dim::from(2)) + &Dim::from(self.context)).plus(-1),
        };
        Ok(one(Shape::new([(Axis::P, rows), (Axis::D, Dim::from(self.d_model))])))
    }

    fn reference(&self, _inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let rows = output(NAME, outputs, 0)?.shape().first().copied().unwrap_or(0);
        let farthest = self.before(rows) as f64;
        let out = (0..rows).flat_map(|r| {
            let position = farthest - r as f64;
            (0..self.d_model).map(move |column| {
                let angle = position * self.frequency(column / 2);
                if column % 2 == 0 { angle.sin() } else { angle.cos() }
            })
        });
        write(NAME, outputs, 0, out)
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
