//! `sdpa` on OpenVINO.

use super::{Sdpa, SdpaKeys};
use crate::infer::dim;
use crate::op::{OpError, ValueType};
use crate::openvino::{Ir, Len, OpenVinoOp, Port, port};
use conure_tensor::Dim;
use smallvec::SmallVec;

/// What an unseen score becomes: its exponential is 0 beside any other.
const UNSEEN: f32 = -1e30;

/// Sizes of one call: H query heads in G groups of as many, widths K and J, C rows of the cache.
struct Sizes<'a> {
    batch: &'a Dim,
    tokens: &'a Dim,
    heads: usize,
    groups: usize,
    key: usize,
    value: usize,
    rows: usize,
}

impl OpenVinoOp for Sdpa {
    fn supports(&self, _inputs: &[&ValueType], _fixed: &[bool]) -> Result<(), String> {
        match self.keys {
            SdpaKeys::Cached => Ok(()),
            _ => Err("attention among frames, which is taken apart".into()),
        }
    }

    fn reads_cache(&self, index: usize) -> Option<usize> {
        (self.keys == SdpaKeys::Cached && matches!(index, 1 | 2)).then_some(3)
    }

    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let q = ir.shape(0);
        let s = Sizes {
            batch: dim(q, 0),
            tokens: dim(q, 1),
            heads: ir.fixed(0, 2)?,
            groups: ir.fixed(1, 2)?,
            key: ir.fixed(0, 3)?,
            value: ir.fixed(2, 3)?,
            rows: ir.fixed(1, 1)?,
        };
        ir.within(
            3,
            0,
            i32::try_from(s.rows).unwrap_or(i32::MAX) - 1,
            "the row of the cache where an item stands",
        );
        let at = ir.input(3)?;
        let own = own(ir, at, s.tokens)?; // [B, 1, T, 1]
        let (seen, k, v, kept) = match (ir.cache(1), ir.cache(2)) {
            (Some(cache), Some(_)) => {
                let places = ir.unsqueeze(cache.places, &[1, 2])?; // [B, 1, 1, E]
                (self.seen(ir, places, own)?, ir.input(1)?, ir.input(2)?, cache.kept)
            }
            _ => {
                let filled = filled(ir, at, &s)?;
                let row = row(ir, filled)?;
                (self.seen(ir, row, own)?, cached(ir, 1, filled, &s)?, cached(ir, 2, filled, &s)?, false)
            }
        }; // [B, 1, T, E], [B, E, G, K], [B, E, G, J]
        let q = ir.input(0)?;
        let q = ir.transpose(q, &[0, 2, 1, 3])?; // [B, H, T, K]
        let y = self.attend(ir, [q, k, v], seen, kept, &s)?; // [B, H, T, J]
        port(ir.transpose(y, &[0, 2, 1, 3])?)
    }
}

/// `[B, 1, T, 1]` i32: the row at which each new token stands.
fn own(ir: &mut Ir<'_>, at: Port, tokens: &Dim) -> Result<Port, OpError> {
    let count = ir.count(tokens)?;
    let at = ir.unsqueeze(at, &[1])?;
    let own = ir.binary("Add", at, count);
    ir.unsqueeze(own, &[1, 3])
}

/// `[E]` i32: the rows of a cache that are looked at.
fn row(ir: &mut Ir<'_>, filled: Port) -> Result<Port, OpError> {
    let end = ir.scalar(filled)?;
    let (start, step) = (ir.i32(0)?, ir.i32(1)?);
    Ok(ir.layer("Range", "opset4", &[("output_type", "i32")], &[start, end, step]))
}

/// `[1]` i32: the rows of the cache that hold something once the new tokens are in it. The rest is not looked at.
fn filled(ir: &mut Ir<'_>, at: Port, s: &Sizes<'_>) -> Result<Port, OpError> {
    if !ir.choices().slice_cache {
        let rows = ir.length(&Dim::from(s.rows))?;
        return Ok(ir.convert(rows, "i32"));
    }
    let axis = ir.i64s(&[0])?;
    let farthest = ir.layer("ReduceMax", "opset1", &[("keep_dims", "true")], &[at, axis]);
    let tokens = ir.length(s.tokens)?;
    let tokens = ir.convert(tokens, "i32");
    let end = ir.binary("Add", farthest, tokens);
    let rows = ir.i32(i32::try_from(s.rows).unwrap_or(i32::MAX))?;
    Ok(ir.binary("Minimum", end, rows))
}

/// Input `i` `[C0, C, G, K]`, what is filled of the items of this run, as `[B, E, G, K]`.
fn cached(ir: &mut Ir<'_>, i: usize, filled: Port, s: &Sizes<'_>) -> Result<Port, OpError> {
    let mut x = ir.input(i)?;
    if dim(ir.shape(i), 0) != s.batch {
        let items = ir.length(s.batch)?;
        x = ir.slice(x, 0, 0, items)?;
    }
    let end = ir.convert(filled, "i64");
    let x = ir.slice(x, 1, 0, end)?;
    Ok(ir.convert(x, "f32"))
}

impl Sdpa {
    /// `[B, 1, T, E]`: whether a token at its `own` row sees what stands in the rows `places`.
    fn seen(&self, ir: &mut Ir<'_>, places: Port, own: Port) -> Result<Port, OpError> {
        let mut seen = ir.binary("LessEqual", places, own);
        if let Some(window) = self.window {
            let window = ir.i32(i32::try_from(window).unwrap_or(i32::MAX))?;
            let before = ir.binary("Subtract", own, window);
            let near = ir.binary("Greater", places, before);
            seen = ir.binary("LogicalAnd", seen, near);
        }
        Ok(seen)
    }

    fn attend(
        &self,
        ir: &mut Ir<'_>,
        [q, k, v]: [Port; 3],
        seen: Port,
        kept: bool,
        s: &Sizes<'_>,
    ) -> Result<Port, OpError> {
        let each = s.heads / s.groups.max(1);
        let whole = each == 1 || !ir.choices().manual_attention.unwrap_or(!kept);
        if whole && self.cap.is_none() && !self.sinks {
            let scale = ir.f32(self.scale)?;
            let (k, v) = (heads_first(ir, k, kept)?, heads_first(ir, v, kept)?);
            let (k, v) = (repeated(ir, k, each, s.key, s)?, repeated(ir, v, each, s.value, s)?);
            let attrs = [("causal", "false")];
            return Ok(ir.layer("ScaledDotProductAttention", "opset13", &attrs, &[q, k, v, seen, scale]));
        }
        let (k, v) = (heads_first(ir, k, kept)?, heads_first(ir, v, kept)?);
        // The queries of all heads that share keys are rows of one product: keys are not repeated.
        let q = ir.reshape(q, &[Len::Same, Len::Fixed(s.groups), Len::Rest, Len::Fixed(s.key)])?; // [B, G, H/G T, K]
        let scale = ir.f32(self.scale)?;
        let q = ir.binary("Multiply", q, scale);
        let mut scores = ir.matmul(q, k, true); // [B, G, H/G T, E]
        if let Some(cap) = self.cap {
            let (cap, inverse) = (ir.f32(cap)?, ir.f32(1.0 / cap)?);
            let part = ir.binary("Multiply", scores, inverse);
            let part = ir.unary("Tanh", part);
            scores = ir.binary("Multiply", part, cap);
        }
        let by_head = [Len::Same, Len::Fixed(s.heads), Len::Dim(s.tokens), Len::Rest];
        let scores = ir.reshape(scores, &by_head)?; // [B, H, T, E]
        let unseen = ir.f32(UNSEEN)?;
        let scores = ir.select(seen, scores, unseen);
        let weights = match self.sinks {
            true => with_sinks(ir, scores, s.heads)?,
            false => ir.layer("SoftMax", "opset8", &[("axis", "3")], &[scores]),
        };
        let rows = &Dim::from(each) * s.tokens;
        let by_group = [Len::Same, Len::Fixed(s.groups), Len::Dim(&rows), Len::Rest];
        let weights = ir.reshape(weights, &by_group)?;
        let y = ir.matmul(weights, v, false); // [B, G, H/G T, J]
        ir.reshape(y, &[Len::Same, Len::Fixed(s.heads), Len::Dim(s.tokens), Len::Fixed(s.value)])
    }
}

/// `[B, E, G, K]` as `[B, G, E, K]`, unless it is that already.
fn heads_first(ir: &mut Ir<'_>, x: Port, already: bool) -> Result<Port, OpError> {
    if already { Ok(x) } else { ir.transpose(x, &[0, 2, 1, 3]) }
}

/// `[B, G, E, K]` with every head as often as queries read it: `[B, H, E, K]`. In these layers, a product with ones among them,
/// OpenVINO knows heads that are shared, and repeats nothing where it keeps the cache.
fn repeated(ir: &mut Ir<'_>, x: Port, each: usize, width: usize, s: &Sizes<'_>) -> Result<Port, OpError> {
    if each == 1 {
        return Ok(x);
    }
    let x = ir.unsqueeze(x, &[2])?;
    let ones = ir.f32s(&[1, 1, each, 1, 1], &vec![1.0; each])?;
    let x = ir.binary("Multiply", x, ones);
    ir.reshape(x, &[Len::Same, Len::Fixed(s.heads), Len::Rest, Len::Fixed(width)])
}

/// Softmax of scores `[B, H, T, E]` and, for each head, one more that has no value.
fn with_sinks(ir: &mut Ir<'_>, scores: Port, heads: usize) -> Result<Port, OpError> {
    let sinks = ir.shaped(4, &[1, heads, 1, 1])?;
    let axis = ir.i64s(&[3])?;
    let keep = [("keep_dims", "true")];
    let most = ir.layer("ReduceMax", "opset1", &keep, &[scores, axis]);
    let most = ir.binary("Maximum", most, sinks);
    let scores = ir.binary("Subtract", scores, most);
    let weights = ir.unary("Exp", scores);
    let sum = ir.layer("ReduceSum", "opset1", &keep, &[weights, axis]);
    let sinks = ir.binary("Subtract", sinks, most);
    let sinks = ir.unary("Exp", sinks);
    let sum = ir.binary("Add", sum, sinks);
    let attrs = [("auto_broadcast", "numpy"), ("m_pythondiv", "true")];
    Ok(ir.layer("Divide", "opset1", &attrs, &[weights, sum]))
}
