//! `rope` on OpenVINO.

use super::Rope;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, Len, OpenVinoOp, Port, port, wide};
use conure_kernels::rotary::Pairs;
use smallvec::SmallVec;

impl OpenVinoOp for Rope {
    /// `x cos + turned(x) sin` over whole heads `[B, H, T, R]`, which devices make one kernel of. `turned` puts the second of
    /// each pair, negated, before the first.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (heads, width, turned) = (ir.fixed(0, 2)?, ir.fixed(0, 3)?, ir.fixed(1, 2)?);
        let x = ir.input(0)?;
        if turned == 0 {
            return port(x);
        }
        let x = ir.transpose(x, &[0, 2, 1, 3])?;
        let angles = ir.input(1)?;
        let cos = ir.split(angles, 2, 2)?; // [B, T, R/2]
        let (cos, sin) = (self.per_element(ir, cos, turned)?, self.per_element(ir, cos.nth(1), turned)?);
        let (part, rest) = if turned < width {
            let (start, end) = (ir.i64s(&[wide(turned)])?, ir.i64s(&[i64::MAX])?);
            (ir.slice(x, 3, 0, start)?, Some(ir.slice_from(x, 3, start, end)?))
        } else {
            (x, None)
        };
        let minus = ir.f32(-1.0)?;
        let swapped = match self.pairs {
            Pairs::Halves => {
                // Slices, and the axis counted from the end, are what OpenVINO knows the whole by.
                let (half, end) = (ir.i64s(&[wide(turned / 2)])?, ir.i64s(&[i64::MAX])?);
                let (first, second) = (ir.slice(part, 3, 0, half)?, ir.slice_from(part, 3, half, end)?);
                let negated = ir.binary("Multiply", second, minus);
                ir.layer("Concat", "opset1", &[("axis", "-1")], &[negated, first])
            }
            Pairs::Adjacent => {
                let time = dim(ir.shape(0), 1);
                let pairs = ir.reshape(
                    part,
                    &[Len::Same, Len::Same, Len::Same, Len::Fixed(turned / 2), Len::Fixed(2)],
                )?;
                let first = ir.split(pairs, -1, 2)?;
                let negated = ir.binary("Multiply", first.nth(1), minus);
                let both = ir.concat(4, &[negated, first]);
                ir.reshape(both, &[Len::Rest, Len::Fixed(heads), Len::Dim(time), Len::Fixed(turned)])?
            }
        };
        let (kept, moved) = (ir.binary("Multiply", part, cos), ir.binary("Multiply", swapped, sin));
        let mut y = ir.binary("Add", kept, moved);
        if let Some(rest) = rest {
            y = ir.concat(3, &[y, rest]);
        }
        port(ir.transpose(y, &[0, 2, 1, 3])?)
    }
}

impl Rope {
    /// `[B, T, R/2]`, one for each pair, as `[B, 1, T, R]`, one for each element.
    fn per_element(&self, ir: &mut Ir<'_>, x: Port, turned: usize) -> Result<Port, OpError> {
        let x = match self.pairs {
            Pairs::Halves => ir.concat(2, &[x, x]),
            Pairs::Adjacent => {
                let x = ir.unsqueeze(x, &[3])?;
                let x = ir.concat(3, &[x, x]);
                ir.reshape(x, &[Len::Same, Len::Same, Len::Fixed(turned)])?
            }
        };
        ir.unsqueeze(x, &[1])
    }
}
