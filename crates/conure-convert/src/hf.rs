//! Hugging Face folders of Parakeet models: config.json, safetensors (one file or shards), tokenizer.json and
//! processor_config.json (or preprocessor_config.json).

use crate::config::{self, ConfigError, MAX_CONFIG, Value};
use crate::error::ConvertError;
use crate::prepared::Prepared;
use crate::safetensors::{self, SafetensorsError, SafetensorsFile};
use crate::schema::{Arch, Attention, Encoder, ModelConfig, Preprocessor, Transducer};
use crate::source::{SourceTensor, TensorSource};
use crate::tokenizer::{self, MAX_TOKENIZER};
use std::path::{Path, PathBuf};

pub(crate) const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const MAX_SHARDS: usize = 256;

/// The parts of names that differ: Hugging Face's, NeMo's. The first that fits is used, once.
const PREFIXES: [(&str, &str); 9] = [
    ("encoder.subsampling.layers.", "encoder.pre_encode.conv."),
    ("encoder.subsampling.linear.", "encoder.pre_encode.out."),
    ("ctc_head.", "decoder.decoder_layers.0."),
    ("decoder.embedding.", "decoder.prediction.embed."),
    ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
    ("decoder.decoder_projector.", "joint.pred."),
    ("encoder_projector.", "joint.enc."),
    ("joint.head.", "joint.joint_net.2."),
    ("model.", ""),
];

/// The same inside an encoder layer.
const IN_LAYER: [(&str, &str); 8] = [
    (".self_attn.q_proj.", ".self_attn.linear_q."),
    (".self_attn.k_proj.", ".self_attn.linear_k."),
    (".self_attn.v_proj.", ".self_attn.linear_v."),
    (".self_attn.o_proj.", ".self_attn.linear_out."),
    (".self_attn.relative_k_proj.", ".self_attn.linear_pos."),
    (".self_attn.bias_u", ".self_attn.pos_bias_u"),
    (".self_attn.bias_v", ".self_attn.pos_bias_v"),
    (".conv.norm.", ".conv.batch_norm."),
];

/// The NeMo name of a tensor.
pub fn nemo_name(name: &str) -> String {
    for (theirs, ours) in PREFIXES {
        if let Some(rest) = name.strip_prefix(theirs) {
            return if ours.is_empty() { nemo_name(rest) } else { format!("{ours}{rest}") };
        }
    }
    if name.starts_with("encoder.layers.") {
        for (theirs, ours) in IN_LAYER {
            if name.contains(theirs) {
                return name.replacen(theirs, ours, 1);
            }
        }
    }
    name.to_owned()
}

/// The shards of a model as one source.
pub(crate) struct Shards {
    paths: Vec<PathBuf>,
    files: Vec<SafetensorsFile>,
    /// Under the names that were asked for.
    tensors: Vec<SourceTensor>,
    /// Shard and index of each.
    places: Vec<(usize, usize)>,
}

impl TensorSource for Shards {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_f32(&self, index: usize) -> Result<Vec<f32>, ConvertError> {
        self.read(index, |file, i| file.read_f32(i))
    }
}

impl Shards {
    /// Part `part` of `count` equal ones of the bytes of tensor `index`.
    pub(crate) fn read_part(&self, index: usize, part: usize, count: usize) -> Result<Vec<u8>, ConvertError> {
        self.read(index, |file, i| file.read_part(i, part, count))
    }

    fn read<T>(
        &self,
        index: usize,
        read: impl FnOnce(&SafetensorsFile, usize) -> Result<T, SafetensorsError>,
    ) -> Result<T, ConvertError> {
        let place =
            self.places.get(index).and_then(|&(s, i)| Some((self.files.get(s)?, self.paths.get(s)?, i)));
        let Some((file, path, i)) = place else {
            return Err(ConvertError::Input {
                path: PathBuf::new(),
                reason: format!("there is no tensor {index}"),
            });
        };
        read(file, i).map_err(|source| ConvertError::Safetensors { path: path.clone(), source })
    }
}

/// Opens the folder at `path`.
///
/// # Errors
/// [`ConvertError`] if it holds no Parakeet model, or one of a kind that is not supported.
pub fn open_folder(path: &Path) -> Result<Prepared, ConvertError> {
    let cfg = read_json(path, CONFIG)?;
    let fail = |source| ConvertError::Config { path: path.into(), member: CONFIG.into(), source };
    let (processor_name, processor) = read_processor(path)?;
    let arch = arch(&cfg).map_err(fail)?;
    let encoder = encoder(&cfg).map_err(fail)?;
    let transducer = transducer(&cfg, arch).map_err(fail)?;
    let preprocessor = preprocessor(&processor).map_err(|source| ConvertError::Config {
        path: path.into(),
        member: processor_name.into(),
        source,
    })?;
    let count = pieces(&cfg, arch).map_err(fail)?;
    let vocabulary = read_vocabulary(path, count)?;
    let model = ModelConfig { arch, encoder, preprocessor, vocabulary, transducer, prompt: None };
    model.check().map_err(fail)?;
    Prepared::new(path, "Hugging Face folder", model, Box::new(open_shards(path, nemo_name)?))
}

pub(crate) fn read_file(folder: &Path, name: &str, limit: u64) -> Result<Vec<u8>, ConvertError> {
    let path = folder.join(name);
    let section = crate::open(&path)?;
    section.read_all(limit).map_err(|source| ConvertError::Io { path, action: "read it", source })
}

pub(crate) fn read_json(folder: &Path, name: &str) -> Result<Value, ConvertError> {
    config::from_json(&read_file(folder, name, MAX_CONFIG)?).map_err(|source| ConvertError::Config {
        path: folder.into(),
        member: name.into(),
        source,
    })
}

/// The feature extractor's settings: a block of processor_config.json, or a file of their own.
fn read_processor(folder: &Path) -> Result<(&'static str, Value), ConvertError> {
    const NEW: &str = "processor_config.json";
    const OLD: &str = "preprocessor_config.json";
    if folder.join(NEW).exists() {
        let whole = read_json(folder, NEW)?;
        if let Some(block) = whole.get("feature_extractor") {
            return Ok((NEW, block.clone()));
        }
    }
    if folder.join(OLD).exists() {
        return Ok((OLD, read_json(folder, OLD)?));
    }
    Err(ConvertError::Input {
        path: folder.into(),
        reason: format!(
            "it has neither {NEW} with a feature_extractor nor {OLD}: the features of this model are unknown"
        ),
    })
}

fn read_vocabulary(folder: &Path, count: usize) -> Result<Vec<String>, ConvertError> {
    const NAME: &str = "tokenizer.json";
    let bytes = read_file(folder, NAME, MAX_TOKENIZER)?;
    tokenizer::hugging_face(&bytes, count).map_err(|source| ConvertError::Tokenizer {
        path: folder.into(),
        member: NAME.into(),
        source,
    })
}

fn arch(cfg: &Value) -> Result<Arch, ConfigError> {
    match cfg.str("model_type")? {
        Some("parakeet_ctc") => Ok(Arch::Ctc),
        Some("parakeet_rnnt") => Ok(Arch::Rnnt),
        Some("parakeet_tdt") => Ok(Arch::Tdt),
        Some(other) => Err(ConfigError::unexpected(
            "model_type",
            format!("{other:?}"),
            "parakeet_ctc, parakeet_rnnt or parakeet_tdt; for other models convert the .nemo file",
        )),
        None => Err(ConfigError::missing("model_type", "parakeet_ctc, parakeet_rnnt or parakeet_tdt")),
    }
}

fn encoder(cfg: &Value) -> Result<Encoder, ConfigError> {
    let key = |k: &str| format!("encoder_config.{k}");
    for (k, want) in [("subsampling_conv_kernel_size", 3), ("subsampling_conv_stride", 2)] {
        let found = cfg.u32(&key(k))?.unwrap_or(want);
        if found != want {
            return Err(ConfigError::unexpected(&key(k), found, want.to_string()));
        }
    }
    if let Some(act) = cfg.str(&key("hidden_act"))?.filter(|a| *a != "silu") {
        return Err(ConfigError::unexpected(&key("hidden_act"), format!("{act:?}"), "silu"));
    }
    Ok(Encoder {
        feat_in: cfg.positive(&key("num_mel_bins"))?,
        d_model: cfg.positive(&key("hidden_size"))?,
        n_layers: cfg.positive(&key("num_hidden_layers"))?,
        n_heads: cfg.positive(&key("num_attention_heads"))?,
        ff_dim: cfg.positive(&key("intermediate_size"))?,
        conv_kernel: cfg.u32(&key("conv_kernel_size"))?.unwrap_or(9),
        conv_norm_type: "batch_norm".into(),
        subsampling_factor: cfg.u32(&key("subsampling_factor"))?.unwrap_or(8),
        subsampling_conv_channels: cfg.u32(&key("subsampling_conv_channels"))?.unwrap_or(256),
        xscaling: cfg.bool(&key("scale_input"))?.unwrap_or(true),
        pos_emb_max_len: cfg.u32(&key("max_position_embeddings"))?.unwrap_or(5000),
        use_bias: cfg.bool(&key("attention_bias"))?.unwrap_or(true),
        attention: Attention::full(),
    })
}

fn transducer(cfg: &Value, arch: Arch) -> Result<Option<Transducer>, ConfigError> {
    if arch == Arch::Ctc {
        return Ok(None);
    }
    if let Some(act) = cfg.str("hidden_act")?.filter(|a| *a != "relu") {
        return Err(ConfigError::unexpected("hidden_act", format!("{act:?}"), "relu"));
    }
    let durations = match (arch, cfg.ints("durations")?) {
        (Arch::Tdt, Some(d)) if !d.is_empty() && d.iter().all(|&n| n >= 0) => d,
        (Arch::Tdt, _) => return Err(ConfigError::missing("durations", "a list such as [0, 1, 2, 3, 4]")),
        _ => Vec::new(),
    };
    // One key for both: prediction network and joint are equally wide in this format.
    let hidden = cfg.positive("decoder_hidden_size")?;
    Ok(Some(Transducer {
        pred_hidden: hidden,
        pred_rnn_layers: cfg.positive("num_decoder_layers")?,
        joint_hidden: hidden,
        activation: "relu".into(),
        max_symbols: cfg.u32("max_symbols_per_step")?.unwrap_or(10),
        durations,
    }))
}

/// The number of pieces: the vocabulary less the blank, which must be last.
fn pieces(cfg: &Value, arch: Arch) -> Result<usize, ConfigError> {
    let size = cfg.positive("vocab_size")?;
    let key = if arch == Arch::Ctc { "pad_token_id" } else { "blank_token_id" };
    let blank = cfg.u32(key)?.unwrap_or(size - 1);
    if blank != size - 1 {
        return Err(ConfigError::unexpected(key, blank, format!("the last of the vocabulary, {}", size - 1)));
    }
    Ok(blank as usize)
}

fn preprocessor(fe: &Value) -> Result<Preprocessor, ConfigError> {
    let n_fft = fe.u32("n_fft")?.unwrap_or(512);
    let win_length = fe.u32("win_length")?.unwrap_or(400);
    let n_mels = fe.positive("feature_size")?;
    Ok(Preprocessor {
        sample_rate: fe.u32("sampling_rate")?.unwrap_or(16000),
        n_mels,
        n_fft,
        win_length,
        hop_length: fe.u32("hop_length")?.unwrap_or(160),
        preemph: fe.f64("preemphasis")?.unwrap_or(0.97) as f32,
        mag_power: 2.0,
        normalize: "per_feature".into(),
        log_zero_guard: 2f32.powi(-24),
    })
}

/// Opens model.safetensors, or the shards of its index, with tensors under the names that `rename` gives them.
pub(crate) fn open_shards(folder: &Path, rename: fn(&str) -> String) -> Result<Shards, ConvertError> {
    let indexed = folder.join(INDEX).exists();
    let names = if indexed { shard_names(folder)? } else { vec!["model.safetensors".to_owned()] };
    let mut out = Shards { paths: Vec::new(), files: Vec::new(), tensors: Vec::new(), places: Vec::new() };
    for (shard, name) in names.iter().enumerate() {
        let path = folder.join(name);
        let file = safetensors::open_path(&path)?;
        for (i, t) in file.tensors().iter().enumerate() {
            out.tensors.push(SourceTensor { name: rename(&t.name), ..t.clone() });
            out.places.push((shard, i));
        }
        out.paths.push(path);
        out.files.push(file);
    }
    Ok(out)
}

/// The file names of the index, each a plain name in the folder.
fn shard_names(folder: &Path) -> Result<Vec<String>, ConvertError> {
    let fail = |source| ConvertError::Config { path: folder.into(), member: INDEX.into(), source };
    let index = read_json(folder, INDEX)?;
    let Some(Value::Map(entries)) = index.get("weight_map") else {
        return Err(fail(ConfigError::missing("weight_map", "a map from tensors to files")));
    };
    let mut names: Vec<String> = Vec::new();
    for (tensor, file) in entries {
        let name = match file {
            Value::Str(s)
                if !s.starts_with('.')
                    && s.ends_with(".safetensors")
                    && !s.contains(['/', '\\', ':', '\0']) =>
            {
                s
            }
            other => {
                let key = format!("weight_map.{}", tensor.chars().take(80).collect::<String>());
                return Err(fail(ConfigError::unexpected(&key, other, "a .safetensors file in this folder")));
            }
        };
        if !names.contains(name) {
            names.push(name.clone());
        }
        if names.len() > MAX_SHARDS {
            return Err(fail(ConfigError::unexpected("weight_map", "more than 256 files", "fewer shards")));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_nemos() {
        for (theirs, ours) in [
            ("encoder.subsampling.layers.0.weight", "encoder.pre_encode.conv.0.weight"),
            ("encoder.subsampling.linear.bias", "encoder.pre_encode.out.bias"),
            ("encoder.layers.3.self_attn.o_proj.weight", "encoder.layers.3.self_attn.linear_out.weight"),
            ("encoder.layers.3.self_attn.bias_u", "encoder.layers.3.self_attn.pos_bias_u"),
            (
                "encoder.layers.3.self_attn.relative_k_proj.weight",
                "encoder.layers.3.self_attn.linear_pos.weight",
            ),
            ("encoder.layers.3.conv.norm.running_var", "encoder.layers.3.conv.batch_norm.running_var"),
            ("encoder.layers.3.norm_conv.bias", "encoder.layers.3.norm_conv.bias"),
            ("ctc_head.weight", "decoder.decoder_layers.0.weight"),
            ("decoder.lstm.weight_ih_l1", "decoder.prediction.dec_rnn.lstm.weight_ih_l1"),
            ("decoder.decoder_projector.bias", "joint.pred.bias"),
            ("encoder_projector.weight", "joint.enc.weight"),
            ("joint.head.weight", "joint.joint_net.2.weight"),
            ("model.encoder_projector.weight", "joint.enc.weight"),
        ] {
            assert_eq!(nemo_name(theirs), ours);
        }
    }

    #[test]
    fn shard_names_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["\"../x.safetensors\"", "\"/etc/x.safetensors\"", "\"a/b.safetensors\"", "\"x.bin\"", "3"]
        {
            std::fs::write(dir.path().join(INDEX), format!("{{\"weight_map\":{{\"w\":{bad}}}}}")).unwrap();
            let e = shard_names(dir.path()).unwrap_err().to_string();
            assert!(e.contains("weight_map.w"), "{bad}: {e}");
        }
        let good = r#"{"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        std::fs::write(dir.path().join(INDEX), good).unwrap();
        assert_eq!(shard_names(dir.path()).unwrap(), ["m-1.safetensors", "m-2.safetensors"]);
        let e = open_shards(dir.path(), nemo_name).err().unwrap().to_string();
        assert!(e.contains("m-1.safetensors"), "{e}");
    }
}
