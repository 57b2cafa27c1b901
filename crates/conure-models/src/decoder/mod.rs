//! Decoder-only language models: embedding, blocks of attention over a cache and feed-forward networks, logits.
//!
//! Vaswani et al., "Attention Is All You Need" (2017), in the form that GGUF files carry. What families differ in is in
//! their own files; `FAMILIES` lists them. Axes: B sequences, T new tokens of each, R rows of logits wanted, D model, V
//! vocabulary, C rows of the cache.

mod blocks;
mod config;

mod gemma2;
mod gemma3;
mod gpt_oss;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen3vl;

pub use config::{DecoderConfig, Experts, Factors, LocalAttention, Recurrent, RotaryConfig};

use crate::error::ModelError;
use crate::keys::Keys;
use crate::layers::linear;
use crate::source::GgufWeights;
use blocks::{B, Block, Inputs, R, T, angles, ids, rms_norm};
use conure_gguf::GgufFile;
use conure_graph::{Graph, GraphBuilder, GraphError, Program, ValueId, Weights};
use conure_ops::{Embedding, Reshape, Scale, Unary, UnaryKind, ValueType};
use conure_tensor::{Axis, DType, Dim, Shape, Symbol};
use std::sync::{Arc, Mutex, PoisonError};

/// A family: the name in `general.architecture`, what its keys say beyond the common ones, and its block.
struct Family {
    architecture: &'static str,
    configure: fn(&Keys<'_>, &GgufFile, &mut DecoderConfig) -> Result<(), ModelError>,
    block: fn(&Block<'_>, &mut GraphBuilder, ValueId) -> Result<ValueId, GraphError>,
}

/// Every family.
const FAMILIES: [Family; 10] = [
    gemma2::FAMILY,
    gemma3::FAMILY,
    gpt_oss::FAMILY,
    llama::FAMILY,
    phi3::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen35::FAMILY,
    qwen3moe::FAMILY,
    qwen3vl::FAMILY,
];

/// The architectures of [`FAMILIES`], for messages.
const KNOWN: &str = "gemma2, gemma3, gpt-oss, llama, phi3, qwen2, qwen3, qwen35, qwen3moe, qwen3vl";

/// The cache that a program keeps keys and values in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheSpec {
    /// Sequences.
    pub items: usize,
    /// Rows of each: the longest context.
    pub capacity: usize,
    /// Element type: f16, f32, bf16 or q8_0.
    pub dtype: DType,
}

/// Sequences of a run, in [`Decoder::program`].
pub const SEQUENCES: Symbol = B;
/// New tokens of each sequence, in [`Decoder::program`].
pub const TOKENS: Symbol = T;
/// Rows of logits wanted, in [`Decoder::program`].
pub const ROWS: Symbol = R;

/// A language model: its configuration, and its graph as programs that any number of sessions run.
pub struct Decoder {
    config: DecoderConfig,
    family: &'static Family,
    weights: Arc<Weights>,
    programs: Mutex<Vec<(CacheSpec, Arc<Program>)>>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Decoder {
    /// Whether `architecture` is that of a language model that can be run.
    pub fn knows(architecture: &str) -> bool {
        FAMILIES.iter().any(|f| f.architecture == architecture)
    }

    /// The model in `file`, which messages call `origin`. Builds its graph once, so that a tensor that is missing or of
    /// another shape is found now.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name; a file of another architecture.
    pub fn load(file: Arc<GgufFile>, origin: &str) -> Result<Decoder, ModelError> {
        let keys = Keys { meta: file.meta(), origin };
        let architecture = keys.meta.str("general.architecture")?;
        let family = FAMILIES.iter().find(|f| f.architecture == architecture).ok_or_else(|| {
            ModelError::Architecture {
                origin: origin.to_owned(),
                found: architecture.to_owned(),
                known: KNOWN,
            }
        })?;
        let mut config = DecoderConfig::read(&keys, &file)?;
        (family.configure)(&keys, &file, &mut config)?;
        let weights = Weights::new(Arc::new(GgufWeights::new(file, origin)));
        let decoder = Decoder { config, family, weights, programs: Mutex::new(Vec::new()) };
        decoder.graph(&CacheSpec { items: 1, capacity: 1, dtype: DType::F16 })?;
        Ok(decoder)
    }

    /// Its sizes and kinds.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The model with a cache as `cache` says.
    ///
    /// Symbols: [`SEQUENCES`] B, [`TOKENS`] T, [`ROWS`] R. Inputs, all i32: `tokens` `[B, T]`; `positions` `[B, T]`; `at`
    /// `[B]`, the row of the cache at which each sequence's tokens go (what lies from there on is forgotten); `wanted`
    /// `[R]`, the rows of `[B * T]` whose logits are wanted. Output: `logits` `[R, V]` f32. To be captured: `embedding` and
    /// `blk.N` `[B, T, D]`. States: `blk.N.k` and `blk.N.v`; of layers that are recurrent `blk.N.conv` and `blk.N.delta`, which
    /// know the tokens before `at` only if the last run ended there, and begin anew where `at` is 0.
    ///
    /// # Errors
    /// If the graph cannot be built with that cache.
    pub fn program(&self, cache: &CacheSpec) -> Result<Arc<Program>, ModelError> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, program)) = programs.iter().find(|(known, _)| known == cache) {
            return Ok(program.clone());
        }
        let program = Program::new(self.graph(cache)?);
        programs.push((cache.clone(), program.clone()));
        Ok(program)
    }

    /// tokens → embedding → blocks → norm → logits.
    fn graph(&self, cache: &CacheSpec) -> Result<Graph, GraphError> {
        let (c, d) = (&self.config, self.config.d_model);
        let mut g = GraphBuilder::new(self.weights.clone());
        let each =
            || ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T))]));
        let tokens = g.input("tokens", each());
        let positions = g.input("positions", each());
        let at = g.input("at", ids(Axis::B, B));
        let wanted = g.input("wanted", ids(Axis::N, R));

        let table = g.weight("token_embd.weight", &[c.vocab_size, d])?;
        let mut x = g.apply(Embedding, &[tokens, table])?; // [B, T, D]
        if let Some(factor) = c.embedding_scale {
            x = g.apply(Scale { factor }, &[x])?;
        }
        g.name(x, "embedding");
        let global = angles(&mut g, &c.rope, positions, cache.capacity)?;
        let local_angles = match &c.local {
            Some(local) if local.rope != c.rope => angles(&mut g, &local.rope, positions, cache.capacity)?,
            _ => global,
        };
        let inputs = Inputs { at, angles: global, local_angles };
        for index in 0..c.layers {
            let block = Block { config: c, cache, inputs: &inputs, index };
            let path = format!("blk.{index}");
            x = g.scoped(&path, |g| (self.family.block)(&block, g, x))?; // [B, T, D]
            g.name(x, &path);
        }
        let rows = Shape::new([(Axis::N, &Dim::from(B) * &Dim::from(T)), (Axis::D, Dim::from(d))]);
        let x = g.apply(Reshape { shape: rows }, &[x])?; // [B * T, D]
        let x = g.apply(Embedding, &[wanted, x])?; // [R, D]
        let x = rms_norm(&mut g, "output_norm", x, (d, c.eps), None)?;
        let head = if g.has_weight("output.weight") { "output" } else { "token_embd" };
        let mut logits = linear(&mut g, head, x, [c.vocab_size, d])?; // [R, V]
        if let Some(cap) = c.logit_cap {
            logits = g.apply(Scale { factor: 1.0 / cap }, &[logits])?;
            logits = g.apply(Unary { kind: UnaryKind::Tanh }, &[logits])?;
            logits = g.apply(Scale { factor: cap }, &[logits])?;
        }
        g.output("logits", logits);
        // Of one sequence: `wanted` counts rows of all, which padding would move. Recurrent states take in whatever a run holds.
        if cache.items == 1 && c.recurrent.is_none() {
            g.may_pad(T);
            g.may_pad(R);
        }
        g.finish()
    }
}
