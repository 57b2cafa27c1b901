//! `mask_scores` on OpenVINO.

use super::MaskScores;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use crate::rel_pos_attention::openvino::seen;
use smallvec::SmallVec;

impl OpenVinoOp for MaskScores {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (scores, lengths) = (ir.input(0)?, ir.input(1)?);
        let frames = dim(ir.shape(0), 2);
        let keys = seen(ir, lengths, [frames, frames], self.mask, None)?;
        let queries = ir.before_end(lengths, frames)?;
        let queries = ir.unsqueeze(queries, &[1, 3])?; // [B, 1, T, 1]
        let seen = ir.binary("LogicalAnd", keys, queries);
        let hidden = ir.f32(f32::NEG_INFINITY)?;
        port(ir.select(seen, scores, hidden))
    }
}
