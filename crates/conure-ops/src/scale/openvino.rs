//! `scale` on OpenVINO.

use super::Scale;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Scale {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, factor) = (ir.input(0)?, ir.f32(self.factor)?);
        port(ir.binary("Multiply", x, factor))
    }
}
