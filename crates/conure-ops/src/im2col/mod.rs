//! `im2col`: the patches that a convolution sees, as rows of a matrix.

use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{decode, input, output};
use crate::window::{Window, ints};
use conure_tensor::{Axis, DType, Dim, Shape, TensorMut, TensorView, quant};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "im2col";

/// The patches of an image as rows, so that a product with a kernel `[O, C kH kW]` is a convolution: ggml's IM2COL.
///
/// Input: `x [N, C, H, W]` f32 or, in one dimension, `[N, C, L]`: channels *before* positions. Output:
/// `[N, H', W', C kH kW]` or `[N, L', C K]` of [`Im2col::dtype`], where element `(c kH + i) kW + j` of a patch is
/// `x[n, c, h' stride + i dilation - pad, ...]`, and 0 where that lies outside. `H' = floor((H + pads - dilation (kH - 1) - 1)
/// / stride) + 1`, and W', L' likewise. Fused into a convolution by the pass `fuse_conv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Im2col {
    /// Taps: vertical and horizontal; in one dimension `[K, 1]`.
    pub kernel: [usize; 2],
    /// Steps; in one dimension the second is 1.
    pub stride: [usize; 2],
    /// Zeros: above, below, left, right; in one dimension before, after, 0, 0.
    pub pad: [usize; 4],
    /// Distances between taps; in one dimension the second is 1.
    pub dilation: [usize; 2],
    /// f32, or f16 as ggml has it: each element is rounded.
    pub dtype: DType,
}

impl Im2col {
    /// `x [N, C, H, W]` of an input of three or four axes.
    fn image(shape: &[usize]) -> [usize; 4] {
        [0, 1, 2, 3].map(|i| shape.get(i).copied().unwrap_or(1))
    }

    fn window(&self) -> Window {
        Window { kernel: self.kernel, stride: self.stride, pad: self.pad, dilation: self.dilation }
    }
}

impl Op for Im2col {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("kernel", ints(&self.kernel))];
        attrs.extend(self.window().attrs());
        attrs.push(("dtype", Attr::Text(self.dtype.name())));
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let x = ins.f32_from(0, 3, "[N, C, H, W] or [N, C, L]")?;
        if self.stride.contains(&0) || self.dilation.contains(&0) || self.kernel.contains(&0) {
            return Err(ins.attribute("kernel, stride and dilation must be at least 1"));
        }
        if !matches!(self.dtype, DType::F32 | DType::F16) {
            return Err(ins.attribute(format!("patches are f32 or f16, not {}", self.dtype)));
        }
        let taps = self.kernel[0].checked_mul(self.kernel[1]).and_then(|n| i64::try_from(n).ok());
        let taps = taps.ok_or_else(|| ins.attribute("the kernel has too many taps"))?;
        let patch = dim(x, 1) * &Dim::from(taps as usize);
        let first = (x.axis(0), dim(x, 0).clone());
        let window = self.window();
        let rows = (x.axis(2), window.positions(0, dim(x, 2)));
        let shape = match x.rank() {
            3 if (self.kernel[1], self.stride[1], self.dilation[1]) == (1, 1, 1)
                && self.pad[2..] == [0, 0] =>
            {
                Shape::new([first, rows, (Axis::K, patch)])
            }
            3 => return Err(ins.attribute("an input [N, C, L] has one axis of positions: [K, 1], no more")),
            4 => Shape::new([first, rows, (x.axis(3), window.positions(1, dim(x, 3))), (Axis::K, patch)]),
            _ => return Err(ins.wrong(0, "f32 [N, C, H, W] or [N, C, L]")),
        };
        Ok(Outputs::from_iter([ValueType::new(self.dtype, shape)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let x = decode(NAME, input(NAME, inputs, 0)?)?;
        let [batch, channels, height, width] = Im2col::image(input(NAME, inputs, 0)?.shape());
        let out = output(NAME, outputs, 0)?;
        let one_dimensional = out.shape().len() == 3;
        let [rows, columns] = [1, 2].map(|i| out.shape().get(i).copied().unwrap_or(1));
        let columns = if one_dimensional { 1 } else { columns };
        let window = self.window();
        let mut patches = Vec::with_capacity(out.bytes_mut().len() / 2);
        for n in 0..batch {
            for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                for c in 0..channels {
                    for (i, j) in (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j))) {
                        let at = window.source(0, row, i, height).zip(window.source(1, column, j, width));
                        let value = at.map(|(y, z)| x[((n * channels + c) * height + y) * width + z]);
                        patches.push(value.unwrap_or(0.0));
                    }
                }
            }
        }
        quant::encode(self.dtype, &patches, out.bytes_mut())
            .map_err(|e| OpError::Kernel { op: NAME, what: e.to_string() })
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
