//! What a model is, for people and programs.

use conure_gguf::GgufFile;
use conure_models::ParakeetConfig;
use conure_ops::AttentionMask;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a model's file holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The file, or `embedded`.
    pub file: String,
    /// `general.name`.
    pub name: Option<String>,
    /// `general.architecture`.
    pub architecture: String,
    /// What the converter called the model, such as `hybrid_tdt_ctc`. The decoders below are what it can do.
    pub label: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Tensors and bytes of each type.
    pub dtypes: BTreeMap<String, DtypeInfo>,
    /// `quantize.calibration.recordings`: recordings that the weights were rounded for.
    pub calibrated_with: Option<u32>,
    /// The decoders: `tdt`, `rnnt`, `ctc`; the default first.
    pub decoders: Vec<String>,
    /// Sizes of the encoder.
    pub encoder: EncoderInfo,
    /// Sizes of the transducer, if there is one.
    pub transducer: Option<TransducerInfo>,
    /// The tokenizer.
    pub tokenizer: TokenizerInfo,
    /// The front end.
    pub preprocessor: PreprocessorInfo,
    /// The languages that the model can be told; empty if it takes none.
    pub languages: Vec<String>,
    /// `general.license`.
    pub license: Option<String>,
    /// `general.author`.
    pub author: Option<String>,
    /// `general.description`: among others, the sources that the model was made from.
    pub description: Option<String>,
}

/// How much of a file is of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DtypeInfo {
    /// Tensors.
    pub tensors: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Sizes of an encoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EncoderInfo {
    /// Width.
    pub d_model: usize,
    /// Layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the feed-forward modules.
    pub ff_dim: usize,
    /// Kernel of the convolution modules.
    pub conv_kernel: usize,
    /// Norm of the convolution modules.
    pub conv_norm: &'static str,
    /// Mel frames per encoder frame.
    pub subsampling_factor: usize,
    /// Channels of the subsampling convolutions.
    pub subsampling_channels: usize,
    /// Whether features are scaled by the square root of the width.
    pub xscaling: bool,
    /// What attention sees.
    pub attention: String,
    /// Whether no convolution sees the future.
    pub causal: bool,
}

/// Sizes of a transducer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransducerInfo {
    /// Width of the predictor.
    pub pred_hidden: usize,
    /// Its LSTM layers.
    pub pred_layers: usize,
    /// Width of the joint.
    pub joint_hidden: usize,
    /// Durations in encoder frames; empty for RNN-T.
    pub durations: Vec<usize>,
    /// Most tokens on one frame.
    pub max_symbols: usize,
}

/// A tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenizerInfo {
    /// Its kind.
    pub kind: &'static str,
    /// Tokens, without blank.
    pub vocab_size: usize,
    /// Id of blank.
    pub blank_id: usize,
}

/// A front end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PreprocessorInfo {
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
    /// `per_feature` or `none`.
    pub normalize: &'static str,
}

impl ModelInfo {
    pub(crate) fn new(
        file: &GgufFile,
        name: &str,
        config: &ParakeetConfig,
        decoders: Vec<String>,
    ) -> ModelInfo {
        let text = |key: &str| file.meta().opt_str(key).ok().flatten().map(str::to_owned);
        let (dtypes, parameters) = tensors_of(file);
        ModelInfo {
            file: name.to_owned(),
            name: text("general.name"),
            architecture: text("general.architecture").unwrap_or_default(),
            label: config.label.clone(),
            file_bytes: file.map().len() as u64,
            parameters,
            dtypes,
            calibrated_with: file.meta().opt_u32("quantize.calibration.recordings").ok().flatten(),
            decoders,
            encoder: encoder_info(config),
            transducer: config.transducer.as_ref().map(|t| TransducerInfo {
                pred_hidden: t.pred_hidden,
                pred_layers: t.pred_layers,
                joint_hidden: t.joint_hidden,
                durations: t.durations.clone(),
                max_symbols: t.max_symbols,
            }),
            tokenizer: TokenizerInfo {
                kind: "sentencepiece",
                vocab_size: config.vocab_size,
                blank_id: config.blank_id,
            },
            preprocessor: PreprocessorInfo {
                sample_rate: config.preprocessor.sample_rate,
                n_mels: config.preprocessor.n_mels,
                n_fft: config.preprocessor.n_fft,
                win_length: config.preprocessor.win_length,
                hop_length: config.preprocessor.hop_length,
                normalize: if config.preprocessor.per_feature { "per_feature" } else { "none" },
            },
            languages: config
                .prompt
                .iter()
                .flat_map(|p| p.dictionary.iter().map(|(language, _)| language.clone()))
                .collect(),
            license: text("general.license"),
            author: text("general.author"),
            description: text("general.description"),
        }
    }
}

/// Tensors and bytes of each type, and the numbers in all tensors.
pub(crate) fn tensors_of(file: &GgufFile) -> (BTreeMap<String, DtypeInfo>, u64) {
    let mut dtypes: BTreeMap<String, DtypeInfo> = BTreeMap::new();
    let mut parameters = 0u64;
    for tensor in file.tensors() {
        let entry = dtypes.entry(tensor.ty.name().to_owned()).or_default();
        entry.tensors += 1;
        entry.bytes += tensor.range.len() as u64;
        parameters += tensor.shape.iter().map(|&d| d as u64).product::<u64>();
    }
    (dtypes, parameters)
}

fn encoder_info(config: &ParakeetConfig) -> EncoderInfo {
    EncoderInfo {
        d_model: config.d_model,
        layers: config.n_layers,
        heads: config.n_heads,
        ff_dim: config.ff_dim,
        conv_kernel: config.conv_kernel,
        conv_norm: if config.conv_layer_norm { "layer_norm" } else { "batch_norm" },
        subsampling_factor: config.subsampling_factor,
        subsampling_channels: config.subsampling_channels,
        xscaling: config.xscaling,
        attention: attention(config.mask),
        causal: config.conv_causal && config.causal_downsampling,
    }
}

/// What attention sees, in words.
fn attention(mask: AttentionMask) -> String {
    match mask {
        AttentionMask::Full => "full".into(),
        AttentionMask::Banded { left, right } => format!("local, {left} frames before and {right} after"),
        AttentionMask::ChunkedLimited { left, right } => {
            let left = left.map_or("all".to_owned(), |l| l.to_string());
            format!("chunks of {}, {left} frames before", right + 1)
        }
    }
}
