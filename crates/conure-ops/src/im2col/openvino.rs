//! `im2col` on OpenVINO.

use super::Im2col;
use crate::infer::dim;
use crate::op::{OpError, ValueType};
use crate::openvino::{Ir, Len, OpenVinoOp, Port, list, port, wide};
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
        if ir.choices().extract_patches {
            return self.patches(ir, x, axes);
        }
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

impl Im2col {
    /// Of the padded image `x`: patches, the channels of a tap side by side, brought into the order of im2col, the taps of a channel.
    fn patches(&self, ir: &mut Ir<'_>, x: Port, axes: usize) -> Result<SmallVec<[Port; 2]>, OpError> {
        let two = |values: &[usize], last: usize| {
            let second = if axes == 2 { values.get(1).copied().unwrap_or(last) } else { last };
            list(&[values.first().copied().unwrap_or(1), second])
        };
        let x = if axes == 1 { ir.unsqueeze(x, &[3])? } else { x }; // [N, C, H, W]
        let attrs = [
            ("sizes", two(&self.kernel, 1)),
            ("strides", two(&self.stride, 1)),
            ("rates", two(&self.dilation, 1)),
            ("auto_pad", "valid".to_owned()),
        ];
        let attrs = attrs.each_ref().map(|(name, value)| (*name, value.as_str()));
        let y = ir.layer("ExtractImagePatches", "opset3", &attrs, &[x]); // [N, taps C, H', W']
        let y = ir.transpose(y, &[0, 2, 3, 1])?;
        let (taps, channels) = (self.kernel[0] * self.kernel[1], ir.fixed(0, 1)?);
        let by_tap = [Len::Same, Len::Same, Len::Same, Len::Fixed(taps), Len::Fixed(channels)];
        let y = ir.reshape(y, &by_tap)?; // [N, H', W', taps, C]
        let y = ir.transpose(y, &[0, 1, 2, 4, 3])?;
        let mut to = vec![Len::Same; 1 + axes];
        to.push(Len::Fixed(taps * channels));
        let y = ir.reshape(y, &to)?;
        port(ir.convert(y, self.dtype.name()))
    }
}
