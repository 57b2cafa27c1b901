//! `gated`: a function of a gate times what it gates, the middle of the feed-forward networks of language models.

use crate::count::elements;
use crate::infer::{Inputs, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_kernels::gated::Gate;
use conure_tensor::{TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "gated";

/// A gated unit of two tensors (Shazeer, "GLU variants improve transformer", 2020).
///
/// Inputs: `gate [...]` f32 and `up [...]` f32 of the same shape. Output: the same shape, by [`Gated::kind`].
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Which function.
    pub kind: Gate,
}

impl Gated {
    /// The definition.
    fn apply(&self, gate: f64, up: f64) -> f64 {
        match self.kind {
            Gate::Silu => gate / (1.0 + (-gate).exp()) * up,
            Gate::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * gate * (1.0 + 0.044_715 * gate * gate);
                0.5 * gate * (1.0 + inner.tanh()) * up
            }
            Gate::ClampedSwiglu(limit) => {
                let limit = f64::from(limit);
                let (g, u) = (gate.min(limit), up.clamp(-limit, limit));
                g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
            }
        }
    }
}

impl Op for Gated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        match self.kind {
            Gate::Silu => vec![("kind", Attr::Text("silu"))],
            Gate::GeluTanh => vec![("kind", Attr::Text("gelu_tanh"))],
            Gate::ClampedSwiglu(limit) => {
                vec![("kind", Attr::Text("clamped_swiglu")), ("limit", Attr::Float(limit))]
            }
        }
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        if let Gate::ClampedSwiglu(limit) = self.kind
            && !limit.is_finite()
        {
            return Err(ins.attribute(format!("a limit of {limit}, which is no number")));
        }
        let gate = ins.f32(0, "[...]")?;
        ins.f32(1, "[...]")?;
        ins.same_shape(0, 1)?;
        Ok(one(gate.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (gate, up) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        write(NAME, outputs, 0, gate.data.iter().zip(&up.data).map(|(&g, &u)| self.apply(g, u)))
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        2.0 * elements(outputs, 0)
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
