//! NeMo archives: `.nemo` (a tar, gzipped or not) or the same files unpacked in a folder.

use crate::config::{self, ConfigError, MAX_CONFIG, Value};
use crate::error::ConvertError;
use crate::prepared::Prepared;
use crate::schema::{Arch, Attention, Encoder, ModelConfig, Preprocessor, Prompt, Transducer};
use crate::section::Section;
use crate::source::{SourceTensor, TensorSource};
use crate::tokenizer::{self, MAX_TOKENIZER};
use crate::torch::TorchFile;
use crate::{gzip, tar};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const CONFIG: &str = "model_config.yaml";
const WEIGHTS: &str = "model_weights.ckpt";

/// The files of an archive by name.
struct Files {
    path: PathBuf,
    files: Vec<(String, Section)>,
}

impl Files {
    /// The file of this name, at the top or in the archive's one folder.
    fn get(&self, name: &str) -> Option<&Section> {
        let nested = format!("/{name}");
        let exact = self.files.iter().find(|(n, _)| n == name);
        exact.or_else(|| self.files.iter().find(|(n, _)| n.ends_with(&nested))).map(|(_, s)| s)
    }

    /// The file whose name ends so (archives put a hash before the names of tokenizer files).
    fn by_suffix(&self, suffix: &str) -> Option<(&str, &Section)> {
        self.files.iter().find(|(n, _)| n.ends_with(suffix)).map(|(n, s)| (n.as_str(), s))
    }

    fn missing(&self, name: &str) -> ConvertError {
        let mut names: Vec<&str> = self.files.iter().take(12).map(|(n, _)| n.as_str()).collect();
        if names.is_empty() {
            names.push("nothing");
        }
        ConvertError::Input {
            path: self.path.clone(),
            reason: format!(
                "it has no {name}, so it is no model saved by NeMo's save_to(); it holds {}",
                names.join(", ")
            ),
        }
    }

    fn config_error(&self, source: ConfigError) -> ConvertError {
        ConvertError::Config { path: self.path.clone(), member: CONFIG.into(), source }
    }

    fn read(&self, name: &str, section: &Section, limit: u64) -> Result<Vec<u8>, ConvertError> {
        section.read_all(limit).map_err(|source| ConvertError::Config {
            path: self.path.clone(),
            member: name.into(),
            source: ConfigError::Syntax(source.to_string()),
        })
    }
}

/// Opens the archive at `path`; a gzipped one is inflated into a nameless file in `folder`.
///
/// # Errors
/// [`ConvertError`] if it is no model, hostile, or of a kind that is not supported.
pub fn open_archive(path: &Path, section: &Section, folder: &Path) -> Result<Prepared, ConvertError> {
    let mut magic = [0u8; 2];
    let plain = if section.read_at(0, &mut magic).is_ok() && magic == [0x1f, 0x8b] {
        let inflated = gzip::inflate(section, folder);
        inflated.map_err(|source| ConvertError::Io { path: path.into(), action: "inflate it", source })?
    } else {
        section.clone()
    };
    let members = tar::members(&plain).map_err(|source| ConvertError::Tar { path: path.into(), source })?;
    let files =
        members.into_iter().filter_map(|m| plain.sub(m.offset, m.size).map(|s| (m.name, s))).collect();
    prepare(&Files { path: path.into(), files })
}

/// Opens an unpacked archive.
///
/// # Errors
/// As [`open_archive`].
pub fn open_folder(path: &Path) -> Result<Prepared, ConvertError> {
    let io = |source| ConvertError::Io { path: path.into(), action: "list it", source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if std::fs::metadata(entry.path()).is_ok_and(|m| m.is_file()) {
            files.push((name, crate::open(&entry.path())?));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    prepare(&Files { path: path.into(), files })
}

/// The checkpoint as a source of tensors.
struct Checkpoint {
    path: PathBuf,
    file: TorchFile,
    tensors: Vec<SourceTensor>,
}

impl TensorSource for Checkpoint {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_f32(&self, index: usize) -> Result<Vec<f32>, ConvertError> {
        self.file.read_f32(index).map_err(|source| ConvertError::Torch {
            path: self.path.clone(),
            member: WEIGHTS.into(),
            source: Box::new(source),
        })
    }
}

fn prepare(files: &Files) -> Result<Prepared, ConvertError> {
    let yaml = files.get(CONFIG).ok_or_else(|| files.missing(CONFIG))?;
    let weights = files.get(WEIGHTS).ok_or_else(|| files.missing(WEIGHTS))?;
    let text = files.read(CONFIG, yaml, MAX_CONFIG)?;
    let text = std::str::from_utf8(&text)
        .map_err(|e| files.config_error(ConfigError::Syntax(format!("it is not UTF-8 ({e})"))))?;
    let yaml = config::from_yaml(text).map_err(|e| files.config_error(e))?;
    let file = TorchFile::open(weights).map_err(|source| ConvertError::Torch {
        path: files.path.clone(),
        member: WEIGHTS.into(),
        source: Box::new(source),
    })?;
    let mut tensors = file.tensors();
    rename_joint(&mut tensors);
    let shapes = tensors.iter().map(|t| (t.name.clone(), t.shape.clone())).collect();
    let vocabulary = vocabulary(files, &yaml)?;
    let model = model_config(&yaml, &shapes, vocabulary).map_err(|e| files.config_error(e))?;
    model.check().map_err(|e| files.config_error(e))?;
    let source = Checkpoint { path: files.path.clone(), file, tensors };
    Prepared::new(&files.path, "NeMo archive", model, Box::new(source))
}

/// A joint without dropout has its last layer one place earlier; the schema knows the later one.
fn rename_joint(tensors: &mut [SourceTensor]) {
    if tensors.iter().any(|t| t.name == "joint.joint_net.2.weight") {
        return;
    }
    for t in tensors {
        if let Some(part) = t.name.strip_prefix("joint.joint_net.1.") {
            t.name = format!("joint.joint_net.2.{part}");
        }
    }
}

/// The pieces, from the file that the configuration names or the one that has the usual name.
fn vocabulary(files: &Files, yaml: &Value) -> Result<Vec<String>, ConvertError> {
    let cfg = |e| files.config_error(e);
    let kind = yaml.str("tokenizer.type").map_err(cfg)?.unwrap_or("bpe");
    if kind != "bpe" {
        return Err(cfg(ConfigError::unexpected(
            "tokenizer.type",
            format!("{kind:?}"),
            "bpe (a SentencePiece tokenizer); other kinds are not supported",
        )));
    }
    for (key, suffix) in [
        ("model_path", "tokenizer.model"),
        ("spe_tokenizer_vocab", "tokenizer.vocab"),
        ("vocab_path", "vocab.txt"),
    ] {
        let named = yaml.str(&format!("tokenizer.{key}")).map_err(cfg)?;
        let named = named.map(|n| n.strip_prefix("nemo:").unwrap_or(n));
        let found = named.and_then(|n| files.get(n).map(|s| (n, s))).or_else(|| files.by_suffix(suffix));
        let Some((name, section)) = found else { continue };
        let fail = |source| ConvertError::Tokenizer { path: files.path.clone(), member: name.into(), source };
        let bytes = files.read(name, section, MAX_TOKENIZER)?;
        return if suffix == "tokenizer.model" {
            let pieces = tokenizer::sentencepiece(&bytes).map_err(fail)?;
            Ok(pieces.into_iter().map(|p| p.text).collect())
        } else {
            tokenizer::text_vocabulary(&bytes).map_err(fail)
        };
    }
    Err(ConvertError::Input {
        path: files.path.clone(),
        reason: "it has no tokenizer (tokenizer.model, tokenizer.vocab or vocab.txt); models of characters without one \
                 are not supported"
            .into(),
    })
}

type Shapes = HashMap<String, Vec<usize>>;

fn model_config(yaml: &Value, shapes: &Shapes, vocabulary: Vec<String>) -> Result<ModelConfig, ConfigError> {
    for section in ["preprocessor", "encoder"] {
        if yaml.get(section).is_none() {
            return Err(ConfigError::missing(section, "a section, as every speech model of NeMo has"));
        }
    }
    let (arch, durations) = arch(yaml, shapes)?;
    let encoder = encoder(yaml)?;
    let prompt = prompt(yaml, shapes, encoder.d_model)?;
    let transducer = if arch == Arch::Ctc { None } else { Some(transducer(yaml, durations)?) };
    Ok(ModelConfig { arch, encoder, preprocessor: preprocessor(yaml)?, vocabulary, transducer, prompt })
}

/// The heads by the tensors that are there; durations decide between RNN-T and TDT.
fn arch(yaml: &Value, shapes: &Shapes) -> Result<(Arch, Vec<i32>), ConfigError> {
    let has = |prefix: &str| shapes.keys().any(|n| n.starts_with(prefix));
    if !has("joint.") {
        return Ok((Arch::Ctc, Vec::new()));
    }
    let durations = match yaml.ints("decoding.durations")? {
        Some(d) if !d.is_empty() => Some(d),
        _ => match yaml.ints("model_defaults.tdt_durations")? {
            Some(d) if !d.is_empty() => Some(d),
            _ => yaml.ints("loss.tdt_kwargs.durations")?,
        },
    };
    let extra = yaml.u32("joint.num_extra_outputs")?.unwrap_or(0) as usize;
    let tdt = yaml.str("loss.loss_name")? == Some("tdt") || extra > 0;
    let durations = match durations {
        // A list left over in the defaults of a plain RNN-T model.
        Some(_) if !tdt && yaml.get("decoding.durations").is_none() => Vec::new(),
        Some(d) => d,
        None if tdt => {
            return Err(ConfigError::missing(
                "decoding.durations",
                "the durations of the TDT joint, such as [0, 1, 2, 3, 4]",
            ));
        }
        None => Vec::new(),
    };
    if durations.iter().any(|&d| d < 0) {
        return Err(ConfigError::unexpected("decoding.durations", format!("{durations:?}"), "frames from 0"));
    }
    let ctc = has("ctc_decoder.");
    let arch = match (ctc, durations.is_empty()) {
        (false, true) => Arch::Rnnt,
        (false, false) => Arch::Tdt,
        (true, true) => Arch::HybridRnntCtc,
        (true, false) => Arch::HybridTdtCtc,
    };
    Ok((arch, durations))
}

/// The encoder section; what is left out has NeMo's default.
fn encoder(yaml: &Value) -> Result<Encoder, ConfigError> {
    only(yaml, "encoder.subsampling", "striding", &["dw_striding"])?;
    for (key, want) in [("untie_biases", true)] {
        if yaml.bool(&format!("encoder.{key}"))?.unwrap_or(want) != want {
            return Err(ConfigError::unexpected(&format!("encoder.{key}"), !want, want.to_string()));
        }
    }
    if let Some(reduction) = yaml.str("encoder.reduction")? {
        return Err(ConfigError::unexpected("encoder.reduction", format!("{reduction:?}"), "none"));
    }
    let d_model = yaml.positive("encoder.d_model")?;
    let factor = yaml.u32("encoder.ff_expansion_factor")?.unwrap_or(4);
    let ff_dim = d_model
        .checked_mul(factor)
        .filter(|&n| n > 0)
        .ok_or_else(|| ConfigError::unexpected("encoder.ff_expansion_factor", factor, "a small number"))?;
    let channels = match yaml.get("encoder.subsampling_conv_channels") {
        None | Some(Value::Int(-1)) => d_model,
        Some(_) => yaml.positive("encoder.subsampling_conv_channels")?,
    };
    Ok(Encoder {
        feat_in: yaml.positive("encoder.feat_in")?,
        d_model,
        n_layers: yaml.positive("encoder.n_layers")?,
        n_heads: yaml.positive("encoder.n_heads")?,
        ff_dim,
        conv_kernel: yaml.u32("encoder.conv_kernel_size")?.unwrap_or(31),
        conv_norm_type: yaml.str("encoder.conv_norm_type")?.unwrap_or("batch_norm").into(),
        subsampling_factor: yaml.u32("encoder.subsampling_factor")?.unwrap_or(4),
        subsampling_conv_channels: channels,
        xscaling: yaml.bool("encoder.xscaling")?.unwrap_or(true),
        pos_emb_max_len: yaml.u32("encoder.pos_emb_max_len")?.unwrap_or(5000),
        use_bias: yaml.bool("encoder.use_bias")?.unwrap_or(true),
        attention: attention(yaml)?,
    })
}

fn attention(yaml: &Value) -> Result<Attention, ConfigError> {
    let model = only(yaml, "encoder.self_attention_model", "rel_pos", &["rel_pos", "rel_pos_local_attn"])?;
    let style = only(yaml, "encoder.att_context_style", "regular", &["regular", "chunked_limited"])?;
    if model == "rel_pos_local_attn" && yaml.u32("encoder.global_tokens")?.unwrap_or(0) > 0 {
        return Err(ConfigError::unexpected(
            "encoder.global_tokens",
            "above 0",
            "0: global tokens are not supported",
        ));
    }
    Ok(Attention {
        model,
        contexts: contexts(yaml)?,
        style,
        causal_downsampling: yaml.bool("encoder.causal_downsampling")?.unwrap_or(false),
        conv_causal: conv_causal(yaml)?,
    })
}

/// `[left, right]` or a list of them.
fn contexts(yaml: &Value) -> Result<Vec<[i32; 2]>, ConfigError> {
    const KEY: &str = "encoder.att_context_size";
    let Some(value) = yaml.get(KEY) else {
        return Ok(vec![[-1, -1]]);
    };
    let pair = |v: &Value| config::int_list(v).and_then(|l| <[i32; 2]>::try_from(l).ok());
    let found = match (pair(value), value) {
        (Some(one), _) => Some(vec![one]),
        (None, Value::List(items)) if !items.is_empty() => items.iter().map(pair).collect(),
        _ => None,
    };
    found.ok_or_else(|| ConfigError::unexpected(KEY, value, "[left, right] or a list of such pairs"))
}

/// Whether the depthwise convolutions look back only: `causal`, or `[kernel - 1, 0]`.
fn conv_causal(yaml: &Value) -> Result<bool, ConfigError> {
    const KEY: &str = "encoder.conv_context_size";
    let kernel = yaml.u32("encoder.conv_kernel_size")?.unwrap_or(31);
    let kernel = i32::try_from(kernel).unwrap_or(i32::MAX);
    match yaml.get(KEY) {
        None => Ok(false),
        Some(Value::Str(s)) if s == "causal" => Ok(true),
        Some(value) => match config::int_list(value).as_deref() {
            Some([l, 0]) if *l == kernel - 1 => Ok(true),
            Some([l, r]) if l == r && *l == (kernel - 1) / 2 => Ok(false),
            _ => Err(ConfigError::unexpected(KEY, value, "null, causal, or the symmetric or causal pair")),
        },
    }
}

/// The text at `key` if it is one of `allowed`.
fn only(yaml: &Value, key: &str, default: &str, allowed: &[&str]) -> Result<String, ConfigError> {
    let found = yaml.str(key)?.unwrap_or(default);
    if allowed.contains(&found) {
        return Ok(found.to_owned());
    }
    Err(ConfigError::unexpected(
        key,
        format!("{found:?}"),
        format!("{}; others are not supported", allowed.join(" or ")),
    ))
}

/// The preprocessor section; what is left out has NeMo's default.
fn preprocessor(yaml: &Value) -> Result<Preprocessor, ConfigError> {
    let key = |k: &str| format!("preprocessor.{k}");
    let sample_rate = yaml.u32(&key("sample_rate"))?.unwrap_or(16000);
    // Sizes are in seconds, or in samples under the `n_` names.
    let samples = |k: &str, default: f64| -> Result<u32, ConfigError> {
        if let Some(n) = yaml.u32(&key(&format!("n_{k}")))? {
            return Ok(n);
        }
        let seconds = yaml.f64(&key(k))?.unwrap_or(default);
        let n = (seconds * f64::from(sample_rate)).round();
        if (1.0..=1e6).contains(&n) {
            Ok(n as u32)
        } else {
            Err(ConfigError::unexpected(&key(k), seconds, "a length in seconds"))
        }
    };
    let win_length = samples("window_size", 0.02)?;
    let n_fft = match yaml.u32(&key("n_fft"))? {
        Some(n) => n,
        None => win_length.next_power_of_two(),
    };
    if yaml.bool(&key("log"))? == Some(false) {
        return Err(ConfigError::unexpected(
            &key("log"),
            false,
            "true: features without logarithm are not supported",
        ));
    }
    if yaml.u32(&key("frame_splicing"))?.unwrap_or(1) != 1 {
        return Err(ConfigError::unexpected(&key("frame_splicing"), "above 1", "1"));
    }
    only(yaml, &key("log_zero_guard_type"), "add", &["add"])?;
    // `null` switches a step off; a missing key means NeMo's default.
    let off = |k: &str| match yaml.get("preprocessor") {
        Some(Value::Map(entries)) => entries.iter().any(|(key, v)| key == k && *v == Value::Null),
        _ => false,
    };
    let preemph = if off("preemph") { 0.0 } else { yaml.f64(&key("preemph"))?.unwrap_or(0.97) };
    let normalize = match yaml.get(&key("normalize")) {
        None if off("normalize") => "NA".to_owned(),
        None => "per_feature".to_owned(),
        Some(Value::Str(s)) => s.clone(),
        Some(other) => return Err(ConfigError::unexpected(&key("normalize"), other, "per_feature or NA")),
    };
    if !matches!(normalize.as_str(), "per_feature" | "NA" | "None" | "none" | "") {
        return Err(ConfigError::unexpected(
            &key("normalize"),
            format!("{normalize:?}"),
            "per_feature or NA",
        ));
    }
    Ok(Preprocessor {
        sample_rate,
        n_mels: yaml.u32(&key("features"))?.unwrap_or(64),
        n_fft,
        win_length,
        hop_length: samples("window_stride", 0.01)?,
        preemph: preemph as f32,
        mag_power: yaml.f64(&key("mag_power"))?.unwrap_or(2.0) as f32,
        normalize,
        log_zero_guard: yaml.f64(&key("log_zero_guard_value"))?.unwrap_or(2f64.powi(-24)) as f32,
    })
}

fn transducer(yaml: &Value, durations: Vec<i32>) -> Result<Transducer, ConfigError> {
    let max_symbols = match yaml.u32("decoding.greedy.max_symbols")? {
        Some(n) => Some(n),
        None => yaml.u32("decoding.greedy.max_symbols_per_step")?,
    };
    Ok(Transducer {
        pred_hidden: yaml.positive("decoder.prednet.pred_hidden")?,
        pred_rnn_layers: yaml.u32("decoder.prednet.pred_rnn_layers")?.unwrap_or(1),
        joint_hidden: yaml.positive("joint.jointnet.joint_hidden")?,
        activation: only(yaml, "joint.jointnet.activation", "relu", &["relu"])?,
        max_symbols: max_symbols.unwrap_or(10),
        durations,
    })
}

/// The prompt stage, if its tensors are there.
fn prompt(yaml: &Value, shapes: &Shapes, d_model: u32) -> Result<Option<Prompt>, ConfigError> {
    const KEY: &str = "model_defaults.prompt_dictionary";
    let Some(shape) = shapes.get("prompt_kernel.0.weight") else {
        return Ok(None);
    };
    let width =
        shape.get(1).and_then(|n| n.checked_sub(d_model as usize)).and_then(|n| u32::try_from(n).ok());
    let configured = match yaml.u32("model_defaults.num_prompts")? {
        Some(n) => Some(n),
        None => yaml.u32("num_prompts")?,
    };
    let num_prompts = configured.or(width).unwrap_or(0);
    let Some(value @ Value::Map(entries)) = yaml.get(KEY) else {
        return Err(ConfigError::missing(KEY, "a map from locales to prompt numbers"));
    };
    let dictionary: Option<Vec<(String, i32)>> = entries
        .iter()
        .map(|(k, v)| match v {
            Value::Int(n) if (0..i64::from(num_prompts)).contains(n) => {
                Some((k.clone(), i32::try_from(*n).ok()?))
            }
            _ => None,
        })
        .collect();
    match dictionary {
        Some(dictionary) if !dictionary.is_empty() => Ok(Some(Prompt { num_prompts, dictionary })),
        _ => Err(ConfigError::unexpected(
            KEY,
            value,
            format!("locales with numbers below num_prompts {num_prompts}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "
preprocessor: {features: 80, window_size: 0.025, n_fft: 512}
encoder: {feat_in: 80, d_model: 64, n_layers: 1, n_heads: 4, conv_kernel_size: 9, subsampling: dw_striding}
decoder: {prednet: {pred_hidden: 64}}
joint: {jointnet: {joint_hidden: 64}}
";

    #[test]
    fn a_configuration_without_its_sections_is_named_so() {
        let missing = |yaml: &str| {
            let yaml = config::from_yaml(yaml).unwrap();
            model_config(&yaml, &Shapes::new(), vec!["a".into()]).unwrap_err().to_string()
        };
        for (yaml, section) in [("{}", "preprocessor"), ("preprocessor: {features: 80}", "encoder")] {
            let error = missing(yaml);
            assert!(error.contains(&format!("`{section}`")), "{error}");
        }
    }

    fn model(extra: &[(&str, &str)], tensors: &[&str]) -> Result<ModelConfig, ConfigError> {
        let mut yaml = YAML.to_owned();
        for (section, fields) in extra {
            if yaml.contains(&format!("{section}: {{")) {
                yaml = yaml.replace(&format!("{section}: {{"), &format!("{section}: {{{fields}, "));
            } else {
                yaml.push_str(&format!("{section}: {{{fields}}}\n"));
            }
        }
        let shapes = tensors.iter().map(|n| ((*n).to_owned(), vec![128, 64 + 8])).collect();
        model_config(&config::from_yaml(&yaml).unwrap(), &shapes, vec!["a".into()])
    }

    #[test]
    fn the_heads_decide_the_kind() {
        let joint = "joint.enc.weight";
        let ctc = "ctc_decoder.decoder_layers.0.weight";
        let aux = ("aux_ctc", "decoder: {}");
        let durations = ("decoding", "durations: [0, 1, 2]");
        let tdt = ("loss", "loss_name: tdt");
        for (extra, tensors, want) in [
            (&[][..], &["decoder.decoder_layers.0.weight"][..], Arch::Ctc),
            (&[], &[joint], Arch::Rnnt),
            // A leftover aux_ctc section without a head is no hybrid.
            (&[aux], &[joint], Arch::Rnnt),
            (&[aux], &[joint, ctc], Arch::HybridRnntCtc),
            (&[durations], &[joint], Arch::Tdt),
            (&[durations, aux], &[joint, ctc], Arch::HybridTdtCtc),
            (&[tdt, ("model_defaults", "tdt_durations: [0, 1]")], &[joint], Arch::Tdt),
            (&[("model_defaults", "tdt_durations: [0, 1]")], &[joint], Arch::Rnnt),
        ] {
            let got = model(extra, tensors).unwrap();
            assert_eq!(got.arch, want, "{extra:?} {tensors:?}");
            assert_eq!(got.transducer.is_some(), want != Arch::Ctc);
        }
        let e = model(&[tdt], &[joint]).unwrap_err().to_string();
        assert!(e.contains("`decoding.durations` is missing"), "{e}");
    }

    #[test]
    fn what_is_left_out_has_nemos_default() {
        let m = model(&[], &[]).unwrap();
        assert_eq!(
            (m.encoder.ff_dim, m.encoder.pos_emb_max_len, m.encoder.subsampling_conv_channels),
            (256, 5000, 64)
        );
        assert!(m.encoder.xscaling && m.encoder.use_bias);
        assert_eq!(m.encoder.attention, Attention::full());
        let p = &m.preprocessor;
        assert_eq!(
            (p.win_length, p.hop_length, p.preemph, p.normalize.as_str()),
            (400, 160, 0.97, "per_feature")
        );
        assert_eq!((p.mag_power, p.log_zero_guard), (2.0, 2f32.powi(-24)));
        let off = model(&[("preprocessor", "preemph: null, normalize: null")], &[]).unwrap().preprocessor;
        assert_eq!((off.preemph, off.normalize.as_str()), (0.0, "NA"));
    }

    #[test]
    fn contexts_and_causality() {
        let attention = |fields: &str| model(&[("encoder", fields)], &[]).map(|m| m.encoder.attention);
        let a =
            attention("att_context_size: [[70, 13], [70, 6]], att_context_style: chunked_limited").unwrap();
        assert_eq!((a.contexts.as_slice(), a.style.as_str()), (&[[70, 13], [70, 6]][..], "chunked_limited"));
        assert!(attention("conv_context_size: causal").unwrap().conv_causal);
        assert!(attention("conv_context_size: [8, 0]").unwrap().conv_causal);
        assert!(!attention("conv_context_size: [4, 4]").unwrap().conv_causal);
        for bad in [
            "att_context_size: 7",
            "att_context_size: [1, 2, 3]",
            "att_context_size: []",
            "conv_context_size: [1, 1]",
            "att_context_style: blockwise",
            "self_attention_model: abs_pos",
            "self_attention_model: rel_pos_local_attn, global_tokens: 1",
            "untie_biases: false",
            "reduction: pooling",
        ] {
            assert!(attention(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prompts_need_a_dictionary_within_the_width() {
        let kernel = &["prompt_kernel.0.weight"];
        let got = model(&[("model_defaults", "num_prompts: 8, prompt_dictionary: {b: 7, a: 0}")], kernel);
        let prompt = got.unwrap().prompt.unwrap();
        assert_eq!(prompt.dictionary, [("b".to_owned(), 7), ("a".to_owned(), 0)]);
        for bad in
            ["num_prompts: 8", "num_prompts: 8, prompt_dictionary: {a: 8}", "prompt_dictionary: {a: -1}"]
        {
            assert!(model(&[("model_defaults", bad)], kernel).is_err(), "{bad}");
        }
        assert_eq!(model(&[], &[]).unwrap().prompt, None);
    }
}
