//! `broadcast` on OpenVINO.

use super::Broadcast;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Broadcast {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let x = ir.unsqueeze(x, &[1])?; // [B, 1, N]
        let out = ir.out_shape(0);
        let lengths = [0, 1, 2].map(|axis| ir.length(dim(out, axis)));
        let lengths = lengths.into_iter().collect::<Result<Vec<_>, _>>()?;
        let shape = ir.concat(0, &lengths);
        port(ir.layer("Broadcast", "opset3", &[("mode", "numpy")], &[x, shape]))
    }
}
