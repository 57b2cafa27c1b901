//! `rel_shift` on OpenVINO.

use super::RelShift;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, Len, OpenVinoOp, Port, port, wide};
use conure_tensor::Dim;
use smallvec::SmallVec;

impl OpenVinoOp for RelShift {
    /// Rows padded to be longer, read as rows that are shorter: each begins one place further left than the one before.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let shape = ir.shape(0);
        let rank = shape.rank();
        let (frames, columns) = (dim(shape, rank - 2), dim(shape, rank - 1));
        let left = self.left.map_or_else(|| frames.plus(-1), Dim::from);
        let padding = frames + &left;
        let zeros = vec![0; rank - 1];
        let none = ir.i64s(&vec![0; rank])?;
        let (zeros, more) = (ir.i64s(&zeros)?, ir.length(&padding)?);
        let after = ir.concat(0, &[zeros, more]);
        let x = ir.input(0)?;
        let x = ir.pad(x, none, after)?;
        let before = vec![Len::Same; rank - 2];
        let flat = [before.as_slice(), &[Len::Rest]].concat();
        let x = ir.reshape(x, &flat)?;
        let shorter = (columns + &padding).plus(-1);
        let end = ir.length(&(frames * &shorter))?;
        let x = ir.slice(x, rank - 2, 0, end)?;
        let rows = [before.as_slice(), &[Len::Dim(frames), Len::Rest]].concat();
        let x = ir.reshape(x, &rows)?;
        let end = ir.length(&(&left + frames))?;
        match self.left {
            Some(left) => port(ir.slice(x, rank - 1, wide(left), end)?),
            None => {
                let start = ir.length(&left)?;
                port(ir.slice_from(x, rank - 1, start, end)?)
            }
        }
    }
}
