//! `sdpa`: scaled dot-product attention of new tokens over a cache of keys and values.

use crate::count::dims;
use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{ints, read, write};
use conure_tensor::{Axis, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "sdpa";

/// Scaled dot-product attention (Vaswani et al. 2017) with grouped heads (Ainslie et al. 2023) over a cache that already
/// holds the keys and values of the new tokens.
///
/// Inputs: `q [B, T, H, K]` f32; `k [C0, C, G, K]` and `v [C0, C, G, J]` of any real type, with `C0 >= B` items of C rows and
/// `H` a multiple of G; `at [B]` i32; then `sinks [H]` if [`Sdpa::sinks`]. Output: `[B, T, H, J]` f32.
///
/// Token t of item b stands at row `at[b] + t` of its item and sees the rows up to its own, or the last
/// [`Sdpa::window`] of those. Head h reads key head `h / (H / G)`. A score is `scale * q k`, then `cap * tanh(score / cap)`
/// if there is a cap. With sinks, each query also sees one key with logit `sinks[h]` and no value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sdpa {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// How many rows a query sees, its own among them; `None`: all up to its own.
    pub window: Option<usize>,
    /// The bound that scores are bent under.
    pub cap: Option<f32>,
    /// Whether there are sinks.
    pub sinks: bool,
}

impl Sdpa {
    /// The rows that the token at row `row` sees.
    fn visible(&self, row: usize) -> std::ops::Range<usize> {
        self.window.map_or(0, |w| (row + 1).saturating_sub(w))..row + 1
    }
}

impl Op for Sdpa {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("scale", Attr::Float(self.scale)), ("sinks", Attr::Int(i64::from(self.sinks)))];
        attrs.extend(self.window.map(|w| ("window", Attr::Int(i64::try_from(w).unwrap_or(i64::MAX)))));
        attrs.extend(self.cap.map(|c| ("cap", Attr::Float(c))));
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 4 + usize::from(self.sinks))?;
        if self.window == Some(0) || self.cap.is_some_and(|c| c <= 0.0 || !c.is_finite()) {
            let what = format!("window {:?} and cap {:?}; expected more than 0", self.window, self.cap);
            return Err(ins.attribute(what));
        }
        let q = ins.f32_of(0, 4, "[B, T, H, K]")?;
        let k = ins.weight(1, 4, "[C0, C, G, K]")?;
        let v = ins.weight(2, 4, "[C0, C, G, J]")?;
        let at = ins.i32(3, Some(1), "[B]")?;
        ins.same(Axis::B, dim(q, 0), dim(at, 0))?;
        ins.same(Axis::K, dim(q, 3), dim(k, 3))?;
        for (axis, i) in [(Axis::N, 0), (Axis::T, 1), (Axis::H, 2)] {
            ins.same(axis, dim(k, i), dim(v, i))?;
        }
        let divides = |h: usize, g: usize| g > 0 && h.is_multiple_of(g);
        if !matches!((dim(q, 2).as_constant(), dim(k, 2).as_constant()), (Some(h), Some(g)) if divides(h, g))
        {
            return Err(ins.wrong(1, format!("[C0, C, G, K] with a G that divides H, {}", dim(q, 2))));
        }
        if let (Some(items), Some(batch)) = (dim(k, 0).as_constant(), dim(q, 0).as_constant())
            && items < batch
        {
            return Err(ins.wrong(1, format!("[C0, C, G, K] with at least B, {batch}, items")));
        }
        if self.sinks {
            ins.vector(4, Axis::H, dim(q, 2))?;
        }
        Ok(one(q.with(3, Axis::K, Dim::clone(dim(v, 3)))))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (q, k, v) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let at = ints(NAME, inputs, 3)?;
        let sinks = if self.sinks { Some(read(NAME, inputs, 4)?) } else { None };
        let (heads, groups, capacity) = (q.dim(2), k.dim(2), k.dim(1));
        let mut out = Vec::new();
        for (i, query) in q.rows().enumerate() {
            let (b, t, h) = (i / heads / q.dim(1), i / heads % q.dim(1), i % heads);
            let row = usize::try_from(at[b]).unwrap_or(usize::MAX).saturating_add(t);
            if row >= capacity {
                let what = format!("item {b}: token {t} stands outside the cache of {capacity} rows");
                return Err(OpError::Kernel { op: NAME, what });
            }
            let entry = |j: usize| (b * capacity + j) * groups + h / (heads / groups);
            let scores: Vec<f64> = self
                .visible(row)
                .map(|j| {
                    let dot: f64 = query.iter().zip(k.row(entry(j))).map(|(a, b)| a * b).sum();
                    let score = f64::from(self.scale) * dot;
                    self.cap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                })
                .collect();
            let sink = sinks.as_ref().map(|z| z.data[h]);
            let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |z| (z - largest).exp());
            out.extend((0..v.last()).map(|d| {
                let sum: f64 = self.visible(row).zip(&weights).map(|(j, w)| w * v.row(entry(j))[d]).sum();
                sum / total
            }));
        }
        write(NAME, outputs, 0, out)
    }

    /// As if every query saw the whole cache, or its whole window: how much it sees is known only when it runs.
    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let at = |operand: &[usize], i: usize| operand.get(i).copied().unwrap_or(0) as f64;
        let (q, k, out) = (dims(inputs, 0), dims(inputs, 1), dims(outputs, 0));
        let seen = self.window.map_or(at(k, 1), |w| (w as f64).min(at(k, 1)));
        2.0 * at(q, 0) * at(q, 1) * at(q, 2) * seen * (at(q, 3) + at(out, 3))
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
