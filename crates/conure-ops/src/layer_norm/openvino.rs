//! `layer_norm` on OpenVINO.

use super::LayerNorm;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for LayerNorm {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, gamma, beta) = (ir.input(0)?, ir.input(1)?, ir.input(2)?);
        let axes = ir.i64s(&[-1])?;
        let eps = format!("{:e}", self.eps);
        let attrs = [("eps", eps.as_str()), ("normalize_variance", "true"), ("eps_mode", "INSIDE_SQRT")];
        let y = ir.layer("MVN", "opset6", &attrs, &[x, axes]);
        let y = ir.binary("Multiply", y, gamma);
        port(ir.binary("Add", y, beta))
    }
}
