//! `cargo xtask random-model`: a model of a real size with random weights, for measuring time and memory. What it
//! transcribes means nothing.

use anyhow::{Context, Result, bail};
use conure_gguf::GgufWriter;
use conure_tensor::DType;
use std::io::Write;

/// Frames that a step of the decoder may go on by.
const DURATIONS: [i32; 5] = [0, 1, 2, 3, 4];

/// Far above any other logit, which are of the size of one.
const CERTAIN: f32 = 100.0;

/// Sizes of a checkpoint.
struct Geometry {
    d: usize,
    layers: usize,
    mels: usize,
    vocab: usize,
    pred_layers: usize,
    biases: bool,
    /// Width of the predictor and of the joint.
    hidden: usize,
}

/// The geometry of this name.
fn geometry(name: &str) -> Result<Geometry> {
    Ok(match name {
        // parakeet-tdt_ctc-110m
        "110m" => {
            Geometry { d: 512, layers: 17, mels: 80, vocab: 1024, pred_layers: 1, biases: true, hidden: 640 }
        }
        // parakeet-tdt-0.6b-v2
        "0.6b" => Geometry {
            d: 1024,
            layers: 24,
            mels: 128,
            vocab: 1024,
            pred_layers: 2,
            biases: false,
            hidden: 640,
        },
        // as small as tests want it
        "tiny" => {
            Geometry { d: 32, layers: 2, mels: 80, vocab: 64, pred_layers: 1, biases: true, hidden: 640 }
        }
        // so small that kernels cost next to nothing: what is left is the cost of running them
        "step" => Geometry { d: 8, layers: 1, mels: 80, vocab: 32, pred_layers: 1, biases: true, hidden: 8 },
        other => bail!("there is no geometry `{other}`; there are 110m, 0.6b, tiny and step"),
    })
}

/// Runs `random-model GEOMETRY OUT.gguf`.
///
/// # Errors
/// An unknown geometry; a file that cannot be written.
pub fn run(args: &[String]) -> Result<()> {
    let [name, out] = args else { bail!("usage: cargo xtask random-model 110m|0.6b|tiny|step OUT.gguf") };
    let geometry = geometry(name)?;
    let mut w = GgufWriter::new();
    keys(&mut w, &geometry, name);
    tensors(&mut w, &geometry);
    let bytes = w.write_to(out).with_context(|| format!("writing {out}"))?;
    println!("{out}: {name} geometry with random weights, {} MB", bytes / 1_000_000);
    Ok(())
}

fn keys(w: &mut GgufWriter<'_>, g: &Geometry, name: &str) {
    w.meta("general.architecture", "parakeet").meta("general.name", format!("random-{name}"));
    w.meta("parakeet.arch", "hybrid_tdt_ctc");
    let sizes = [
        ("encoder.feat_in", g.mels),
        ("encoder.d_model", g.d),
        ("encoder.n_layers", g.layers),
        ("encoder.n_heads", 8),
        ("encoder.ff_dim", 4 * g.d),
        ("encoder.conv_kernel", 9),
        ("encoder.subsampling_factor", 8),
        ("encoder.subsampling_conv_channels", 256),
        ("encoder.pos_emb_max_len", 5000),
        ("preprocessor.sample_rate", 16_000),
        ("preprocessor.n_mels", g.mels),
        ("preprocessor.n_fft", 512),
        ("preprocessor.win_length", 400),
        ("preprocessor.hop_length", 160),
        ("vocab_size", g.vocab),
        ("blank_id", g.vocab),
        ("decoder.pred_hidden", g.hidden),
        ("decoder.pred_rnn_layers", g.pred_layers),
        ("joint.joint_hidden", g.hidden),
        ("decoding.max_symbols", 10),
    ];
    for (key, value) in sizes {
        w.meta(&format!("parakeet.{key}"), u32::try_from(value).unwrap_or(u32::MAX));
    }
    w.meta("parakeet.encoder.conv_norm_type", "batch_norm")
        .meta("parakeet.encoder.xscaling", false)
        .meta("parakeet.encoder.use_bias", g.biases)
        .meta("parakeet.preprocessor.preemph", 0.97f32)
        .meta("parakeet.preprocessor.mag_power", 2.0f32)
        .meta("parakeet.preprocessor.log_zero_guard", (-24f32).exp2())
        .meta("parakeet.preprocessor.normalize", "per_feature")
        .meta("parakeet.joint.activation", "relu")
        .meta("parakeet.tdt.durations", &DURATIONS[..]);
    let pieces: Vec<String> = (0..g.vocab).map(|i| format!("\u{2581}w{i}")).collect();
    w.meta("parakeet.tokenizer.pieces", pieces.as_slice());
}

fn tensors(w: &mut GgufWriter<'_>, g: &Geometry) {
    let (d, c) = (g.d, 256);
    let bins = (0..3).fold(g.mels, |f, _| (f - 1) / 2 + 1);
    let p = "encoder.pre_encode";
    for (conv, input) in [(0, 1), (2, 1), (5, 1), (3, c), (6, c)] {
        let shape = if input == 1 { [c, 1, 3, 3] } else { [c, c, 1, 1] };
        random(w, &format!("{p}.conv.{conv}.weight"), &shape);
        random(w, &format!("{p}.conv.{conv}.bias"), &[c]);
    }
    linear(w, &format!("{p}.out"), &[d, c * bins], true);
    for layer in 0..g.layers {
        let l = format!("encoder.layers.{layer}");
        for norm in ["norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"] {
            filled(w, &format!("{l}.{norm}.weight"), &[d], 1.0);
            filled(w, &format!("{l}.{norm}.bias"), &[d], 0.0);
        }
        for ff in ["feed_forward1", "feed_forward2"] {
            linear(w, &format!("{l}.{ff}.linear1"), &[4 * d, d], g.biases);
            linear(w, &format!("{l}.{ff}.linear2"), &[d, 4 * d], g.biases);
        }
        for name in ["linear_q", "linear_k", "linear_v", "linear_out"] {
            linear(w, &format!("{l}.self_attn.{name}"), &[d, d], g.biases);
        }
        linear(w, &format!("{l}.self_attn.linear_pos"), &[d, d], false);
        random(w, &format!("{l}.self_attn.pos_bias_u"), &[8, d / 8]);
        random(w, &format!("{l}.self_attn.pos_bias_v"), &[8, d / 8]);
        linear(w, &format!("{l}.conv.pointwise_conv1"), &[2 * d, d, 1], g.biases);
        linear(w, &format!("{l}.conv.depthwise_conv"), &[d, 1, 9], g.biases);
        filled(w, &format!("{l}.conv.batch_norm.weight"), &[d], 1.0);
        filled(w, &format!("{l}.conv.batch_norm.bias"), &[d], 0.0);
        filled(w, &format!("{l}.conv.batch_norm.running_mean"), &[d], 0.0);
        filled(w, &format!("{l}.conv.batch_norm.running_var"), &[d], 1.0);
        linear(w, &format!("{l}.conv.pointwise_conv2"), &[d, d, 1], g.biases);
    }
    linear(w, "ctc_decoder.decoder_layers.0", &[g.vocab + 1, d, 1], true);
    let h = g.hidden;
    random(w, "decoder.prediction.embed.weight", &[g.vocab + 1, h]);
    for layer in 0..g.pred_layers {
        for (name, shape) in [("weight_ih", vec![4 * h, h]), ("weight_hh", vec![4 * h, h])] {
            random(w, &format!("decoder.prediction.dec_rnn.lstm.{name}_l{layer}"), &shape);
        }
        for name in ["bias_ih", "bias_hh"] {
            random(w, &format!("decoder.prediction.dec_rnn.lstm.{name}_l{layer}"), &[4 * h]);
        }
    }
    linear(w, "joint.enc", &[h, d], true);
    linear(w, "joint.pred", &[h, h], true);
    random(w, "joint.joint_net.2.weight", &[g.vocab + 1 + DURATIONS.len(), h]);
    // The longest duration always wins, so that a decoder makes as many steps as with speech: three a second, each a token.
    let bias = [vec![0.0; g.vocab + DURATIONS.len()], vec![CERTAIN]].concat();
    values(w, "joint.joint_net.2.bias", bias);
}

fn linear(w: &mut GgufWriter<'_>, name: &str, shape: &[usize], bias: bool) {
    random(w, &format!("{name}.weight"), shape);
    if bias {
        random(w, &format!("{name}.bias"), &shape[..1]);
    }
}

/// Numbers that repeat for a name, spread so that activations keep their size from layer to layer.
fn random(w: &mut GgufWriter<'_>, name: &str, shape: &[usize]) {
    let fan_in: usize = shape.iter().skip(1).product::<usize>().max(1);
    let scale = if shape.len() == 1 { 0.02 } else { (3.0 / fan_in as f32).sqrt() };
    let count = shape.iter().product();
    let seed =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    w.tensor_with(name, DType::F32, shape, move |out| {
        let mut state = seed | 1;
        let mut bytes = Vec::with_capacity(1 << 16);
        for i in 0..count {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            bytes.extend((unit * scale).to_le_bytes());
            if bytes.len() == 1 << 16 || i + 1 == count {
                out.write_all(&bytes)?;
                bytes.clear();
            }
        }
        Ok(())
    });
}

fn filled(w: &mut GgufWriter<'_>, name: &str, shape: &[usize], value: f32) {
    values(w, name, vec![value; shape.iter().product()]);
}

fn values(w: &mut GgufWriter<'_>, name: &str, values: Vec<f32>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    w.tensor_with(name, DType::F32, &[values.len()], move |out: &mut dyn Write| Ok(out.write_all(&bytes)?));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_one_can_be_written_and_read() {
        let folder = std::env::temp_dir().join(format!("conure-random-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tiny.gguf").display().to_string();
        run(&["tiny".into(), path.clone()]).unwrap();
        let file = conure_gguf::GgufFile::open(&path).unwrap();
        assert_eq!(file.meta().u32("parakeet.encoder.d_model").unwrap(), 32);
        assert!(file.tensor_info("joint.joint_net.2.weight").is_some());
        let bias = file.tensor("joint.joint_net.2.bias").unwrap().data;
        assert!(bias.ends_with(&CERTAIN.to_le_bytes()) && bias[..bias.len() - 4].iter().all(|&b| b == 0));
        assert!(run(&["13b".into(), path]).unwrap_err().to_string().contains("110m"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
