//! `softmax` on OpenVINO.

use super::Softmax;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Softmax {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let axis = ir.last_axis(0).to_string();
        port(ir.layer("SoftMax", "opset8", &[("axis", &axis)], &[x]))
    }
}
