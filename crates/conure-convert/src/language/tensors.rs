//! Which tensors are written, under which names, and what is changed in them.

use super::Source;
use super::config::{Family, Model};
use crate::error::ConvertError;
use crate::source::TensorSource;
use std::path::{Path, PathBuf};

/// What happens to a tensor's values on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Nothing.
    None,
    /// 1 is added: norms that are stored as what they differ from 1 by.
    PlusOne,
    /// The halves of each of so many heads are interleaved, so that pairs that turn together are neighbours.
    Interleave(usize),
}

/// Where values come from.
#[derive(Clone, Debug, PartialEq)]
enum Origin {
    Source(usize),
    Computed(Vec<f32>),
}

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Out {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    origin: Origin,
    change: Change,
    path: PathBuf,
}

impl Out {
    /// Its values, row-major.
    pub(super) fn values(&self, source: &Source) -> Result<Vec<f32>, ConvertError> {
        let index = match &self.origin {
            Origin::Computed(values) => return Ok(values.clone()),
            Origin::Source(index) => *index,
        };
        let mut values = source.read_f32(index)?;
        let wanted: usize = self.shape.iter().product();
        if values.len() != wanted {
            let reason = format!("{} values were read for shape {:?}", values.len(), self.shape);
            return Err(ConvertError::Tensor { path: self.path.clone(), tensor: self.name.clone(), reason });
        }
        match self.change {
            Change::None => {}
            Change::PlusOne => values.iter_mut().for_each(|v| *v += 1.0),
            Change::Interleave(heads) => values = interleave(&values, heads, self.shape[0]),
        }
        Ok(values)
    }
}

/// Row `2 j` of each head becomes row j, row `2 j + 1` row `j + half`.
fn interleave(values: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (width, dim) = (values.len() / rows.max(1), rows / heads.max(1));
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, r) = (row / dim, row % dim);
        let from = head * dim + r / 2 + (r % 2) * (dim / 2);
        out.extend_from_slice(&values[from * width..(from + 1) * width]);
    }
    out
}

/// Names inside a layer: Hugging Face's, GGUF's.
const IN_LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Further names, which families use differently.
fn of_family(part: &str, family: Family) -> Option<&'static str> {
    Some(match part {
        // Gate and what it gates in one matrix, the gate first.
        "mlp.gate_up_proj" => "ffn_up",
        "post_attention_layernorm" if family.is_gemma() => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        _ => return None,
    })
}

/// The name of a tensor in a GGUF file.
fn gguf_name(name: &str, family: Family) -> Option<String> {
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let known = IN_LAYER.iter().find(|(theirs, _)| *theirs == part).map(|(_, ours)| *ours);
    let ours = known.or_else(|| of_family(part, family))?;
    matches!(kind, "weight" | "bias").then(|| format!("blk.{layer}.{ours}.{kind}"))
}

fn change(name: &str, model: &Model) -> Change {
    let part = name.rsplit('.').nth(1).unwrap_or_default();
    if model.family.is_gemma() && part.ends_with("norm") {
        return Change::PlusOne;
    }
    match part {
        "attn_q" if model.family == Family::Llama => Change::Interleave(model.heads),
        "attn_k" if model.family == Family::Llama => Change::Interleave(model.key_heads),
        _ => Change::None,
    }
}

/// Tensors that are left out, and why.
pub(super) type Dropped = Vec<(String, String)>;

/// Chooses the tensors to write.
pub(super) fn choose(
    path: &Path,
    model: &Model,
    source: &Source,
) -> Result<(Vec<Out>, Dropped), ConvertError> {
    let fail = |tensor: &str, reason: String| ConvertError::Tensor {
        path: path.into(),
        tensor: tensor.to_owned(),
        reason,
    };
    let (mut out, mut dropped) = (Vec::new(), Vec::new());
    for (name, values) in &model.computed {
        out.push(Out {
            name: (*name).to_owned(),
            shape: vec![values.len()],
            origin: Origin::Computed(values.clone()),
            change: Change::None,
            path: path.into(),
        });
    }
    for (i, tensor) in source.tensors().iter().enumerate() {
        let Some(name) = gguf_name(&tensor.name, model.family) else {
            dropped.push((tensor.name.clone(), "no part of the language model".into()));
            continue;
        };
        if name == "output.weight" && model.tied {
            dropped.push((tensor.name.clone(), "it is the embedding (tie_word_embeddings)".into()));
            continue;
        }
        if out.iter().any(|t: &Out| t.name == name) {
            return Err(fail(&tensor.name, format!("`{name}` comes twice")));
        }
        let change = change(&name, model);
        if let Change::Interleave(heads) = change {
            let rows = tensor.shape.first().copied().unwrap_or(0);
            if rows % (2 * heads) != 0 {
                return Err(fail(
                    &tensor.name,
                    format!("{rows} rows are not {heads} heads of an even width"),
                ));
            }
        }
        let (shape, path) = (tensor.shape.clone(), path.to_owned());
        out.push(Out { name, shape, origin: Origin::Source(i), change, path });
    }
    for needed in ["token_embd.weight", "output_norm.weight"] {
        if !out.iter().any(|t| t.name == needed) {
            return Err(fail(needed, "there is no tensor that becomes it".into()));
        }
    }
    Ok((out, dropped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_of_gguf() {
        for (theirs, family, ours) in [
            ("model.embed_tokens.weight", Family::Llama, Some("token_embd.weight")),
            ("lm_head.weight", Family::Qwen2, Some("output.weight")),
            ("model.layers.12.self_attn.q_proj.bias", Family::Qwen2, Some("blk.12.attn_q.bias")),
            ("model.layers.0.post_attention_layernorm.weight", Family::Llama, Some("blk.0.ffn_norm.weight")),
            (
                "language_model.model.layers.0.post_attention_layernorm.weight",
                Family::Gemma3,
                Some("blk.0.post_attention_norm.weight"),
            ),
            ("model.layers.0.mlp.gate_up_proj.weight", Family::Phi3, Some("blk.0.ffn_up.weight")),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", Family::Llama, None),
            ("vision_tower.x.weight", Family::Gemma3, None),
        ] {
            assert_eq!(gguf_name(theirs, family).as_deref(), ours, "{theirs}");
        }
    }

    #[test]
    fn halves_of_heads_are_interleaved() {
        let rows: Vec<f32> = (0..8).flat_map(|r| [r as f32, r as f32 + 0.5]).collect();
        let found: Vec<f32> = interleave(&rows, 2, 8).chunks(2).map(|r| r[0]).collect();
        assert_eq!(found, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
