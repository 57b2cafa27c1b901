//! `depthwise_conv1d`: every channel convolved in time with its own kernel.

use crate::activation::Activation;
use crate::binary::{Binary, BinaryKind};
use crate::conv2d::Conv2d;
use crate::count::{dims, elements};
use crate::decompose::{Decomposition, Part, is_plain};
use crate::infer::{Inputs, conv_frames, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::reshape::Reshape;
use crate::unary::{Unary, UnaryKind};
use crate::values::{output, read, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "depthwise_conv1d";

/// Depthwise convolution in time, stride 1, with what follows it in a Conformer's convolution module.
///
/// Inputs: `x [B, T, C]` f32, `w [C, 1, K]` in any stored form, then `bias [C]` if [`DepthwiseConv1d::bias`], then
/// `scale [C]` and `shift [C]` if [`DepthwiseConv1d::scale_shift`]. Output: `[B, T', C]` f32 with
/// `T' = T + pad_before + pad_after - K + 1`, `activation((x * w + bias) * scale + shift)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthwiseConv1d {
    /// Zero frames before the first: `(K-1)/2`, or `K-1` where causal.
    pub pad_before: usize,
    /// Zero frames after the last.
    pub pad_after: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether a scale and a shift of every channel follow: a batch norm whose statistics are folded.
    pub scale_shift: bool,
    /// Applied last.
    pub activation: Activation,
}

impl DepthwiseConv1d {
    /// Where the scale stands among the inputs, if there is one; the shift follows it.
    fn scale_at(&self) -> usize {
        2 + usize::from(self.bias)
    }
}

impl Op for DepthwiseConv1d {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
        vec![
            ("pad_before", int(self.pad_before)),
            ("pad_after", int(self.pad_after)),
            ("bias", Attr::Int(i64::from(self.bias))),
            ("scale_shift", Attr::Int(i64::from(self.scale_shift))),
            ("activation", Attr::Text(self.activation.name())),
        ]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, self.scale_at() + 2 * usize::from(self.scale_shift))?;
        if self.activation == Activation::Glu {
            return Err(ins.attribute("a convolution does not end in a gated linear unit"));
        }
        let x = ins.f32_of(0, 3, "[B, T, C]")?;
        let w = ins.weight(1, 3, "[C, 1, K]")?;
        ins.same(Axis::C, dim(x, 2), dim(w, 0))?;
        ins.same(Axis("channels per group"), &Dim::from(1), dim(w, 1))?;
        if self.bias {
            ins.vector(2, Axis::C, dim(x, 2))?;
        }
        if self.scale_shift {
            ins.vector(self.scale_at(), Axis::C, dim(x, 2))?;
            ins.vector(self.scale_at() + 1, Axis::C, dim(x, 2))?;
        }
        let kernel = dim(w, 2).as_constant().filter(|&k| k > 0);
        let kernel = kernel.ok_or_else(|| ins.wrong(1, "[C, 1, K] with a fixed K of at least 1"))?;
        let frames = conv_frames(dim(x, 1), self.pad_before.saturating_add(self.pad_after), kernel, 1);
        Ok(one(Shape::new([
            (x.axis(0), dim(x, 0).clone()),
            (x.axis(1), frames),
            (x.axis(2), dim(x, 2).clone()),
        ])))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, w) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let bias = if self.bias { Some(read(NAME, inputs, 2)?) } else { None };
        let vector = |i: usize| if self.scale_shift { read(NAME, inputs, i).map(Some) } else { Ok(None) };
        let (scale, shift) = (vector(self.scale_at())?, vector(self.scale_at() + 1)?);
        let (frames, c, taps) = (x.dim(1), x.dim(2), w.dim(2));
        let out_frames = output(NAME, outputs, 0)?.shape().get(1).copied().unwrap_or(0);
        let mut out = Vec::new();
        for b in 0..x.dim(0) {
            for t in 0..out_frames {
                for ch in 0..c {
                    let mut sum = bias.as_ref().map_or(0.0, |b| b.data[ch]);
                    for k in 0..taps {
                        if let Some(s) = (t + k).checked_sub(self.pad_before).filter(|&s| s < frames) {
                            sum += x.data[(b * frames + s) * c + ch] * w.data[ch * taps + k];
                        }
                    }
                    if let (Some(scale), Some(shift)) = (&scale, &shift) {
                        sum = sum * scale.data[ch] + shift.data[ch];
                    }
                    out.push(self.activation.apply(sum));
                }
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let norm = if self.scale_shift { 2.0 } else { 0.0 };
        elements(outputs, 0) * (2.0 * dims(inputs, 1).last().map_or(1.0, |&k| k as f64) + norm)
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let (x, w) = (Part::Input(0), Part::Input(1));
        let (frames, kernel) = (d.shape(x)?, d.shape(w)?);
        let (Some(channels), true) = (dim(&frames, 2).as_constant(), is_plain(inputs[1])) else {
            return Ok(None);
        };
        let pixel = (Axis::F, Dim::from(1));
        let image = Shape::new([
            (Axis::B, dim(&frames, 0).clone()),
            (Axis::T, dim(&frames, 1).clone()),
            pixel.clone(),
            (Axis::C, Dim::from(channels)),
        ]);
        let x = d.apply(Reshape { shape: image }, &[x])?;
        let taps = Shape::new(kernel.iter().map(|(a, n)| (a, n.clone())).chain([pixel]));
        let w = d.apply(Reshape { shape: taps }, &[w])?;
        let conv = Conv2d {
            stride: [1, 1],
            pad: [self.pad_before, self.pad_after, 0, 0],
            dilation: [1, 1],
            groups: channels,
            activation: if self.scale_shift { Activation::None } else { self.activation },
            bias: self.bias,
        };
        let mut operands = vec![x, w];
        operands.extend(self.bias.then_some(Part::Input(2)));
        let mut y = d.apply(conv, &operands)?;
        if self.scale_shift {
            let at = self.scale_at();
            y = d.apply(Binary { kind: BinaryKind::Mul }, &[y, Part::Input(at)])?;
            y = d.apply(Binary { kind: BinaryKind::Add }, &[y, Part::Input(at + 1)])?;
            if let Some(kind) = UnaryKind::of(self.activation) {
                y = d.apply(Unary { kind }, &[y])?;
            }
        }
        let shape = d.shape(y)?;
        let rows = Shape::new([0, 1, 3].map(|i| (shape.axis(i), dim(&shape, i).clone())));
        let y = d.apply(Reshape { shape: rows }, &[y])?;
        Ok(d.done(&[y]))
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
