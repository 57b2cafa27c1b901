//! `conv2d` on OpenVINO.

use super::Conv2d;
use crate::infer::dim;
use crate::op::OpError;
use crate::op::ValueType;
use crate::openvino::{Ir, OpenVinoOp, Port, port};
use crate::openvino::{Len, list, must_be_fixed};
use smallvec::SmallVec;

/// `[B, T, F, C]` to `[B, C, F, T]` and back.
const IN_TIME: [usize; 4] = [0, 3, 2, 1];

impl OpenVinoOp for Conv2d {
    fn supports(&self, _inputs: &[&ValueType], fixed: &[bool]) -> Result<(), String> {
        must_be_fixed(fixed, 1)
    }

    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let x = ir.input(0)?;
        let [outs, per_group, taps_t, taps_f] = [0, 1, 2, 3].map(|axis| ir.fixed(1, axis));
        let (outs, per_group, taps) = (outs?, per_group?, [taps_t?, taps_f?]);
        let one = |axis| dim(ir.shape(0), axis).as_constant() == Some(1);
        // A convolution in time only: time becomes the innermost axis of an image, along which the kernels work (the stem of
        // Whisper takes 6.8 ms for 16.5). Channels by themselves are better off as they are (0.9 ms for 1.8).
        let in_time = self.groups == 1 && one(2) && !one(3) && taps[1] == 1 && self.pad[2..] == [0, 0];
        let order = |[t, f]: [usize; 2]| if in_time { [f, t] } else { [t, f] };
        // One channel: the axes' order is a matter of names.
        let x = match dim(ir.shape(0), 3).as_constant() {
            _ if in_time => ir.transpose(x, &IN_TIME)?,
            Some(1) => {
                // [B, T, F, 1] as [B, 1, T, F]
                let bins = Len::Dim(dim(ir.shape(0), 2));
                ir.reshape(x, &[Len::Same, Len::Fixed(1), Len::Rest, bins])?
            }
            _ => ir.transpose(x, &[0, 3, 1, 2])?,
        };
        let taps = order(taps);
        let (kind, w) = match self.groups {
            1 => ("Convolution", ir.shaped(1, &[outs, per_group, taps[0], taps[1]])?),
            g => ("GroupConvolution", ir.shaped(1, &[g, outs / g, per_group, taps[0], taps[1]])?),
        };
        let attrs = [
            ("strides", list(&order(self.stride))),
            ("dilations", list(&order(self.dilation))),
            ("pads_begin", list(&order([self.pad[0], self.pad[2]]))),
            ("pads_end", list(&order([self.pad[1], self.pad[3]]))),
            ("auto_pad", "explicit".to_owned()),
        ];
        let mut y = ir.layer(kind, "opset1", &attrs.each_ref().map(|(k, v)| (*k, v.as_str())), &[x, w]);
        if self.bias {
            let bias = ir.shaped(2, &[1, outs, 1, 1])?;
            y = ir.binary("Add", y, bias);
        }
        let y = ir.activation(self.activation, y)?;
        port(ir.transpose(y, if in_time { &IN_TIME } else { &[0, 2, 3, 1] })?)
    }
}
