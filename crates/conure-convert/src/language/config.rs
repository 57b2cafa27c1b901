//! What config.json says of a language model, as keys of a GGUF file.

use super::Keys;
use crate::config::{ConfigError, Value};
use conure_gguf::MetaValue;

/// A family of language models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Phi3,
    Gemma2,
    Gemma3,
    Qwen3Moe,
    Qwen3Vl,
    Qwen35,
    GptOss,
}

impl Family {
    /// All of them.
    pub(crate) const ALL: [Family; 10] = [
        Family::Llama,
        Family::Qwen2,
        Family::Qwen3,
        Family::Phi3,
        Family::Gemma2,
        Family::Gemma3,
        Family::Qwen3Moe,
        Family::Qwen3Vl,
        Family::Qwen35,
        Family::GptOss,
    ];

    /// The family of this `model_type`.
    pub(crate) fn named(model_type: &str) -> Option<Family> {
        Some(match model_type {
            "llama" | "mistral" | "mixtral" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            "phi3" => Family::Phi3,
            "gemma2" => Family::Gemma2,
            "gemma3_text" | "gemma3" => Family::Gemma3,
            "qwen3_moe" => Family::Qwen3Moe,
            "qwen3_vl" | "qwen3_vl_text" => Family::Qwen3Vl,
            "qwen3_5" | "qwen3_5_text" => Family::Qwen35,
            "gpt_oss" => Family::GptOss,
            _ => return None,
        })
    }

    /// `general.architecture`.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Phi3 => "phi3",
            Family::Gemma2 => "gemma2",
            Family::Gemma3 => "gemma3",
            Family::Qwen3Moe => "qwen3moe",
            Family::Qwen3Vl => "qwen3vl",
            Family::Qwen35 => "qwen35",
            Family::GptOss => "gpt-oss",
        }
    }

    /// Whether norms are stored as what they differ from 1 by.
    pub(super) fn norms_around_zero(self) -> bool {
        self.is_gemma() || self == Family::Qwen35
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Family::Gemma2 | Family::Gemma3)
    }
}

/// A model to be written.
pub(crate) struct Model {
    pub(crate) family: Family,
    pub(crate) keys: Keys,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) tied: bool,
    pub(super) layers: usize,
    /// Of layers by the gated delta rule, if there are any.
    pub(super) linear: Option<LinearHeads>,
    /// Experts of each layer; 0 if there are none.
    pub(super) experts: usize,
    /// Tensors that only settings give: names and values.
    pub(super) computed: Vec<(&'static str, Vec<f32>)>,
}

/// Heads of layers by the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinearHeads {
    /// Heads of keys.
    pub(super) keys: usize,
    /// Heads of values of each.
    pub(super) values_each: usize,
    /// Width of values.
    pub(super) value_dim: usize,
    /// Rows of queries and keys before those of values.
    pub(super) before: usize,
}

/// Collects keys of one family.
struct Writer {
    architecture: &'static str,
    keys: Keys,
}

impl Writer {
    fn put(&mut self, name: &str, value: impl Into<MetaValue>) {
        self.keys.push((format!("{}.{name}", self.architecture), value.into()));
    }
}

/// Reads the settings of a language model.
pub(super) fn read(cfg: &Value) -> Result<Model, ConfigError> {
    let model_type = cfg.str("model_type")?.unwrap_or_default();
    let family = Family::named(model_type).ok_or_else(|| {
        let known = "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, qwen3_vl, qwen3_5, gpt_oss, phi3, gemma2, gemma3 or gemma3_text";
        ConfigError::unexpected("model_type", format!("{model_type:?}"), known)
    })?;
    let heads = cfg.positive("num_attention_heads")?;
    let key_heads = cfg.u32("num_key_value_heads")?.unwrap_or(heads);
    let width = cfg.positive("hidden_size")?;
    let head_dim = match cfg.u32("head_dim")? {
        Some(n) => n,
        None if width % heads == 0 => width / heads,
        None => {
            return Err(ConfigError::missing("head_dim", "a whole number: heads do not divide hidden_size"));
        }
    };
    let layers = cfg.positive("num_hidden_layers")?;
    let mut w = Writer { architecture: family.architecture(), keys: Vec::new() };
    w.put("context_length", cfg.positive("max_position_embeddings")?);
    w.put("embedding_length", width);
    w.put("block_count", layers);
    w.put("feed_forward_length", cfg.positive("intermediate_size")?);
    w.put("attention.head_count", heads);
    w.put("attention.head_count_kv", key_heads);
    w.put("attention.key_length", head_dim);
    w.put("attention.value_length", head_dim);
    let eps = cfg.f64("rms_norm_eps")?;
    let eps = eps.ok_or_else(|| ConfigError::missing("rms_norm_eps", "a small number"))?;
    w.put("attention.layer_norm_rms_epsilon", eps as f32);
    activation(cfg, family)?;
    let computed = rope(cfg, family, &mut w, head_dim)?;
    if family.is_gemma() {
        gemma(cfg, family, &mut w, head_dim, layers)?;
    }
    let experts = match model_type {
        "mixtral" | "qwen3_moe" | "gpt_oss" => experts(cfg, family, &mut w)?,
        _ => 0,
    };
    if family == Family::GptOss {
        gpt_oss(cfg, &mut w)?;
    }
    let linear = if family == Family::Qwen35 { Some(qwen35(cfg, &mut w, layers)?) } else { None };
    Ok(Model {
        family,
        keys: w.keys,
        heads: heads as usize,
        key_heads: key_heads as usize,
        tied: cfg.bool("tie_word_embeddings")?.unwrap_or(family.is_gemma()),
        layers: layers as usize,
        linear,
        experts: experts as usize,
        computed,
    })
}

/// The experts of a mixture: how many.
fn experts(cfg: &Value, family: Family, w: &mut Writer) -> Result<u32, ConfigError> {
    let either = |a: &str, b: &str| if cfg.get(a).is_some() { cfg.positive(a) } else { cfg.positive(b) };
    let count = either("num_experts", "num_local_experts")?;
    w.put("expert_count", count);
    w.put("expert_used_count", either("experts_per_token", "num_experts_per_tok")?);
    match family {
        Family::Qwen3Moe => w.put("expert_feed_forward_length", cfg.positive("moe_intermediate_size")?),
        Family::GptOss => w.put("expert_feed_forward_length", cfg.positive("intermediate_size")?),
        _ => return Ok(count),
    }
    if family == Family::Qwen3Moe {
        if cfg.bool("norm_topk_prob")? != Some(true) {
            let expected = "true: weights of experts that do not sum to 1 cannot be written";
            return Err(ConfigError::unexpected("norm_topk_prob", "false", expected));
        }
        let every = cfg.u32("decoder_sparse_step")?.unwrap_or(1);
        let dense = matches!(cfg.get("mlp_only_layers"), Some(Value::List(layers)) if !layers.is_empty());
        if every != 1 || dense {
            let key = if dense { "mlp_only_layers" } else { "decoder_sparse_step" };
            return Err(ConfigError::unexpected(key, "layers without experts", "experts in every layer"));
        }
    }
    Ok(count)
}

/// Windows and gates of gpt-oss, of which files carry the window only.
fn gpt_oss(cfg: &Value, w: &mut Writer) -> Result<(), ConfigError> {
    w.put("attention.sliding_window", cfg.positive("sliding_window")?);
    if local_layers(cfg).is_some_and(|l| l.iter().enumerate().any(|(i, &local)| local != i.is_multiple_of(2)))
    {
        let expected = "every other layer local, from the first on";
        return Err(ConfigError::unexpected("layer_types", "another order", expected));
    }
    for (key, wanted) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(found) = cfg.f64(key)?.filter(|&v| v != wanted) {
            return Err(ConfigError::unexpected(key, found, wanted.to_string()));
        }
    }
    Ok(())
}

/// Layers by the gated delta rule.
fn qwen35(cfg: &Value, w: &mut Writer, layers: u32) -> Result<LinearHeads, ConfigError> {
    let [keys, values] = ["linear_num_key_heads", "linear_num_value_heads"].map(|key| cfg.positive(key));
    let [key_dim, value_dim] = ["linear_key_head_dim", "linear_value_head_dim"].map(|key| cfg.positive(key));
    let (keys, values, key_dim, value_dim) = (keys?, values?, key_dim?, value_dim?);
    if !values.is_multiple_of(keys) {
        let expected = format!("a multiple of linear_num_key_heads, {keys}");
        return Err(ConfigError::unexpected("linear_num_value_heads", values, expected));
    }
    let too_wide = || ConfigError::unexpected("linear_value_head_dim", value_dim, "heads that fit in memory");
    w.put("ssm.conv_kernel", cfg.positive("linear_conv_kernel_dim")?);
    w.put("ssm.state_size", key_dim);
    w.put("ssm.group_count", keys);
    w.put("ssm.time_step_rank", values);
    w.put("ssm.inner_size", values.checked_mul(value_dim).ok_or_else(too_wide)?);
    let interval = cfg.u32("full_attention_interval")?.unwrap_or(4);
    w.put("full_attention_interval", interval);
    if let Some(Value::List(kinds)) = cfg.get("layer_types") {
        let linear = |k: &Value| matches!(k, Value::Str(s) if s == "linear_attention");
        let kinds: Vec<bool> = kinds.iter().map(linear).collect();
        if kinds.len() != layers as usize {
            let expected = format!("one for each of {layers} layers");
            return Err(ConfigError::unexpected("layer_types", kinds.len(), expected));
        }
        if kinds.iter().zip(1u32..).any(|(&linear, i)| linear == (interval > 0 && i.is_multiple_of(interval)))
        {
            w.put("attention.recurrent_layers", kinds.as_slice());
        }
    }
    let [keys, values] = [keys, values].map(|n| n as usize);
    let before = keys.checked_mul(2 * key_dim as usize).ok_or_else(too_wide)?;
    Ok(LinearHeads { keys, values_each: values / keys, value_dim: value_dim as usize, before })
}

/// Whether each layer sees a window only, where the settings list it.
fn local_layers(cfg: &Value) -> Option<Vec<bool>> {
    let Some(Value::List(kinds)) = cfg.get("layer_types") else { return None };
    let local = |k: &Value| matches!(k, Value::Str(s) if s == "sliding_attention");
    Some(kinds.iter().map(local).collect())
}

fn activation(cfg: &Value, family: Family) -> Result<(), ConfigError> {
    let (keys, wanted) = if family.is_gemma() {
        (["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")
    } else {
        (["hidden_act", "hidden_activation"], "silu")
    };
    for key in keys {
        match cfg.str(key)? {
            None => {}
            Some(found) if found == wanted => return Ok(()),
            Some(found) => return Err(ConfigError::unexpected(key, format!("{found:?}"), wanted)),
        }
    }
    Ok(())
}

/// Rotary positions: keys, and factors where the model has them.
fn rope(
    cfg: &Value,
    family: Family,
    w: &mut Writer,
    head_dim: u32,
) -> Result<Vec<(&'static str, Vec<f32>)>, ConfigError> {
    // What a family has where its files say nothing: how much of a head turns, and by which positions.
    let (part, sections) = match family {
        Family::Qwen35 => (0.25, Some(vec![11, 11, 10])),
        _ => (1.0, None),
    };
    // Newer files keep all of it in one place, and models with local layers one such place for each kind of layer.
    let place = ["rope_parameters.full_attention", "rope_parameters", "rope_scaling"]
        .into_iter()
        .find(|p| matches!(cfg.get(p), Some(Value::Map(_))))
        .unwrap_or("rope_scaling");
    let key = |name: &str| format!("{place}.{name}");
    let base = match cfg.f64(&key("rope_theta"))? {
        Some(base) => base,
        None => cfg.f64("rope_theta")?.unwrap_or(10_000.0),
    };
    w.put("rope.freq_base", base as f32);
    let part = cfg.f64(&key("partial_rotary_factor"))?.or(cfg.f64("partial_rotary_factor")?).unwrap_or(part);
    let turned = (f64::from(head_dim) * part) as u32;
    w.put("rope.dimension_count", turned);
    if let Some(mut sections) = cfg.ints(&key("mrope_section"))?.or(sections) {
        // The fourth, of positions that no model of ours has.
        sections.resize(4, 0);
        w.put("rope.dimension_sections", sections);
    }
    let kind = match cfg.str(&key("rope_type"))? {
        Some(kind) => Some(kind),
        None => cfg.str(&key("type"))?,
    };
    let need = |name: &str| {
        let value = cfg.f64(&key(name))?;
        value.ok_or_else(|| ConfigError::missing(&key(name), "a number"))
    };
    match kind.unwrap_or("default") {
        "default" => Ok(Vec::new()),
        "linear" => {
            w.put("rope.scaling.type", "linear");
            w.put("rope.scaling.factor", need("factor")? as f32);
            Ok(Vec::new())
        }
        "yarn" => {
            w.put("rope.scaling.type", "yarn");
            w.put("rope.scaling.factor", need("factor")? as f32);
            if let Some(original) = cfg.u32(&key("original_max_position_embeddings"))? {
                w.put("rope.scaling.original_context_length", original);
            }
            // Readers of these families take the bounds for granted (and round them, whatever `truncate` says).
            for (name, wanted) in [("beta_fast", 32.0), ("beta_slow", 1.0)] {
                if let Some(found) = cfg.f64(&key(name))?.filter(|&v| v != wanted) {
                    return Err(ConfigError::unexpected(&key(name), found, wanted.to_string()));
                }
            }
            Ok(Vec::new())
        }
        "llama3" => {
            let [factor, low, high, original] =
                ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
                    .map(need);
            let factors = llama3_factors(base, turned, [factor?, low?, high?, original?]);
            Ok(vec![("rope_freqs.weight", factors)])
        }
        "longrope" | "su" => {
            let context = f64::from(cfg.positive("max_position_embeddings")?);
            let original = match cfg.u32("original_max_position_embeddings")? {
                Some(n) => n,
                None => cfg.positive(&key("original_max_position_embeddings"))?,
            };
            w.put("rope.scaling.type", "longrope");
            w.put("rope.scaling.original_context_length", original);
            let stretch = context / f64::from(original);
            let magnitude = (1.0 + stretch.ln() / f64::from(original).ln()).sqrt();
            w.put("rope.scaling.attn_factor", if stretch <= 1.0 { 1.0 } else { magnitude as f32 });
            let list = |name: &str| -> Result<Vec<f32>, ConfigError> {
                let Some(Value::List(items)) = cfg.get(&key(name)) else {
                    return Err(ConfigError::missing(&key(name), "a list of numbers"));
                };
                let number = |v: &Value| match v {
                    Value::Int(n) => Some(*n as f32),
                    Value::Float(x) => Some(*x as f32),
                    _ => None,
                };
                items
                    .iter()
                    .map(number)
                    .collect::<Option<Vec<_>>>()
                    .filter(|l| l.len() == turned as usize / 2)
                    .ok_or_else(|| {
                        ConfigError::unexpected(&key(name), "another list", format!("{} numbers", turned / 2))
                    })
            };
            Ok(vec![
                ("rope_factors_long.weight", list("long_factor")?),
                ("rope_factors_short.weight", list("short_factor")?),
            ])
        }
        other => Err(ConfigError::unexpected(
            &key("rope_type"),
            format!("{other:?}"),
            "default, linear, yarn, llama3 or longrope",
        )),
    }
}

/// What each frequency of Llama 3.1 is divided by: slow pairs by the factor, fast ones by 1, those between gradually.
fn llama3_factors(base: f64, turned: u32, [factor, low, high, original]: [f64; 4]) -> Vec<f32> {
    (0..turned / 2)
        .map(|j| {
            let frequency = base.powf(-2.0 * f64::from(j) / f64::from(turned));
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

/// Caps and local layers.
fn gemma(cfg: &Value, family: Family, w: &mut Writer, head_dim: u32, layers: u32) -> Result<(), ConfigError> {
    // GGUF does not carry this scale: readers take the head's width, and another rule for the largest model of each.
    let largest = if family == Family::Gemma2 { 46 } else { 62 };
    if let Some(scale) = cfg.u32("query_pre_attn_scalar")?.filter(|&s| s != head_dim && layers != largest) {
        let expected = format!("head_dim, {head_dim}: another scale cannot be written");
        return Err(ConfigError::unexpected("query_pre_attn_scalar", scale, expected));
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let cap = match cfg.get(key) {
            Some(Value::Null) | None => None,
            Some(_) => cfg.f64(key)?,
        };
        if family == Family::Gemma2 || key.starts_with("final") {
            w.put(key, cap.unwrap_or(0.0) as f32);
        } else if let Some(cap) = cap {
            return Err(ConfigError::unexpected(key, cap, "none in this family"));
        }
    }
    w.put("attention.sliding_window", cfg.positive("sliding_window")?);
    if let Some(local) = local_layers(cfg) {
        w.put("attention.sliding_window_pattern", local.as_slice());
    }
    let key = "rope_parameters.sliding_attention.rope_theta";
    if let Some(base) = cfg.f64(key)?.or(cfg.f64("rope_local_base_freq")?) {
        w.put("rope.freq_base_swa", base as f32);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_llama_3_go_from_one_to_the_factor() {
        let factors = llama3_factors(500_000.0, 128, [8.0, 1.0, 4.0, 8192.0]);
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.windows(2).all(|w| w[0] <= w[1]));
        assert!(factors.iter().any(|f| (1.5..7.0).contains(f)));
    }
}
