//! `unary`: one function applied to every element.

use crate::activation::{Activation, relu, sigmoid, silu};
use crate::count::elements;
use crate::infer::{Inputs, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "unary";

/// The function of a [`Unary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryKind {
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `e` to the power of `x`.
    Exp,
    /// Natural logarithm.
    Log,
    /// `-x`.
    Neg,
    /// Square root.
    Sqrt,
}

impl UnaryKind {
    /// Every function.
    pub const ALL: [UnaryKind; 8] = [
        UnaryKind::Relu,
        UnaryKind::Silu,
        UnaryKind::Sigmoid,
        UnaryKind::Tanh,
        UnaryKind::Exp,
        UnaryKind::Log,
        UnaryKind::Neg,
        UnaryKind::Sqrt,
    ];

    /// The function that an activation applies to every element; `None` of none and of a gated unit.
    pub fn of(activation: Activation) -> Option<UnaryKind> {
        match activation {
            Activation::None | Activation::Glu => None,
            Activation::Relu => Some(UnaryKind::Relu),
            Activation::Silu => Some(UnaryKind::Silu),
            Activation::Sigmoid => Some(UnaryKind::Sigmoid),
            Activation::Tanh => Some(UnaryKind::Tanh),
        }
    }

    /// The activation that does the same, if there is one.
    pub fn activation(self) -> Option<Activation> {
        Activation::ELEMENTWISE.into_iter().find(|&a| UnaryKind::of(a) == Some(self))
    }

    /// Its name, as drawings show it.
    pub const fn name(self) -> &'static str {
        match self {
            UnaryKind::Relu => "relu",
            UnaryKind::Silu => "silu",
            UnaryKind::Sigmoid => "sigmoid",
            UnaryKind::Tanh => "tanh",
            UnaryKind::Exp => "exp",
            UnaryKind::Log => "log",
            UnaryKind::Neg => "neg",
            UnaryKind::Sqrt => "sqrt",
        }
    }

    /// The definition.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            UnaryKind::Relu => relu(x),
            UnaryKind::Silu => silu(x),
            UnaryKind::Sigmoid => sigmoid(x),
            UnaryKind::Tanh => x.tanh(),
            UnaryKind::Exp => x.exp(),
            UnaryKind::Log => x.ln(),
            UnaryKind::Neg => -x,
            UnaryKind::Sqrt => x.sqrt(),
        }
    }
}

/// A function of every element.
///
/// Input: `x [...]` f32. Output: the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// Which function.
    pub kind: UnaryKind,
}

impl Op for Unary {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("kind", Attr::Text(self.kind.name()))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        Ok(one(ins.f32(0, "[...]")?.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = read(NAME, inputs, 0)?;
        write(NAME, outputs, 0, x.data.iter().map(|&v| self.kind.apply(v)))
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
