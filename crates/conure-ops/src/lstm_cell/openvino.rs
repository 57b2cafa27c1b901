//! `lstm_cell` on OpenVINO.

use super::LstmCell;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port};
use smallvec::SmallVec;

impl OpenVinoOp for LstmCell {
    /// Written out: OpenVINO's own cell wants the gates in another order, and its weights copied for that.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (x, h, c) = (ir.input(0)?, ir.input(1)?, ir.input(2)?);
        let (w_hh, b_hh) = self.recurrent();
        let (w_hh, b_hh) = (ir.input(w_hh)?, ir.input(b_hh)?);
        let from_x = if self.projected {
            x
        } else {
            let (w_ih, b_ih) = (ir.input(3)?, ir.input(5)?);
            let product = ir.matmul(x, w_ih, true);
            ir.binary("Add", product, b_ih)
        };
        let from_h = ir.matmul(h, w_hh, true);
        let from_h = ir.binary("Add", from_h, b_hh);
        let z = ir.binary("Add", from_x, from_h);
        let gates = ir.split(z, 1, 4)?;
        let input = ir.unary("Sigmoid", gates);
        let forget = ir.unary("Sigmoid", gates.nth(1));
        let cell = ir.unary("Tanh", gates.nth(2));
        let output = ir.unary("Sigmoid", gates.nth(3));
        let kept = ir.binary("Multiply", forget, c);
        let added = ir.binary("Multiply", input, cell);
        let c = ir.binary("Add", kept, added);
        let shown = ir.unary("Tanh", c);
        let h = ir.binary("Multiply", output, shown);
        Ok(SmallVec::from_iter([h, c]))
    }
}
