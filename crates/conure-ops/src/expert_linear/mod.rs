//! `expert_linear`: a linear layer of each row's own expert.

use crate::count::{dims, elements};
use crate::infer::{Inputs, dim, last, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{ints, read, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "expert_linear";

/// A linear layer whose matrix is chosen row by row: ggml's MUL_MAT_ID.
///
/// Inputs: `x [..., K]` f32, which the U experts of a row share, or `x [..., U, K]`, a row for each; `w [E, N, K]` in any
/// stored form; `ids [..., U]` i32; `bias [E, N]` if [`ExpertLinear::bias`]. Output: `[..., U, N]` f32, `w[id] x + bias[id]`.
/// An id outside `0 .. E` is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLinear {
    /// E.
    pub experts: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Op for ExpertLinear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let experts = i64::try_from(self.experts).unwrap_or(i64::MAX);
        vec![("experts", Attr::Int(experts)), ("bias", Attr::Int(i64::from(self.bias)))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, if self.bias { 4 } else { 3 })?;
        let x = ins.f32_from(0, 1, "[..., K] or [..., U, K]")?;
        let w = ins.weight(1, 3, "[E, N, K]")?;
        let ids = ins.i32(2, None, "[..., U]")?;
        ins.same(Axis("E"), &Dim::from(self.experts), dim(w, 0))?;
        ins.same(Axis::K, dim(x, last(x)), dim(w, 2))?;
        // The axes of x before K are those of the ids, with or without the last.
        let own = x.rank() == ids.rank() + 1;
        if ids.rank() == 0 || !(own || x.rank() == ids.rank()) {
            return Err(ins.wrong(2, format!("i32 [..., U], one axis for each of x, {x}, but K")));
        }
        for i in 0..last(x) {
            ins.same(ids.axis(i), dim(ids, i), dim(x, i))?;
        }
        if self.bias {
            let bias = ins.weight(3, 2, "[E, N]")?;
            ins.same(Axis("E"), dim(w, 0), dim(bias, 0))?;
            ins.same(Axis::N, dim(w, 1), dim(bias, 1))?;
        }
        let axis = if w.axis(1) == Axis::ANY { Axis::N } else { w.axis(1) };
        let axes = ids.iter().map(|(a, d)| (a, d.clone()));
        Ok(one(Shape::new(axes.chain([(axis, dim(w, 1).clone())]))))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, w, ids) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, ints(NAME, inputs, 2)?);
        let bias = if self.bias { Some(read(NAME, inputs, 3)?) } else { None };
        let n = w.dim(1);
        let shared = ids.len() * x.last() / x.data.len().max(1);
        let mut out = Vec::new();
        for (row, &id) in ids.iter().enumerate() {
            let expert = usize::try_from(id).ok().filter(|&e| e < self.experts).ok_or_else(|| {
                let what = format!("id {id} is outside the {} experts", self.experts);
                OpError::Kernel { op: NAME, what }
            })?;
            let x = x.row(row / shared.max(1));
            for j in expert * n..(expert + 1) * n {
                let dot: f64 = x.iter().zip(w.row(j)).map(|(a, b)| a * b).sum();
                out.push(dot + bias.as_ref().map_or(0.0, |b| b.data[j]));
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        2.0 * elements(outputs, 0) * dims(inputs, 0).last().copied().unwrap_or(0) as f64
    }

    fn moves(&self, inputs: &[u64], outputs: &[u64]) -> u64 {
        let at = |i: usize| inputs.get(i).copied().unwrap_or(0);
        // Of the matrices at most as many as there are ids, each of four bytes.
        let experts = self.experts as u64;
        let used = at(1) / experts.max(1) * (at(2) / 4).min(experts);
        at(0) + used + at(2) + at(3) + outputs.iter().sum::<u64>()
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
