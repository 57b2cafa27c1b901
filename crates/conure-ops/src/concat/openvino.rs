//! `concat` on OpenVINO.

use super::Concat;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Concat {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let mut parts = Vec::new();
        for i in 0..ir.inputs() {
            parts.push(ir.input(i)?);
        }
        port(ir.concat(self.axis, &parts))
    }
}
