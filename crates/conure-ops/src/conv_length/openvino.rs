//! `conv_length` on OpenVINO.

use super::ConvLength;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for ConvLength {
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX / 4);
        let (stride, offset) = (int(self.stride), int(self.pad) - int(self.kernel));
        let x = ir.input(0)?;
        // From here on down the result is 0.
        let least = ir.i32(-stride - offset)?;
        let x = ir.binary("Maximum", x, least);
        // floor((x + offset) / stride) without adding to x, which may be the greatest integer there is.
        let (whole, rest) = (offset.div_euclid(stride), offset.rem_euclid(stride));
        let (less, whole) = if rest == 0 { (0, whole) } else { (stride - rest, whole + 1) };
        let less = ir.i32(less)?;
        let x = ir.binary("Subtract", x, less);
        let x = ir.floor_div(x, stride)?;
        let whole = ir.i32(whole + 1)?;
        let x = ir.binary("Add", x, whole);
        let zero = ir.i32(0)?;
        port(ir.binary("Maximum", x, zero))
    }
}
