//! `gated` on OpenVINO.

use super::Gated;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use conure_kernels::gated::Gate;
use smallvec::SmallVec;

impl OpenVinoOp for Gated {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (gate, up) = (ir.input(0)?, ir.input(1)?);
        let (opened, up) = match self.kind {
            Gate::Silu => (ir.swish(gate)?, up),
            Gate::GeluTanh => (ir.layer("Gelu", "opset7", &[("approximation_mode", "TANH")], &[gate]), up),
            Gate::ClampedSwiglu(limit) => {
                let (most, beta, one) = (ir.f32(limit)?, ir.f32(1.702)?, ir.f32(1.0)?);
                let gate = ir.binary("Minimum", gate, most);
                let (low, high) = (format!("{:e}", -limit), format!("{limit:e}"));
                let up = ir.layer("Clamp", "opset1", &[("min", &low), ("max", &high)], &[up]);
                (ir.layer("Swish", "opset4", &[], &[gate, beta]), ir.binary("Add", up, one))
            }
        };
        port(ir.binary("Multiply", opened, up))
    }
}
