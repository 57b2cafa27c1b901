//! `linear` on OpenVINO.

use super::Linear;
use crate::activation::Activation;
use crate::op::OpError;
use crate::openvino::Perm;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Linear {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (n, k) = (ir.fixed(1, 0)?, ir.fixed(1, 1)?);
        let x = ir.input(0)?;
        let (source, perm) = ir.source(x, ir.shape(0).rank());
        if perm.as_slice() == [0, 2, 3, 1] && self.activation != Activation::Glu && self.residual.is_none() {
            return self.pointwise(ir, source, &perm, [n, k]);
        }
        let w = ir.shaped(1, &[n, k])?;
        let mut y = ir.matmul(x, w, true);
        if self.bias {
            let bias = ir.input(2)?;
            y = ir.binary("Add", y, bias);
        }
        y = ir.activation(self.activation, y)?;
        if let (Some(at), Some(scale)) = (self.residual_at(), self.residual) {
            if scale != 1.0 {
                let scale = ir.f32(scale)?;
                y = ir.binary("Multiply", y, scale);
            }
            let residual = ir.input(at)?;
            y = ir.binary("Add", residual, y);
        }
        port(y)
    }
}

impl Linear {
    /// After a convolution: a convolution of one tap, which stays in the order of axes that the convolutions have.
    fn pointwise(
        &self,
        ir: &mut Ir<'_>,
        x: Port,
        perm: &Perm,
        [n, k]: [usize; 2],
    ) -> Result<SmallVec<[Port; 2]>, OpError> {
        let w = ir.shaped(1, &[n, k, 1, 1])?;
        let attrs = [
            ("strides", "1,1"),
            ("dilations", "1,1"),
            ("pads_begin", "0,0"),
            ("pads_end", "0,0"),
            ("auto_pad", "explicit"),
        ];
        let mut y = ir.layer("Convolution", "opset1", &attrs, &[x, w]);
        if self.bias {
            let bias = ir.shaped(2, &[1, n, 1, 1])?;
            y = ir.binary("Add", y, bias);
        }
        let y = ir.activation(self.activation, y)?;
        port(ir.restore(y, perm)?)
    }
}
