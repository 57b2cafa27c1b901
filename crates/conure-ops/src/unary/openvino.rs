//! `unary` on OpenVINO.

use super::{Unary, UnaryKind};
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Unary {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let (x, perm) = ir.source(x, ir.shape(0).rank());
        let y = match self.kind {
            UnaryKind::Relu => ir.unary("ReLU", x),
            UnaryKind::Silu => ir.swish(x)?,
            UnaryKind::Sigmoid => ir.unary("Sigmoid", x),
            UnaryKind::Tanh => ir.unary("Tanh", x),
            UnaryKind::Exp => ir.unary("Exp", x),
            UnaryKind::Log => ir.unary("Log", x),
            UnaryKind::Neg => ir.unary("Negative", x),
            UnaryKind::Sqrt => ir.unary("Sqrt", x),
        };
        port(ir.restore(y, &perm)?)
    }
}
