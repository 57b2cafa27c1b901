//! `batch_norm` on OpenVINO.

use super::BatchNorm;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for BatchNorm {
    /// `x * scale + shift`, both computed once when the model is compiled.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let (x, perm) = ir.source(x, ir.shape(0).rank());
        let [gamma, beta, mean, var] = [1, 2, 3, 4].map(|i| ir.channels(i, &perm));
        let eps = ir.f32(self.eps)?;
        let var = ir.binary("Add", var?, eps);
        let deviation = ir.unary("Sqrt", var);
        let scale = ir.binary("Divide", gamma?, deviation);
        let moved = ir.binary("Multiply", mean?, scale);
        let shift = ir.binary("Subtract", beta?, moved);
        let y = ir.binary("Multiply", x, scale);
        let y = ir.binary("Add", y, shift);
        port(ir.restore(y, &perm)?)
    }
}
