//! Silero VAD: how likely it is that somebody speaks, for every 32 ms of sound.
//!
//! Silero Team, "Silero VAD" (2024), version 5 and 6, 16 kHz. A short-time Fourier transform written as a convolution,
//! four convolutions, one LSTM cell. Axes: B chunks, T frames of a chunk, C channels.
//!
//! A chunk is 512 samples after the 64 before them. Everything up to the LSTM sees one chunk only, so that any number of chunks
//! is a batch; the LSTM goes from chunk to chunk.

use crate::error::ModelError;
use crate::keys::Keys;
use crate::layers::linear;
use crate::source::GgufWeights;
use conure_gguf::GgufFile;
use conure_graph::{Graph, GraphBuilder, GraphError, Passes, Program, ValueId, Weights};
use conure_ops::{
    Activation, Binary, BinaryKind, Conv2d, LstmCell, Reshape, Slice, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, Dim, Shape, Symbol};
use std::sync::Arc;

const B: Symbol = Symbol::new("B");

/// The value of `general.architecture`.
pub const ARCHITECTURE: &str = "silero_vad";

/// Sizes of a Silero model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SileroConfig {
    /// Samples per second.
    pub sample_rate: u32,
    /// Samples that a probability is about.
    pub chunk: usize,
    /// Samples before them that are seen too.
    pub context: usize,
    /// Samples at the end that are seen twice, mirrored.
    pub reflect: usize,
    /// Length of the Fourier transform, and samples from one to the next.
    pub n_fft: usize,
    /// Samples from one transform to the next.
    pub hop: usize,
    /// Channels after each convolution.
    pub channels: Vec<usize>,
    /// Steps of each convolution.
    pub strides: Vec<usize>,
    /// Taps of each convolution.
    pub kernel: usize,
    /// Width of the LSTM.
    pub hidden: usize,
}

impl SileroConfig {
    fn read(file: &GgufFile, origin: &str) -> Result<SileroConfig, ModelError> {
        let meta = file.meta();
        let architecture = meta.str("general.architecture")?;
        if architecture != ARCHITECTURE {
            let (origin, found) = (origin.to_owned(), architecture.to_owned());
            return Err(ModelError::Architecture { origin, found, known: ARCHITECTURE });
        }
        let keys = Keys { meta, origin };
        let rates = meta.usize_array("silero_vad.sample_rates")?;
        if !rates.contains(&16_000) {
            return Err(keys.wrong("silero_vad.sample_rates", &format!("{rates:?}"), "16000 among them"));
        }
        let config = SileroConfig {
            sample_rate: 16_000,
            chunk: keys.size("silero_vad.16000.chunk_samples", 1..=1 << 16)?,
            context: keys.size("silero_vad.16000.context_samples", 0..=1 << 16)?,
            reflect: keys.size("silero_vad.16000.stft.right_reflect_pad", 0..=1 << 16)?,
            n_fft: keys.size("silero_vad.16000.stft.n_fft", 2..=1 << 16)?,
            hop: keys.size("silero_vad.16000.stft.hop", 1..=1 << 16)?,
            channels: meta.usize_array("silero_vad.encoder.channels")?,
            strides: meta.usize_array("silero_vad.encoder.strides")?,
            kernel: keys.size("silero_vad.encoder.kernel", 1..=1 << 8)?,
            hidden: keys.size("silero_vad.lstm.hidden", 1..=1 << 16)?,
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), ModelError> {
        let seen = self.context + self.chunk + self.reflect;
        keys.check(
            "silero_vad.16000.stft.n_fft",
            self.n_fft,
            "at most what a chunk sees",
            self.n_fft <= seen,
        )?;
        let mirrored = self.reflect < self.context + self.chunk;
        keys.check("silero_vad.16000.stft.right_reflect_pad", self.reflect, "less than a chunk", mirrored)?;
        let layers = self.channels.len();
        let same = (1..=64).contains(&layers) && layers == self.strides.len();
        keys.check("silero_vad.encoder.channels", layers, "as many as encoder.strides, 1 to 64", same)?;
        let sizes = self.channels.iter().chain(&self.strides).all(|n| (1..=1 << 16).contains(n));
        keys.check("silero_vad.encoder.channels", layers, "channels and strides of 1 to 65536", sizes)?;
        let width = self.channels.last().copied().unwrap_or(0);
        keys.check(
            "silero_vad.encoder.channels",
            width,
            "in the last place the LSTM's width",
            width == self.hidden,
        )?;
        let left = self.strides.iter().fold(self.frames(), |t, s| {
            (t + 2 * (self.kernel / 2) + 1).saturating_sub(self.kernel + 1) / s + 1
        });
        keys.check("silero_vad.encoder.strides", left, "one frame left of a chunk", left == 1)
    }

    /// Transforms of a chunk.
    fn frames(&self) -> usize {
        (self.samples() - self.n_fft) / self.hop + 1
    }

    /// Samples that the encoder gets for a chunk: context, chunk, and its end mirrored.
    pub fn samples(&self) -> usize {
        self.context + self.chunk + self.reflect
    }
}

/// A Silero model: its sizes, and its graphs as programs that any number of sessions run.
#[derive(Debug)]
pub struct Silero {
    config: SileroConfig,
    encoder: Arc<Program>,
    step: Arc<Program>,
}

impl Silero {
    /// The model in `file`, which messages call `origin`.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name.
    pub fn load(file: Arc<GgufFile>, origin: &str, passes: &Passes) -> Result<Silero, ModelError> {
        let config = SileroConfig::read(&file, origin)?;
        let weights = Weights::new(Arc::new(GgufWeights::new(file, origin)));
        let encoder = Program::with_passes(encoder(&config, &weights)?, passes)?;
        let step = Program::with_passes(step(&config, &weights)?, passes)?;
        Ok(Silero { config, encoder, step })
    }

    /// Its sizes.
    pub fn config(&self) -> &SileroConfig {
        &self.config
    }

    /// What sees one chunk only. Input: `chunks` `[B, S, 1, 1]` f32, S as [`SileroConfig::samples`] says. Output:
    /// `encoded` `[B, H]`.
    pub fn encoder(&self) -> &Arc<Program> {
        &self.encoder
    }

    /// One chunk more. Inputs: `encoded`, `h` and `c` `[B, H]`. Outputs: `h_next`, `c_next` `[B, H]`, `probability` `[B, 1]`.
    pub fn step(&self) -> &Arc<Program> {
        &self.step
    }
}

/// Magnitudes of the transforms → convolutions with ReLU → the one frame that is left.
fn encoder(config: &SileroConfig, weights: &Arc<Weights>) -> Result<Graph, GraphError> {
    let mut g = GraphBuilder::new(weights.clone());
    let shape = [(Axis::B, Dim::from(B)), (Axis::T, Dim::from(config.samples()))];
    let shape = Shape::new(shape.into_iter().chain([(Axis::F, Dim::from(1)), (Axis::C, Dim::from(1))]));
    let chunks = g.input("chunks", ValueType::f32(shape)); // [B, S, 1, 1]
    let x = g.scoped("vad16k", |g| {
        let x = magnitudes(g, config, chunks)?; // [B, T, 1, n_fft / 2 + 1]
        convolutions(g, config, x) // [B, 1, 1, H]
    })?;
    let flat = Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(config.hidden))]);
    let x = g.apply(Reshape { shape: flat }, &[x])?;
    g.output("encoded", x);
    g.finish()
}

/// The transform is a convolution with cosines in the first half of the channels and sines in the second.
fn magnitudes(g: &mut GraphBuilder, config: &SileroConfig, x: ValueId) -> Result<ValueId, GraphError> {
    let bins = config.n_fft / 2 + 1;
    let basis = g.weight("stft.forward_basis_buffer", &[2 * bins, 1, config.n_fft, 1])?;
    let conv = plain_conv(config.hop, 0, false, Activation::None);
    let x = g.apply(conv, &[x, basis])?; // [B, T, 1, 2 bins]
    let squares = g.apply(Binary { kind: BinaryKind::Mul }, &[x, x])?;
    let part = |start: usize| Slice { axis: 3, start, end: Dim::from(start + bins) };
    let (real, imaginary) = (g.apply(part(0), &[squares])?, g.apply(part(bins), &[squares])?);
    let power = g.apply(Binary { kind: BinaryKind::Add }, &[real, imaginary])?;
    let x = g.apply(Unary { kind: UnaryKind::Sqrt }, &[power])?;
    Ok(g.name(x, "magnitudes"))
}

fn convolutions(g: &mut GraphBuilder, config: &SileroConfig, mut x: ValueId) -> Result<ValueId, GraphError> {
    let mut width = config.n_fft / 2 + 1;
    for (layer, (&channels, &stride)) in config.channels.iter().zip(&config.strides).enumerate() {
        x = g.scoped(&format!("encoder.{layer}.reparam_conv"), |g| {
            let weight = g.weight("weight", &[channels, width, config.kernel, 1])?;
            let bias = g.weight("bias", &[channels])?;
            g.apply(plain_conv(stride, config.kernel / 2, true, Activation::Relu), &[x, weight, bias])
        })?;
        width = channels;
    }
    Ok(x)
}

/// A convolution over time.
fn plain_conv(stride: usize, pad: usize, bias: bool, activation: Activation) -> Conv2d {
    Conv2d { stride: [stride, 1], pad: [pad, pad, 0, 0], dilation: [1, 1], groups: 1, activation, bias }
}

/// LSTM → ReLU → projection to one number → sigmoid.
fn step(config: &SileroConfig, weights: &Arc<Weights>) -> Result<Graph, GraphError> {
    let h = config.hidden;
    let mut g = GraphBuilder::new(weights.clone());
    let row = || ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(h))]));
    let inputs = ["encoded", "h", "c"].map(|name| g.input(name, row()));
    let next = g.scoped("vad16k.decoder.rnn", |g| {
        let [x, hidden, cell] = inputs;
        let (w_ih, w_hh) = (g.weight("weight_ih", &[4 * h, h])?, g.weight("weight_hh", &[4 * h, h])?);
        let (b_ih, b_hh) = (g.weight("bias_ih", &[4 * h])?, g.weight("bias_hh", &[4 * h])?);
        g.apply_all(LstmCell::default(), &[x, hidden, cell, w_ih, w_hh, b_ih, b_hh])
    })?;
    let [hidden, cell] = next.as_slice() else {
        return Err(GraphError::Build { what: "lstm_cell has two outputs".into() });
    };
    let x = g.apply(Unary { kind: UnaryKind::Relu }, &[*hidden])?;
    let x = g.scoped("vad16k.decoder.decoder", |g| linear(g, "2", x, [1, h]))?; // [B, 1]
    let probability = g.apply(Unary { kind: UnaryKind::Sigmoid }, &[x])?;
    g.output("h_next", *hidden);
    g.output("c_next", *cell);
    g.output("probability", probability);
    g.finish()
}
