//! `slice` on OpenVINO.

use super::Slice;
use crate::op::OpError;
use crate::openvino::wide;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Slice {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, end) = (ir.input(0)?, ir.length(&self.end)?);
        port(ir.slice(x, self.axis, wide(self.start), end)?)
    }
}
