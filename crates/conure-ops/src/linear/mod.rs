//! `linear`: `out = residual + scale * activation(x W^T + bias)`.

use crate::activation::{Activation, sigmoid};
use crate::binary::{Binary, BinaryKind};
use crate::count::{dims, elements};
use crate::decompose::{Decomposition, Part};
use crate::glu::Glu;
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::scale::Scale;
use crate::unary::{Unary, UnaryKind};
use crate::values::{read, write};
use conure_tensor::{Axis, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "linear";

/// A linear layer with what usually follows it.
///
/// Inputs: `x [..., K]` f32, `w [N, K]` in any stored form (axes of length 1 may follow, as in a pointwise
/// convolution's weight), then `bias [N]` if [`Linear::bias`], then `residual [..., N]` f32 if
/// [`Linear::residual`]. Output: `[..., N]` f32, `residual + scale * activation(x W^T + bias)`. With
/// [`Activation::Glu`] N is even, and output and residual are `[..., N / 2]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a residual, and the scale of what is added to it.
    pub residual: Option<f32>,
}

impl Linear {
    /// Where the residual stands among the inputs, if there is one.
    fn residual_at(&self) -> Option<usize> {
        self.residual.map(|_| if self.bias { 3 } else { 2 })
    }

    fn inputs(&self) -> usize {
        2 + usize::from(self.bias) + usize::from(self.residual.is_some())
    }
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![
            ("activation", Attr::Text(self.activation.name())),
            ("bias", Attr::Int(i64::from(self.bias))),
        ];
        attrs.extend(self.residual.map(|scale| ("residual", Attr::Float(scale))));
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, self.inputs())?;
        let x = ins.f32_from(0, 1, "[..., K]")?;
        let rank = inputs[1].shape.rank();
        let w = ins.weight(1, rank.max(2), "[N, K]")?;
        if (2..rank).any(|i| *dim(w, i) != Dim::from(1)) {
            return Err(ins.wrong(1, "[N, K], with nothing but 1 after that"));
        }
        ins.same(Axis::K, dim(x, last(x)), dim(w, 1))?;
        let n = dim(w, 0);
        if self.bias {
            ins.vector(2, Axis::N, n)?;
        }
        let axis = if w.axis(0) == Axis::ANY { Axis::N } else { w.axis(0) };
        let width = if self.activation == Activation::Glu { n.floor_div(2) } else { n.clone() };
        if self.activation == Activation::Glu && &width * &Dim::from(2) != *n {
            return Err(ins.wrong(1, "[N, K] with an even N, for a gated linear unit"));
        }
        let out = x.with(last(x), axis, width);
        if let Some(r) = self.residual_at() {
            let residual = ins.f32_of(r, out.rank(), "[..., N]")?;
            for ((axis, a), (_, b)) in out.iter().zip(residual.iter()) {
                ins.same(axis, a, b)?;
            }
            return Ok(one(residual.clone()));
        }
        Ok(one(out))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, w) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let (n, k) = (w.dim(0), w.dim(1));
        let bias = if self.bias { Some(read(NAME, inputs, 2)?) } else { None };
        let residual = self.residual_at().map(|i| read(NAME, inputs, i)).transpose()?;
        let mut out = Vec::new();
        for row in x.rows() {
            let product = |j: usize| {
                let w_row = &w.data[j * k..(j + 1) * k];
                let dot: f64 = row.iter().zip(w_row).map(|(a, b)| a * b).sum();
                dot + bias.as_ref().map_or(0.0, |b| b.data[j])
            };
            let glu = self.activation == Activation::Glu;
            for j in 0..if glu { n / 2 } else { n } {
                let y = match glu {
                    true => product(j) * sigmoid(product(n / 2 + j)),
                    false => self.activation.apply(product(j)),
                };
                out.push(match (&residual, self.residual) {
                    (Some(r), Some(scale)) => r.data[out.len()] + f64::from(scale) * y,
                    _ => y,
                });
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, inputs: &[&[usize]], _outputs: &[&[usize]]) -> f64 {
        2.0 * elements(inputs, 0) * dims(inputs, 1).first().map_or(1.0, |&n| n as f64)
    }

    fn products(&self) -> &'static [(usize, usize)] {
        &[(0, 1)]
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        if self.activation == Activation::None && self.residual.is_none() {
            return Ok(None);
        }
        let mut d = Decomposition::new(inputs);
        let plain = Linear { activation: Activation::None, bias: self.bias, residual: None };
        let operands: Vec<Part> = (0..plain.inputs()).map(Part::Input).collect();
        let mut y = d.apply(plain, &operands)?;
        y = match self.activation {
            Activation::Glu => d.apply(Glu, &[y])?,
            other => match UnaryKind::of(other) {
                Some(kind) => d.apply(Unary { kind }, &[y])?,
                None => y,
            },
        };
        if let (Some(factor), Some(at)) = (self.residual, self.residual_at()) {
            if factor != 1.0 {
                y = d.apply(Scale { factor }, &[y])?;
            }
            y = d.apply(Binary { kind: BinaryKind::Add }, &[Part::Input(at), y])?;
        }
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
