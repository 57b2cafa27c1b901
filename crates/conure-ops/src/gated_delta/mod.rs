//! `gated_delta`: the gated delta rule, a matrix per head that is corrected towards each new value.

use crate::activation::sigmoid;
use crate::causal_conv1d::fewer;
use crate::count::{dims, elements};
use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{ints, read, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "gated_delta";

/// The gated delta rule (Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024), of a sequence
/// that comes in pieces.
///
/// Inputs: `qkv [B, T, 2 G K + H J]` f32, the queries of G heads, their keys, the values of H heads; `alpha [B, T, H]` and
/// `beta [B, T, H]` f32, how much is forgotten and corrected; `decay [H]` and `bias [H]` weights; `state [items, H, K, J]` f32
/// with `items` at least B; `at [B]` i32: the tokens before the piece. Where there are none, the state is zeros, whatever
/// it holds. Outputs: `[B, T, H, J]` f32, and the next state, whose items from B on stay.
///
/// With head h asked by query head `h % G`, `q` and `k` divided by `sqrt(sum of squares + eps)`, `q` by `sqrt(K)` too, for each
/// token: `S = e^(decay softplus(alpha + bias)) S`, then `S += k (sigmoid(beta) (v - S^T k))^T`, then `S^T q` is given out.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// G, which divides H.
    pub key_heads: usize,
    /// Added to the sums of squares of queries and keys.
    pub eps: f32,
}

impl Op for GatedDelta {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let heads = i64::try_from(self.key_heads).unwrap_or(i64::MAX);
        vec![("key_heads", Attr::Int(heads)), ("eps", Attr::Float(self.eps))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 7)?;
        let qkv = ins.f32_of(0, 3, "[B, T, 2 G K + H J]")?;
        let state = ins.f32_of(5, 4, "[items, H, K, J]")?;
        let (heads, key_dim, value_dim) = (dim(state, 1), dim(state, 2), dim(state, 3));
        let (Some(h), Some(k), Some(j)) =
            (heads.as_constant(), key_dim.as_constant(), value_dim.as_constant())
        else {
            return Err(ins.wrong(5, "[items, H, K, J] with fixed H, K and J"));
        };
        if self.key_heads == 0 || !h.is_multiple_of(self.key_heads) {
            return Err(ins.attribute(format!("{} heads of keys, which do not divide {h}", self.key_heads)));
        }
        ins.same(Axis("2 G K + H J"), dim(qkv, 2), &Dim::from(2 * self.key_heads * k + h * j))?;
        for i in [1, 2] {
            let gate = ins.f32_of(i, 3, "[B, T, H]")?;
            ins.same(Axis::B, dim(qkv, 0), dim(gate, 0))?;
            ins.same(Axis::T, dim(qkv, 1), dim(gate, 1))?;
            ins.same(Axis::H, heads, dim(gate, 2))?;
            ins.vector(i + 2, Axis::H, heads)?;
        }
        ins.same(Axis::B, dim(qkv, 0), dim(ins.i32(6, Some(1), "[B]")?, 0))?;
        fewer(&ins, dim(qkv, 0), dim(state, 0), 5)?;
        let out = Shape::new([
            (qkv.axis(0), dim(qkv, 0).clone()),
            (qkv.axis(1), dim(qkv, 1).clone()),
            (Axis::H, heads.clone()),
            (Axis("J"), value_dim.clone()),
        ]);
        Ok(Outputs::from_iter([ValueType::f32(out), ValueType::f32(state.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let [qkv, alpha, beta] = [read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?];
        let (decay, bias, state) = (read(NAME, inputs, 3)?, read(NAME, inputs, 4)?, read(NAME, inputs, 5)?);
        let at = ints(NAME, inputs, 6)?;
        let (tokens, heads, width, columns) = (qkv.dim(1), state.dim(1), state.dim(2), state.dim(3));
        let keys = self.key_heads * width;
        let normed = |x: &[f64], factor: f64| -> Vec<f64> {
            let norm = (x.iter().map(|v| v * v).sum::<f64>() + f64::from(self.eps)).sqrt();
            x.iter().map(|v| v / norm * factor).collect()
        };
        let mut next = state.data.clone();
        let mut out = vec![0.0; at.len() * tokens * heads * columns];
        for (b, h) in (0..at.len()).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let size = width * columns;
            let s = &mut next[(b * heads + h) * size..(b * heads + h + 1) * size];
            if at[b] == 0 {
                s.fill(0.0);
            }
            for t in 0..tokens {
                let (row, gate) = (qkv.row(b * tokens + t), (b * tokens + t) * heads + h);
                let first = h % self.key_heads * width;
                let q = normed(&row[first..first + width], 1.0 / (width as f64).sqrt());
                let k = normed(&row[keys + first..keys + first + width], 1.0);
                let v = &row[2 * keys + h * columns..2 * keys + (h + 1) * columns];
                let forget = (decay.data[h] * softplus(alpha.data[gate] + bias.data[h])).exp();
                let step = sigmoid(beta.data[gate]);
                s.iter_mut().for_each(|x| *x *= forget);
                for (j, v) in v.iter().enumerate() {
                    let predicted: f64 = k.iter().enumerate().map(|(i, k)| k * s[i * columns + j]).sum();
                    for (i, k) in k.iter().enumerate() {
                        s[i * columns + j] += k * step * (v - predicted);
                    }
                    out[gate * columns + j] = q.iter().enumerate().map(|(i, q)| q * s[i * columns + j]).sum();
                }
            }
        }
        write(NAME, outputs, 0, out)?;
        write(NAME, outputs, 1, next)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        // A matrix is forgotten, asked by the key, corrected and asked by the query.
        7.0 * elements(outputs, 0) * dims(inputs, 5).get(2).map_or(1.0, |&k| k as f64)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `ln(1 + e^x)`.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
