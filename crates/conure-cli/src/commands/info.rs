//! `conure info`.

use super::{language, megabytes, model};
use crate::args::{ComputeArgs, InfoArgs};
use crate::failure::Failure;
use crate::output::{clean, to_stdout};
use conure::{DtypeInfo, EncoderInfo, LanguageInfo, ModelInfo, TransducerInfo};

/// Shows what a model is.
///
/// # Errors
/// If it cannot be loaded, or standard output not be written.
pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    let one_thread =
        ComputeArgs { threads: Some(1), device: Some("cpu".to_owned()), ..ComputeArgs::default() };
    let path = args.model.as_deref().filter(|p| !model::is_embedded(Some(p)));
    if let Some(path) = path.filter(|p| language::is_in(p)) {
        let model = language::load(path, &one_thread)?;
        let text = if args.json { as_json(model.info())? } else { language_text(model.info()) };
        return to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ());
    }
    let model = model::load(args.model.as_deref(), &one_thread)?;
    let text = if args.json { as_json(model.info())? } else { as_text(model.info()) };
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

fn as_json(info: &impl serde::Serialize) -> Result<String, Failure> {
    let mut json = serde_json::to_string_pretty(info)
        .map_err(|e| Failure::new("cannot write the model's description as JSON").because(e))?;
    json.push('\n');
    Ok(json)
}

fn language_text(info: &LanguageInfo) -> String {
    let local = info.window.map_or(String::new(), |w| {
        format!(", {} of {} layers see {w} tokens", info.local_layers, info.layers)
    });
    let recurrent = match info.recurrent_layers {
        0 => String::new(),
        n => format!(" ({n} recurrent)"),
    };
    let inner = match info.experts {
        0 => format!("feed-forward {}", info.feed_forward),
        n => format!("{} of {n} experts", info.experts_used),
    };
    let rows = [
        ("file", format!("{} ({})", info.file, megabytes(info.file_bytes))),
        ("name", info.name.clone().unwrap_or_else(|| "not stated in the file".to_owned())),
        ("architecture", info.architecture.clone()),
        ("parameters", format!("{:.1} M", info.parameters as f64 / 1e6)),
        ("types", types(&info.dtypes)),
        (
            "decoder",
            format!(
                "{} layers{recurrent}, width {}, {} heads on {} of width {}, {inner}",
                info.layers, info.d_model, info.heads, info.key_heads, info.head_dim
            ),
        ),
        ("context", format!("{} tokens{local}", info.context_length)),
        ("rope", info.rope.clone()),
        ("tokenizer", format!("{} tokens", info.vocab_size)),
        ("chat template", if info.chat_template { "in the file" } else { "none" }.to_owned()),
    ];
    lines(&rows)
}

fn lines(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("{name:<13} {}\n", clean(value).replace('\n', " "))).collect()
}

fn as_text(info: &ModelInfo) -> String {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "not stated in the file".to_owned());
    let mel = &info.preprocessor;
    let mut rows = vec![
        ("file", format!("{} ({})", info.file, megabytes(info.file_bytes))),
        ("name", or_none(&info.name)),
        ("architecture", format!("{} ({})", info.architecture, info.label)),
        ("parameters", format!("{:.1} M", info.parameters as f64 / 1e6)),
        ("types", types(&info.dtypes)),
    ];
    rows.extend(info.calibrated_with.map(|n| ("calibrated", format!("with {n} recordings"))));
    let subsampling =
        format!("by {}, {} channels", info.encoder.subsampling_factor, info.encoder.subsampling_channels);
    rows.extend([
        ("decoders", info.decoders.join(", ")),
        ("encoder", encoder(&info.encoder)),
        ("subsampling", subsampling),
    ]);
    rows.extend(info.transducer.as_ref().map(|t| ("transducer", transducer(t))));
    rows.push(("tokenizer", format!("{}, {} tokens", info.tokenizer.kind, info.tokenizer.vocab_size)));
    rows.push((
        "audio",
        format!(
            "{} Hz, {} mel bins, window {} and hop {} samples, normalised {}",
            mel.sample_rate, mel.n_mels, mel.win_length, mel.hop_length, mel.normalize
        ),
    ));
    if !info.languages.is_empty() {
        rows.push(("languages", info.languages.join(", ")));
    }
    rows.push(("licence", or_none(&info.license)));
    rows.extend(info.author.clone().map(|a| ("author", a)));
    rows.extend(info.description.clone().map(|d| ("description", d)));
    lines(&rows)
}

fn encoder(encoder: &EncoderInfo) -> String {
    format!(
        "{} layers, width {}, {} heads, feed-forward {}, convolution {} ({}), attention {}{}{}",
        encoder.layers,
        encoder.d_model,
        encoder.heads,
        encoder.ff_dim,
        encoder.conv_kernel,
        encoder.conv_norm,
        encoder.attention,
        if encoder.xscaling { ", scaled input" } else { "" },
        if encoder.causal { ", causal" } else { "" },
    )
}

fn transducer(transducer: &TransducerInfo) -> String {
    let durations: Vec<String> = transducer.durations.iter().map(ToString::to_string).collect();
    let durations = match durations.as_slice() {
        [] => String::new(),
        list => format!(", durations {} frames", list.join(" ")),
    };
    format!(
        "predictor {} x {} LSTM, joint {}, at most {} tokens a frame{durations}",
        transducer.pred_layers, transducer.pred_hidden, transducer.joint_hidden, transducer.max_symbols
    )
}

fn types(dtypes: &std::collections::BTreeMap<String, DtypeInfo>) -> String {
    let one =
        |(name, d): (&String, &DtypeInfo)| format!("{name} ({} tensors, {})", d.tensors, megabytes(d.bytes));
    dtypes.iter().map(one).collect::<Vec<_>>().join(", ")
}
