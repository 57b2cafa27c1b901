//! The GGUF schema of Parakeet models: keys, and the tensors that each kind of model must have.
//!
//! Keys, types and tensor names are those of mudler/parakeet.cpp, whose reader loads these files. Added by Conure, and
//! written only where a model needs them: `parakeet.encoder.self_attention_model` (string) for local attention, and
//! the `att_context_*`, `causal_downsampling` and `conv_causal` keys for models that are not chunked but have a limited
//! context or causal convolutions.

use crate::config::ConfigError;
use std::collections::HashMap;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Meta {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    I32s(Vec<i32>),
    Strs(Vec<String>),
}

/// The heads of a model, as the schema labels them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arch {
    Ctc,
    Rnnt,
    Tdt,
    HybridRnntCtc,
    HybridTdtCtc,
}

impl Arch {
    /// The value of `parakeet.arch`.
    pub fn label(self) -> &'static str {
        match self {
            Arch::Ctc => "ctc",
            Arch::Rnnt => "rnnt",
            Arch::Tdt => "tdt",
            Arch::HybridRnntCtc => "hybrid_rnnt_ctc",
            Arch::HybridTdtCtc => "hybrid_tdt_ctc",
        }
    }

    /// The name of the CTC head's weight, if there is one.
    fn ctc_head(self) -> Option<&'static str> {
        match self {
            Arch::Ctc => Some("decoder.decoder_layers.0"),
            Arch::HybridRnntCtc | Arch::HybridTdtCtc => Some("ctc_decoder.decoder_layers.0"),
            Arch::Rnnt | Arch::Tdt => None,
        }
    }
}

/// Self-attention and context of the encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention {
    /// `rel_pos`, or `rel_pos_local_attn` with a window.
    pub model: String,
    /// Left and right context in encoder frames, -1 for all; the first pair is the default.
    pub contexts: Vec<[i32; 2]>,
    /// `regular` or `chunked_limited` (a streaming model).
    pub style: String,
    /// Causal padding in the subsampling.
    pub causal_downsampling: bool,
    /// Causal depthwise convolutions.
    pub conv_causal: bool,
}

impl Attention {
    /// Full context, no causality.
    pub fn full() -> Attention {
        Attention {
            model: "rel_pos".into(),
            contexts: vec![[-1, -1]],
            style: "regular".into(),
            causal_downsampling: false,
            conv_causal: false,
        }
    }

    fn first(&self) -> [i32; 2] {
        self.contexts.first().copied().unwrap_or([-1, -1])
    }
}

/// The FastConformer encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Encoder {
    pub feat_in: u32,
    pub d_model: u32,
    pub n_layers: u32,
    pub n_heads: u32,
    pub ff_dim: u32,
    pub conv_kernel: u32,
    pub conv_norm_type: String,
    pub subsampling_factor: u32,
    pub subsampling_conv_channels: u32,
    pub xscaling: bool,
    pub pos_emb_max_len: u32,
    pub use_bias: bool,
    pub attention: Attention,
}

/// From samples to features.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Preprocessor {
    pub sample_rate: u32,
    pub n_mels: u32,
    pub n_fft: u32,
    pub win_length: u32,
    pub hop_length: u32,
    pub preemph: f32,
    pub mag_power: f32,
    pub normalize: String,
    pub log_zero_guard: f32,
}

/// Prediction network and joint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Transducer {
    pub pred_hidden: u32,
    pub pred_rnn_layers: u32,
    pub joint_hidden: u32,
    pub activation: String,
    pub max_symbols: u32,
    /// Empty for RNN-T.
    pub durations: Vec<i32>,
}

/// The language prompt of a multilingual model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Width of the one-hot vector.
    pub num_prompts: u32,
    /// Locale to index, in the order of the configuration.
    pub dictionary: Vec<(String, i32)>,
}

/// A model as the schema describes it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct ModelConfig {
    pub arch: Arch,
    pub encoder: Encoder,
    pub preprocessor: Preprocessor,
    /// SentencePiece pieces in the order of their ids; the blank is one past the last.
    pub vocabulary: Vec<String>,
    pub transducer: Option<Transducer>,
    pub prompt: Option<Prompt>,
}

impl ModelConfig {
    /// The model's keys in the schema's order, without `general.*`.
    pub fn metadata(&self) -> Vec<(String, Meta)> {
        let mut out = Vec::new();
        put(&mut out, "arch", Meta::Str(self.arch.label().into()));
        encoder_keys(&mut out, &self.encoder);
        if let Some(prompt) = &self.prompt {
            prompt_keys(&mut out, prompt);
        }
        let p = &self.preprocessor;
        for (key, value) in [
            ("sample_rate", Meta::U32(p.sample_rate)),
            ("n_mels", Meta::U32(p.n_mels)),
            ("n_fft", Meta::U32(p.n_fft)),
            ("win_length", Meta::U32(p.win_length)),
            ("hop_length", Meta::U32(p.hop_length)),
            ("preemph", Meta::F32(p.preemph)),
            ("mag_power", Meta::F32(p.mag_power)),
            ("normalize", Meta::Str(p.normalize.clone())),
            ("log_zero_guard", Meta::F32(p.log_zero_guard)),
        ] {
            put(&mut out, &format!("preprocessor.{key}"), value);
        }
        let vocab_size = u32::try_from(self.vocabulary.len()).unwrap_or(u32::MAX);
        put(&mut out, "vocab_size", Meta::U32(vocab_size));
        put(&mut out, "blank_id", Meta::U32(vocab_size));
        put(&mut out, "tokenizer.pieces", Meta::Strs(self.vocabulary.clone()));
        if let Some(t) = &self.transducer {
            put(&mut out, "decoder.pred_hidden", Meta::U32(t.pred_hidden));
            put(&mut out, "decoder.pred_rnn_layers", Meta::U32(t.pred_rnn_layers));
            put(&mut out, "joint.joint_hidden", Meta::U32(t.joint_hidden));
            put(&mut out, "joint.activation", Meta::Str(t.activation.clone()));
            put(&mut out, "decoding.max_symbols", Meta::U32(t.max_symbols));
            if !t.durations.is_empty() {
                put(&mut out, "tdt.durations", Meta::I32s(t.durations.clone()));
            }
        }
        out
    }

    /// Rejects numbers that no graph can be built from.
    ///
    /// # Errors
    /// [`ConfigError`] with the key of the schema.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_sizes()?;
        let e = &self.encoder;
        let key = |k: &str| format!("encoder.{k}");
        if !e.d_model.is_multiple_of(e.n_heads) {
            return Err(ConfigError::unexpected(
                &key("n_heads"),
                e.n_heads,
                format!("a divisor of d_model {}", e.d_model),
            ));
        }
        if e.conv_kernel.is_multiple_of(2) {
            return Err(ConfigError::unexpected(&key("conv_kernel_size"), e.conv_kernel, "an odd number"));
        }
        if !e.subsampling_factor.is_power_of_two() || !(2..=64).contains(&e.subsampling_factor) {
            return Err(ConfigError::unexpected(
                &key("subsampling_factor"),
                e.subsampling_factor,
                "a power of two from 2 to 64",
            ));
        }
        if !matches!(e.conv_norm_type.as_str(), "batch_norm" | "layer_norm") {
            return Err(ConfigError::unexpected(
                &key("conv_norm_type"),
                &e.conv_norm_type,
                "batch_norm or layer_norm",
            ));
        }
        if e.feat_in != self.preprocessor.n_mels {
            return Err(ConfigError::unexpected(
                &key("feat_in"),
                e.feat_in,
                format!("as many as there are mel features, {}", self.preprocessor.n_mels),
            ));
        }
        for [left, right] in &e.attention.contexts {
            if *left < -1 || *right < -1 {
                let found = format!("[{left}, {right}]");
                return Err(ConfigError::unexpected(&key("att_context_size"), found, "-1 or more frames"));
            }
        }
        let [left, right] = e.attention.first();
        if e.attention.style == "chunked_limited" && right < 0 {
            let found = format!("[{left}, {right}]");
            return Err(ConfigError::unexpected(
                &key("att_context_size"),
                found,
                "a limited right context for chunked_limited attention",
            ));
        }
        if e.attention.model == "rel_pos_local_attn" && (left != right || left < 1) {
            let found = format!("[{left}, {right}]");
            return Err(ConfigError::unexpected(
                &key("att_context_size"),
                found,
                "the same window left and right for rel_pos_local_attn",
            ));
        }
        Ok(())
    }

    /// Rejects sizes far beyond any model, which only a damaged or hostile configuration has.
    fn check_sizes(&self) -> Result<(), ConfigError> {
        let (e, p) = (&self.encoder, &self.preprocessor);
        let t = self.transducer.as_ref();
        let or_one = |f: fn(&Transducer) -> u32| t.map_or(1, f);
        for (key, value, most) in [
            ("encoder.d_model", e.d_model, 1 << 16),
            ("encoder.n_layers", e.n_layers, 1024),
            ("encoder.n_heads", e.n_heads, 1024),
            ("encoder.ff_dim", e.ff_dim, 1 << 20),
            ("encoder.conv_kernel_size", e.conv_kernel, 1 << 10),
            ("encoder.subsampling_conv_channels", e.subsampling_conv_channels, 1 << 16),
            ("preprocessor.sample_rate", p.sample_rate, 1 << 20),
            ("preprocessor.features", p.n_mels, 1024),
            ("preprocessor.n_fft", p.n_fft, 1 << 16),
            ("preprocessor.window_size in samples", p.win_length, p.n_fft),
            ("preprocessor.window_stride in samples", p.hop_length, 1 << 16),
            ("decoder.prednet.pred_hidden", or_one(|t| t.pred_hidden), 1 << 16),
            ("decoder.prednet.pred_rnn_layers", or_one(|t| t.pred_rnn_layers), 64),
            ("joint.jointnet.joint_hidden", or_one(|t| t.joint_hidden), 1 << 16),
        ] {
            if value == 0 || value > most {
                return Err(ConfigError::unexpected(key, value, format!("from 1 to {most}")));
            }
        }
        Ok(())
    }

    /// Checks that every tensor that the model needs is in `shapes`, with the shape that the configuration asks for, and
    /// that there are no layers beyond those that it counts.
    ///
    /// # Errors
    /// The first tensor that is not, and what was expected.
    pub fn check_tensors(&self, shapes: &HashMap<&str, &[usize]>) -> Result<(), (String, String)> {
        for (name, want) in self.required_tensors() {
            match shapes.get(name.as_str()) {
                None => return Err((name, format!("it is missing: expected shape {want:?}"))),
                Some(found) if **found != want[..] => {
                    return Err((
                        name,
                        format!("its shape is {found:?}: the configuration and vocabulary ask for {want:?}"),
                    ));
                }
                Some(_) => {}
            }
        }
        let layers = self.encoder.n_layers;
        let beyond = |name: &&&str| {
            let number = name.strip_prefix("encoder.layers.").and_then(|rest| rest.split('.').next());
            number.and_then(|n| n.parse().ok()).is_some_and(|n: u32| n >= layers)
        };
        match shapes.keys().filter(beyond).min() {
            Some(name) => {
                let reason =
                    format!("it is there, but the configuration has {layers} layers (encoder.n_layers)");
                Err(((*name).to_owned(), reason))
            }
            None => Ok(()),
        }
    }

    /// Names and shapes of the tensors that a model of this configuration cannot do without.
    fn required_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut out = Vec::new();
        let e = &self.encoder;
        let d = e.d_model as usize;
        let p = &self.preprocessor;
        need(&mut out, "preprocessor.featurizer.fb", &[1, p.n_mels as usize, p.n_fft as usize / 2 + 1]);
        need(&mut out, "preprocessor.featurizer.window", &[p.win_length as usize]);
        subsampling_tensors(&mut out, e);
        for i in 0..e.n_layers {
            layer_tensors(&mut out, &format!("encoder.layers.{i}"), e);
        }
        let v1 = self.vocabulary.len() + 1;
        if let Some(head) = self.arch.ctc_head() {
            need(&mut out, &format!("{head}.weight"), &[v1, d, 1]);
            need(&mut out, &format!("{head}.bias"), &[v1]);
        }
        if let Some(t) = &self.transducer {
            let (h, j) = (t.pred_hidden as usize, t.joint_hidden as usize);
            need(&mut out, "decoder.prediction.embed.weight", &[v1, h]);
            for l in 0..t.pred_rnn_layers {
                for (part, shape) in [("weight", &[4 * h, h][..]), ("bias", &[4 * h])] {
                    for side in ["ih", "hh"] {
                        need(&mut out, &format!("decoder.prediction.dec_rnn.lstm.{part}_{side}_l{l}"), shape);
                    }
                }
            }
            let outputs = v1 + t.durations.len();
            for (name, rows, columns) in
                [("joint.enc", j, d), ("joint.pred", j, h), ("joint.joint_net.2", outputs, j)]
            {
                need(&mut out, &format!("{name}.weight"), &[rows, columns]);
                need(&mut out, &format!("{name}.bias"), &[rows]);
            }
        }
        if let Some(prompt) = &self.prompt {
            need(&mut out, "prompt_kernel.0.weight", &[2 * d, d + prompt.num_prompts as usize]);
            need(&mut out, "prompt_kernel.0.bias", &[2 * d]);
            need(&mut out, "prompt_kernel.2.weight", &[d, 2 * d]);
            need(&mut out, "prompt_kernel.2.bias", &[d]);
        }
        out
    }
}

fn need(out: &mut Vec<(String, Vec<usize>)>, name: &str, shape: &[usize]) {
    out.push((name.to_owned(), shape.to_vec()));
}

fn subsampling_tensors(out: &mut Vec<(String, Vec<usize>)>, e: &Encoder) {
    let c = e.subsampling_conv_channels as usize;
    let conv = |i: u32| format!("encoder.pre_encode.conv.{i}.weight");
    need(out, &conv(0), &[c, 1, 3, 3]);
    let stages = e.subsampling_factor.trailing_zeros();
    for stage in 1..stages {
        need(out, &conv(3 * stage - 1), &[c, 1, 3, 3]);
        need(out, &conv(3 * stage), &[c, c, 1, 1]);
    }
    // Each stage: kernel 3, stride 2, padding 1 + 1, or 2 + 1 where causal (on the mel axis too).
    let pads = if e.attention.causal_downsampling { 3 } else { 2 };
    let mels = (0..stages).fold(e.feat_in as usize, |n, _| (n + pads).saturating_sub(3) / 2 + 1);
    need(out, "encoder.pre_encode.out.weight", &[e.d_model as usize, c * mels]);
    need(out, "encoder.pre_encode.out.bias", &[e.d_model as usize]);
}

fn layer_tensors(out: &mut Vec<(String, Vec<usize>)>, layer: &str, e: &Encoder) {
    let (d, f, k) = (e.d_model as usize, e.ff_dim as usize, e.conv_kernel as usize);
    let h = e.n_heads as usize;
    let mut put = |name: &str, shape: &[usize]| need(out, &format!("{layer}.{name}"), shape);
    for norm in ["norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"] {
        put(&format!("{norm}.weight"), &[d]);
        put(&format!("{norm}.bias"), &[d]);
    }
    for ff in ["feed_forward1", "feed_forward2"] {
        put(&format!("{ff}.linear1.weight"), &[f, d]);
        put(&format!("{ff}.linear2.weight"), &[d, f]);
    }
    for linear in ["q", "k", "v", "out", "pos"] {
        put(&format!("self_attn.linear_{linear}.weight"), &[d, d]);
    }
    put("self_attn.pos_bias_u", &[h, d / h.max(1)]);
    put("self_attn.pos_bias_v", &[h, d / h.max(1)]);
    put("conv.pointwise_conv1.weight", &[2 * d, d, 1]);
    put("conv.depthwise_conv.weight", &[d, 1, k]);
    put("conv.pointwise_conv2.weight", &[d, d, 1]);
    put("conv.batch_norm.weight", &[d]);
    put("conv.batch_norm.bias", &[d]);
    if e.conv_norm_type == "batch_norm" {
        put("conv.batch_norm.running_mean", &[d]);
        put("conv.batch_norm.running_var", &[d]);
    }
}

fn put(out: &mut Vec<(String, Meta)>, key: &str, value: Meta) {
    out.push((format!("parakeet.{key}"), value));
}

fn encoder_keys(out: &mut Vec<(String, Meta)>, e: &Encoder) {
    for (key, value) in [
        ("feat_in", Meta::U32(e.feat_in)),
        ("d_model", Meta::U32(e.d_model)),
        ("n_layers", Meta::U32(e.n_layers)),
        ("n_heads", Meta::U32(e.n_heads)),
        ("ff_dim", Meta::U32(e.ff_dim)),
        ("conv_kernel", Meta::U32(e.conv_kernel)),
        ("conv_norm_type", Meta::Str(e.conv_norm_type.clone())),
        ("subsampling_factor", Meta::U32(e.subsampling_factor)),
        ("subsampling_conv_channels", Meta::U32(e.subsampling_conv_channels)),
        ("xscaling", Meta::Bool(e.xscaling)),
        ("pos_emb_max_len", Meta::U32(e.pos_emb_max_len)),
        ("use_bias", Meta::Bool(e.use_bias)),
    ] {
        put(out, &format!("encoder.{key}"), value);
    }
    let a = &e.attention;
    let streaming = a.style == "chunked_limited";
    if a.model != "rel_pos" {
        put(out, "encoder.self_attention_model", Meta::Str(a.model.clone()));
    }
    let [left, right] = a.first();
    if streaming || [left, right] != [-1, -1] {
        put(out, "encoder.att_context_left", Meta::I32(left));
        put(out, "encoder.att_context_right", Meta::I32(right));
        put(out, "encoder.att_context_style", Meta::Str(a.style.clone()));
    }
    if a.contexts.len() > 1 {
        put(out, "encoder.att_context_presets", Meta::I32s(a.contexts.concat()));
    }
    if streaming || a.causal_downsampling {
        put(out, "encoder.causal_downsampling", Meta::Bool(a.causal_downsampling));
    }
    if streaming || a.conv_causal {
        put(out, "encoder.conv_causal", Meta::Bool(a.conv_causal));
    }
    if streaming {
        streaming_keys(out, e.subsampling_factor, left, right);
    }
}

/// The chunk schedule that NeMo's `setup_streaming_params()` computes for chunked attention, in mel frames
/// (`[first, later]`) and encoder frames.
fn streaming_keys(out: &mut Vec<(String, Meta)>, factor: u32, left: i32, right: i32) {
    let f = factor as i32;
    let right = right.max(0);
    let chunk = vec![f.saturating_mul(right).saturating_add(1), f.saturating_mul(right.saturating_add(1))];
    // NeMo keeps 10,000 frames where the left context is unlimited.
    let cache = if left >= 0 { left } else { 10_000 };
    for (key, value) in [
        ("chunk_size", Meta::I32s(chunk.clone())),
        ("shift_size", Meta::I32s(chunk)),
        ("cache_drop_size", Meta::I32(0)),
        ("last_channel_cache_size", Meta::I32(cache)),
        ("valid_out_len", Meta::I32(right.saturating_add(1))),
        ("pre_encode_cache_size", Meta::I32s(vec![0, f + 1])),
        ("drop_extra_pre_encoded", Meta::I32(2)),
    ] {
        put(out, &format!("streaming.{key}"), value);
    }
}

fn prompt_keys(out: &mut Vec<(String, Meta)>, prompt: &Prompt) {
    let keys: Vec<String> = prompt.dictionary.iter().map(|(k, _)| k.clone()).collect();
    let default = if keys.iter().any(|k| k == "auto") {
        "auto".into()
    } else {
        keys.first().cloned().unwrap_or_default()
    };
    put(out, "prompt.present", Meta::Bool(true));
    put(out, "prompt.num_prompts", Meta::U32(prompt.num_prompts));
    put(out, "prompt.dictionary.keys", Meta::Strs(keys));
    put(out, "prompt.dictionary.values", Meta::I32s(prompt.dictionary.iter().map(|(_, v)| *v).collect()));
    put(out, "prompt.default_lang", Meta::Str(default));
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn tiny() -> ModelConfig {
        ModelConfig {
            arch: Arch::Ctc,
            encoder: Encoder {
                feat_in: 80,
                d_model: 64,
                n_layers: 1,
                n_heads: 4,
                ff_dim: 256,
                conv_kernel: 9,
                conv_norm_type: "batch_norm".into(),
                subsampling_factor: 8,
                subsampling_conv_channels: 32,
                xscaling: true,
                pos_emb_max_len: 5000,
                use_bias: true,
                attention: Attention::full(),
            },
            preprocessor: Preprocessor {
                sample_rate: 16000,
                n_mels: 80,
                n_fft: 512,
                win_length: 400,
                hop_length: 160,
                preemph: 0.97,
                mag_power: 2.0,
                normalize: "per_feature".into(),
                log_zero_guard: 2f32.powi(-24),
            },
            vocabulary: vec!["<unk>".into(), "a".into()],
            transducer: None,
            prompt: None,
        }
    }

    fn value(config: &ModelConfig, key: &str) -> Option<Meta> {
        config.metadata().into_iter().find(|(k, _)| k == &format!("parakeet.{key}")).map(|(_, v)| v)
    }

    #[test]
    fn chunk_schedules() {
        // facts of NeMo's setup_streaming_params for the published look-aheads
        for (right, chunk, valid) in [(0, [1, 8], 1), (1, [9, 16], 2), (6, [49, 56], 7), (13, [105, 112], 14)]
        {
            let mut c = tiny();
            c.encoder.attention.style = "chunked_limited".into();
            c.encoder.attention.contexts = vec![[70, right], [70, 1]];
            assert_eq!(value(&c, "streaming.chunk_size"), Some(Meta::I32s(chunk.to_vec())));
            assert_eq!(value(&c, "streaming.valid_out_len"), Some(Meta::I32(valid)));
            assert_eq!(value(&c, "encoder.att_context_presets"), Some(Meta::I32s(vec![70, right, 70, 1])));
        }
    }

    #[test]
    fn extra_keys_only_where_needed() {
        let plain: Vec<String> = tiny().metadata().into_iter().map(|(k, _)| k).collect();
        assert!(!plain.iter().any(|k| k.contains("att") || k.contains("causal") || k.contains("streaming")));
        let mut local = tiny();
        local.encoder.attention.model = "rel_pos_local_attn".into();
        local.encoder.attention.contexts = vec![[128, 128]];
        assert_eq!(
            value(&local, "encoder.self_attention_model"),
            Some(Meta::Str("rel_pos_local_attn".into()))
        );
        assert_eq!(value(&local, "encoder.att_context_left"), Some(Meta::I32(128)));
        assert_eq!(value(&local, "encoder.att_context_style"), Some(Meta::Str("regular".into())));
        assert_eq!(value(&local, "streaming.chunk_size"), None);
    }

    #[test]
    fn refuses_impossible_numbers() {
        type Change = fn(&mut ModelConfig);
        let cases: [(&str, Change); 9] = [
            ("from 1 to 1024", |c| c.encoder.n_layers = 4_000_000_000),
            ("from 1 to 512", |c| c.preprocessor.win_length = 513),
            ("divisor of d_model", |c| c.encoder.n_heads = 5),
            ("odd", |c| c.encoder.conv_kernel = 8),
            ("power of two", |c| c.encoder.subsampling_factor = 6),
            ("batch_norm or", |c| c.encoder.conv_norm_type = "group_norm".into()),
            ("mel features", |c| c.encoder.feat_in = 81),
            ("limited right", |c| c.encoder.attention.style = "chunked_limited".into()),
            ("same window", |c| c.encoder.attention.model = "rel_pos_local_attn".into()),
        ];
        for (want, change) in cases {
            let mut c = tiny();
            change(&mut c);
            let e = c.check().unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
        }
        assert_eq!(tiny().check(), Ok(()));
    }

    #[test]
    fn causal_subsampling_widens_the_mel_axis() {
        for (mels, causal, rows) in [(80, false, 10), (128, false, 16), (80, true, 11), (128, true, 17)] {
            let mut c = tiny();
            c.encoder.feat_in = mels;
            c.encoder.attention.causal_downsampling = causal;
            let mut out = Vec::new();
            subsampling_tensors(&mut out, &c.encoder);
            let (_, shape) = out.iter().find(|(n, _)| n == "encoder.pre_encode.out.weight").unwrap();
            assert_eq!(shape[..], [64, 32 * rows]);
        }
    }
}
