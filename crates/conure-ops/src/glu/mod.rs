//! `glu`: the gated linear unit, half as wide as its input.

use crate::activation::sigmoid;
use crate::binary::{Binary, BinaryKind};
use crate::count::elements;
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::slice::Slice;
use crate::unary::{Unary, UnaryKind};
use crate::values::{read, write};
use conure_tensor::{Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "glu";

/// Gated linear unit (Dauphin et al. 2017): the first half of every row times the sigmoid of the second half.
///
/// Input: `x [..., 2D]` f32. Output: `[..., D]` f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Glu;

impl Op for Glu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.f32_from(0, 1, "[..., 2D]")?;
        let half = dim(x, last(x)).floor_div(2);
        if &half * &Dim::from(2) != *dim(x, last(x)) {
            return Err(ins.wrong(0, "f32 [..., 2D]: an even last axis"));
        }
        Ok(one(x.with(last(x), x.axis(last(x)), half)))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = read(NAME, inputs, 0)?;
        let d = x.last() / 2;
        let out = x.rows().flat_map(|row| {
            let (a, gate) = row.split_at(d);
            a.iter().zip(gate).map(|(a, g)| a * sigmoid(*g))
        });
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        // A sigmoid counts as one operation, like every function of one number.
        2.0 * elements(outputs, 0)
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let x = Part::Input(0);
        let shape = d.shape(x)?;
        let axis = last(&shape);
        let Some(width) = dim(&shape, axis).as_constant() else { return Ok(None) };
        let a = d.apply(Slice { axis, start: 0, end: Dim::from(width / 2) }, &[x])?;
        let gate = d.apply(Slice { axis, start: width / 2, end: Dim::from(width) }, &[x])?;
        let gate = d.apply(Unary { kind: UnaryKind::Sigmoid }, &[gate])?;
        let y = d.apply(Binary { kind: BinaryKind::Mul }, &[a, gate])?;
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
