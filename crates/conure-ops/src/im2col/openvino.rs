//! `im2col` on OpenVINO.

use super::Im2col;
use crate::infer::dim;
use crate::op::{OpError, ValueType};
use crate::openvino::{Ir, Len, OpenVinoOp, Port, port, wide};
use conure_tensor::Dim;
use smallvec::SmallVec;

/// A layer per tap, and compiling takes more than twice as long for twice the layers.
const MOST_TAPS: usize = 128;

impl OpenVinoOp for Im2col {
    fn supports(&self, _inputs: &[&ValueType], _fixed: &[bool]) -> Result<(), String> {
        match self.kernel[0].saturating_mul(self.kernel[1]) {
            0..=MOST_TAPS => Ok(()),
            taps => Err(format!(
                "{taps} taps, more than {MOST_TAPS}; the pass fuse_conv makes a convolution of it"
            )),
        }
    }

    /// One strided slice per tap, side by side.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let axes = ir.shape(0).rank() - 2;
        let (before, after): (Vec<i64>, Vec<i64>) =
            (0..axes).map(|a| (wide(self.pad[2 * a]), wide(self.pad[2 * a + 1]))).unzip();
        let begin = ir.i64s(&[&[0, 0], before.as_slice()].concat())?;
        let end = ir.i64s(&[&[0, 0], after.as_slice()].concat())?;
        let x = ir.input(0)?;
        let x = ir.pad(x, begin, end)?;
        let mut taps = Vec::new();
        for i in 0..self.kernel[0] {
            for j in 0..self.kernel[1] {
                let mut tap = x;
                for (axis, at) in [i, j].into_iter().enumerate().take(axes) {
                    let start = at * self.dilation[axis];
                    let positions = dim(ir.out_shape(0), 1 + axis);
                    let end = (positions * &Dim::from(self.stride[axis])).plus(wide(start));
                    let end = ir.length(&end)?;
                    tap = ir.slice_by(tap, 2 + axis, wide(start), end, wide(self.stride[axis]))?;
                }
                taps.push(ir.unsqueeze(tap, &[2])?); // [N, C, 1, H', W']
            }
        }
        let patches = ir.concat(2, &taps); // [N, C, taps, H', W']
        let perm: Vec<usize> = [0].into_iter().chain(3..3 + axes).chain([1, 2]).collect();
        let patches = ir.transpose(patches, &perm)?; // [N, H', W', C, taps]
        let width = dim(ir.out_shape(0), 1 + axes);
        let mut to = vec![Len::Same; 1 + axes];
        to.push(Len::Dim(width));
        let y = ir.reshape(patches, &to)?;
        port(ir.convert(y, self.dtype.name()))
    }
}
