//! `rel_pos_attention`: multi-head attention that sees how far apart frames are.

use crate::binary::{Binary, BinaryKind};
use crate::count::dims;
use crate::decompose::{Decomposition, Part, is_plain};
use crate::infer::{Inputs, dim, last, one};
use crate::mask_scores::MaskScores;
use crate::mask_time::MaskTime;
use crate::matmul::MatMul;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::rel_shift::RelShift;
use crate::reshape::Reshape;
use crate::scale::Scale;
use crate::softmax::Softmax;
use crate::transpose::Transpose;
use crate::values::{Values, ints, read, valid, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
pub(crate) mod openvino;

const NAME: &str = "rel_pos_attention";

/// Which keys a query sees, beside the end of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// All.
    Full,
    /// Chunks of `right + 1` frames, counted from frame 0: a frame sees its own chunk and the `left / (right + 1)`
    /// chunks before it; all of them if `left` is `None`.
    ChunkedLimited {
        /// Frames seen to the left, a multiple of `right + 1`; `None`: no limit.
        left: Option<usize>,
        /// Frames seen to the right by the first frame of a chunk.
        right: usize,
    },
    /// `left` frames before and `right` frames after.
    Banded {
        /// Frames seen to the left.
        left: usize,
        /// Frames seen to the right.
        right: usize,
    },
}

impl AttentionMask {
    /// Whether query frame `q` sees key frame `k`.
    pub fn sees(self, q: usize, k: usize) -> bool {
        match self {
            AttentionMask::Full => true,
            AttentionMask::ChunkedLimited { left, right } => {
                let size = right.saturating_add(1);
                let (q, k) = (q / size, k / size);
                k <= q && left.is_none_or(|left| q - k <= left / size)
            }
            AttentionMask::Banded { left, right } => {
                k.saturating_add(left) >= q && k <= q.saturating_add(right)
            }
        }
    }

    /// Pairs of query and key that are seen among `frames` frames.
    pub(crate) fn pairs(self, frames: usize) -> f64 {
        match self {
            AttentionMask::Full => (frames as f64).powi(2),
            AttentionMask::Banded { left, right } => {
                // Each side's band lacks a triangle at its end of the clip.
                let side = |reach: usize| {
                    let reach = reach.min(frames.saturating_sub(1)) as f64;
                    reach * frames as f64 - reach * (reach + 1.0) / 2.0
                };
                frames as f64 + side(left) + side(right)
            }
            AttentionMask::ChunkedLimited { left, right } => {
                let size = right.saturating_add(1);
                let before = left.map_or(usize::MAX, |left| left / size);
                let seen = |chunk: usize| {
                    let end = (chunk + 1).saturating_mul(size).min(frames);
                    ((end - chunk * size) as f64) * ((end - chunk.saturating_sub(before) * size) as f64)
                };
                (0..frames.div_ceil(size)).map(seen).sum()
            }
        }
    }

    pub(crate) fn attrs(self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
        match self {
            AttentionMask::Full => vec![("mask", Attr::Text("full"))],
            AttentionMask::ChunkedLimited { left, right } => vec![
                ("mask", Attr::Text("chunked_limited")),
                ("left", left.map_or(Attr::Int(-1), int)),
                ("right", int(right)),
            ],
            AttentionMask::Banded { left, right } => {
                vec![("mask", Attr::Text("banded")), ("left", int(left)), ("right", int(right))]
            }
        }
    }
}

/// Multi-head self-attention with relative positions (Transformer-XL; Conformer).
///
/// Inputs: `q [B, T, D]`, `k`, `v [B, C + T, D]` f32; `p [P, D]` f32, the projected [`crate::RelPosEncoding`]; `u` and
/// `v_bias` `[H, K]`, added to the query where it meets keys and positions; `lengths [B]` i32; with a context C
/// `cached [B]` i32, how many frames of it are there, from its end. Output: `[B, T, D]` f32, the heads side by side, before
/// the output projection. Queries and mask count frames from the first of the context.
///
/// For query `i` and key `j`, `score = ((q_i + u) . k_j + (q_i + v_bias) . p_(i-j)) / sqrt(K)`, softmax over the
/// keys that the mask shows and that lie before the item's end. Queries past the end, or that see no key, give 0.
/// The rows of `p` stand for the distances `i - j`, greatest first: `C+T-1 ..= -(T-1)`, and with
/// [`AttentionMask::Banded`] `left ..= -right`.
#[derive(Clone, Debug, PartialEq)]
pub struct RelPosAttention {
    /// Heads H; D = H K.
    pub heads: usize,
    /// What a query sees.
    pub mask: AttentionMask,
    /// C: frames before those of the queries, kept from earlier runs.
    pub context: usize,
}

impl RelPosAttention {
    /// The row of `p` for query `i` and key `j`.
    fn position(&self, i: usize, j: usize, frames: usize) -> usize {
        let farthest = match self.mask {
            AttentionMask::Banded { left, .. } => left,
            _ => frames.saturating_sub(1),
        };
        (farthest + j).saturating_sub(i)
    }
}

impl Op for RelPosAttention {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("heads", Attr::Int(i64::try_from(self.heads).unwrap_or(i64::MAX)))];
        attrs.extend(self.mask.attrs());
        if self.context > 0 {
            attrs.push(("context", Attr::Int(i64::try_from(self.context).unwrap_or(i64::MAX))));
        }
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 7 + usize::from(self.context > 0))?;
        let q = ins.f32_of(0, 3, "[B, T, D]")?;
        let frames = dim(q, 1) + &Dim::from(self.context);
        for i in 1..3 {
            let k = ins.f32_of(i, 3, "[B, C + T, D]")?;
            ins.same(Axis::B, dim(q, 0), dim(k, 0))?;
            ins.same(Axis::T, &frames, dim(k, 1))?;
            ins.same(Axis::D, dim(q, 2), dim(k, 2))?;
        }
        let d = dim(q, 2).as_constant().ok_or_else(|| ins.wrong(0, "[B, T, D] with D fixed"))?;
        if self.heads == 0 || !d.is_multiple_of(self.heads) {
            return Err(ins.attribute(format!("D {d} does not divide into {} heads", self.heads)));
        }
        let p = ins.f32_of(3, 2, "[P, D]")?;
        ins.same(Axis::D, dim(q, 2), dim(p, 1))?;
        let rows = match self.mask {
            AttentionMask::Banded { left, right } => Dim::from(left.saturating_add(right).saturating_add(1)),
            _ => (&frames + dim(q, 1)).plus(-1),
        };
        ins.same(Axis::P, &rows, dim(p, 0))?;
        for i in 4..6 {
            let bias = ins.weight(i, 2, "[H, K]")?;
            ins.same(Axis::H, &Dim::from(self.heads), dim(bias, 0))?;
            ins.same(Axis::K, &Dim::from(d / self.heads), dim(bias, 1))?;
        }
        let lengths = ins.i32(6, Some(1), "[B]")?;
        ins.same(Axis::B, dim(q, 0), dim(lengths, 0))?;
        if self.context > 0 {
            let cached = ins.i32(7, Some(1), "[B]")?;
            ins.same(Axis::B, dim(q, 0), dim(cached, 0))?;
        }
        Ok(one(q.clone()))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (q, k, v) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let (p, lengths) = (read(NAME, inputs, 3)?, ints(NAME, inputs, 6)?);
        let (u, v_bias) = (read(NAME, inputs, 4)?, read(NAME, inputs, 5)?);
        let (queries, width) = (q.dim(1), q.last() / self.heads.max(1));
        let frames = self.context + queries;
        let cached = if self.context > 0 { ints(NAME, inputs, 7)? } else { Vec::new() };
        let mut out = vec![0.0; q.data.len()];
        for b in 0..q.dim(0) {
            let end = self.context + valid(&lengths, b, queries);
            let start = self.context - valid(&cached, b, self.context);
            for i in self.context..end {
                for h in 0..self.heads {
                    let seen: Vec<usize> = (start..end).filter(|&j| self.mask.sees(i, j)).collect();
                    let head = |x: &Values, row: usize| x.row(row)[h * width..(h + 1) * width].to_vec();
                    let row = b * queries + i - self.context;
                    let query = head(&q, row);
                    let scores = seen.iter().map(|&j| {
                        let content = dot(&query, u.row(h), &head(&k, b * frames + j));
                        let place = dot(&query, v_bias.row(h), &head(&p, self.position(i, j, frames)));
                        (content + place) / (width as f64).sqrt()
                    });
                    let weights = softmax(scores.collect());
                    let at = row * q.last() + h * width;
                    for (w, &j) in weights.iter().zip(&seen) {
                        let value = head(&v, b * frames + j);
                        out[at..at + width].iter_mut().zip(&value).for_each(|(o, v)| *o += w * v);
                    }
                }
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let [batch, frames, d] = [0, 1, 2].map(|i| dims(outputs, 0).get(i).copied().unwrap_or(0));
        // With a context, a chunk's worth of queries meets all of it.
        let seen = if self.context == 0 {
            self.mask.pairs(frames)
        } else {
            frames as f64 * (self.context + frames) as f64
        };
        let pairs = batch as f64 * seen;
        // Per pair of query and key and per channel: a product and a sum for keys, positions and values. The softmax: five
        // per pair and head.
        pairs * (6.0 * d as f64 + 5.0 * self.heads as f64)
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let [q, k, v, p, u, v_bias, lengths] = [0, 1, 2, 3, 4, 5, 6].map(Part::Input);
        // A chunk of a stream has no simpler form: its scores are not square.
        if self.context > 0 || !is_plain(inputs[4]) || !is_plain(inputs[5]) {
            return Ok(None);
        }
        let frames = d.shape(q)?;
        let (heads, width) = (Dim::from(self.heads), d.shape(u)?.get(1).cloned().unwrap_or(Dim::from(1)));
        let v = d.apply(MaskTime, &[v, lengths])?; // no weight times NaN is NaN
        let apart = |x: Part, d: &mut Decomposition| {
            let shape = d.shape(x)?;
            let at = last(&shape);
            let axes = shape.iter().take(at).map(|(a, n)| (a, n.clone()));
            let shape = Shape::new(axes.chain([(Axis::H, heads.clone()), (Axis::K, width.clone())]));
            let x = d.apply(Reshape { shape }, &[x])?; // [..., T, H, K]
            let perm = if at == 2 { vec![0, 2, 1, 3] } else { vec![1, 0, 2] };
            d.apply(Transpose { perm }, &[x]) // [..., H, T, K]
        };
        let (q, k) = (apart(q, &mut d)?, apart(k, &mut d)?);
        let (v, p) = (apart(v, &mut d)?, apart(p, &mut d)?);
        let scores = |d: &mut Decomposition, bias: Part, keys: Part| {
            let shape =
                Shape::new([(Axis::H, heads.clone()), (Axis::ANY, Dim::from(1)), (Axis::K, width.clone())]);
            let bias = d.apply(Reshape { shape }, &[bias])?; // [H, 1, K]
            let query = d.apply(Binary { kind: BinaryKind::Add }, &[q, bias])?;
            d.apply(MatMul { transpose_b: true }, &[query, keys])
        };
        let content = scores(&mut d, u, k)?; // [B, H, T, T]
        let place = scores(&mut d, v_bias, p)?; // [B, H, T, P]
        let left = match self.mask {
            AttentionMask::Banded { left, .. } => Some(left),
            _ => None,
        };
        let place = d.apply(RelShift { left }, &[place])?; // [B, H, T, T]
        let sum = d.apply(Binary { kind: BinaryKind::Add }, &[content, place])?;
        let size = width.as_constant().unwrap_or(1) as f32;
        let sum = d.apply(Scale { factor: 1.0 / size.sqrt() }, &[sum])?;
        let seen = d.apply(MaskScores { mask: self.mask }, &[sum, lengths])?;
        let weights = d.apply(Softmax, &[seen])?;
        let y = d.apply(MatMul { transpose_b: false }, &[weights, v])?; // [B, H, T, K]
        let y = d.apply(Transpose { perm: vec![0, 2, 1, 3] }, &[y])?;
        let y = d.apply(Reshape { shape: frames }, &[y])?; // [B, T, D]
        let y = d.apply(MaskTime, &[y, lengths])?; // queries past the end saw nothing
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

/// `(query + bias) . other`.
fn dot(query: &[f64], bias: &[f64], other: &[f64]) -> f64 {
    query.iter().zip(bias).zip(other).map(|((q, b), o)| (q + b) * o).sum()
}

fn softmax(mut scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
    scores
}

#[cfg(test)]
mod tests {
    use super::AttentionMask;

    #[test]
    fn pairs_are_those_that_are_seen() {
        for mask in [
            AttentionMask::Full,
            AttentionMask::Banded { left: 2, right: 1 },
            AttentionMask::Banded { left: usize::MAX, right: 0 },
            AttentionMask::ChunkedLimited { left: Some(4), right: 1 },
            AttentionMask::ChunkedLimited { left: None, right: 2 },
        ] {
            for frames in [0, 1, 2, 5, 11] {
                let seen = |q: usize| (0..frames).filter(|&k| mask.sees(q, k)).count();
                let expected: usize = (0..frames).map(seen).sum();
                assert_eq!(mask.pairs(frames), expected as f64, "{mask:?} {frames}");
            }
        }
    }

    #[test]
    fn masks_show_what_nemo_shows() {
        let row = |mask: AttentionMask, q| -> Vec<usize> { (0..10).filter(|&k| mask.sees(q, k)).collect() };
        let chunked = AttentionMask::ChunkedLimited { left: Some(4), right: 1 };
        assert_eq!(row(chunked, 0), [0, 1]);
        assert_eq!(row(chunked, 5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(row(chunked, 6), [2, 3, 4, 5, 6, 7]);
        let all_left = AttentionMask::ChunkedLimited { left: None, right: 2 };
        assert_eq!(row(all_left, 4), [0, 1, 2, 3, 4, 5]);
        let band = AttentionMask::Banded { left: 2, right: 1 };
        assert_eq!(row(band, 0), [0, 1]);
        assert_eq!(row(band, 5), [3, 4, 5, 6]);
        assert_eq!(row(AttentionMask::Banded { left: usize::MAX, right: usize::MAX }, 5).len(), 10);
    }
}
