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
#[derive(Clone, Debug, PartialEq)]
pub struct LstmCell;

impl Op for LstmCell {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 7)?;
        let x = ins.f32_of(0, 2, "[B, I]")?;
        let h = ins.f32_of(1, 2, "[B, H]")?;
        let c = ins.f32_of(2, 2, "[B, H]")?;
        ins.same(Axis::B, dim(x, 0), dim(h, 0))?;
        ins.same_shape(1, 2)?;
        let gates = dim(h, 1) * &Dim::from(4);
        for (i, width, axis) in [(3, dim(x, 1), Axis("I")), (4, dim(h, 1), Axis::H)] {
            let w = ins.weight(i, 2, "[4H, I] or [4H, H]")?;
            ins.same(Axis("4H"), &gates, dim(w, 0))?;
            ins.same(axis, width, dim(w, 1))?;
        }
        ins.vector(5, Axis("4H"), &gates)?;
        ins.vector(6, Axis("4H"), &gates)?;
        Ok(Outputs::from_iter([ValueType::f32(h.clone()), ValueType::f32(c.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, h, c) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let (w_ih, w_hh) = (read(NAME, inputs, 3)?, read(NAME, inputs, 4)?);
        let (b_ih, b_hh) = (read(NAME, inputs, 5)?, read(NAME, inputs, 6)?);
        let width = h.last();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (mut new_h, mut new_c) = (Vec::new(), Vec::new());
        for b in 0..h.dim(0) {
            for j in 0..width {
                let gate = |g: usize| {
                    let row = g * width + j;
                    dot(w_ih.row(row), x.row(b))
                        + b_ih.data[row]
                        + dot(w_hh.row(row), h.row(b))
                        + b_hh.data[row]
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
        let weights = elements(inputs, 3) + elements(inputs, 4);
        let batch = dims(inputs, 0).first().map_or(1.0, |&b| b as f64);
        // The products of both weights, and per hidden unit five functions and four products and sums.
        2.0 * batch * weights + 9.0 * elements(outputs, 0)
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let [x, h, c, w_ih, w_hh, b_ih, b_hh] = [0, 1, 2, 3, 4, 5, 6].map(Part::Input);
        let Some(width) = dim(&d.shape(h)?, 1).as_constant() else { return Ok(None) };
        let linear = |residual| Linear { activation: Activation::None, bias: true, residual };
        let z = d.apply(linear(None), &[x, w_ih, b_ih])?; // [B, 4H]
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
