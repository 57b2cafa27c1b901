//! `rel_pos_attention` on OpenVINO.

use super::{AttentionMask, RelPosAttention};
use crate::infer::dim;
use crate::op::{OpError, ValueType};
use crate::openvino::{Ir, Len, OpenVinoOp, Port, port, wide};
use conure_tensor::{Axis, Dim, Shape};
use smallvec::SmallVec;

/// What is added to a masked score: its exponential is 0 then beside any other.
const UNSEEN: f32 = -1e30;

/// Blocks into which all queries of a clip are divided. One meets about `T + T / 4` positions instead of `2 T`: at 60 s of audio
/// products with positions and the moves of their results, which take a third of the 110M encoder's time, become 0.6 of that. Eight
/// would leave little more than four, and keep twice as much.
const BLOCKS: usize = 4;

/// Sizes of one call.
struct Sizes<'a> {
    heads: usize,
    width: usize,
    frames: &'a Dim,
    batch: &'a Dim,
}

impl OpenVinoOp for RelPosAttention {
    fn supports(&self, _inputs: &[&ValueType], _fixed: &[bool]) -> Result<(), String> {
        match self.mask {
            AttentionMask::Banded { .. } if self.context > 0 => {
                Err("a band over frames kept from earlier runs".into())
            }
            _ => Ok(()),
        }
    }

    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let q = ir.shape(0);
        let width = ir.fixed(0, 2)? / self.heads.max(1);
        let sizes = Sizes { heads: self.heads, width, frames: dim(q, 1), batch: dim(q, 0) };
        let y = match self.mask {
            AttentionMask::Banded { left, right } => banded(ir, &sizes, left, right)?,
            mask => whole(ir, &sizes, mask, self.context)?,
        };
        // Queries past the end give 0.
        let lengths = ir.input(6)?;
        let seen = ir.before_end(lengths, sizes.frames)?;
        let seen = ir.unsqueeze(seen, &[2])?;
        let zero = ir.f32(0.0)?;
        port(ir.select(seen, y, zero))
    }
}

/// Input `i` `[.., D]` as `[.., H, K]`; `rows` says what the axes before are.
fn split_heads(ir: &mut Ir<'_>, x: Port, rows: &[Len<'_>], s: &Sizes<'_>) -> Result<Port, OpError> {
    let mut to = rows.to_vec();
    to.extend([Len::Fixed(s.heads), Len::Fixed(s.width)]);
    ir.reshape(x, &to)
}

/// Queries `[.., T, H, K]` with the bias of input `i` added, scaled, as `[.., H, T, K]`.
fn biased(ir: &mut Ir<'_>, q: Port, i: usize, s: &Sizes<'_>) -> Result<Port, OpError> {
    let bias = ir.shaped(i, &[1, 1, s.heads, s.width])?;
    let q = ir.binary("Add", q, bias);
    let scale = ir.f32(1.0 / (s.width as f32).sqrt())?;
    let q = ir.binary("Multiply", q, scale);
    ir.transpose(q, &[0, 2, 1, 3])
}

/// Softmax of scores where they are seen, times values. A mask that is added becomes part of the device's fused attention, where one
/// that selects costs 2 ms a layer at 60 s of audio; it is made once for all layers.
fn attend(ir: &mut Ir<'_>, scores: Port, seen: Port, v: Port) -> Result<Port, OpError> {
    let (zero, unseen) = (ir.f32(0.0)?, ir.f32(UNSEEN)?);
    let mask = ir.select(seen, zero, unseen);
    let scores = ir.binary("Add", scores, mask);
    let weights = ir.layer("SoftMax", "opset8", &[("axis", "3")], &[scores]);
    let y = ir.matmul(weights, v, false);
    ir.transpose(y, &[0, 2, 1, 3])
}

/// All frames against all frames, and `context` before them, of which a run has few: those queries are one block.
fn whole(ir: &mut Ir<'_>, s: &Sizes<'_>, mask: AttentionMask, context: usize) -> Result<Port, OpError> {
    let blocks = if context > 0 { 1 } else { BLOCKS };
    let block = s.frames.ceil_div(wide(blocks)); // C
    let keys = s.frames.plus(wide(context));
    let all = &block * &Dim::from(blocks);
    let missing = &all - s.frames;
    let rows = [Len::Same, Len::Same];
    let mut q = ir.input(0)?;
    if blocks > 1 {
        let (none, zero, after) = (ir.i64s(&[0, 0, 0])?, ir.i64s(&[0])?, ir.length(&missing)?);
        let after = ir.concat(0, &[zero, after, zero]);
        q = ir.pad(q, none, after)?;
    }
    let q = split_heads(ir, q, &rows, s)?;
    let [k, v] = [1, 2].map(|i| ir.input(i).and_then(|x| split_heads(ir, x, &rows, s)));
    let (with_u, with_v) = (biased(ir, q, 4, s)?, biased(ir, q, 5, s)?); // [B, H, n C, K]
    let (k, v) = (ir.transpose(k?, &[0, 2, 1, 3])?, ir.transpose(v?, &[0, 2, 1, 3])?);
    let content = ir.matmul(with_u, k, true); // [B, H, n C, keys]

    let parts = Len::Fixed(s.heads * blocks);
    let with_v = ir.reshape(with_v, &[Len::Same, parts, Len::Dim(&block), Len::Fixed(s.width)])?;
    let p = positions(ir, s, blocks, [&block, &keys, &missing])?;
    let place = ir.matmul(with_v, p, false); // [B, H n, C, W]
    // As rows of C, one dropped, and as rows of W - 1, each row of W has moved one place further than the one before.
    let place = ir.reshape(place, &[Len::Same, Len::Same, Len::Rest, Len::Dim(&block)])?;
    let end = ir.i64s(&[i64::MAX])?;
    let place = ir.slice(place, 2, 1, end)?;
    let place = ir.reshape(place, &[Len::Same, Len::Same, Len::Dim(&block), Len::Rest])?;
    let end = ir.length(&keys)?;
    let place = ir.slice(place, 3, 0, end)?; // [B, H n, C, keys]
    let place = ir.reshape(place, &[Len::Same, Len::Fixed(s.heads), Len::Rest, Len::Dim(&keys)])?;

    let scores = ir.binary("Add", content, place);
    let lengths = ir.input(6)?;
    let cached = if context > 0 { Some(ir.input(7)?) } else { None };
    let seen = seen(ir, lengths, [s.frames, &all], mask, cached.map(|cached| (context, cached)))?;
    let mut y = attend(ir, scores, seen, v)?; // [B, n C, H, K]
    if blocks > 1 {
        let end = ir.length(s.frames)?;
        y = ir.slice(y, 1, 0, end)?;
    }
    ir.reshape(y, &[Len::Same, Len::Same, Len::Fixed(s.heads * s.width)])
}

/// The positions that each of n blocks of C queries meets, `[1, H n, K, W]` with W = C + keys.
///
/// ```text
///   rows of positions       n C - T + 1 of padding, then P
///   block n - 1             ├── W ──┤
///   block n - 2                 ├── W ──┤               C rows further
/// ```
///
/// The last query of a block has its key 0 in column 1 of W, the one before it in column 2, and so on.
fn positions(
    ir: &mut Ir<'_>,
    s: &Sizes<'_>,
    blocks: usize,
    [block, keys, missing]: [&Dim; 3],
) -> Result<Port, OpError> {
    let p = ir.input(3)?;
    let (zero, none, before) = (ir.i64s(&[0])?, ir.i64s(&[0, 0])?, ir.length(&missing.plus(1))?);
    let before = ir.concat(0, &[before, zero]);
    let p = ir.pad(p, before, none)?;
    let length = block + keys;
    let p = if blocks > 1 {
        let firsts: Vec<i32> = (0..blocks).rev().map(int).collect();
        let firsts = ir.i32s(&[blocks, 1], &firsts)?;
        let step = ir.length(block)?;
        let step = ir.convert(step, "i32");
        let firsts = ir.binary("Multiply", firsts, step);
        let within = ir.count(&length)?;
        let row = ir.binary("Add", firsts, within); // [n, W]
        ir.gather(p, row, 0)?
    } else {
        ir.unsqueeze(p, &[0])?
    };
    let p = split_heads(ir, p, &[Len::Fixed(blocks), Len::Rest], s)?; // [n, W, H, K]
    let p = ir.transpose(p, &[2, 0, 3, 1])?;
    let parts = s.heads * blocks;
    let p = ir.reshape(p, &[Len::Fixed(1), Len::Fixed(parts), Len::Fixed(s.width), Len::Rest])?;
    let shape = [(Axis::B, 1.into()), (Axis::H, parts.into()), (Axis::K, s.width.into()), (Axis::P, length)];
    ir.keep(p, &Shape::new(shape))
}

/// `[B, 1, 1 or Q, C + T]`: whether the mask shows a key to each of Q queries, and the key lies before its item's end; with a context
/// C, of which `cached` `[B]` frames are there, not before those.
pub(crate) fn seen(
    ir: &mut Ir<'_>,
    lengths: Port,
    [frames, queries]: [&Dim; 2],
    mask: AttentionMask,
    context: Option<(usize, Port)>,
) -> Result<Port, OpError> {
    let before = context.map_or(0, |(context, _)| context);
    let keys = frames.plus(wide(before));
    let offset = ir.i32(int(before))?;
    let mut there = match context {
        None => ir.before_end(lengths, frames)?,
        Some((_, cached)) => {
            let end = ir.binary("Add", lengths, offset);
            let ended = ir.before_end(end, &keys)?;
            let start = ir.binary("Subtract", offset, cached);
            let missing = ir.before_end(start, &keys)?;
            let begun = ir.layer("LogicalNot", "opset1", &[], &[missing]);
            ir.binary("LogicalAnd", ended, begun)
        }
    };
    there = ir.unsqueeze(there, &[1, 2])?;
    if mask == AttentionMask::Full {
        return Ok(there);
    }
    let (key, query) = (ir.count(&keys)?, ir.count(queries)?);
    let query = if before > 0 { ir.binary("Add", query, offset) } else { query };
    let near = match mask {
        AttentionMask::ChunkedLimited { left, right } => chunks(ir, [query, key], left, right)?,
        AttentionMask::Banded { left, right } => {
            let query = ir.unsqueeze(query, &[1])?;
            let ahead = ir.binary("Subtract", key, query);
            let (least, most) = (ir.i32(-int(left))?, ir.i32(int(right))?);
            let (from, to) = (ir.binary("GreaterEqual", ahead, least), ir.binary("LessEqual", ahead, most));
            ir.binary("LogicalAnd", from, to)
        }
        AttentionMask::Full => return Ok(there),
    };
    Ok(ir.binary("LogicalAnd", there, near))
}

fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// `[T, C + T]`: whether query and key lie in chunks that see each other.
fn chunks(
    ir: &mut Ir<'_>,
    [query, key]: [Port; 2],
    left: Option<usize>,
    right: usize,
) -> Result<Port, OpError> {
    let size = right.saturating_add(1);
    let (query, key) = (ir.floor_div(query, int(size))?, ir.floor_div(key, int(size))?);
    let query = ir.unsqueeze(query, &[1])?;
    let before = ir.binary("Subtract", query, key); // chunks from key to query
    let zero = ir.i32(0)?;
    let mut seen = ir.binary("GreaterEqual", before, zero);
    if let Some(left) = left {
        let most = ir.i32(int(left / size))?;
        let near = ir.binary("LessEqual", before, most);
        seen = ir.binary("LogicalAnd", seen, near);
    }
    Ok(seen)
}

/// A band, block by block: memory grows with T, not with its square.
///
/// ```text
///   block of C queries   ├── C ──┤
///   the keys it sees  ├left┼─ C ─┼right┤      C + left + right of them
/// ```
fn banded(ir: &mut Ir<'_>, s: &Sizes<'_>, left: usize, right: usize) -> Result<Port, OpError> {
    let rows = left.saturating_add(right).saturating_add(1);
    let block = (rows / 2).clamp(16, 256);
    let keys = block + rows - 1;
    let blocks = s.frames.ceil_div(wide(block));
    let missing = &(&blocks * &Dim::from(block)) - s.frames;
    let by_block = [Len::Rest, Len::Fixed(block)];
    let pads = |ir: &mut Ir<'_>, after: &Dim| -> Result<Port, OpError> {
        let (zero, after) = (ir.i64s(&[0])?, ir.length(after)?);
        Ok(ir.concat(0, &[zero, after, zero]))
    };

    let q = ir.input(0)?;
    let (none, after) = (ir.i64s(&[0, 0, 0])?, pads(ir, &missing)?);
    let q = ir.pad(q, none, after)?;
    let q = split_heads(ir, q, &by_block, s)?; // [B n, C, H, K]
    let (with_u, with_v) = (biased(ir, q, 4, s)?, biased(ir, q, 5, s)?); // [B n, H, C, K]

    let firsts = ir.count(&blocks)?;
    let step = ir.i32(i32::try_from(block).unwrap_or(i32::MAX))?;
    let firsts = ir.binary("Multiply", firsts, step);
    let firsts = ir.unsqueeze(firsts, &[1])?;
    let within = ir.count(&Dim::from(keys))?;
    let key = ir.binary("Add", firsts, within); // [n, keys], counted from `left` before the first frame
    let before = ir.i64s(&[0, wide(left), 0])?;
    let after = pads(ir, &missing.plus(wide(right)))?;
    let mut windows = |i: usize| -> Result<Port, OpError> {
        let x = ir.input(i)?;
        let x = ir.pad(x, before, after)?;
        let x = ir.gather(x, key, 1)?; // [B, n, keys, D]
        let x = split_heads(ir, x, &[Len::Rest, Len::Fixed(keys)], s)?;
        ir.transpose(x, &[0, 2, 1, 3]) // [B n, H, keys, K]
    };
    let (k, v) = (windows(1)?, windows(2)?);
    let content = ir.matmul(with_u, k, true); // [B n, H, C, keys]

    // Rows of W + C, read as rows of W + C - 1 = keys, move one place to the right each.
    let p = ir.input(3)?;
    let (none, after) = (ir.i64s(&[0, 0])?, ir.i64s(&[wide(block), 0])?);
    let p = ir.pad(p, none, after)?;
    let p = split_heads(ir, p, &[Len::Rest], s)?;
    let p = ir.transpose(p, &[1, 2, 0])?;
    let place = ir.matmul(with_v, p, false); // [B n, H, C, W + C]
    let place = ir.reshape(place, &[Len::Same, Len::Same, Len::Fixed(block * (keys + 1))])?;
    let end = ir.i64s(&[wide(block * keys)])?;
    let place = ir.slice(place, 2, 0, end)?;
    let place = ir.reshape(place, &[Len::Same, Len::Same, Len::Fixed(block), Len::Fixed(keys)])?;

    let scores = ir.binary("Add", content, place);
    let seen = band(ir, key, [left, rows, block, keys])?;
    let y = attend(ir, scores, seen, v)?; // [B n, C, H, K]
    let y = ir.reshape(y, &[Len::Dim(s.batch), Len::Rest, Len::Fixed(s.heads * s.width)])?;
    let frames = ir.length(s.frames)?;
    ir.slice(y, 1, 0, frames)
}

/// `[B n, 1, C, keys]`: whether a key is a frame of the item and in the query's band.
fn band(ir: &mut Ir<'_>, key: Port, [left, rows, block, keys]: [usize; 4]) -> Result<Port, OpError> {
    let left = ir.i32(i32::try_from(left).unwrap_or(i32::MAX))?;
    let key = ir.binary("Subtract", key, left); // [n, keys]
    let zero = ir.i32(0)?;
    let begun = ir.binary("GreaterEqual", key, zero);
    let lengths = ir.input(6)?;
    let lengths = ir.unsqueeze(lengths, &[1, 2])?;
    let before_end = ir.binary("Less", key, lengths); // [B, n, keys]
    let frame = ir.binary("LogicalAnd", begun, before_end);
    let frame = ir.unsqueeze(frame, &[2])?; // [B, n, 1, keys]
    let (query, key) = (ir.count(&Dim::from(block))?, ir.count(&Dim::from(keys))?);
    let query = ir.unsqueeze(query, &[1])?;
    let distance = ir.binary("Subtract", key, query); // [C, keys]
    let most = ir.i32(i32::try_from(rows).unwrap_or(i32::MAX))?;
    let (from, to) = (ir.binary("GreaterEqual", distance, zero), ir.binary("Less", distance, most));
    let near = ir.binary("LogicalAnd", from, to);
    let seen = ir.binary("LogicalAnd", frame, near); // [B, n, C, keys]
    ir.reshape(seen, &[Len::Rest, Len::Fixed(1), Len::Fixed(block), Len::Fixed(keys)])
}
