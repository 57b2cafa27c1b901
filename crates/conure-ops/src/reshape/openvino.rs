//! `reshape` on OpenVINO.

use super::Reshape;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Reshape {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        port(ir.reshape_to(x, ir.shape(0), &self.shape)?)
    }
}
