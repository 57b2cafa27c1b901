//! `lstm_cell`: one step of one LSTM layer.

use crate::activation::Activation;
use crate::activation::sigmoid;
use crate::binary::{Binary, BinaryKind};
use crate::count::{dims, elements};
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim};
use crate::linear::Linear;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::slice::Slice;
use crate::unary::{Unary, UnaryKind};
use crate::values::{read, write};
use conure_tensor::{Axis, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "lstm_cell";

/// One step of an LSTM layer, with the gates in the order input, forget, cell, output (as PyTorch stores them).
///
/// Inputs: `x [B, I]`, `h [B, H]`, `c [B, H]` f32; `w_ih [4H, I]`, `w_hh [4H, H]` in any stored form; `b_ih [4H]`,
/// `b_hh [4H]`. Outputs: the new `h [B, H]` and `c [B, H]`, f32. With `z = w_ih x + b_ih + w_hh h + b_hh`:
/// `c' = sigmoid(z_f) c + sigmoid(z_i) tanh(z_g)`, `h' = sigmoid(z_o) tanh(c')`.
///
/// If `projected`, the inputs are `u [B, 4H]`, which is `w_ih x + b_ih`, then `h`, `c`, `w_hh` and `b_hh`: of a token it is always
/// the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LstmCell {
    /// Whether the first input is the input's part of the gates.
    pub projected: bool,
}

impl LstmCell {
    /// Where `w_hh` is among the inputs, and `b_hh`.
    fn recurrent(&self) -> (usize, usize) {
        if self.projected { (3, 4) } else { (4, 6) }
    }
}

impl Op for LstmCell {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        if self.projected { vec![("projected", Attr::Int(1))] } else { Vec::new() }
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, if self.projected { 5 } else { 7 })?;
        let x = ins.f32_of(0, 2, if self.projected { "[B, 4H]" } else { "[B, I]" })?;
        let h = ins.f32_of(1, 2, "[B, H]")?;
        let c = ins.f32_of(2, 2, "[B, H]")?;
        ins.same(Axis::B, dim(x, 0), dim(h, 0))?;
        ins.same_shape(1, 2)?;
        let gates = dim(h, 1) * &Dim::from(4);
        let (w_hh, b_hh) = self.recurrent();
        let matrix = |i: usize, width: &Dim, axis: Axis| {
            let w = ins.weight(i, 2, "[4H, I] or [4H, H]")?;
            ins.same(Axis("4H"), &gates, dim(w, 0))?;
            ins.same(axis, width, dim(w, 1))
        };
        if self.projected {
            ins.same(Axis("4H"), &gates, dim(x, 1))?;
        } else {
            matrix(3, dim(x, 1), Axis("I"))?;
            ins.vector(5, Axis("4H"), &gates)?;
        }
        matrix(w_hh, dim(h, 1), Axis::H)?;
        ins.vector(b_hh, Axis("4H"), &gates)?;
        Ok(Outputs::from_iter([ValueType::f32(h.clone()), ValueType::f32(c.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, h, c) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let (w_hh, b_hh) = self.recurrent();
        let (w_hh, b_hh) = (read(NAME, inputs, w_hh)?, read(NAME, inputs, b_hh)?);
        let of_input =
            if self.projected { None } else { Some((read(NAME, inputs, 3)?, read(NAME, inputs, 5)?)) };
        let width = h.last();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (mut new_h, mut new_c) = (Vec::new(), Vec::new());
        for b in 0..h.dim(0) {
            for j in 0..width {
                let gate = |g: usize| {
                    let row = g * width + j;
                    let from_x = match &of_input {
                        Some((w_ih, b_ih)) => dot(w_ih.row(row), x.row(b)) + b_ih.data[row],
                        None => x.row(b)[row],
                    };
                    from_x + dot(w_hh.row(row), h.row(b)) + b_hh.data[row]
                };
                let cell = sigmoid(gate(1)) * c.row(b)[j] + sigmoid(gate(0)) * gate(2).tanh();
                new_c.push(cell);
                new_h.push(sigmoid(gate(3)) * cell.tanh());
            }
        }
        write(NAME, outputs, 0, new_h)?;
        write(NAME, outputs, 1, new_c)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let weights = elements(inputs, 3) + if self.projected { 0.0 } else { elements(inputs, 4) };
        let batch = dims(inputs, 0).first().map_or(1.0, |&b| b as f64);
        // The products of both weights, and per hidden unit five functions and four products and sums.
        2.0 * batch * weights + 9.0 * elements(outputs, 0)
    }

    fn products(&self) -> &'static [(usize, usize)] {
        if self.projected { &[(1, 3)] } else { &[(0, 3), (1, 4)] }
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let [x, h, c, w_ih, b_ih] = [0, 1, 2, 3, 5].map(Part::Input);
        let (w_hh, b_hh) = self.recurrent();
        let (w_hh, b_hh) = (Part::Input(w_hh), Part::Input(b_hh));
        let Some(width) = dim(&d.shape(h)?, 1).as_constant() else { return Ok(None) };
        let linear = |residual| Linear { activation: Activation::None, bias: true, residual };
        let z = if self.projected { x } else { d.apply(linear(None), &[x, w_ih, b_ih])? }; // [B, 4H]
        let z = d.apply(linear(Some(1.0)), &[h, w_hh, b_hh, z])?;
        let mut gate = |i: usize, kind| {
            let end = Dim::from((i + 1) * width);
            let z = d.apply(Slice { axis: 1, start: i * width, end }, &[z])?;
            d.apply(Unary { kind }, &[z])
        };
        let input = gate(0, UnaryKind::Sigmoid)?;
        let forget = gate(1, UnaryKind::Sigmoid)?;
        let cell = gate(2, UnaryKind::Tanh)?;
        let output = gate(3, UnaryKind::Sigmoid)?;
        let product = Binary { kind: BinaryKind::Mul };
        let kept = d.apply(product.clone(), &[forget, c])?;
        let new = d.apply(product.clone(), &[input, cell])?;
        let c = d.apply(Binary { kind: BinaryKind::Add }, &[kept, new])?;
        let squashed = d.apply(Unary { kind: UnaryKind::Tanh }, &[c])?;
        let h = d.apply(product, &[output, squashed])?;
        Ok(d.done(&[h, c]))
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
