//! `matmul` on OpenVINO.

use super::MatMul;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for MatMul {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (a, b) = (ir.input(0)?, ir.input(1)?);
        let (a, b) = (ir.convert(a, "f32"), ir.convert(b, "f32"));
        port(ir.matmul(a, b, self.transpose_b))
    }
}
