//! NVIDIA Parakeet: a FastConformer encoder with a CTC head, a transducer (RNN-T or TDT), or both.
//!
//! Graves et al., "Connectionist Temporal Classification" (2006); Graves, "Sequence Transduction with Recurrent Neural
//! Networks" (2012); Xu et al., "Efficient Sequence Transduction by Jointly Predicting Tokens and Durations" (2023).
//! Axes: B batch, T mel frames, F mel bins, T' encoder frames, D model width, P predictor width, J joint width, V
//! vocabulary.
//!
//! What a model can do is decided by the tensors and keys that its file has, never by its label.

mod complete;
mod config;
mod streaming;

pub use config::{ParakeetConfig, Preprocessor, PromptConfig, TransducerConfig};
pub use streaming::StreamingConfig;

use crate::conformer::{B, Cached, Conformer, T, encoder_inputs};
use crate::error::ModelError;
use crate::layers::{linear, linear_then};
use crate::source::GgufWeights;
use conure_gguf::GgufFile;
use conure_graph::{Graph, GraphBuilder, GraphError, Passes, Program, ValueId, Weights};
use conure_ops::{
    Activation, AttentionMask, Binary, BinaryKind, Broadcast, Concat, Embedding, Linear, LogSoftmax,
    LstmCell, RelPosEncoding, Scale, Slice, Unary, ValueType,
};
use conure_tensor::{Axis, DType, Dim, Shape};
use std::sync::{Arc, Mutex, PoisonError};

/// What attention is to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// What the model was trained with.
    #[default]
    Model,
    /// So many frames to each side.
    Local(usize),
}

/// What an encoder of chunks keeps and drops, and the program.
type ChunkProgram = ((usize, usize), Arc<Program>);

/// A Parakeet model: its configuration, and its graphs as programs that any number of sessions run.
#[derive(Debug)]
pub struct Parakeet {
    config: ParakeetConfig,
    weights: Arc<Weights>,
    passes: Passes,
    encoders: Mutex<Vec<(Attention, Arc<Program>)>>,
    /// Encoders of chunks, by the frames that they keep and those that they drop.
    chunks: Mutex<Vec<ChunkProgram>>,
    predictor: Option<Arc<Program>>,
    tabulated: Option<TabulatedPredictor>,
    joint: Option<Arc<Program>>,
}

/// The predictor in two: what depends on the token alone, which may be kept, and the step from there.
#[derive(Clone, Debug)]
pub struct TabulatedPredictor {
    /// Input `token` `[B]` i32; output `predictor.gates` `[B, 4P]`: the token's part of the first layer's gates.
    pub gates: Arc<Program>,
    /// As [`Parakeet::predictor`], with the input `predictor.gates` in place of `token`.
    pub step: Arc<Program>,
}

impl Parakeet {
    /// The model in `file`, which messages call `origin`. Builds every graph, so that a tensor that is missing or of
    /// another shape is found now.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name.
    pub fn load(file: Arc<GgufFile>, origin: &str) -> Result<Parakeet, ModelError> {
        Parakeet::load_with(file, origin, &Passes::default())
    }

    /// As [`Parakeet::load`], with these rewrites of its graphs.
    ///
    /// # Errors
    /// As [`Parakeet::load`].
    pub fn load_with(file: Arc<GgufFile>, origin: &str, passes: &Passes) -> Result<Parakeet, ModelError> {
        let config = ParakeetConfig::read(&file, origin)?;
        if config.transducer.is_none() && config.ctc_head.is_none() {
            return Err(ModelError::NoSuchPart {
                origin: origin.to_owned(),
                what: "decoder".into(),
                known: "neither joint.joint_net.2.weight nor a CTC head decoder_layers.0.weight".into(),
            });
        }
        complete::check(&config, &file, origin)?;
        let weights = Weights::new(Arc::new(GgufWeights::new(file, origin)));
        let program = |graph: Graph| Program::with_passes(graph, passes);
        let encoder = program(encoder(&config, &weights, config.mask)?)?;
        let transducer = config.transducer.as_ref();
        let whole = transducer.map(|t| program(predictor(&config, t, &weights, false)?)).transpose()?;
        let tabulated = |t| -> Result<_, GraphError> {
            let gates = program(token_gates(&config, t, &weights)?)?;
            Ok(TabulatedPredictor { gates, step: program(predictor(&config, t, &weights, true)?)? })
        };
        let tabulated = transducer.filter(|t| t.pred_layers > 0).map(tabulated).transpose()?;
        let joint = transducer.map(|t| program(joint(&config, t, &weights)?)).transpose()?;
        let encoders = Mutex::new(vec![(Attention::Model, encoder)]);
        Ok(Parakeet {
            config,
            weights,
            passes: passes.clone(),
            encoders,
            chunks: Mutex::default(),
            predictor: whole,
            tabulated,
            joint,
        })
    }

    /// Its sizes and kinds.
    pub fn config(&self) -> &ParakeetConfig {
        &self.config
    }

    /// The encoder and its heads.
    ///
    /// Inputs: `log_mel` `[B, T, F]` f32, `lengths` `[B]` i32 (valid mel frames), and, if the model takes a prompt,
    /// `prompt` `[B, num_prompts]` f32, one-hot. Outputs: `encoder` `[B, T', D]`, `encoder_lengths` `[B]` i32. To be
    /// captured: `subsampling`, `encoder.layers.N` and its parts, `prompted` `[B, T', D]` (prompt models), `ctc.logits`
    /// and `ctc.log_probs` `[B, T', V+1]`, `joint.enc` `[B, T', J]`.
    ///
    /// # Errors
    /// If a graph with that attention cannot be built.
    pub fn encoder(&self, attention: Attention) -> Result<Arc<Program>, ModelError> {
        let mut encoders = self.encoders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, program)) = encoders.iter().find(|(a, _)| *a == attention) {
            return Ok(program.clone());
        }
        let mask = match attention {
            Attention::Model => self.config.mask,
            Attention::Local(window) => AttentionMask::Banded { left: window, right: window },
        };
        let program = Program::with_passes(encoder(&self.config, &self.weights, mask)?, &self.passes)?;
        encoders.push((attention, program.clone()));
        Ok(program)
    }

    /// How the model hears a stream with `right` frames of look-ahead; `None`: those that it was trained with first.
    ///
    /// # Errors
    /// [`ModelError::NotStreaming`] with what of the model looks ahead, [`ModelError::LookAhead`] with what it allows.
    pub fn streaming(&self, right: Option<usize>) -> Result<StreamingConfig, ModelError> {
        self.config.streaming(right, self.weights.origin())
    }

    /// The encoder on one chunk of a stream, the first or a later one.
    ///
    /// Inputs: `log_mel` `[1, T, F]` f32: the mel frames of the chunk, in a later one after [`StreamingConfig::mel_before`]
    /// frames before them; `lengths` `[1]` i32: T; `frames` `[1]` i32: encoder frames of the chunk; `cached` `[1]` i32:
    /// encoder frames before the chunk, at most [`StreamingConfig::left`]; `prompt` as for the encoder. Outputs and captures
    /// as those of [`Parakeet::encoder`], without `encoder_lengths`. What the next chunk needs is kept in states, which have
    /// the same names in the programs of first and later chunks.
    ///
    /// # Errors
    /// If the graph cannot be built.
    pub fn chunk_encoder(
        &self,
        streaming: &StreamingConfig,
        first: bool,
    ) -> Result<Arc<Program>, ModelError> {
        let drop = if first { 0 } else { streaming.drop };
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, program)) = chunks.iter().find(|(key, _)| *key == (streaming.left, drop)) {
            return Ok(program.clone());
        }
        let graph = chunk_encoder(&self.config, &self.weights, streaming.left, drop)?;
        let program = Program::with_passes(graph, &self.passes)?;
        chunks.push(((streaming.left, drop), program.clone()));
        Ok(program)
    }

    /// The predictor, one step: inputs `token` `[B]` i32 (-1 before the first token), `h0`, `c0`, `h1`, ... `[B, P]`;
    /// outputs `h0_next`, `c0_next`, ..., and `joint.pred` `[B, J]`. To be captured: `predictor` `[B, P]`.
    ///
    /// # Errors
    /// [`ModelError::NoSuchPart`] if the model has no transducer.
    pub fn predictor(&self) -> Result<Arc<Program>, ModelError> {
        self.predictor.clone().ok_or_else(|| self.missing("transducer"))
    }

    /// The predictor as a CPU runs it: a step of one row takes as long as its weights take to be fetched, and the first layer's input
    /// half are as many as its other half. Values are those of [`Parakeet::predictor`]. `None` if it has no layers.
    ///
    /// # Errors
    /// [`ModelError::NoSuchPart`] if the model has no transducer.
    pub fn tabulated_predictor(&self) -> Result<Option<TabulatedPredictor>, ModelError> {
        self.predictor()?;
        Ok(self.tabulated.clone())
    }

    /// The joint: inputs `joint.enc` and `joint.pred` `[B, J]`; output `joint.logits` `[B, V+1+durations]`, raw.
    ///
    /// # Errors
    /// [`ModelError::NoSuchPart`] if the model has no transducer.
    pub fn joint(&self) -> Result<Arc<Program>, ModelError> {
        self.joint.clone().ok_or_else(|| self.missing("transducer"))
    }

    fn missing(&self, what: &str) -> ModelError {
        let known = if self.config.ctc_head.is_some() { "a CTC head" } else { "a transducer" };
        ModelError::NoSuchPart {
            origin: self.weights.origin().to_owned(),
            what: what.into(),
            known: known.into(),
        }
    }
}

/// The encoder's blocks with this mask.
fn conformer(config: &ParakeetConfig, mask: AttentionMask) -> Conformer {
    Conformer {
        mels: config.feat_in,
        channels: config.subsampling_channels,
        d_model: config.d_model,
        heads: config.n_heads,
        ff_dim: config.ff_dim,
        conv_kernel: config.conv_kernel,
        conv_layer_norm: config.conv_layer_norm,
        causal_downsampling: config.causal_downsampling,
        conv_causal: config.conv_causal,
        mask,
    }
}

/// log-mel → subsampling → layers → (prompt) → heads.
fn encoder(
    config: &ParakeetConfig,
    weights: &Arc<Weights>,
    mask: AttentionMask,
) -> Result<Graph, GraphError> {
    let conformer = conformer(config, mask);
    let mut g = GraphBuilder::new(weights.clone());
    let (log_mel, lengths) = encoder_inputs(&mut g, config.feat_in, Dim::from(B));
    let (x, lengths) = conformer.subsampling(&mut g, log_mel, lengths)?; // [B, T', D]
    let x = layers(&mut g, config, &conformer, x, lengths, None)?;
    g.output("encoder", x);
    g.output("encoder_lengths", lengths);
    heads(&mut g, config, x)?;
    // As in a batch, what is past the lengths is not looked at.
    g.may_pad(T);
    g.finish()
}

/// The encoder on one chunk of a stream: the frames before it are states. Of the subsampled frames the first `drop` belong to
/// the mel frames of the chunk before, which are there for the convolutions to see.
fn chunk_encoder(
    config: &ParakeetConfig,
    weights: &Arc<Weights>,
    left: usize,
    drop: usize,
) -> Result<Graph, GraphError> {
    let conformer = conformer(config, config.mask);
    let mut g = GraphBuilder::new(weights.clone());
    let (log_mel, lengths) = encoder_inputs(&mut g, config.feat_in, Dim::from(1));
    let count = || ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(1))]));
    let frames = g.input("frames", count());
    let cached = Cached { frames: left, valid: g.input("cached", count()) };
    let (x, _) = conformer.subsampling(&mut g, log_mel, lengths)?; // [1, drop + T', D]
    let end = g.ty(x)?.shape.get(1).cloned().unwrap_or(Dim::from(0));
    let x = if drop == 0 { x } else { g.apply(Slice { axis: 1, start: drop, end }, &[x])? };
    let x = layers(&mut g, config, &conformer, x, frames, Some(cached))?;
    g.output("encoder", x);
    heads(&mut g, config, x)?;
    g.finish()
}

/// The subsampled frames `x` `[B, T', D]` through all layers.
fn layers(
    g: &mut GraphBuilder,
    config: &ParakeetConfig,
    conformer: &Conformer,
    mut x: ValueId,
    lengths: ValueId,
    cached: Option<Cached>,
) -> Result<ValueId, GraphError> {
    let d = config.d_model;
    g.name(x, "subsampling");
    if config.xscaling {
        x = g.apply(Scale { factor: (d as f32).sqrt() }, &[x])?;
    }
    let window = match conformer.mask {
        AttentionMask::Banded { left, .. } => Some(left),
        _ => None,
    };
    let context = cached.map_or(0, |c| c.frames);
    let positions = g.apply(RelPosEncoding { d_model: d, window, context }, &[x])?; // [P, D]
    for layer in 0..config.n_layers {
        let path = format!("encoder.layers.{layer}");
        x = g.scoped(&path, |g| conformer.layer(g, x, positions, lengths, cached))?;
        g.name(x, &path);
    }
    Ok(x)
}

/// The prompt, if the model takes one, and what the decoders read; all to be captured.
fn heads(g: &mut GraphBuilder, config: &ParakeetConfig, mut x: ValueId) -> Result<(), GraphError> {
    let d = config.d_model;
    if let Some(prompt) = &config.prompt {
        x = prompted(g, x, d, prompt.num_prompts)?;
        g.name(x, "prompted");
    }
    if let Some(head) = config.ctc_head {
        let logits = linear(g, head, x, [config.vocab_size + 1, d])?; // [B, T', V+1]
        g.name(logits, "ctc.logits");
        let log_probs = g.apply(LogSoftmax, &[logits])?;
        g.name(log_probs, "ctc.log_probs");
    }
    if let Some(t) = &config.transducer {
        let projected = g.scoped("joint", |g| linear(g, "enc", x, [t.joint_hidden, d]))?; // [B, T', J]
        g.name(projected, "joint.enc");
    }
    Ok(())
}

/// The language prompt: `y = W2 relu(W0 [x; onehot] + b0) + b2`, in place of `x`.
fn prompted(g: &mut GraphBuilder, x: ValueId, d: usize, prompts: usize) -> Result<ValueId, GraphError> {
    let batch = g.ty(x)?.shape.get(0).cloned().unwrap_or(Dim::from(B));
    let shape = Shape::new([(Axis::B, batch), (Axis::N, Dim::from(prompts))]);
    let onehot = g.input("prompt", ValueType::f32(shape));
    let onehot = g.apply(Broadcast, &[onehot, x])?; // [B, T', num_prompts]
    let joined = g.apply(Concat { axis: 2 }, &[x, onehot])?; // [B, T', D + num_prompts]
    g.scoped("prompt_kernel", |g| {
        let hidden = linear_then(g, "0", joined, [2 * d, d + prompts], Activation::Relu, None)?;
        linear(g, "2", hidden, [d, 2 * d])
    })
}

/// Rows of a batch, of width `d`.
fn rows(d: usize) -> ValueType {
    ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(d))]))
}

/// The embedding of the input `token`, `[B, P]`.
fn embedded(
    g: &mut GraphBuilder,
    config: &ParakeetConfig,
    t: &TransducerConfig,
) -> Result<ValueId, GraphError> {
    let token = g.input("token", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])));
    g.scoped("decoder.prediction.embed", |g| {
        let table = g.weight("weight", &[config.vocab_size + 1, t.pred_hidden])?;
        g.apply(Embedding, &[token, table])
    })
}

/// Embedding → the input's part of the first LSTM layer's gates.
fn token_gates(
    config: &ParakeetConfig,
    t: &TransducerConfig,
    weights: &Arc<Weights>,
) -> Result<Graph, GraphError> {
    let p = t.pred_hidden;
    let mut g = GraphBuilder::new(weights.clone());
    let x = embedded(&mut g, config, t)?;
    let gates = g.scoped("decoder.prediction.dec_rnn.lstm", |g| {
        let (w_ih, b_ih) = (g.weight("weight_ih_l0", &[4 * p, p])?, g.weight("bias_ih_l0", &[4 * p])?);
        g.apply(Linear { activation: Activation::None, bias: true, residual: None }, &[x, w_ih, b_ih])
    })?;
    g.output("predictor.gates", gates);
    g.finish()
}

/// Embedding → LSTM layers → projection to the joint, one token; if `projected`, from the token's part of the first layer's gates
/// on.
fn predictor(
    config: &ParakeetConfig,
    t: &TransducerConfig,
    weights: &Arc<Weights>,
    projected: bool,
) -> Result<Graph, GraphError> {
    let p = t.pred_hidden;
    let mut g = GraphBuilder::new(weights.clone());
    let mut x =
        if projected { g.input("predictor.gates", rows(4 * p)) } else { embedded(&mut g, config, t)? };
    for layer in 0..t.pred_layers {
        let h = g.input(&format!("h{layer}"), rows(p));
        let c = g.input(&format!("c{layer}"), rows(p));
        let next = g.scoped("decoder.prediction.dec_rnn.lstm", |g| {
            let w_hh = g.weight(&format!("weight_hh_l{layer}"), &[4 * p, p])?;
            let b_hh = g.weight(&format!("bias_hh_l{layer}"), &[4 * p])?;
            if projected && layer == 0 {
                return g.apply_all(LstmCell { projected }, &[x, h, c, w_hh, b_hh]);
            }
            let w_ih = g.weight(&format!("weight_ih_l{layer}"), &[4 * p, p])?;
            let b_ih = g.weight(&format!("bias_ih_l{layer}"), &[4 * p])?;
            g.apply_all(LstmCell::default(), &[x, h, c, w_ih, w_hh, b_ih, b_hh])
        })?;
        let [h, c] = next.as_slice() else {
            return Err(GraphError::Build { what: "lstm_cell has two outputs".into() });
        };
        g.output(&format!("h{layer}_next"), *h);
        g.output(&format!("c{layer}_next"), *c);
        x = *h;
    }
    g.name(x, "predictor");
    let projected = g.scoped("joint", |g| linear(g, "pred", x, [t.joint_hidden, p]))?; // [B, J]
    g.output("joint.pred", projected);
    g.finish()
}

/// `W activation(enc + pred) + b`.
fn joint(config: &ParakeetConfig, t: &TransducerConfig, weights: &Arc<Weights>) -> Result<Graph, GraphError> {
    let j = t.joint_hidden;
    let mut g = GraphBuilder::new(weights.clone());
    let enc = g.input("joint.enc", rows(j));
    let pred = g.input("joint.pred", rows(j));
    let x = g.apply(Binary { kind: BinaryKind::Add }, &[enc, pred])?; // [B, J]
    let x = g.apply(Unary { kind: t.activation }, &[x])?;
    let outputs = config.vocab_size + 1 + t.durations.len();
    let logits = g.scoped("joint.joint_net", |g| linear(g, "2", x, [outputs, j]))?; // [B, V+1+durations]
    g.output("joint.logits", logits);
    g.finish()
}
