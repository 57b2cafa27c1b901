//! Whether a file has all the tensors of the model that its keys describe: what graphs take if it is there, such as biases, and
//! what they would pass over, such as layers beyond the number that a key gives.

use super::config::ParakeetConfig;
use crate::error::ModelError;
use conure_gguf::GgufFile;
use std::collections::BTreeSet;

/// Biases that every model of this kind has where it has the weight, whatever `use_bias` was in training: those of the
/// subsampling, the heads, the joint and the prompt (NeMo builds them so).
const ALWAYS: [&str; 5] =
    ["encoder.pre_encode.", "joint.", "ctc_decoder.", "decoder.decoder_layers.", "prompt_kernel."];

/// Parts of a transducer: where one is, all are.
const TRANSDUCER: [&str; 4] =
    ["joint.joint_net.2.weight", "joint.enc.weight", "joint.pred.weight", "decoder.prediction.embed.weight"];

/// Checks that the tensors of `file` are those of one whole model with `config`.
///
/// # Errors
/// [`ModelError::Incomplete`] with the first tensor that is missing or too many, and how that is seen.
pub(super) fn check(config: &ParakeetConfig, file: &GgufFile, origin: &str) -> Result<(), ModelError> {
    let names: BTreeSet<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    let found = problem(config.n_layers, config.transducer.as_ref().map(|t| t.pred_layers), &names);
    found.map_or(Ok(()), |(tensor, why)| {
        Err(ModelError::Incomplete { origin: origin.to_owned(), tensor, why })
    })
}

/// The first tensor that is missing or too many among `names`, and why.
fn problem(layers: usize, pred_layers: Option<usize>, names: &BTreeSet<&str>) -> Option<(String, String)> {
    beyond(layers, pred_layers, names)
        .or_else(|| half_a_transducer(names))
        .or_else(|| half_a_layer(names))
        .or_else(|| uneven_layers(layers, names))
}

/// The number after `prefix` in a name.
fn number_after(name: &str, prefix: &str) -> Option<usize> {
    let digits = name.strip_prefix(prefix)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Layers that the keys do not count.
fn beyond(layers: usize, pred_layers: Option<usize>, names: &BTreeSet<&str>) -> Option<(String, String)> {
    names.iter().find_map(|name| {
        let (key, count) = if number_after(name, "encoder.layers.").is_some_and(|n| n >= layers) {
            ("parakeet.encoder.n_layers", layers)
        } else if number_after(name, "decoder.prediction.dec_rnn.lstm.weight_ih_l")
            .is_some_and(|n| pred_layers.is_some_and(|l| n >= l))
        {
            ("parakeet.decoder.pred_rnn_layers", pred_layers.unwrap_or(0))
        } else {
            return None;
        };
        Some(((*name).to_owned(), format!("it is there, but {key} is {count}")))
    })
}

/// A transducer of which a part is missing: without this check the model would be taken for one of CTC alone.
fn half_a_transducer(names: &BTreeSet<&str>) -> Option<(String, String)> {
    let there = TRANSDUCER.iter().find(|part| names.contains(*part))?;
    let missing = TRANSDUCER.iter().find(|part| !names.contains(*part))?;
    Some(((*missing).to_owned(), format!("it is missing, though {there} is there")))
}

/// A weight without the bias that it always has, or the bias without it.
fn half_a_layer(names: &BTreeSet<&str>) -> Option<(String, String)> {
    names.iter().filter(|name| ALWAYS.iter().any(|part| name.starts_with(part))).find_map(|name| {
        let other = match name.strip_suffix(".weight") {
            Some(stem) => format!("{stem}.bias"),
            None => format!("{}.weight", name.strip_suffix(".bias")?),
        };
        (!names.contains(other.as_str())).then(|| (other, format!("it is missing, though {name} is there")))
    })
}

/// Layers are built alike: what one has, all have.
fn uneven_layers(layers: usize, names: &BTreeSet<&str>) -> Option<(String, String)> {
    let of = |layer: usize| -> BTreeSet<&str> {
        let prefix = format!("encoder.layers.{layer}.");
        names.iter().filter_map(|name| name.strip_prefix(prefix.as_str())).collect()
    };
    let all: Vec<BTreeSet<&str>> = (0..layers).map(of).collect();
    let every: BTreeSet<&str> = all.iter().flatten().copied().collect();
    all.iter().enumerate().find_map(|(layer, parts)| {
        let part = every.iter().find(|part| !parts.contains(*part))?;
        let why = "it is missing, though other layers have it".to_owned();
        Some((format!("encoder.layers.{layer}.{part}"), why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> BTreeSet<&'static str> {
        BTreeSet::from([
            "encoder.pre_encode.out.weight",
            "encoder.pre_encode.out.bias",
            "encoder.layers.0.norm_out.weight",
            "encoder.layers.0.conv.pointwise_conv1.bias",
            "encoder.layers.1.norm_out.weight",
            "encoder.layers.1.conv.pointwise_conv1.bias",
            "decoder.prediction.embed.weight",
            "decoder.prediction.dec_rnn.lstm.weight_ih_l0",
            "joint.enc.weight",
            "joint.enc.bias",
            "joint.pred.weight",
            "joint.pred.bias",
            "joint.joint_net.2.weight",
            "joint.joint_net.2.bias",
        ])
    }

    #[test]
    fn what_is_missing_or_too_many_is_named() {
        assert_eq!(problem(2, Some(1), &whole()), None);
        let without_transducer: BTreeSet<&str> =
            whole().into_iter().filter(|n| n.starts_with("encoder")).collect();
        assert_eq!(problem(2, None, &without_transducer), None);
        for gone in [
            "encoder.pre_encode.out.bias",
            "encoder.layers.1.conv.pointwise_conv1.bias",
            "encoder.layers.0.norm_out.weight",
            "joint.enc.weight",
            "joint.pred.bias",
            "joint.joint_net.2.weight",
            "joint.joint_net.2.bias",
            "decoder.prediction.embed.weight",
            "encoder.pre_encode.out.weight",
        ] {
            let mut names = whole();
            assert!(names.remove(gone));
            let (tensor, why) = problem(2, Some(1), &names).unwrap();
            assert!(tensor == gone && why.contains("missing"), "{gone}: {tensor} {why}");
        }
        for (layers, pred_layers, tensor, key) in [
            (1, 1, "encoder.layers.1.conv.pointwise_conv1.bias", "n_layers is 1"),
            (2, 0, "decoder.prediction.dec_rnn.lstm.weight_ih_l0", "pred_rnn_layers is 0"),
        ] {
            let (found, why) = problem(layers, Some(pred_layers), &whole()).unwrap();
            assert!(found == tensor && why.contains(key), "{found} {why}");
        }
    }
}
