//! `rms_norm` on OpenVINO.

use super::RmsNorm;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for RmsNorm {
    /// `x * (1 / sqrt(mean(x^2) + eps)) * gamma`, which devices make one kernel of.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, gamma) = (ir.input(0)?, ir.input(1)?);
        let (two, eps, one, axes) = (ir.f32(2.0)?, ir.f32(self.eps)?, ir.f32(1.0)?, ir.i64s(&[-1])?);
        let squares = ir.binary("Power", x, two);
        let mean = ir.layer("ReduceMean", "opset1", &[("keep_dims", "true")], &[squares, axes]);
        let mean = ir.binary("Add", mean, eps);
        let root = ir.unary("Sqrt", mean);
        let attrs = [("auto_broadcast", "numpy"), ("m_pythondiv", "true")];
        let scale = ir.layer("Divide", "opset1", &attrs, &[one, root]);
        let y = ir.binary("Multiply", x, scale);
        let y = ir.binary("Multiply", y, gamma);
        if !self.residual {
            return port(y);
        }
        let residual = ir.input(2)?;
        port(ir.binary("Add", y, residual))
    }
}
