//! The configuration of a Parakeet model: the `parakeet.*` keys of its file, each checked before it is used.

use crate::error::ModelError;
use crate::keys::Keys;
use conure_gguf::GgufFile;
use conure_ops::{AttentionMask, UnaryKind};
use std::collections::BTreeSet;

/// Sizes and kinds of a Parakeet model, from the `parakeet.*` keys of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct ParakeetConfig {
    /// `parakeet.arch`: what the converter called it. For display only.
    pub label: String,
    /// How audio becomes log-mel features.
    pub preprocessor: Preprocessor,
    /// Mel bins that the encoder takes.
    pub feat_in: usize,
    /// Model width D.
    pub d_model: usize,
    /// Conformer layers.
    pub n_layers: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Inner width of the feed-forward modules.
    pub ff_dim: usize,
    /// Kernel of the depthwise convolution, odd.
    pub conv_kernel: usize,
    /// Whether the convolution module normalises by layer norm instead of batch norm.
    pub conv_layer_norm: bool,
    /// Mel frames per encoder frame: 8.
    pub subsampling_factor: usize,
    /// Channels of the subsampling convolutions.
    pub subsampling_channels: usize,
    /// Whether subsampled features are multiplied by `sqrt(D)`.
    pub xscaling: bool,
    /// Whether the subsampling convolutions see no future.
    pub causal_downsampling: bool,
    /// Whether the convolution module sees no future.
    pub conv_causal: bool,
    /// What attention sees, as the model was trained.
    pub mask: AttentionMask,
    /// Tokens, without blank.
    pub vocab_size: usize,
    /// Id of blank: the one after the last token.
    pub blank_id: usize,
    /// SentencePiece piece of each token.
    pub pieces: Vec<String>,
    /// The transducer, if the file has one.
    pub transducer: Option<TransducerConfig>,
    /// Name of the CTC head's tensors without `.weight`, if the file has one.
    pub ctc_head: Option<&'static str>,
    /// The language prompt, if the model takes one.
    pub prompt: Option<PromptConfig>,
}

/// How audio becomes features: `parakeet.preprocessor.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessor {
    /// Samples per second.
    pub sample_rate: u32,
    /// Mel bins.
    pub n_mels: usize,
    /// Length of the Fourier transform.
    pub n_fft: usize,
    /// Samples of the window.
    pub win_length: usize,
    /// Samples between frames.
    pub hop_length: usize,
    /// Pre-emphasis coefficient; 0 for none.
    pub preemphasis: f32,
    /// Power of the magnitude.
    pub mag_power: f32,
    /// Added before the logarithm.
    pub log_zero_guard: f32,
    /// Whether each bin is normalised over the valid frames.
    pub per_feature: bool,
}

/// Predictor and joint of a transducer.
#[derive(Clone, Debug, PartialEq)]
pub struct TransducerConfig {
    /// Width of the predictor.
    pub pred_hidden: usize,
    /// Its LSTM layers.
    pub pred_layers: usize,
    /// Width of the joint.
    pub joint_hidden: usize,
    /// Activation of the joint.
    pub activation: UnaryKind,
    /// Frames to skip that the durations stand for; empty for RNN-T.
    pub durations: Vec<usize>,
    /// Most tokens on one frame.
    pub max_symbols: usize,
}

/// The languages that a prompted model knows.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptConfig {
    /// Width of the one-hot prompt.
    pub num_prompts: usize,
    /// Locale and its place in the one-hot prompt.
    pub dictionary: Vec<(String, usize)>,
    /// The locale used when none is asked for.
    pub default: String,
}

impl ParakeetConfig {
    /// Reads and checks the configuration of `file`.
    ///
    /// # Errors
    /// A key that is missing or has a value that makes no sense, by name; a file of another architecture.
    pub fn read(file: &GgufFile, origin: &str) -> Result<ParakeetConfig, ModelError> {
        let meta = Keys { meta: file.meta(), origin };
        let architecture = meta.meta.str("general.architecture")?;
        if architecture != "parakeet" {
            return Err(ModelError::Architecture {
                origin: origin.to_owned(),
                found: architecture.to_owned(),
                known: "parakeet",
            });
        }
        let d_model = meta.size("parakeet.encoder.d_model", 1..=65_536)?;
        let n_heads = meta.size("parakeet.encoder.n_heads", 1..=1_024)?;
        meta.check(
            "parakeet.encoder.n_heads",
            n_heads,
            "a divisor of d_model",
            d_model.is_multiple_of(n_heads),
        )?;
        let conv_kernel = meta.size("parakeet.encoder.conv_kernel", 1..=1_023)?;
        meta.check("parakeet.encoder.conv_kernel", conv_kernel, "an odd number", conv_kernel % 2 == 1)?;
        let preprocessor = Preprocessor::read(&meta)?;
        let feat_in = meta.size("parakeet.encoder.feat_in", 1..=4_096)?;
        meta.check(
            "parakeet.encoder.feat_in",
            feat_in,
            "the number of mel bins, parakeet.preprocessor.n_mels",
            feat_in == preprocessor.n_mels,
        )?;
        let factor = meta.size("parakeet.encoder.subsampling_factor", 1..=64)?;
        meta.check("parakeet.encoder.subsampling_factor", factor, "8", factor == 8)?;
        let vocab_size = meta.size("parakeet.vocab_size", 1..=4_000_000)?;
        let pieces = meta.meta.str_array("parakeet.tokenizer.pieces")?;
        meta.check(
            "parakeet.tokenizer.pieces",
            pieces.len(),
            "as many pieces as vocab_size",
            pieces.len() == vocab_size,
        )?;
        let blank_id = meta.meta.opt_u32("parakeet.blank_id")?.map_or(vocab_size, |v| v as usize);
        meta.check(
            "parakeet.blank_id",
            blank_id,
            "the id after the last token, vocab_size",
            blank_id == vocab_size,
        )?;
        Ok(ParakeetConfig {
            label: meta.meta.opt_str("parakeet.arch")?.unwrap_or_default().to_owned(),
            preprocessor,
            feat_in,
            d_model,
            n_layers: meta.size("parakeet.encoder.n_layers", 1..=1_024)?,
            n_heads,
            ff_dim: meta.size("parakeet.encoder.ff_dim", 1..=1_000_000)?,
            conv_kernel,
            conv_layer_norm: match meta
                .meta
                .opt_str("parakeet.encoder.conv_norm_type")?
                .unwrap_or("batch_norm")
            {
                "batch_norm" => false,
                "layer_norm" => true,
                other => {
                    return Err(meta.wrong(
                        "parakeet.encoder.conv_norm_type",
                        other,
                        "batch_norm or layer_norm",
                    ));
                }
            },
            subsampling_factor: factor,
            subsampling_channels: meta.size("parakeet.encoder.subsampling_conv_channels", 1..=65_536)?,
            xscaling: meta.meta.opt_bool("parakeet.encoder.xscaling")?.unwrap_or(true),
            causal_downsampling: meta.meta.opt_bool("parakeet.encoder.causal_downsampling")?.unwrap_or(false),
            conv_causal: meta.meta.opt_bool("parakeet.encoder.conv_causal")?.unwrap_or(false),
            mask: read_mask(&meta)?,
            vocab_size,
            blank_id,
            pieces: pieces.into_iter().map(str::to_owned).collect(),
            transducer: TransducerConfig::read(&meta, file)?,
            ctc_head: ["ctc_decoder.decoder_layers.0", "decoder.decoder_layers.0"]
                .into_iter()
                .find(|head| file.tensor_info(&format!("{head}.weight")).is_some()),
            prompt: PromptConfig::read(&meta)?,
        })
    }
}

/// What attention sees: `att_context_style`, `att_context_left`, `att_context_right` and `self_attention_model`.
fn read_mask(meta: &Keys<'_>) -> Result<AttentionMask, ModelError> {
    let left = meta.meta.opt_i32("parakeet.encoder.att_context_left")?.unwrap_or(-1);
    let right = meta.meta.opt_i32("parakeet.encoder.att_context_right")?.unwrap_or(-1);
    let style = meta.meta.opt_str("parakeet.encoder.att_context_style")?.unwrap_or("regular");
    let model = meta.meta.opt_str("parakeet.encoder.self_attention_model")?.unwrap_or("rel_pos");
    match (model, style) {
        ("rel_pos_local_attn", _) => match (usize::try_from(left), usize::try_from(right)) {
            (Ok(left), Ok(right)) if left == right && left > 0 => Ok(AttentionMask::Banded { left, right }),
            // NeMo adds the positions of an asymmetric window at the wrong columns: no checkpoint can rely on it.
            _ => Err(meta.wrong(
                "parakeet.encoder.att_context_left",
                &format!("{left} with att_context_right {right}"),
                "two equal positive windows for rel_pos_local_attn",
            )),
        },
        ("rel_pos", "regular") => Ok(AttentionMask::Full),
        ("rel_pos", "chunked_limited") => {
            let Ok(right) = usize::try_from(right) else {
                return Err(meta.wrong(
                    "parakeet.encoder.att_context_right",
                    &right.to_string(),
                    "0 or more",
                ));
            };
            let left = usize::try_from(left).ok();
            if left.is_some_and(|l| l % (right + 1) != 0) {
                return Err(meta.wrong(
                    "parakeet.encoder.att_context_left",
                    &format!("{left:?}"),
                    "a multiple of att_context_right + 1",
                ));
            }
            Ok(AttentionMask::ChunkedLimited { left, right })
        }
        ("rel_pos", other) => {
            Err(meta.wrong("parakeet.encoder.att_context_style", other, "regular or chunked_limited"))
        }
        (other, _) => {
            Err(meta.wrong("parakeet.encoder.self_attention_model", other, "rel_pos or rel_pos_local_attn"))
        }
    }
}

impl Preprocessor {
    fn read(meta: &Keys<'_>) -> Result<Preprocessor, ModelError> {
        let p = "parakeet.preprocessor";
        let n_fft = meta.size(&format!("{p}.n_fft"), 2..=65_536)?;
        let win_length = meta.size(&format!("{p}.win_length"), 1..=65_536)?;
        let key = format!("{p}.win_length");
        meta.check(&key, win_length, "at most n_fft", win_length <= n_fft)?;
        let even = n_fft.is_multiple_of(2);
        meta.check(&format!("{p}.n_fft"), n_fft, "an even number of samples", even)?;
        // Windows that neither leave sound out nor repeat all of it: NeMo's are 25 ms every 10 ms.
        let hop_length = meta.size(&format!("{p}.hop_length"), 1..=65_536)?;
        let overlaps = hop_length <= win_length && hop_length >= win_length.div_ceil(16);
        let key = format!("{p}.hop_length");
        meta.check(&key, hop_length, "from a sixteenth of win_length to all of it", overlaps)?;
        let sample_rate = meta.meta.opt_u32(&format!("{p}.sample_rate"))?.unwrap_or(16_000);
        let key = format!("{p}.sample_rate");
        meta.check(&key, sample_rate as usize, "1000 to 768000", (1_000..=768_000).contains(&sample_rate))?;
        let real = |name: &str, default: f32| -> Result<f32, ModelError> {
            let key = format!("{p}.{name}");
            let value = meta.meta.opt_f32(&key)?.unwrap_or(default);
            if value.is_finite() && value >= 0.0 {
                Ok(value)
            } else {
                Err(meta.wrong(&key, &value.to_string(), "a finite number, not negative"))
            }
        };
        Ok(Preprocessor {
            sample_rate,
            n_mels: meta.size(&format!("{p}.n_mels"), 1..=4_096)?,
            n_fft,
            win_length,
            hop_length,
            preemphasis: real("preemph", 0.0)?,
            mag_power: real("mag_power", 2.0)?,
            log_zero_guard: real("log_zero_guard", 0.0)?,
            per_feature: match meta.meta.opt_str(&format!("{p}.normalize"))?.unwrap_or("per_feature") {
                "per_feature" => true,
                "NA" | "None" | "none" | "" => false,
                other => return Err(meta.wrong(&format!("{p}.normalize"), other, "per_feature or NA")),
            },
        })
    }
}

impl TransducerConfig {
    fn read(meta: &Keys<'_>, file: &GgufFile) -> Result<Option<TransducerConfig>, ModelError> {
        if file.tensor_info("joint.joint_net.2.weight").is_none() {
            return Ok(None);
        }
        let durations = meta
            .meta
            .opt_i32_array("parakeet.tdt.durations")?
            .unwrap_or_default()
            .into_iter()
            .map(|d| {
                usize::try_from(d)
                    .map_err(|_| meta.wrong("parakeet.tdt.durations", &d.to_string(), "frames, 0 or more"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let distinct = durations.iter().collect::<BTreeSet<_>>().len() == durations.len();
        if !distinct {
            return Err(meta.wrong(
                "parakeet.tdt.durations",
                &format!("{durations:?}"),
                "each duration once",
            ));
        }
        let activation = match meta.meta.opt_str("parakeet.joint.activation")?.unwrap_or("relu") {
            "" | "relu" => UnaryKind::Relu,
            "sigmoid" => UnaryKind::Sigmoid,
            "tanh" => UnaryKind::Tanh,
            other => return Err(meta.wrong("parakeet.joint.activation", other, "relu, sigmoid or tanh")),
        };
        Ok(Some(TransducerConfig {
            pred_hidden: meta.size("parakeet.decoder.pred_hidden", 1..=65_536)?,
            pred_layers: meta.size_or("parakeet.decoder.pred_rnn_layers", 1, 1..=64)?,
            joint_hidden: meta.size("parakeet.joint.joint_hidden", 1..=65_536)?,
            activation,
            durations,
            // Without a bound, a joint that never gives blank would hold the decoder on one frame.
            max_symbols: meta.size_or("parakeet.decoding.max_symbols", 10, 1..=1_000)?,
        }))
    }
}

impl PromptConfig {
    fn read(meta: &Keys<'_>) -> Result<Option<PromptConfig>, ModelError> {
        if !meta.meta.opt_bool("parakeet.prompt.present")?.unwrap_or(false) {
            return Ok(None);
        }
        let num_prompts = meta.size("parakeet.prompt.num_prompts", 1..=65_536)?;
        let keys = meta.meta.str_array("parakeet.prompt.dictionary.keys")?;
        let values = meta.meta.i32_array("parakeet.prompt.dictionary.values")?;
        let fits = |v: i32| usize::try_from(v).ok().filter(|&v| v < num_prompts);
        let dictionary: Option<Vec<_>> =
            keys.iter().zip(&values).map(|(k, &v)| Some(((*k).to_owned(), fits(v)?))).collect();
        match dictionary {
            Some(dictionary) if keys.len() == values.len() && !keys.is_empty() => {
                let named = meta.meta.opt_str("parakeet.prompt.default_lang")?.unwrap_or_default();
                let known = dictionary.iter().any(|(k, _)| k == named);
                let default = if known { named } else { keys[0] }.to_owned();
                Ok(Some(PromptConfig { num_prompts, dictionary, default }))
            }
            _ => Err(meta.wrong(
                "parakeet.prompt.dictionary.values",
                &format!("{} values for {} keys", values.len(), keys.len()),
                "one index below num_prompts for every key",
            )),
        }
    }

    /// The place of `language` in the one-hot prompt; the default language's if `None`.
    pub fn index(&self, language: Option<&str>) -> Option<usize> {
        let wanted = language.unwrap_or(&self.default);
        self.dictionary.iter().find(|(k, _)| k.eq_ignore_ascii_case(wanted)).map(|&(_, v)| v)
    }
}
