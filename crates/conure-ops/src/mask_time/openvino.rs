//! `mask_time` on OpenVINO.

use super::MaskTime;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::wide;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for MaskTime {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, lengths) = (ir.input(0)?, ir.input(1)?);
        let rank = ir.shape(0).rank();
        // Where time comes before the items, their order is not that of the mask.
        let (x, perm) = match ir.source(x, rank) {
            (source, perm) if perm[0] < perm[1] => (source, perm),
            _ => (x, (0..rank).collect()),
        };
        let seen = ir.before_end(lengths, dim(ir.shape(0), 1))?; // [B, T]
        let others: Vec<i64> = (0..perm.len()).filter(|a| !perm[..2].contains(a)).map(wide).collect();
        let seen = if others.is_empty() { seen } else { ir.unsqueeze(seen, &others)? };
        let zero = ir.f32(0.0)?;
        let y = ir.select(seen, x, zero);
        port(ir.restore(y, &perm)?)
    }
}
