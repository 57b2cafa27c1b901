//! `sdpa`: scaled dot-product attention, of new tokens over a cache of keys and values or among the frames of a clip.

use crate::count::dims;
use crate::decompose::{Decomposition, Part};
use crate::infer::{Inputs, dim, one};
use crate::mask_scores::MaskScores;
use crate::mask_time::MaskTime;
use crate::matmul::MatMul;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::rel_pos_attention::AttentionMask;
use crate::scale::Scale;
use crate::softmax::Softmax;
use crate::transpose::Transpose;
use crate::values::{ints, read, write};
use conure_tensor::{Axis, DType, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "sdpa";

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdpaKeys {
    /// k and v are a cache that already holds the rows of the new tokens. Input 3 is `at [B]` i32: token t of item b stands at row
    /// `at[b] + t` of its item and sees the rows up to its own, or the last [`Sdpa::window`] of those.
    Cached,
    /// Queries and keys are the same frames (`C0 = B`, `C = T`). Input 3 is `lengths [B]` i32: a query sees what the mask shows of
    /// the frames before the item's end. Queries past the end give 0.
    Frames(AttentionMask),
    /// Every query sees every key of its item (`C0 = B`). There is no input 3.
    All,
}

/// Scaled dot-product attention (Vaswani et al. 2017) with grouped heads (Ainslie et al. 2023).
///
/// Inputs: `q [B, T, H, K]` f32; `k [C0, C, G, K]` and `v [C0, C, G, J]` of any real type, with `C0 >= B` items of C rows and
/// `H` a multiple of G; what [`Sdpa::keys`] says; then `sinks [H]` if [`Sdpa::sinks`]. Output: `[B, T, H, J]` f32.
///
/// Head h reads key head `h / (H / G)`. A score is `scale * q k`, then `cap * tanh(score / cap)` if there is a cap. With sinks, each
/// query also sees one key with logit `sinks[h]` and no value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sdpa {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Which keys a query sees.
    pub keys: SdpaKeys,
    /// How many rows of a cache a query sees, its own among them; `None`: all up to its own.
    pub window: Option<usize>,
    /// The bound that scores are bent under.
    pub cap: Option<f32>,
    /// Whether there are sinks.
    pub sinks: bool,
}

impl Sdpa {
    /// Where the sinks stand among the inputs, if there are any.
    fn sinks_at(&self) -> usize {
        if self.keys == SdpaKeys::All { 3 } else { 4 }
    }

    /// The rows that token `t` of `tokens` sees of `capacity`, if `number` is what input 3 says of its item. `None` if it stands
    /// outside.
    fn visible(&self, t: usize, tokens: usize, capacity: usize, number: i32) -> Option<Vec<usize>> {
        let number = usize::try_from(number);
        match self.keys {
            SdpaKeys::Cached => {
                let row = number.ok()?.saturating_add(t);
                let first = self.window.map_or(0, |w| (row + 1).saturating_sub(w));
                (row < capacity).then(|| (first..=row).collect())
            }
            SdpaKeys::Frames(mask) => {
                let end = number.unwrap_or(0).min(tokens);
                Some((0..end).filter(|&j| t < end && mask.sees(t, j)).collect())
            }
            SdpaKeys::All => Some((0..capacity).collect()),
        }
    }
}

impl Op for Sdpa {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("scale", Attr::Float(self.scale)), ("sinks", Attr::Int(i64::from(self.sinks)))];
        match self.keys {
            SdpaKeys::Cached => {}
            SdpaKeys::Frames(mask) => attrs.extend(mask.attrs()),
            SdpaKeys::All => attrs.push(("mask", Attr::Text("none"))),
        }
        attrs.extend(self.window.map(|w| ("window", Attr::Int(i64::try_from(w).unwrap_or(i64::MAX)))));
        attrs.extend(self.cap.map(|c| ("cap", Attr::Float(c))));
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, self.sinks_at() + usize::from(self.sinks))?;
        if self.window.is_some() && self.keys != SdpaKeys::Cached {
            return Err(ins.attribute("a window is one of a cache; frames have masks"));
        }
        if self.window == Some(0) || self.cap.is_some_and(|c| c <= 0.0 || !c.is_finite()) {
            let what = format!("window {:?} and cap {:?}; expected more than 0", self.window, self.cap);
            return Err(ins.attribute(what));
        }
        let q = ins.f32_of(0, 4, "[B, T, H, K]")?;
        let k = ins.weight(1, 4, "[C0, C, G, K]")?;
        let v = ins.weight(2, 4, "[C0, C, G, J]")?;
        if self.keys == SdpaKeys::All {
            ins.same(Axis::B, dim(q, 0), dim(k, 0))?;
        } else {
            ins.same(Axis::B, dim(q, 0), dim(ins.i32(3, Some(1), "[B]")?, 0))?;
        }
        if let SdpaKeys::Frames(_) = self.keys {
            ins.same(Axis::B, dim(q, 0), dim(k, 0))?;
            ins.same(Axis::T, dim(q, 1), dim(k, 1))?;
        }
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
            ins.vector(self.sinks_at(), Axis::H, dim(q, 2))?;
        }
        Ok(one(q.with(3, Axis::K, Dim::clone(dim(v, 3)))))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (q, k, v) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let numbers = if self.keys == SdpaKeys::All { Vec::new() } else { ints(NAME, inputs, 3)? };
        let sinks = if self.sinks { Some(read(NAME, inputs, self.sinks_at())?) } else { None };
        let (tokens, heads, groups, capacity) = (q.dim(1), q.dim(2), k.dim(2), k.dim(1));
        let mut out = Vec::new();
        for (i, query) in q.rows().enumerate() {
            let (b, t, h) = (i / heads / tokens, i / heads % tokens, i % heads);
            let number = numbers.get(b).copied().unwrap_or(0);
            let seen = self.visible(t, tokens, capacity, number).ok_or_else(|| OpError::Kernel {
                op: NAME,
                what: format!("item {b}: token {t} stands outside the cache of {capacity} rows"),
            })?;
            if seen.is_empty() {
                out.extend(std::iter::repeat_n(0.0, v.last()));
                continue;
            }
            let entry = |j: usize| (b * capacity + j) * groups + h / (heads / groups);
            let scores: Vec<f64> = seen
                .iter()
                .map(|&j| {
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
                let sum: f64 = seen.iter().zip(&weights).map(|(&j, w)| w * v.row(entry(j))[d]).sum();
                sum / total
            }));
        }
        write(NAME, outputs, 0, out)
    }

    /// With a cache, as if every query saw all of it, or its whole window: how much it sees is known only when it runs.
    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let at = |operand: &[usize], i: usize| operand.get(i).copied().unwrap_or(0) as f64;
        let (q, k, out) = (dims(inputs, 0), dims(inputs, 1), dims(outputs, 0));
        let pairs = match self.keys {
            SdpaKeys::Frames(mask) => mask.pairs(q.get(1).copied().unwrap_or(0)),
            _ => at(q, 1) * self.window.map_or(at(k, 1), |w| (w as f64).min(at(k, 1))),
        };
        2.0 * at(q, 0) * at(q, 2) * pairs * (at(q, 3) + at(out, 3))
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let [q, k, v, lengths] = [0, 1, 2, 3].map(Part::Input);
        let heads = |part: Part, d: &Decomposition| Ok::<_, OpError>(d.shape(part)?.get(2).cloned());
        // Products repeat one head, not some of many; and only scores of frames, not of a cache, are one matrix.
        let alike = heads(q, &d)? == heads(k, &d)? || heads(k, &d)? == Some(Dim::from(1));
        let floats = inputs.iter().take(3).all(|t| t.dtype == DType::F32);
        if self.keys == SdpaKeys::Cached || self.cap.is_some() || self.sinks || !alike || !floats {
            return Ok(None);
        }
        let masked = if let SdpaKeys::Frames(mask) = self.keys { Some(mask) } else { None };
        let v = if masked.is_some() { d.apply(MaskTime, &[v, lengths])? } else { v }; // no weight times NaN is NaN
        let heads_first = || Transpose { perm: vec![0, 2, 1, 3] };
        let (q, k) = (d.apply(heads_first(), &[q])?, d.apply(heads_first(), &[k])?); // [B, H, T, K]
        let v = d.apply(heads_first(), &[v])?;
        let scores = d.apply(MatMul { transpose_b: true }, &[q, k])?; // [B, H, T, C]
        let mut scores = d.apply(Scale { factor: self.scale }, &[scores])?;
        if let Some(mask) = masked {
            scores = d.apply(MaskScores { mask }, &[scores, lengths])?;
        }
        let weights = d.apply(Softmax, &[scores])?;
        let y = d.apply(MatMul { transpose_b: false }, &[weights, v])?;
        let mut y = d.apply(heads_first(), &[y])?; // [B, T, H, J]
        if masked.is_some() {
            y = d.apply(MaskTime, &[y, lengths])?; // queries past the end saw nothing
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
