//! Which tensors are written, under which names, and what is changed in them.

use super::Source;
use super::config::{Family, LinearHeads, Model};
use super::experts::{Collected, Experts};
use crate::error::ConvertError;
use crate::source::TensorSource;
use conure_tensor::DType;
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
    /// From row `from` on, rows of each of `groups` times `each` heads: heads that share keys lie together, and come to lie
    /// `groups` apart.
    Spread { from: usize, groups: usize, each: usize },
    /// The same of columns.
    SpreadColumns { groups: usize, each: usize },
    /// As `Spread`, and `-exp` of it: the rate of forgetting.
    Rates { groups: usize, each: usize },
}

/// Where values come from.
#[derive(Clone, Debug, PartialEq)]
enum Origin {
    Source(usize),
    Computed(Vec<f32>),
    Experts(Experts),
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
    /// How many pieces it is written in: one for each expert.
    pub(super) fn pieces(&self) -> usize {
        if matches!(self.origin, Origin::Experts(_)) { self.shape[0] } else { 1 }
    }

    /// The type that its values have and keep, if it is one of blocks.
    pub(super) fn blocks(&self) -> Option<DType> {
        if let Origin::Experts(experts) = &self.origin { experts.blocks() } else { None }
    }

    /// The bytes of a piece, of tensors that are in blocks.
    pub(super) fn block_bytes(&self, source: &Source, piece: usize) -> Result<Option<Vec<u8>>, ConvertError> {
        match &self.origin {
            Origin::Experts(experts) if experts.blocks().is_some() => {
                experts.block_bytes(source, piece, self.pieces()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The values of a piece, row-major.
    pub(super) fn values(&self, source: &Source, piece: usize) -> Result<Vec<f32>, ConvertError> {
        let mut values = match &self.origin {
            Origin::Computed(values) => return Ok(values.clone()),
            Origin::Source(index) => source.read_f32(*index)?,
            Origin::Experts(experts) => experts.values(source, piece, self.pieces())?,
        };
        let wanted = self.shape.iter().product::<usize>() / self.pieces();
        if values.len() != wanted {
            let reason = format!("{} values were read for shape {:?}", values.len(), self.shape);
            return Err(ConvertError::Tensor { path: self.path.clone(), tensor: self.name.clone(), reason });
        }
        match self.change {
            Change::None => {}
            Change::PlusOne => values.iter_mut().for_each(|v| *v += 1.0),
            Change::Interleave(heads) => values = interleave(&values, heads, self.shape[0]),
            Change::Spread { from, groups, each } => {
                let width = values.len() / self.shape[0].max(1);
                spread(&mut values[from * width..], groups, each);
            }
            Change::SpreadColumns { groups, each } => {
                values.chunks_exact_mut(self.shape[1].max(1)).for_each(|row| spread(row, groups, each));
            }
            Change::Rates { groups, each } => {
                spread(&mut values, groups, each);
                values.iter_mut().for_each(|v| *v = -v.exp());
            }
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

/// Part `g * each + j` of `groups * each` parts of equal length becomes part `j * groups + g`.
fn spread(values: &mut [f32], groups: usize, each: usize) {
    let (old, part) = (values.to_vec(), values.len() / (groups * each).max(1));
    for (to, place) in values.chunks_exact_mut(part.max(1)).enumerate() {
        let from = to % groups * each + to / groups;
        place.copy_from_slice(&old[from * part..(from + 1) * part]);
    }
}

/// Names inside a layer: Hugging Face's, GGUF's.
const IN_LAYER: [(&str, &str); 21] = [
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
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

/// What every layer of a mixture has.
const EXPERT_PARTS: [&str; 4] = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Further names, which families use differently.
fn of_family(part: &str, family: Family) -> Option<&'static str> {
    Some(match part {
        // Gate and what it gates in one matrix, the gate first.
        "mlp.gate_up_proj" => "ffn_up",
        "post_attention_layernorm" if family.is_gemma() => "post_attention_norm",
        "post_attention_layernorm" if matches!(family, Family::GptOss | Family::Qwen35) => {
            "post_attention_norm"
        }
        "post_attention_layernorm" => "ffn_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        _ => return None,
    })
}

/// The name of a tensor in a GGUF file.
fn gguf_name(name: &str, family: Family) -> Option<String> {
    // Models that also see pictures have the language model in a part of their own.
    let inner = name.strip_prefix("model.language_model.").map(|rest| format!("model.{rest}"));
    let name = inner.as_deref().or(name.strip_prefix("language_model.")).unwrap_or(name);
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let layer: usize = layer.parse().ok()?;
    match rest {
        "self_attn.sinks" => return Some(format!("blk.{layer}.attn_sinks.weight")),
        "linear_attn.A_log" => return Some(format!("blk.{layer}.ssm_a")),
        "linear_attn.dt_bias" => return Some(format!("blk.{layer}.ssm_dt.bias")),
        _ => {}
    }
    let known = IN_LAYER.iter().find(|(theirs, _)| *theirs == part).map(|(_, ours)| *ours);
    let ours = known.or_else(|| of_family(part, family))?;
    matches!(kind, "weight" | "bias").then(|| format!("blk.{layer}.{ours}.{kind}"))
}

fn change(name: &str, model: &Model) -> Change {
    let part = name.rsplit('.').nth(1).unwrap_or_default();
    if model.family.norms_around_zero() && part.ends_with("norm") && part != "ssm_norm" {
        return Change::PlusOne;
    }
    if let Some(LinearHeads { keys: groups, values_each: each, before, .. }) = model.linear {
        match part {
            "attn_qkv" | "ssm_conv1d" => return Change::Spread { from: before, groups, each },
            "attn_gate" | "ssm_alpha" | "ssm_beta" | "ssm_dt" => {
                return Change::Spread { from: 0, groups, each };
            }
            "ssm_out" => return Change::SpreadColumns { groups, each },
            _ if name.ends_with(".ssm_a") => return Change::Rates { groups, each },
            _ => {}
        }
    }
    match part {
        "attn_q" if model.family == Family::Llama => Change::Interleave(model.heads),
        "attn_k" if model.family == Family::Llama => Change::Interleave(model.key_heads),
        _ => Change::None,
    }
}

impl LinearHeads {
    /// Whether a tensor that is to be changed has the rows, or columns, of these heads.
    fn check(&self, change: &Change, shape: &[usize]) -> Result<(), String> {
        let (heads, axis) =
            (self.keys * self.values_each, usize::from(matches!(change, Change::SpreadColumns { .. })));
        let from = if let Change::Spread { from, .. } = change { *from } else { 0 };
        let found = shape.get(axis).copied().unwrap_or(0);
        match found.checked_sub(from) {
            Some(left) if left > 0 && left.is_multiple_of(heads) && shape.iter().all(|&n| n > 0) => Ok(()),
            _ => Err(format!("{found} in axis {axis} of {shape:?} are not {from} and {heads} heads")),
        }
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
    let mut experts = Collected::default();
    for (i, tensor) in source.tensors().iter().enumerate() {
        if model.experts > 0 && experts.take(&tensor.name, i, model.family) {
            continue;
        }
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
        let mut shape = tensor.shape.clone();
        if name.ends_with("ssm_conv1d.weight") && shape.len() == 3 {
            shape.remove(1); // each channel has a kernel of its own
        }
        if let (Some(heads), false) = (&model.linear, matches!(change, Change::None | Change::PlusOne)) {
            heads.check(&change, &shape).map_err(|reason| fail(&tensor.name, reason))?;
        }
        let path = path.to_owned();
        out.push(Out { name, shape, origin: Origin::Source(i), change, path });
    }
    for (name, shape, experts) in experts.stacks(path, model.experts, source)? {
        let (origin, path) = (Origin::Experts(experts), path.to_owned());
        out.push(Out { name, shape, origin, change: Change::None, path });
    }
    let of_layer = |i: usize| EXPERT_PARTS.iter().map(move |part| format!("blk.{i}.{part}.weight"));
    let in_layers = (0..if model.experts > 0 { model.layers } else { 0 }).flat_map(of_layer);
    for needed in ["token_embd.weight".into(), "output_norm.weight".into()].into_iter().chain(in_layers) {
        if !out.iter().any(|t| t.name == needed) {
            return Err(fail(&needed, "there is no tensor that becomes it".into()));
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
            ("model.language_model.norm.weight", Family::Qwen3Vl, Some("output_norm.weight")),
            ("model.visual.pos_embed.weight", Family::Qwen3Vl, None),
            ("model.layers.1.self_attn.sinks", Family::GptOss, Some("blk.1.attn_sinks.weight")),
            ("model.layers.1.mlp.router.bias", Family::GptOss, Some("blk.1.ffn_gate_inp.bias")),
            (
                "model.layers.0.post_attention_layernorm.weight",
                Family::GptOss,
                Some("blk.0.post_attention_norm.weight"),
            ),
            ("model.layers.0.block_sparse_moe.gate.weight", Family::Llama, Some("blk.0.ffn_gate_inp.weight")),
            ("model.language_model.layers.2.linear_attn.A_log", Family::Qwen35, Some("blk.2.ssm_a")),
            ("model.layers.2.linear_attn.dt_bias", Family::Qwen35, Some("blk.2.ssm_dt.bias")),
            ("model.layers.2.linear_attn.in_proj_z.weight", Family::Qwen35, Some("blk.2.attn_gate.weight")),
            ("mtp.layers.0.mlp.gate_proj.weight", Family::Qwen35, None),
        ] {
            assert_eq!(gguf_name(theirs, family).as_deref(), ours, "{theirs}");
        }
    }

    #[test]
    fn heads_that_share_keys_are_spread() {
        let mut values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        spread(&mut values, 2, 3);
        assert_eq!(values, [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
    }

    #[test]
    fn halves_of_heads_are_interleaved() {
        let rows: Vec<f32> = (0..8).flat_map(|r| [r as f32, r as f32 + 0.5]).collect();
        let found: Vec<f32> = interleave(&rows, 2, 8).chunks(2).map(|r| r[0]).collect();
        assert_eq!(found, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
