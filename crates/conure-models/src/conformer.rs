//! FastConformer: depthwise-striding subsampling by eight, and Conformer layers with relative positions.
//!
//! Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition" (2020); Rekesh et al., "Fast
//! Conformer with Linearly Scalable Attention for Efficient Speech Recognition" (2023). Axes: B batch, T mel frames,
//! F mel bins, C channels, T' encoder frames, D model width.

use crate::layers::{layer_norm, linear, linear_then};
use conure_graph::{GraphBuilder, GraphError, TileTime, ValueId};
use conure_ops::{
    Activation, AttentionMask, BatchNorm, Binary, BinaryKind, Concat, Conv2d, ConvLength, DepthwiseConv1d,
    Glu, LayerNorm, MaskTime, RelPosAttention, Reshape, Transpose, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, DType, Dim, Shape, Symbol};

/// Frames in time.
pub(crate) const T: Symbol = Symbol::new("T");
/// Items of a batch.
pub(crate) const B: Symbol = Symbol::new("B");

/// Mel frames per encoder frame.
pub(crate) const SUBSAMPLING_FACTOR: usize = 8;

/// Encoder frames per tile of the subsampling stack.
const SUBSAMPLING_TILE: usize = 32;

/// Width of an encoder and the kinds of its parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conformer {
    pub mels: usize,
    pub channels: usize,
    pub d_model: usize,
    pub heads: usize,
    pub ff_dim: usize,
    pub conv_kernel: usize,
    pub conv_layer_norm: bool,
    pub causal_downsampling: bool,
    pub conv_causal: bool,
    pub mask: AttentionMask,
}

/// What layers need that see one chunk at a time: the frames before it are states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached {
    /// Frames before the chunk whose keys and values are kept.
    pub frames: usize,
    /// `[B]` i32: how many of them are there.
    pub valid: ValueId,
}

impl Cached {
    /// `rows` `[1, T', ...]` after the `frames` rows before them; those at the end are kept for the next chunk.
    fn extend(g: &mut GraphBuilder, name: &str, frames: usize, rows: ValueId) -> Result<ValueId, GraphError> {
        let shape = &g.ty(rows)?.shape;
        let ty = ValueType::f32(shape.with(0, Axis::B, Dim::from(1)).with(1, Axis::T, Dim::from(frames)));
        let state = g.state(name, ty);
        let before = g.read_state(state)?;
        g.roll(state, rows)?;
        g.apply(Concat { axis: 1 }, &[before, rows])
    }
}

impl Conformer {
    /// Frequency bins left after the three convolutions of stride 2.
    fn bins(&self) -> usize {
        let pad = if self.causal_downsampling { 3 } else { 2 };
        (0..3).fold(self.mels, |f, _| (f + pad).saturating_sub(3) / 2 + 1)
    }

    /// The three convolutions' padding: time before and after, frequency before and after.
    fn subsampling_pad(&self) -> [usize; 4] {
        if self.causal_downsampling { [2, 1, 2, 1] } else { [1, 1, 1, 1] }
    }

    /// Subsampling by eight, tile by tile. `log_mel` `[B, T, F]`, `lengths` `[B]` → `[B, T', D]`, `[B]`.
    pub(crate) fn subsampling(
        &self,
        g: &mut GraphBuilder,
        log_mel: ValueId,
        lengths: ValueId,
    ) -> Result<(ValueId, ValueId), GraphError> {
        let mut body = GraphBuilder::new(g.weights().clone());
        let ty = g.ty(log_mel)?.clone();
        let (x, valid) = (body.input("x", ty), body.input("lengths", g.ty(lengths)?.clone()));
        let y = body.scoped("encoder", |b| b.scoped("pre_encode", |b| self.conv_stack(b, x, valid)))?;
        body.output("y", y);
        // An encoder frame t sees the mel frames 8t-7 ..= 8t+7; with causal padding 8t-14 ..= 8t+1.
        let tile = TileTime {
            body: body.finish()?,
            time: T,
            batch: B,
            factor: SUBSAMPLING_FACTOR,
            halo_before: if self.causal_downsampling { 2 } else { 1 },
            halo_after: 1,
            tile: SUBSAMPLING_TILE,
        };
        let mut out_lengths = lengths;
        for _ in 0..3 {
            out_lengths = self.halve(g, out_lengths)?;
        }
        Ok((g.tile_time(tile, log_mel, lengths)?, out_lengths))
    }

    /// Valid frames after one convolution of stride 2.
    fn halve(&self, g: &mut GraphBuilder, lengths: ValueId) -> Result<ValueId, GraphError> {
        let pad = if self.causal_downsampling { 3 } else { 2 };
        g.apply(ConvLength { kernel: 3, stride: 2, pad }, &[lengths])
    }

    /// The convolutions and the projection: `x` `[B, T, F]` → `[B, T', D]`. Frames past the end are zeroed before every
    /// convolution, so that padding never leaks into a valid frame.
    fn conv_stack(&self, g: &mut GraphBuilder, x: ValueId, lengths: ValueId) -> Result<ValueId, GraphError> {
        let c = self.channels;
        let image = with_axis(g.ty(x)?.shape.clone(), Axis::C, Dim::from(1));
        let x = g.apply(Reshape { shape: image }, &[x])?; // [B, T, F, 1]
        let x = g.apply(MaskTime, &[x, lengths])?;
        let x = self.conv(g, "conv.0", x, 1, Activation::Relu)?; // [B, T/2, F/2, C]
        let lengths = self.halve(g, lengths)?;
        let x = g.apply(MaskTime, &[x, lengths])?;
        let x = self.conv(g, "conv.2", x, c, Activation::None)?; // [B, T/4, F/4, C]
        let lengths = self.halve(g, lengths)?;
        let x = g.apply(MaskTime, &[x, lengths])?;
        let x = linear_then(g, "conv.3", x, [c, c], Activation::Relu, None)?;
        let x = g.apply(MaskTime, &[x, lengths])?;
        let x = self.conv(g, "conv.5", x, c, Activation::None)?; // [B, T', F', C]
        let lengths = self.halve(g, lengths)?;
        let x = g.apply(MaskTime, &[x, lengths])?;
        let x = linear_then(g, "conv.6", x, [c, c], Activation::Relu, None)?;
        let x = g.apply(MaskTime, &[x, lengths])?;

        // The projection's weight counts channels first, bins second.
        let x = g.apply(Transpose { perm: vec![0, 1, 3, 2] }, &[x])?; // [B, T', C, F']
        let shape = &g.ty(x)?.shape;
        let wide = c * self.bins();
        let flat = Shape::new([
            (Axis::B, shape.get(0).cloned().unwrap_or(Dim::from(0))),
            (Axis::T, shape.get(1).cloned().unwrap_or(Dim::from(0))),
            (Axis::C, Dim::from(wide)),
        ]);
        let x = g.apply(Reshape { shape: flat }, &[x])?; // [B, T', C F']
        linear(g, "out", x, [self.d_model, wide]) // [B, T', D]
    }

    /// A 3 x 3 convolution of stride 2: full for one input channel, depthwise otherwise.
    fn conv(
        &self,
        g: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        groups: usize,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        g.scoped(name, |g| {
            let weight = g.weight("weight", &[self.channels, 1, 3, 3])?;
            let bias = g.weight_opt("bias", &[self.channels])?;
            let conv = Conv2d {
                stride: [2, 2],
                pad: self.subsampling_pad(),
                dilation: [1, 1],
                groups,
                activation,
                bias: bias.is_some(),
            };
            let mut inputs = vec![x, weight];
            inputs.extend(bias);
            g.apply(conv, &inputs)
        })
    }

    /// One layer: half a feed-forward, attention, convolution, half a feed-forward, norm; each added to its input.
    /// `x` `[B, T', D]`, `positions` `[P, D]`, `lengths` `[B]` → `[B, T', D]`. With `cached`, x is a chunk of one stream.
    pub(crate) fn layer(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        positions: ValueId,
        lengths: ValueId,
        cached: Option<Cached>,
    ) -> Result<ValueId, GraphError> {
        let d = self.d_model;
        let x = self.feed_forward(g, "feed_forward1", x)?;

        let attended = self.attention(g, x, positions, lengths, cached)?;
        let name = g.qualified("self_attn");
        g.name(attended, &name);
        let x = g.apply(Binary { kind: BinaryKind::Add }, &[x, attended])?;

        let convolved = self.convolution(g, x, lengths, cached)?;
        let name = g.qualified("conv");
        g.name(convolved, &name);
        let x = g.apply(Binary { kind: BinaryKind::Add }, &[x, convolved])?;

        let x = self.feed_forward(g, "feed_forward2", x)?;
        layer_norm(g, "norm_out", x, d)
    }

    /// `x + 1/2 linear2(silu(linear1(norm(x))))`.
    fn feed_forward(&self, g: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let (d, ff) = (self.d_model, self.ff_dim);
        let y = layer_norm(g, &format!("norm_{name}"), x, d)?;
        g.scoped(name, |g| {
            let y = linear_then(g, "linear1", y, [ff, d], Activation::Silu, None)?; // [B, T', ff]
            linear_then(g, "linear2", y, [d, ff], Activation::None, Some((x, 0.5))) // [B, T', D]
        })
    }

    /// Multi-head self-attention with relative positions (Dai et al., "Transformer-XL", 2019).
    fn attention(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        positions: ValueId,
        lengths: ValueId,
        cached: Option<Cached>,
    ) -> Result<ValueId, GraphError> {
        let (d, k) = (self.d_model, self.d_model / self.heads.max(1));
        let x = layer_norm(g, "norm_self_att", x, d)?;
        g.scoped("self_attn", |g| {
            let query = linear(g, "linear_q", x, [d, d])?; // [B, T', H K]
            let mut key = linear(g, "linear_k", x, [d, d])?;
            let mut value = linear(g, "linear_v", x, [d, d])?;
            if let Some(c) = cached {
                key = Cached::extend(g, "keys", c.frames, key)?; // [1, C + T', H K]
                value = Cached::extend(g, "values", c.frames, value)?;
            }
            let position = linear(g, "linear_pos", positions, [d, d])?; // [P, H K]
            let u = g.weight("pos_bias_u", &[self.heads, k])?;
            let v = g.weight("pos_bias_v", &[self.heads, k])?;
            let mut inputs = vec![query, key, value, position, u, v, lengths];
            inputs.extend(cached.map(|c| c.valid));
            // A chunk sees itself and all that is kept: that is the mask that the model was trained with.
            let (mask, context) = cached.map_or((self.mask, 0), |c| (AttentionMask::Full, c.frames));
            let y = g.apply(RelPosAttention { heads: self.heads, mask, context }, &inputs)?;
            linear(g, "linear_out", y, [d, d])
        })
    }

    /// Pointwise, GLU, depthwise in time, norm, SiLU, pointwise.
    fn convolution(
        &self,
        g: &mut GraphBuilder,
        x: ValueId,
        lengths: ValueId,
        cached: Option<Cached>,
    ) -> Result<ValueId, GraphError> {
        let (d, kernel) = (self.d_model, self.conv_kernel);
        let x = layer_norm(g, "norm_conv", x, d)?;
        g.scoped("conv", |g| {
            let x = linear(g, "pointwise_conv1", x, [2 * d, d])?; // [B, T', 2 D]
            let x = g.apply(Glu, &[x])?; // [B, T', D]
            let mut x = g.apply(MaskTime, &[x, lengths])?;
            if cached.is_some() {
                x = Cached::extend(g, "before", kernel - 1, x)?; // [1, kernel - 1 + T', D]
            }
            let x = g.scoped("depthwise_conv", |g| {
                let weight = g.weight("weight", &[d, 1, kernel])?;
                let bias = g.weight_opt("bias", &[d])?;
                let all = if cached.is_some() { 0 } else { kernel - 1 };
                let pad_before = if self.conv_causal { all } else { all / 2 };
                let conv = DepthwiseConv1d {
                    pad_before,
                    pad_after: all - pad_before,
                    bias: bias.is_some(),
                    scale_shift: false,
                    activation: Activation::None,
                };
                let mut inputs = vec![x, weight];
                inputs.extend(bias);
                g.apply(conv, &inputs)
            })?;
            let x = self.conv_norm(g, x)?;
            let x = g.apply(Unary { kind: UnaryKind::Silu }, &[x])?;
            linear(g, "pointwise_conv2", x, [d, d])
        })
    }

    /// Batch norm, or a layer norm that is stored under the same name.
    fn conv_norm(&self, g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
        let d = self.d_model;
        g.scoped("batch_norm", |g| {
            let (gamma, beta) = (g.weight("weight", &[d])?, g.weight("bias", &[d])?);
            if self.conv_layer_norm {
                return g.apply(LayerNorm { eps: 1e-5 }, &[x, gamma, beta]);
            }
            let mean = g.weight("running_mean", &[d])?;
            let variance = g.weight("running_var", &[d])?;
            g.apply(BatchNorm { eps: 1e-5 }, &[x, gamma, beta, mean, variance])
        })
    }
}

/// `shape` with one more axis at its end.
fn with_axis(shape: Shape, axis: Axis, dim: Dim) -> Shape {
    Shape::new(shape.iter().map(|(a, d)| (a, d.clone())).chain([(axis, dim)]))
}

/// The inputs of an encoder: `log_mel` `[B, T, F]` and `lengths` `[B]`, the valid frames of each item.
pub(crate) fn encoder_inputs(g: &mut GraphBuilder, mels: usize, batch: Dim) -> (ValueId, ValueId) {
    let log_mel = Shape::new([(Axis::B, batch.clone()), (Axis::T, Dim::from(T)), (Axis::F, Dim::from(mels))]);
    let lengths = ValueType::new(DType::I32, Shape::new([(Axis::B, batch)]));
    (g.input("log_mel", ValueType::f32(log_mel)), g.input("lengths", lengths))
}
