//! `glu` on OpenVINO.

use super::Glu;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Glu {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        port(ir.glu(x)?)
    }
}
