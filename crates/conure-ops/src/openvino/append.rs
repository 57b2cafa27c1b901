//! Rows written into a state, as layers.

use super::{Ir, Port, wide};
use crate::infer::dim;
use crate::op::OpError;

/// What a state holds once rows were written into it: input 0 `[B, N, ..]` in the places from input 1 `[B]` on, `state`
/// `[C0, C, ..]` elsewhere. The first B items of a state of more are those of the run.
///
/// # Errors
/// A state whose lengths are not fixed.
pub fn append(ir: &mut Ir<'_>, state: Port) -> Result<Port, OpError> {
    let (rows, at) = (ir.input(0)?, ir.input(1)?);
    let (batch, count) = (dim(ir.shape(0), 0), dim(ir.shape(0), 1));
    let whole = ir.out_shape(0);
    let dtype = ir.outputs.first().map_or("f32", |t| t.dtype.name());
    let rows = ir.convert(rows, if dtype == "i32" { "i32" } else { dtype });
    let place = ir.count(dim(whole, 1))?;
    let at = ir.unsqueeze(at, &[1])?;
    let offset = ir.binary("Subtract", place, at); // [B, C]
    let (zero, one) = (ir.i32(0)?, ir.i32(1)?);
    let count = ir.length(count)?;
    let count = ir.convert(count, "i32");
    let (from, to) = (ir.binary("GreaterEqual", offset, zero), ir.binary("Less", offset, count));
    let mut new = ir.binary("LogicalAnd", from, to);
    let top = ir.binary("Subtract", count, one);
    let row = ir.binary("Minimum", offset, top);
    let row = ir.binary("Maximum", row, zero);
    let axis = ir.i64(1)?;
    let moved = ir.layer("Gather", "opset8", &[("batch_dims", "1")], &[rows, row, axis]);
    let others: Vec<i64> = (2..whole.rank()).map(wide).collect();
    if !others.is_empty() {
        new = ir.unsqueeze(new, &others)?;
    }
    if batch == dim(whole, 0) {
        return Ok(ir.select(new, moved, state));
    }
    let items = ir.length(batch)?;
    let kept = ir.slice(state, 0, 0, items)?;
    let begun = ir.select(new, moved, kept);
    let end = ir.i64s(&[i64::MAX])?;
    let rest = ir.slice_from(state, 0, items, end)?;
    Ok(ir.concat(0, &[begun, rest]))
}
