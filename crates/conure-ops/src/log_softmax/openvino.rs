//! `log_softmax` on OpenVINO.

use super::LogSoftmax;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for LogSoftmax {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let axis = ir.last_axis(0).to_string();
        port(ir.layer("LogSoftmax", "opset5", &[("axis", &axis)], &[x]))
    }
}
