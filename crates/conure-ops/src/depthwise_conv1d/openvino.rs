//! `depthwise_conv1d` on OpenVINO.

use super::DepthwiseConv1d;
use crate::op::OpError;
use crate::op::ValueType;
use crate::openvino::must_be_fixed;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use smallvec::SmallVec;

impl OpenVinoOp for DepthwiseConv1d {
    fn supports(&self, _inputs: &[&ValueType], fixed: &[bool]) -> Result<(), String> {
        must_be_fixed(fixed, 1)
    }

    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let (channels, taps) = (ir.fixed(1, 0)?, ir.fixed(1, 2)?);
        let x = ir.input(0)?;
        let x = ir.transpose(x, &[0, 2, 1])?; // [B, C, T]
        let w = ir.shaped(1, &[channels, 1, 1, taps])?;
        let (before, after) = (self.pad_before.to_string(), self.pad_after.to_string());
        let attrs = [
            ("strides", "1"),
            ("dilations", "1"),
            ("pads_begin", before.as_str()),
            ("pads_end", after.as_str()),
            ("auto_pad", "explicit"),
        ];
        let mut y = ir.layer("GroupConvolution", "opset1", &attrs, &[x, w]);
        if self.bias {
            let bias = ir.shaped(2, &[1, channels, 1])?;
            y = ir.binary("Add", y, bias);
        }
        if self.scale_shift {
            let scale = ir.shaped(self.scale_at(), &[1, channels, 1])?;
            let shift = ir.shaped(self.scale_at() + 1, &[1, channels, 1])?;
            y = ir.binary("Multiply", y, scale);
            y = ir.binary("Add", y, shift);
        }
        let y = ir.activation(self.activation, y)?;
        port(ir.transpose(y, &[0, 2, 1])?)
    }
}
