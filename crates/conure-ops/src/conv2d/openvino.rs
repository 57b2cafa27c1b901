//! `conv2d` on OpenVINO.

use super::Conv2d;
use crate::infer::dim;
use crate::op::OpError;
use crate::op::ValueType;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use crate::openvino::{Len, list, must_be_fixed};
use smallvec::SmallVec;

impl OpenVinoOp for Conv2d {
    fn supports(&self, _inputs: &[&ValueType], fixed: &[bool]) -> Result<(), String> {
        must_be_fixed(fixed, 1)
    }

    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        // One channel: the axes' order is a matter of names.
        let x = match dim(ir.shape(0), 3).as_constant() {
            Some(1) => {
                // [B, T, F, 1] as [B, 1, T, F]
                let bins = Len::Dim(dim(ir.shape(0), 2));
                ir.reshape(x, &[Len::Same, Len::Fixed(1), Len::Rest, bins])?
            }
            _ => ir.transpose(x, &[0, 3, 1, 2])?,
        };
        let [outs, per_group, taps_t, taps_f] = [0, 1, 2, 3].map(|axis| ir.fixed(1, axis));
        let (outs, per_group, taps) = (outs?, per_group?, [taps_t?, taps_f?]);
        let (kind, w) = match self.groups {
            1 => ("Convolution", ir.shaped(1, &[outs, per_group, taps[0], taps[1]])?),
            g => ("GroupConvolution", ir.shaped(1, &[g, outs / g, per_group, taps[0], taps[1]])?),
        };
        let attrs = [
            ("strides", list(&self.stride)),
            ("dilations", list(&self.dilation)),
            ("pads_begin", list(&[self.pad[0], self.pad[2]])),
            ("pads_end", list(&[self.pad[1], self.pad[3]])),
            ("auto_pad", "explicit".to_owned()),
        ];
        let mut y = ir.layer(kind, "opset1", &attrs.each_ref().map(|(k, v)| (*k, v.as_str())), &[x, w]);
        if self.bias {
            let bias = ir.shaped(2, &[1, outs, 1, 1])?;
            y = ir.binary("Add", y, bias);
        }
        let y = ir.activation(self.activation, y)?;
        port(ir.transpose(y, &[0, 2, 3, 1])?)
    }
}
