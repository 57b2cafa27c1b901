//! The configuration of a decoder: the keys that all families share, each checked before it is used.

use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_ops::{Pairs, RopeScaling, Sections};

/// The most of anything that a key may ask for: a file that says more is damaged.
const MOST: usize = 1 << 24;

/// Sizes and kinds of a decoder. Axes: D model width, H query heads, G key heads, K head width, J value width.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// `general.architecture`, the prefix of the family's keys.
    pub architecture: String,
    /// `general.name`, for display.
    pub name: Option<String>,
    /// Positions that the model was trained for.
    pub context_length: usize,
    /// D.
    pub d_model: usize,
    /// Blocks.
    pub layers: usize,
    /// H.
    pub heads: usize,
    /// G.
    pub key_heads: usize,
    /// K.
    pub head_dim: usize,
    /// J.
    pub value_dim: usize,
    /// Inner width of the feed-forward network; 0 if there are experts only.
    pub feed_forward: usize,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// What embeddings are multiplied by.
    pub embedding_scale: Option<f32>,
    /// How positions turn queries and keys.
    pub rope: RotaryConfig,
    /// The layers that see a window only, if there are any.
    pub local: Option<LocalAttention>,
    /// What products of queries and keys are multiplied by.
    pub attention_scale: f32,
    /// The bound that attention scores are bent under.
    pub attention_cap: Option<f32>,
    /// The bound that logits are bent under.
    pub logit_cap: Option<f32>,
    /// The experts of each block, if it is a mixture.
    pub experts: Option<Experts>,
    /// The layers that keep a state of fixed size instead of keys and values, if there are any.
    pub recurrent: Option<Recurrent>,
}

/// Rotary positions of some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryConfig {
    /// Elements of a head that turn.
    pub turned: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// How angles are stretched.
    pub scaling: RopeScaling,
    /// What cosines and sines are multiplied by.
    pub magnitude: f32,
    /// Which elements turn together.
    pub pairs: Pairs,
    /// Which position each pair turns by, for models with several per token.
    pub sections: Option<Sections>,
    /// Tensors of a factor for each pair.
    pub factors: Factors,
}

/// Where the factors of rotary frequencies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// There are none.
    None,
    /// One tensor for all contexts: `rope_freqs.weight`.
    Always(&'static str),
    /// `rope_factors_short.weight` for contexts of up to so many positions, `rope_factors_long.weight` for longer ones.
    ByContext(usize),
}

/// Layers that see a window only.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalAttention {
    /// Positions that a token sees, its own among them.
    pub window: usize,
    /// Whether each layer is one of them.
    pub layers: Vec<bool>,
    /// Their rotary positions.
    pub rope: RotaryConfig,
}

/// Layers that keep a state of fixed size, by the gated delta rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// Whether each layer is one of them.
    pub layers: Vec<bool>,
    /// Taps of the convolution before.
    pub taps: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Width of queries and keys.
    pub key_dim: usize,
    /// Heads of values: a multiple of those of keys.
    pub heads: usize,
    /// Width of values.
    pub value_dim: usize,
}

impl Recurrent {
    /// Width of queries, keys and values of a token.
    pub fn width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.heads * self.value_dim
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many each token uses.
    pub used: usize,
    /// Inner width of one.
    pub feed_forward: usize,
}

impl DecoderConfig {
    /// What all families share.
    pub(super) fn read(keys: &Keys<'_>, file: &GgufFile) -> Result<DecoderConfig, ModelError> {
        let architecture = keys.meta.str("general.architecture")?.to_owned();
        let key = |name: &str| format!("{architecture}.{name}");
        let d_model = keys.size(&key("embedding_length"), 1..=MOST)?;
        let heads = keys.per_layer(&key("attention.head_count"), None, 1..=65_536)?;
        let key_heads = keys.per_layer(&key("attention.head_count_kv"), Some(heads), 1..=65_536)?;
        let divides = heads.is_multiple_of(key_heads);
        keys.check(
            &key("attention.head_count_kv"),
            key_heads,
            &format!("a divisor of {heads} heads"),
            divides,
        )?;
        let head_dim = match keys.meta.opt_u32(&key("attention.key_length"))? {
            Some(_) => keys.size(&key("attention.key_length"), 1..=512)?,
            None => {
                let divides = d_model.is_multiple_of(heads);
                let expected =
                    format!("a divisor of embedding_length, {d_model}, where key_length is missing");
                keys.check(&key("attention.head_count"), heads, &expected, divides)?;
                let width = d_model / heads;
                keys.check(&key("attention.head_count"), heads, "heads of at most 512", width <= 512)?;
                width
            }
        };
        let layers = keys.size(&key("block_count"), 1..=4096)?;
        let ahead = keys.size_or(&key("nextn_predict_layers"), 0, 0..=layers - 1)?;
        let eps_key = key("attention.layer_norm_rms_epsilon");
        keys.meta.f32(&eps_key)?;
        let config = DecoderConfig {
            name: keys.meta.opt_str("general.name")?.map(str::to_owned),
            context_length: keys.size(&key("context_length"), 1..=1 << 30)?,
            d_model,
            layers: layers - ahead,
            heads,
            key_heads,
            head_dim,
            value_dim: keys.size_or(&key("attention.value_length"), head_dim, 1..=512)?,
            feed_forward: keys.per_layer(&key("feed_forward_length"), Some(0), 0..=MOST)?,
            eps: keys.positive_or(&eps_key, 0.0)?,
            vocab_size: vocab_size(keys, file, d_model)?,
            embedding_scale: None,
            rope: RotaryConfig::read(keys, &architecture, head_dim)?,
            local: None,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            attention_cap: None,
            logit_cap: None,
            experts: Experts::read(keys, &architecture)?,
            recurrent: None,
            architecture,
        };
        let needed = config.feed_forward > 0 || config.experts.is_some();
        let key = config.key("feed_forward_length");
        keys.check(&key, config.feed_forward, "more than 0 in a model without experts", needed)?;
        Ok(config)
    }

    /// The experts of a family that has some in every layer.
    pub(super) fn some_experts(&mut self, keys: &Keys<'_>) -> Result<&mut Experts, ModelError> {
        let missing = keys.wrong(
            &self.key("expert_count"),
            "none",
            "1 to 4096: this family has experts in every layer",
        );
        self.experts.as_mut().ok_or(missing)
    }

    /// A key of the family.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Which layers see a window of `window` positions: all but the last of each `period`, or as the file says.
    pub(super) fn set_local(
        &mut self,
        keys: &Keys<'_>,
        window: usize,
        period: usize,
        rope: RotaryConfig,
    ) -> Result<(), ModelError> {
        let key = self.key("attention.sliding_window_pattern");
        let layers = match keys.meta.get(&key) {
            Some(conure_gguf::Value::Array(_)) => {
                let layers = keys.meta.bool_array(&key)?;
                let expected = format!("one for each of {} layers", self.layers);
                keys.check(&key, layers.len(), &expected, layers.len() >= self.layers)?;
                layers
            }
            _ => {
                let period = keys.size_or(&key, period, 0..=4096)?;
                (0..self.layers).map(|i| period == 0 || i % period < period - 1).collect()
            }
        };
        self.local = Some(LocalAttention { window, layers, rope });
        Ok(())
    }

    /// Whether layer `i` sees a window only.
    pub fn is_local(&self, i: usize) -> bool {
        self.local.as_ref().is_some_and(|l| l.layers.get(i).copied().unwrap_or(false))
    }

    /// Whether layer `i` keeps a state of fixed size.
    pub fn is_recurrent(&self, i: usize) -> bool {
        self.recurrent.as_ref().is_some_and(|r| r.layers.get(i).copied().unwrap_or(false))
    }

    /// Layers that keep keys and values.
    pub fn attention_layers(&self) -> usize {
        (0..self.layers).filter(|&i| !self.is_recurrent(i)).count()
    }

    /// The rotary positions of layer `i`.
    pub fn rope_of(&self, i: usize) -> &RotaryConfig {
        match &self.local {
            Some(local) if self.is_local(i) => &local.rope,
            _ => &self.rope,
        }
    }
}

/// The rows of the embedding, which decide whatever `vocab_size` says.
fn vocab_size(keys: &Keys<'_>, file: &GgufFile, d_model: usize) -> Result<usize, ModelError> {
    let name = "token_embd.weight";
    let shape = file.tensor(name)?.shape.to_vec();
    match shape.as_slice() {
        [rows, width] if *width == d_model && *rows > 0 => Ok(*rows),
        _ => Err(keys.wrong(name, &format!("{shape:?}"), &format!("[vocabulary, {d_model}]"))),
    }
}

impl Experts {
    fn read(keys: &Keys<'_>, architecture: &str) -> Result<Option<Experts>, ModelError> {
        let key = |name: &str| format!("{architecture}.{name}");
        let count = keys.size_or(&key("expert_count"), 0, 0..=4096)?;
        if count == 0 {
            return Ok(None);
        }
        let used = keys.size(&key("expert_used_count"), 1..=count)?;
        let dense = keys.per_layer(&key("feed_forward_length"), Some(0), 0..=MOST)?;
        let inner = keys.size_or(&key("expert_feed_forward_length"), dense, 1..=MOST)?;
        keys.check(&key("expert_feed_forward_length"), inner, "more than 0", inner > 0)?;
        Ok(Some(Experts { count, used, feed_forward: inner }))
    }
}

impl RotaryConfig {
    fn read(keys: &Keys<'_>, architecture: &str, head_dim: usize) -> Result<RotaryConfig, ModelError> {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        let turned = keys.size_or(&key("dimension_count"), head_dim, 2..=head_dim)?;
        keys.check(&key("dimension_count"), turned, "an even number", turned.is_multiple_of(2))?;
        let base = keys.positive_or(&key("freq_base"), 10_000.0)?;
        keys.check(&key("freq_base"), base as usize, "a number over 1", base > 1.0)?;
        let attention = keys.positive_or(&key("scaling.attn_factor"), 1.0)?;
        let factor = match keys.meta.opt_f32(&key("scaling.factor"))? {
            Some(_) => keys.positive_or(&key("scaling.factor"), 1.0)?,
            None => keys.positive_or(&key("scale_linear"), 1.0)?,
        };
        let kind = keys.meta.opt_str(&key("scaling.type"))?.unwrap_or("linear");
        let (scaling, magnitude) = match kind {
            "linear" if factor != 1.0 => (RopeScaling::Linear { factor }, attention),
            "none" | "linear" | "longrope" => (RopeScaling::None, attention),
            "yarn" => {
                let context = keys.size(&format!("{architecture}.context_length"), 1..=1 << 30)?;
                let original = keys.size_or(&key("scaling.original_context_length"), context, 1..=1 << 30)?;
                let scaling = RopeScaling::Yarn {
                    factor,
                    original: original as f32,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    extrapolation: 1.0,
                };
                (scaling, (0.1 * factor.ln() + 1.0) * attention)
            }
            other => {
                return Err(keys.wrong(&key("scaling.type"), other, "none, linear, yarn or longrope"));
            }
        };
        let (pairs, sections, factors) = (Pairs::Halves, None, Factors::None);
        Ok(RotaryConfig { turned, base, scaling, magnitude, pairs, sections, factors })
    }
}
