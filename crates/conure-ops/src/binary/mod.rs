//! `binary`: two tensors, element by element.

use crate::count::elements;
use crate::infer::{Inputs, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_tensor::{Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "binary";

/// The function of a [`Binary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryKind {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
}

impl BinaryKind {
    /// Every function.
    pub const ALL: [BinaryKind; 4] = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Div];

    /// Its name, as drawings show it.
    pub const fn name(self) -> &'static str {
        match self {
            BinaryKind::Add => "add",
            BinaryKind::Sub => "sub",
            BinaryKind::Mul => "mul",
            BinaryKind::Div => "div",
        }
    }

    /// The definition.
    pub fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryKind::Add => a + b,
            BinaryKind::Sub => a - b,
            BinaryKind::Mul => a * b,
            BinaryKind::Div => a / b,
        }
    }
}

/// A function of two tensors, element by element.
///
/// Inputs: `a [...]` f32; `b` f32 of the same shape, or of the last axes of it only, and then used for every
/// index of the others (`[D]` onto `[B, T, D]`); an axis of b that is 1 long is repeated too (`[C, 1, 1]` onto
/// `[N, C, H, W]`). Output: the shape of `a`.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Which function.
    pub kind: BinaryKind,
}

/// Which element of b, of shape `b`, meets element `i` of a, of shape `a`.
fn repeated(a: &[usize], b: &[usize], mut i: usize) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (&length, &own) in a.iter().rev().zip(b.iter().rev()) {
        if own != 1 {
            at += i % length * stride;
        }
        i /= length;
        stride *= own;
    }
    at
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("kind", Attr::Text(self.kind.name()))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let a = ins.f32(0, "[...]")?;
        let b = ins.weight(1, inputs[1].shape.rank(), "the shape of input 0 or its last axes")?;
        if b.rank() > a.rank() {
            return Err(ins.wrong(1, format!("{a} or its last axes")));
        }
        for ((axis, l), (_, r)) in a.iter().rev().zip(b.iter().rev()) {
            if *r != Dim::from(1) {
                ins.same(axis, l, r)?;
            }
        }
        Ok(one(a.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (a, b) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let shape = a.shape.clone();
        let out = a
            .data
            .iter()
            .enumerate()
            .map(|(i, &x)| self.kind.apply(x, b.data[repeated(&shape, &b.shape, i)]));
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
