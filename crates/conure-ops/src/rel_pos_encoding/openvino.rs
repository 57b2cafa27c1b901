//! `rel_pos_encoding` on OpenVINO.

use super::RelPosEncoding;
use crate::infer::dim;
use crate::op::OpError;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use crate::openvino::{Len, wide};
use smallvec::SmallVec;

/// Positions that share a row of the coarse table.
const FINE: usize = 256;
/// Rows of the coarse table to each side of position 0.
const COARSE: usize = 256;

impl OpenVinoOp for RelPosEncoding {
    /// A table where there is a window. Otherwise the sine and cosine of `256 a + b` from those of `256 a` and of `b`, which
    /// are tables: a sine of the angle itself would lose as many digits as the angle has before the point.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        if let Some(window) = self.window {
            let farthest = wide(window);
            let (sin, cos) = self.table((-farthest..=farthest).rev());
            return port(ir.f32s(&[2 * window + 1, self.d_model], &interleaved(&sin, &cos))?);
        }
        let frames = dim(ir.shape(0), 1).plus(wide(self.context));
        ir.at_most(&frames, FINE * COARSE, "frames in one window; use a shorter window or local attention");
        // Positions C+T-1 ..= -(T-1), moved up so that none is negative.
        let rows = dim(ir.out_shape(0), 0);
        let count = ir.count(rows)?;
        let top = ir.length(&frames)?;
        let top = ir.convert(top, "i32");
        let shift = ir.i32(i32::try_from(FINE * COARSE).unwrap_or(i32::MAX) - 1)?;
        let top = ir.binary("Add", top, shift);
        let position = ir.binary("Subtract", top, count); // [P]
        let coarse = self.table((0..=2 * wide(COARSE)).map(|a| (a - wide(COARSE)) * wide(FINE)));
        let fine = self.table(0..wide(FINE));
        let (a, b) = self.places(ir, position)?;
        let half = self.d_model / 2;
        let mut rows_of = |(sin, cos): &(Vec<f32>, Vec<f32>), ids: Port| -> Result<[Port; 2], OpError> {
            let rows = sin.len() / half.max(1);
            let (sin, cos) = (ir.f32s(&[rows, half], sin)?, ir.f32s(&[rows, half], cos)?);
            Ok([ir.gather(sin, ids, 0)?, ir.gather(cos, ids, 0)?])
        };
        let [sin_a, cos_a] = rows_of(&coarse, a)?;
        let [sin_b, cos_b] = rows_of(&fine, b)?;
        let mut products = |kind, [a, b, c, d]: [Port; 4]| {
            let (first, second) = (ir.binary("Multiply", a, b), ir.binary("Multiply", c, d));
            ir.binary(kind, first, second)
        };
        let sin = products("Add", [sin_a, cos_b, cos_a, sin_b]);
        let cos = products("Subtract", [cos_a, cos_b, sin_a, sin_b]);
        let (sin, cos) = (ir.unsqueeze(sin, &[2])?, ir.unsqueeze(cos, &[2])?);
        let both = ir.concat(2, &[sin, cos]); // [P, D/2, 2]
        port(ir.reshape(both, &[Len::Same, Len::Fixed(self.d_model)])?)
    }
}

impl RelPosEncoding {
    /// Sines and cosines of positions, `[positions, D/2]` each, rounded once.
    fn table(&self, positions: impl Iterator<Item = i64>) -> (Vec<f32>, Vec<f32>) {
        let frequencies: Vec<f64> = (0..self.d_model / 2).map(|i| self.frequency(i)).collect();
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip()
    }

    /// Rows of the coarse and of the fine table for positions that are 0 or more.
    fn places(&self, ir: &mut Ir<'_>, position: Port) -> Result<(Port, Port), OpError> {
        let fine = ir.i32(i32::try_from(FINE).unwrap_or(i32::MAX))?;
        let a = ir.floor_div(position, i32::try_from(FINE).unwrap_or(i32::MAX))?;
        let whole = ir.binary("Multiply", a, fine);
        let b = ir.binary("Subtract", position, whole);
        Ok((a, b))
    }
}

fn interleaved(sin: &[f32], cos: &[f32]) -> Vec<f32> {
    sin.iter().zip(cos).flat_map(|(s, c)| [*s, *c]).collect()
}
