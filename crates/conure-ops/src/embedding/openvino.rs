//! `embedding` on OpenVINO.

use super::Embedding;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for Embedding {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let rows = dim(ir.shape(1), 0);
        let (ids, table) = (ir.input(0)?, ir.input(1)?);
        let zero = ir.i32(0)?;
        let mut row = ir.binary("Maximum", ids, zero);
        match rows.as_constant() {
            Some(rows) => {
                let last = i32::try_from(rows).unwrap_or(i32::MAX) - 1;
                ir.within(0, -1, last, "an id of a row of the table, or -1 for the row of zeros");
            }
            // How many rows there are is known only to the run; none beyond them may be read.
            None => {
                let end = ir.length(&rows.plus(-1))?;
                let end = ir.convert(end, "i32");
                row = ir.binary("Minimum", row, end);
            }
        }
        let found = ir.gather(table, row, 0)?;
        let none = ir.binary("Less", ids, zero);
        let axis = i64::try_from(ir.shape(0).rank()).unwrap_or(0);
        let none = ir.unsqueeze(none, &[axis])?;
        let zero = ir.f32(0.0)?;
        port(ir.select(none, zero, found))
    }
}
