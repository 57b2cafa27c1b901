//! The cases: stems of real networks, written as ggml writes convolutions.

use conure_graph::{Graph, GraphBuilder, GraphError, MemoryWeights, ValueId, Weights};
use conure_ops::cases::Input;
use conure_ops::{
    Activation, Binary, BinaryKind, Im2col, Linear, MatMul, Op, OpError, Reshape, Transpose, Unary,
    UnaryKind, ValueType,
};
use conure_tensor::{DType, Shape, Tensor};
use std::sync::Arc;

/// A graph and what goes in as `x`; what comes out is `y`.
pub(super) struct Built {
    pub graph: Graph,
    pub input: Tensor,
}

pub(super) struct Case {
    pub name: &'static str,
    /// Whether im2col rounds to f16.
    pub half: bool,
    pub build: fn(bool) -> Result<Built, GraphError>,
}

pub(super) const CASES: &[Case] = &[
    Case { name: "subsampling_f32", half: false, build: subsampling },
    Case { name: "subsampling_f16", half: true, build: subsampling },
    Case { name: "whisper_stem_f32", half: false, build: whisper_stem },
    Case { name: "whisper_stem_f16", half: true, build: whisper_stem },
    Case { name: "clip_patch_f32", half: false, build: clip_patch },
    Case { name: "clip_patch_f16", half: true, build: clip_patch },
    Case { name: "conformer_depthwise_f32", half: false, build: conformer_depthwise },
    Case { name: "resnet_3x3_f32", half: false, build: resnet },
];

/// One convolution.
#[derive(Clone, Copy)]
struct Conv {
    outputs: usize,
    groups: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: usize,
    bias: bool,
    function: Option<UnaryKind>,
}

const PLAIN: Conv =
    Conv { outputs: 0, groups: 1, kernel: [3, 3], stride: [1, 1], pad: 1, bias: true, function: None };

struct Writer {
    g: GraphBuilder,
    dtype: DType,
    convs: usize,
}

fn tensor(input: &Input, seed: u64) -> Result<Tensor, GraphError> {
    input.tensor(seed).map_err(|source| GraphError::Tensor { path: "bench".into(), source })
}

fn fixed(dims: &[usize]) -> Shape {
    Shape::fixed(dims)
}

impl Writer {
    /// Kernels and biases of the convolutions of `inputs` channels, and the matrix of a projection.
    fn new(
        half: bool,
        inputs: usize,
        convs: &[Conv],
        projection: Option<[usize; 2]>,
    ) -> Result<Writer, GraphError> {
        let mut weights = MemoryWeights::new();
        let mut channels = inputs;
        for (i, conv) in convs.iter().enumerate() {
            let shape = [conv.outputs, channels / conv.groups, conv.kernel[0], conv.kernel[1]];
            let kernel = Input::weight(if half { DType::F16 } else { DType::F32 }, &shape);
            weights = weights
                .with(&format!("kernel{i}"), tensor(&kernel, i as u64)?)
                .with(&format!("bias{i}"), tensor(&Input::f32(&[conv.outputs]), 100 + i as u64)?);
            channels = conv.outputs;
        }
        if let Some(shape) = projection {
            weights = weights.with("out", tensor(&Input::weight(DType::F32, &shape), 200)?);
        }
        let dtype = if half { DType::F16 } else { DType::F32 };
        Ok(Writer { g: GraphBuilder::new(Weights::new(Arc::new(weights))), dtype, convs: 0 })
    }

    fn apply(&mut self, op: impl Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        self.g.apply(op, inputs)
    }

    fn reshape(&mut self, x: ValueId, dims: &[usize]) -> Result<ValueId, GraphError> {
        self.apply(Reshape { shape: fixed(dims) }, &[x])
    }

    fn dims(&self, x: ValueId) -> Result<Vec<usize>, GraphError> {
        let shape = &self.g.ty(x)?.shape;
        Ok(shape.iter().map(|(_, d)| d.as_constant().unwrap_or(0)).collect())
    }

    /// `x` `[N, C, H, W]` or `[N, C, L]` to `[N, O, ...]`: im2col, product, bias, function.
    fn conv(&mut self, x: ValueId, conv: Conv) -> Result<ValueId, GraphError> {
        let number = self.convs;
        self.convs += 1;
        let image = self.dims(x)?;
        let [n, c] = [image[0], image[1]];
        let two = image.len() == 4;
        let per_group = c / conv.groups;
        let width = per_group * conv.kernel[0] * conv.kernel[1];
        let groups = conv.groups;
        let single: Vec<usize> = [&[n * groups, per_group], &image[2..]].concat();
        let x = if groups > 1 { self.reshape(x, &single)? } else { x };
        let pad = if two { [conv.pad; 4] } else { [conv.pad, conv.pad, 0, 0] };
        let dtype = self.dtype;
        let im2col = Im2col { kernel: conv.kernel, stride: conv.stride, pad, dilation: [1, 1], dtype };
        let patches = self.apply(im2col, &[x])?;
        let places = self.dims(patches)?;
        let positions = &places[1..places.len() - 1];
        let all: usize = positions.iter().product();
        let shape = [conv.outputs, per_group, conv.kernel[0], conv.kernel[1]];
        let kernel = self.g.weight(&format!("kernel{number}"), &shape)?;
        let product = MatMul { transpose_b: true };
        let y = if groups == 1 {
            let kernel = self.reshape(kernel, &[conv.outputs, width])?;
            let patches = self.reshape(patches, &[n * all, width])?;
            let y = self.apply(product, &[kernel, patches])?; // [O, N H' W']
            let y = self.reshape(y, &[conv.outputs, n, all])?;
            self.apply(Transpose { perm: vec![1, 0, 2] }, &[y])?
        } else {
            let kernel = self.reshape(kernel, &[groups, conv.outputs / groups, width])?;
            let patches = self.reshape(patches, &[n, groups, all, width])?;
            self.apply(product, &[kernel, patches])? // [N, G, O/G, H' W']
        };
        let out: Vec<usize> = [&[n, conv.outputs], positions].concat();
        let mut y = self.reshape(y, &out)?;
        if conv.bias {
            let mut along = vec![1; out.len() - 1];
            along[0] = conv.outputs;
            let bias = self.g.weight(&format!("bias{number}"), &along)?;
            y = self.apply(Binary { kind: BinaryKind::Add }, &[y, bias])?;
        }
        match conv.function {
            Some(kind) => self.apply(Unary { kind }, &[y]),
            None => Ok(y),
        }
    }
}

fn build(
    half: bool,
    image: &[usize],
    convs: &[Conv],
    projection: Option<[usize; 2]>,
) -> Result<Built, GraphError> {
    let mut w = Writer::new(half, image.get(1).copied().unwrap_or(1), convs, projection)?;
    let mut x = w.g.input("x", ValueType::f32(fixed(image)));
    for &conv in convs {
        x = w.conv(x, conv)?;
    }
    // To rows: what follows in every one of these networks.
    let dims = w.dims(x)?;
    let y = match (dims.as_slice(), projection) {
        (&[n, c, t, f], Some(shape)) => {
            let y = w.apply(Transpose { perm: vec![0, 2, 1, 3] }, &[x])?; // [N, T, C, F]
            let y = w.reshape(y, &[n, t, c * f])?;
            let out = w.g.weight("out", &shape)?;
            w.apply(Linear { activation: Activation::None, bias: false, residual: None }, &[y, out])?
        }
        (&[n, c, h, b], None) => {
            let y = w.reshape(x, &[n, c, h * b])?;
            w.apply(Transpose { perm: vec![0, 2, 1] }, &[y])?
        }
        (&[_, _, _], None) => w.apply(Transpose { perm: vec![0, 2, 1] }, &[x])?,
        _ => {
            let source = OpError::Kernel { op: "bench", what: format!("{dims:?} is no image") };
            return Err(GraphError::Op { path: "bench".into(), source });
        }
    };
    w.g.output("y", y);
    Ok(Built { graph: w.g.finish()?, input: tensor(&Input::f32(image), 7)? })
}

/// FastConformer: a 3 x 3 of stride 2, then twice depthwise 3 x 3 of stride 2 and pointwise, then the projection.
fn subsampling(half: bool) -> Result<Built, GraphError> {
    let c = 256;
    let relu = Some(UnaryKind::Relu);
    let first = Conv { outputs: c, stride: [2, 2], function: relu, ..PLAIN };
    let depthwise = Conv { groups: c, function: None, ..first };
    let pointwise = Conv { kernel: [1, 1], stride: [1, 1], pad: 0, ..first };
    let convs = [first, depthwise, pointwise, depthwise, pointwise];
    build(half, &[1, 1, 1000, 80], &convs, Some([512, c * 10]))
}

/// Whisper: two convolutions in time, the second of stride 2; its GELU is left out of both forms.
fn whisper_stem(half: bool) -> Result<Built, GraphError> {
    let first = Conv { outputs: 384, kernel: [3, 1], ..PLAIN };
    build(half, &[1, 80, 3000], &[first, Conv { stride: [2, 1], ..first }], None)
}

/// CLIP: patches of 16 x 16 that do not overlap.
fn clip_patch(half: bool) -> Result<Built, GraphError> {
    let patch = Conv { outputs: 768, kernel: [16, 16], stride: [16, 16], pad: 0, bias: false, ..PLAIN };
    build(half, &[1, 3, 224, 224], &[patch], None)
}

/// Conformer: every channel by itself, nine frames wide.
fn conformer_depthwise(half: bool) -> Result<Built, GraphError> {
    let conv =
        Conv { outputs: 512, groups: 512, kernel: [9, 1], pad: 4, function: Some(UnaryKind::Silu), ..PLAIN };
    build(half, &[1, 512, 1000], &[conv], None)
}

/// A 3 x 3 of a residual network.
fn resnet(half: bool) -> Result<Built, GraphError> {
    let conv = Conv { outputs: 64, function: Some(UnaryKind::Relu), ..PLAIN };
    build(half, &[1, 64, 56, 56], &[conv], None)
}
