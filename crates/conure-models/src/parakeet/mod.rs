//! NVIDIA Parakeet: a FastConformer encoder with a CTC head, a transducer (RNN-T or TDT), or both.
//!
//! Graves et al., "Connectionist Temporal Classification" (2006); Graves, "Sequence Transduction with Recurrent Neural
//! Networks" (2012); Xu et al., "Efficient Sequence Transduction by Jointly Predicting Tokens and Durations" (2023).
//! Axes: B batch, T mel frames, F mel bins, T' encoder frames, D model width, P predictor width, J joint width, V
//! vocabulary.
//!
//! What a model can do is decided by the tensors and keys that its file has, never by its label.

mod config;

pub use config::{ParakeetConfig, Preprocessor, PromptConfig, TransducerConfig};

use crate::conformer::{B, Conformer, encoder_inputs};
use crate::error::ModelError;
use crate::layers::{linear, linear_then};
use crate::source::GgufWeights;
use conure_gguf::GgufFile;
use conure_graph::{Graph, GraphBuilder, GraphError, Passes, Program, ValueId, Weights};
use conure_ops::{
    Activation, AttentionMask, Binary, BinaryKind, Broadcast, Concat, Embedding, LogSoftmax, LstmCell,
    RelPosEncoding, Scale, Unary, ValueType,
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

/// A Parakeet model: its configuration, and its graphs as programs that any number of sessions run.
#[derive(Debug)]
pub struct Parakeet {
    config: ParakeetConfig,
    weights: Arc<Weights>,
    passes: Passes,
    encoders: Mutex<Vec<(Attention, Arc<Program>)>>,
    predictor: Option<Arc<Program>>,
    joint: Option<Arc<Program>>,
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
        let weights = Weights::new(Arc::new(GgufWeights::new(file, origin)));
        let program = |graph: Graph| Program::with_passes(graph, passes);
        let encoder = program(encoder(&config, &weights, config.mask)?)?;
        let transducer = config.transducer.as_ref();
        let predictor = transducer.map(|t| program(predictor(&config, t, &weights)?)).transpose()?;
        let joint = transducer.map(|t| program(joint(&config, t, &weights)?)).transpose()?;
        let encoders = Mutex::new(vec![(Attention::Model, encoder)]);
        Ok(Parakeet { config, weights, passes: passes.clone(), encoders, predictor, joint })
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

    /// The predictor, one step: inputs `token` `[B]` i32 (-1 before the first token), `h0`, `c0`, `h1`, ... `[B, P]`;
    /// outputs `h0_next`, `c0_next`, ..., and `joint.pred` `[B, J]`. To be captured: `predictor` `[B, P]`.
    ///
    /// # Errors
    /// [`ModelError::NoSuchPart`] if the model has no transducer.
    pub fn predictor(&self) -> Result<Arc<Program>, ModelError> {
        self.predictor.clone().ok_or_else(|| self.missing("transducer"))
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

/// log-mel → subsampling → layers → (prompt) → heads.
fn encoder(
    config: &ParakeetConfig,
    weights: &Arc<Weights>,
    mask: AttentionMask,
) -> Result<Graph, GraphError> {
    let conformer = Conformer {
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
    };
    let d = config.d_model;
    let mut g = GraphBuilder::new(weights.clone());
    let (log_mel, lengths) = encoder_inputs(&mut g, config.feat_in);

    let (x, lengths) = conformer.subsampling(&mut g, log_mel, lengths)?; // [B, T', D]
    g.name(x, "subsampling");
    let mut x = x;
    if config.xscaling {
        x = g.apply(Scale { factor: (d as f32).sqrt() }, &[x])?;
    }
    let window = match mask {
        AttentionMask::Banded { left, .. } => Some(left),
        _ => None,
    };
    let positions = g.apply(RelPosEncoding { d_model: d, window }, &[x])?; // [P, D]
    for layer in 0..config.n_layers {
        let path = format!("encoder.layers.{layer}");
        x = g.scoped(&path, |g| conformer.layer(g, x, positions, lengths))?;
        g.name(x, &path);
    }
    g.output("encoder", x);
    g.output("encoder_lengths", lengths);

    if let Some(prompt) = &config.prompt {
        x = prompted(&mut g, x, d, prompt.num_prompts)?;
        g.name(x, "prompted");
    }
    if let Some(head) = config.ctc_head {
        let logits = linear(&mut g, head, x, [config.vocab_size + 1, d])?; // [B, T', V+1]
        g.name(logits, "ctc.logits");
        let log_probs = g.apply(LogSoftmax, &[logits])?;
        g.name(log_probs, "ctc.log_probs");
    }
    if let Some(t) = &config.transducer {
        let projected = g.scoped("joint", |g| linear(g, "enc", x, [t.joint_hidden, d]))?; // [B, T', J]
        g.name(projected, "joint.enc");
    }
    g.finish()
}

/// The language prompt: `y = W2 relu(W0 [x; onehot] + b0) + b2`, in place of `x`.
fn prompted(g: &mut GraphBuilder, x: ValueId, d: usize, prompts: usize) -> Result<ValueId, GraphError> {
    let shape = Shape::new([(Axis::B, Dim::from(B)), (Axis::N, Dim::from(prompts))]);
    let onehot = g.input("prompt", ValueType::f32(shape));
    let onehot = g.apply(Broadcast, &[onehot, x])?; // [B, T', num_prompts]
    let joined = g.apply(Concat { axis: 2 }, &[x, onehot])?; // [B, T', D + num_prompts]
    g.scoped("prompt_kernel", |g| {
        let hidden = linear_then(g, "0", joined, [2 * d, d + prompts], Activation::Relu, None)?;
        linear(g, "2", hidden, [d, 2 * d])
    })
}

/// Embedding → LSTM layers → projection to the joint, one token.
fn predictor(
    config: &ParakeetConfig,
    t: &TransducerConfig,
    weights: &Arc<Weights>,
) -> Result<Graph, GraphError> {
    let p = t.pred_hidden;
    let mut g = GraphBuilder::new(weights.clone());
    let token = ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))]));
    let token = g.input("token", token);
    let mut x = g.scoped("decoder.prediction.embed", |g| {
        let table = g.weight("weight", &[config.vocab_size + 1, p])?;
        g.apply(Embedding, &[token, table]) // [B, P]
    })?;
    for layer in 0..t.pred_layers {
        let state = || ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(p))]));
        let h = g.input(&format!("h{layer}"), state());
        let c = g.input(&format!("c{layer}"), state());
        let next = g.scoped("decoder.prediction.dec_rnn.lstm", |g| {
            let w_ih = g.weight(&format!("weight_ih_l{layer}"), &[4 * p, p])?;
            let w_hh = g.weight(&format!("weight_hh_l{layer}"), &[4 * p, p])?;
            let b_ih = g.weight(&format!("bias_ih_l{layer}"), &[4 * p])?;
            let b_hh = g.weight(&format!("bias_hh_l{layer}"), &[4 * p])?;
            g.apply_all(LstmCell, &[x, h, c, w_ih, w_hh, b_ih, b_hh])
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
    let row = || ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(j))]));
    let enc = g.input("joint.enc", row());
    let pred = g.input("joint.pred", row());
    let x = g.apply(Binary { kind: BinaryKind::Add }, &[enc, pred])?; // [B, J]
    let x = g.apply(Unary { kind: t.activation }, &[x])?;
    let outputs = config.vocab_size + 1 + t.durations.len();
    let logits = g.scoped("joint.joint_net", |g| linear(g, "2", x, [outputs, j]))?; // [B, V+1+durations]
    g.output("joint.logits", logits);
    g.finish()
}
