//! `binary` on OpenVINO.

use super::{Binary, BinaryKind};
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Binary {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let kind = match self.kind {
            BinaryKind::Add => "Add",
            BinaryKind::Sub => "Subtract",
            BinaryKind::Mul => "Multiply",
            BinaryKind::Div => "Divide",
        };
        let (a, b) = (ir.input(0)?, ir.input(1)?);
        port(ir.binary(kind, a, b))
    }
}
