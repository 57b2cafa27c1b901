//! `conv2d`: convolution over time and frequency, channels last.

use crate::activation::Activation;
use crate::binary::{Binary, BinaryKind};
use crate::count::{dims, elements};
use crate::decompose::{Decomposition, Part, is_plain};
use crate::im2col::Im2col;
use crate::infer::{Inputs, dim, one};
use crate::linear::Linear;
use crate::matmul::MatMul;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::reshape::Reshape;
use crate::transpose::Transpose;
use crate::unary::{Unary, UnaryKind};
use crate::values::{output, read, write};
use crate::window::Window;
use conure_tensor::{Axis, DType, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "conv2d";

/// Two-dimensional convolution (cross-correlation, as in every framework).
///
/// Inputs: `x [B, T, F, C]` f32, `w [O, C/groups, kT, kF]` in any stored form, then `bias [O]` if
/// [`Conv2d::bias`]. Output: `[B, T', F', O]` f32 with `T' = floor((T + pads - dilation * (kT - 1) - 1) / stride) + 1`,
/// and F' likewise.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d {
    /// Steps in time and in frequency.
    pub stride: [usize; 2],
    /// Zeros added: before in time, after in time, before in frequency, after in frequency.
    pub pad: [usize; 4],
    /// Distance between the kernel's taps in time and in frequency.
    pub dilation: [usize; 2],
    /// Groups of channels that see only each other; C for a depthwise convolution.
    pub groups: usize,
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Conv2d {
    /// What it moves over time and frequency, for a kernel of so many taps.
    fn window(&self, kernel: [usize; 2]) -> Window {
        Window { kernel, stride: self.stride, pad: self.pad, dilation: self.dilation }
    }

    fn check_attributes(&self, ins: &Inputs<'_>, c: usize, w: &[usize]) -> Result<(), OpError> {
        if self.stride.contains(&0) || self.dilation.contains(&0) || self.groups == 0 {
            return Err(ins.attribute("stride, dilation and groups must be at least 1"));
        }
        if !c.is_multiple_of(self.groups) || !w[0].is_multiple_of(self.groups) {
            return Err(ins.attribute(format!(
                "groups {} must divide C {c} and the output channels {}",
                self.groups, w[0]
            )));
        }
        if self.activation == Activation::Glu {
            return Err(ins.attribute("a convolution does not end in a gated linear unit"));
        }
        if w[2] == 0 || w[3] == 0 {
            return Err(ins.attribute("the kernel has no taps"));
        }
        Ok(())
    }
}

impl Op for Conv2d {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = self.window([1, 1]).attrs();
        attrs.extend([
            ("groups", Attr::Int(i64::try_from(self.groups).unwrap_or(i64::MAX))),
            ("activation", Attr::Text(self.activation.name())),
            ("bias", Attr::Int(i64::from(self.bias))),
        ]);
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2 + usize::from(self.bias))?;
        let x = ins.f32_of(0, 4, "[B, T, F, C]")?;
        let w = ins.weight(1, 4, "[O, C/groups, kT, kF]")?;
        let c = dim(x, 3).as_constant().ok_or_else(|| ins.wrong(0, "[B, T, F, C] with C fixed"))?;
        let fixed: Option<Vec<usize>> = w.iter().map(|(_, d)| d.as_constant()).collect();
        let fixed = fixed.ok_or_else(|| ins.wrong(1, "[O, C/groups, kT, kF] of fixed lengths"))?;
        self.check_attributes(&ins, c, &fixed)?;
        ins.same(Axis("C/groups"), &Dim::from(c / self.groups), dim(w, 1))?;
        if self.bias {
            ins.vector(2, Axis::N, dim(w, 0))?;
        }
        let window = self.window([fixed[2], fixed[3]]);
        Ok(one(Shape::new([
            (x.axis(0), dim(x, 0).clone()),
            (x.axis(1), window.positions(0, dim(x, 1))),
            (x.axis(2), window.positions(1, dim(x, 2))),
            (Axis::C, dim(w, 0).clone()),
        ])))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, w) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let bias = if self.bias { Some(read(NAME, inputs, 2)?) } else { None };
        let shape = output(NAME, outputs, 0)?.shape().to_vec();
        let (frames, bins, c) = (x.dim(1), x.dim(2), x.dim(3));
        let (outs, per_group) = (w.dim(0), w.dim(1));
        let window = self.window([w.dim(2), w.dim(3)]);
        let [taps_t, taps_f] = window.kernel;
        let mut out = Vec::new();
        for (b, t, f, o) in indices(&shape) {
            let first = o / (outs / self.groups) * per_group;
            let mut sum = 0.0;
            for kt in 0..taps_t {
                let Some(st) = window.source(0, t, kt, frames) else { continue };
                for kf in 0..taps_f {
                    let Some(sf) = window.source(1, f, kf, bins) else { continue };
                    for i in 0..per_group {
                        let tap = ((o * per_group + i) * taps_t + kt) * taps_f + kf;
                        sum += x.data[((b * frames + st) * bins + sf) * c + first + i] * w.data[tap];
                    }
                }
            }
            out.push(self.activation.apply(sum + bias.as_ref().map_or(0.0, |b| b.data[o])));
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        let (out, w) = (elements(outputs, 0), dims(inputs, 1));
        // Per output element: a multiplication and an addition for each tap of each of its group's channels.
        let taps: f64 = w.iter().skip(1).map(|&d| d as f64).product();
        2.0 * out * taps
    }

    fn decompose(&self, inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        let mut d = Decomposition::new(inputs);
        let kernel = d.shape(Part::Input(1))?;
        let fixed: Option<Vec<usize>> = kernel.iter().map(|(_, n)| n.as_constant()).collect();
        let (Some(&[outs, per_group, kt, kf]), true) = (fixed.as_deref(), is_plain(inputs[1])) else {
            return Ok(None);
        };
        let groups = self.groups;
        let x = d.apply(Transpose { perm: vec![0, 3, 1, 2] }, &[Part::Input(0)])?; // [B, C, T, F]
        let image = d.shape(x)?;
        let batch = dim(&image, 0).clone();
        // Groups are images of their own.
        let single =
            image.with(0, image.axis(0), &batch * &Dim::from(groups)).with(1, Axis::C, Dim::from(per_group));
        let x = if groups == 1 { x } else { d.apply(Reshape { shape: single }, &[x])? };
        let (stride, pad, dilation) = (self.stride, self.pad, self.dilation);
        let im2col = Im2col { kernel: [kt, kf], stride, pad, dilation, dtype: DType::F32 };
        let patches = d.apply(im2col, &[x])?; // [B G, T', F', C/G kT kF]
        let width = per_group * kt * kf;
        let positions = d.shape(patches)?;
        let (t, f) = (dim(&positions, 1).clone(), dim(&positions, 2).clone());
        let bias = self.bias.then_some(Part::Input(2));
        if groups == 1 {
            let w = d.apply(Reshape { shape: Shape::fixed(&[outs, width]) }, &[Part::Input(1)])?;
            let linear = Linear { activation: self.activation, bias: self.bias, residual: None };
            let operands: Vec<Part> = [patches, w].into_iter().chain(bias).collect();
            let y = d.apply(linear, &operands)?;
            return Ok(d.done(&[y]));
        }
        let rows = Shape::new([
            (Axis::B, batch.clone()),
            (Axis("G"), Dim::from(groups)),
            (Axis::T, &t * &f),
            (Axis::K, Dim::from(width)),
        ]);
        let rows = d.apply(Reshape { shape: rows }, &[patches])?;
        let w = Shape::fixed(&[groups, outs / groups, width]);
        let w = d.apply(Reshape { shape: w }, &[Part::Input(1)])?;
        let y = d.apply(MatMul { transpose_b: true }, &[rows, w])?; // [B, G, T' F', O/G]
        let y = d.apply(Transpose { perm: vec![0, 2, 1, 3] }, &[y])?;
        let out = Shape::new([(Axis::B, batch), (Axis::T, t), (Axis::F, f), (Axis::C, Dim::from(outs))]);
        let mut y = d.apply(Reshape { shape: out }, &[y])?;
        if let Some(bias) = bias {
            y = d.apply(Binary { kind: BinaryKind::Add }, &[y, bias])?;
        }
        if let Some(kind) = UnaryKind::of(self.activation) {
            y = d.apply(Unary { kind }, &[y])?;
        }
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

/// All indices of a shape of four axes, in order.
fn indices(shape: &[usize]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let n = |i: usize| shape.get(i).copied().unwrap_or(1);
    let (t, f, o) = (n(1), n(2), n(3));
    (0..n(0) * t * f * o).map(move |i| (i / o / f / t, i / o / f % t, i / o % f, i % o))
}
