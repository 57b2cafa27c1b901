//! Which tensors are stored in which type.

use conure_tensor::DType;

/// The type of the tensors that may be stored smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetType {
    /// 4 bytes a value; exact.
    F32,
    /// 2 bytes a value.
    #[default]
    F16,
    /// 2 bytes a value, of f32's range.
    Bf16,
    /// 34 bytes for 32 values.
    Q8_0,
    /// 18 bytes for 32 values.
    Q4_0,
    /// 20 bytes for 32 values.
    Q4_1,
    /// 22 bytes for 32 values.
    Q5_0,
    /// 24 bytes for 32 values.
    Q5_1,
    /// 144 bytes for 256 values.
    Q4K,
    /// 176 bytes for 256 values.
    Q5K,
    /// 210 bytes for 256 values.
    Q6K,
    /// 18 bytes for 32 values.
    Iq4Nl,
    /// 17 bytes for 32 values.
    Mxfp4,
}

impl TargetType {
    /// All of them.
    pub const ALL: [TargetType; 13] = [
        TargetType::F32,
        TargetType::F16,
        TargetType::Bf16,
        TargetType::Q8_0,
        TargetType::Q4_0,
        TargetType::Q4_1,
        TargetType::Q5_0,
        TargetType::Q5_1,
        TargetType::Q4K,
        TargetType::Q5K,
        TargetType::Q6K,
        TargetType::Iq4Nl,
        TargetType::Mxfp4,
    ];

    /// The type of this name (`f32`, `f16`, `q8_0`, `q4_k`), in either case.
    pub fn from_name(name: &str) -> Option<TargetType> {
        TargetType::ALL.into_iter().find(|t| t.dtype().name().eq_ignore_ascii_case(name))
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            TargetType::F32 => DType::F32,
            TargetType::F16 => DType::F16,
            TargetType::Bf16 => DType::BF16,
            TargetType::Q8_0 => DType::Q8_0,
            TargetType::Q4_0 => DType::Q4_0,
            TargetType::Q4_1 => DType::Q4_1,
            TargetType::Q5_0 => DType::Q5_0,
            TargetType::Q5_1 => DType::Q5_1,
            TargetType::Q4K => DType::Q4_K,
            TargetType::Q5K => DType::Q5_K,
            TargetType::Q6K => DType::Q6_K,
            TargetType::Iq4Nl => DType::IQ4_NL,
            TargetType::Mxfp4 => DType::MXFP4,
        }
    }

    /// Whether parakeet.cpp reads files of this type.
    pub fn is_compatible(self) -> bool {
        use TargetType::{Bf16, Iq4Nl, Mxfp4, Q4_1, Q5_1};
        !matches!(self, Bf16 | Q4_1 | Q5_1 | Iq4Nl | Mxfp4)
    }
}

/// Which tensors may be stored in another type than f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The linear layers that parakeet.cpp's reader takes in any type: the subsampling's output, feed-forward, attention, and
    /// the joint's two inputs. It would refuse a file with more, and mixed types are not in what it says it reads.
    Compatible,
    /// Every matrix: also pointwise convolutions, the CTC head, the LSTM, the joint's output and the embedding.
    All,
    /// Every matrix of a language model, those of experts too.
    Language,
}

/// How a tensor will be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its type; `None`: as it is in the input, or f32.
    pub(crate) dtype: Option<DType>,
    /// Its axes: those of length 1 at the end of a matrix are left out, since blocks lie along the last.
    pub(crate) shape: Vec<usize>,
    /// Why it is of another type than asked for, where it was meant.
    pub(crate) note: Option<String>,
}

/// How the tensor is to be stored.
pub(crate) fn stored_as(name: &str, shape: &[usize], target: TargetType, scope: Scope) -> Stored {
    let wanted = target.dtype();
    let keep = |note| Stored { dtype: None, shape: shape.to_vec(), note };
    let meant = match scope {
        Scope::Compatible => may_be_quantised(name),
        Scope::All => is_matrix(name, shape),
        Scope::Language => is_language_matrix(name, shape),
    };
    if !meant {
        return keep(None);
    }
    if wanted == DType::F32 {
        return Stored { dtype: Some(wanted), ..keep(None) };
    }
    let squeezed = match (scope, shape) {
        (Scope::All, [rows, columns, 1]) => vec![*rows, *columns],
        _ => shape.to_vec(),
    };
    let (rows, columns) = match squeezed[..] {
        [rows, columns] => (rows, columns),
        [_, rows, columns] if scope == Scope::Language => (rows, columns),
        _ => return keep(Some(format!("it has {} axes, not 2", shape.len()))),
    };
    if rows < 32 || columns < 32 {
        return keep(Some(format!("{rows} x {columns} is below 32 x 32")));
    }
    let fits = |dtype: &DType| columns.is_multiple_of(dtype.block_len());
    if fits(&wanted) {
        return Stored { dtype: Some(wanted), shape: squeezed, note: None };
    }
    let why = format!("its rows of {columns} do not fill blocks of {}", wanted.block_len());
    let next = match (scope, wanted) {
        (Scope::Compatible, _) => None,
        (_, DType::Q4_K) => Some(DType::Q5_0),
        (_, DType::Q5_K) => Some(DType::Q5_1),
        (_, DType::Q6_K) => Some(DType::Q8_0),
        _ => Some(DType::F16),
    };
    match next.filter(|_| scope != Scope::Compatible) {
        Some(next) => {
            let dtype = if fits(&next) { next } else { DType::F16 };
            Stored { dtype: Some(dtype), shape: squeezed, note: Some(why) }
        }
        None => keep(Some(why)),
    }
}

/// Whether a tensor is the matrix of some product, or a table of rows: by its name a weight, by its axes not a convolution
/// over more than one place.
fn is_matrix(name: &str, shape: &[usize]) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let weight = last == "weight" || last.starts_with("weight_ih") || last.starts_with("weight_hh");
    weight && !name.starts_with("preprocessor.") && matches!(shape, [_, _] | [_, _, 1])
}

/// Whether a tensor of a language model is the matrix of some product, or the embedding. A router is small, and what it gets wrong no
/// expert makes good; a short convolution is no product; biases of experts have two axes too.
pub(crate) fn is_language_matrix(name: &str, shape: &[usize]) -> bool {
    let apart = ["ffn_gate_inp.weight", "ssm_conv1d.weight"].iter().any(|part| name.ends_with(part));
    name.ends_with(".weight") && !apart && matches!(shape, [_, _] | [_, _, _])
}

/// Whether a tensor may be stored in another type than f32.
fn may_be_quantised(name: &str) -> bool {
    if matches!(name, "encoder.pre_encode.out.weight" | "joint.enc.weight" | "joint.pred.weight") {
        return true;
    }
    let Some(part) = name.strip_prefix("encoder.layers.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    matches!(
        part.1,
        "feed_forward1.linear1.weight"
            | "feed_forward1.linear2.weight"
            | "feed_forward2.linear1.weight"
            | "feed_forward2.linear2.weight"
            | "self_attn.linear_q.weight"
            | "self_attn.linear_k.weight"
            | "self_attn.linear_v.weight"
            | "self_attn.linear_out.weight"
            | "self_attn.linear_pos.weight"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dtype(name: &str, shape: &[usize], target: TargetType, scope: Scope) -> Option<DType> {
        stored_as(name, shape, target, scope).dtype
    }

    #[test]
    fn only_the_list_is_quantised_compatibly() {
        let q = TargetType::Q8_0;
        for (name, shape, want) in [
            ("encoder.layers.16.feed_forward1.linear1.weight", &[2048, 512][..], Some(DType::Q8_0)),
            ("encoder.layers.0.self_attn.linear_pos.weight", &[512, 512], Some(DType::Q8_0)),
            ("encoder.pre_encode.out.weight", &[512, 2560], Some(DType::Q8_0)),
            ("joint.pred.weight", &[640, 640], Some(DType::Q8_0)),
            ("joint.enc.weight", &[16, 640], None),
            ("joint.enc.weight", &[640, 48], None),
            ("joint.joint_net.2.weight", &[1030, 640], None),
            ("encoder.layers.0.conv.pointwise_conv1.weight", &[1024, 512, 1], None),
            ("encoder.layers.0.feed_forward1.linear1.bias", &[2048], None),
            ("decoder.prediction.embed.weight", &[1025, 640], None),
            ("ctc_decoder.decoder_layers.0.weight", &[1025, 512, 1], None),
        ] {
            assert_eq!(dtype(name, shape, q, Scope::Compatible), want, "{name} {shape:?}");
        }
        let (name, c) = ("joint.enc.weight", Scope::Compatible);
        assert_eq!(dtype(name, &[640, 48], TargetType::F16, c), Some(DType::F16));
        assert!(stored_as(name, &[640, 48], q, c).note.is_some());
        assert_eq!(dtype("joint.pred.weight", &[640, 640], TargetType::Q4K, c), None);
        assert_eq!(TargetType::from_name("Q8_0"), Some(q));
        assert_eq!(TargetType::from_name("q4_k"), Some(TargetType::Q4K));
    }

    #[test]
    fn every_matrix_is_quantised_with_the_next_best_type_where_blocks_do_not_fit() {
        for (name, shape, target, want) in [
            (
                "encoder.layers.0.conv.pointwise_conv1.weight",
                &[1024, 512, 1][..],
                TargetType::Q4K,
                DType::Q4_K,
            ),
            ("ctc_decoder.decoder_layers.0.weight", &[1025, 512, 1], TargetType::Q6K, DType::Q6_K),
            ("joint.joint_net.2.weight", &[1030, 640], TargetType::Q4K, DType::Q5_0),
            ("joint.joint_net.2.weight", &[1030, 640], TargetType::Q5K, DType::Q5_1),
            ("joint.joint_net.2.weight", &[1030, 640], TargetType::Q6K, DType::Q8_0),
            ("decoder.prediction.dec_rnn.lstm.weight_hh_l0", &[2560, 640], TargetType::Q8_0, DType::Q8_0),
            ("decoder.prediction.embed.weight", &[1025, 640], TargetType::Q4_0, DType::Q4_0),
            ("joint.enc.weight", &[640, 48], TargetType::Q8_0, DType::F16),
        ] {
            let stored = stored_as(name, shape, target, Scope::All);
            assert_eq!((stored.dtype, &stored.shape[..]), (Some(want), &shape[..2]), "{name}");
            assert_eq!(stored.note.is_some(), want != target.dtype(), "{name}");
        }
        for (name, shape, want) in [
            ("token_embd.weight", &[4000, 640][..], Some(DType::Q5_0)),
            ("blk.0.ffn_down.weight", &[640, 2048], Some(DType::Q4_K)),
            ("blk.0.ffn_up_exps.weight", &[8, 64, 256], Some(DType::Q4_K)),
            ("blk.0.ffn_up_exps.bias", &[8, 64], None),
            ("blk.0.ffn_gate_inp.weight", &[64, 256], None),
            ("blk.0.ssm_conv1d.weight", &[64, 256], None),
            ("blk.0.attn_norm.weight", &[640], None),
        ] {
            assert_eq!(dtype(name, shape, TargetType::Q4K, Scope::Language), want, "{name}");
        }
        for (name, shape) in [
            ("encoder.layers.0.conv.depthwise_conv.weight", &[512, 1, 9][..]),
            ("encoder.layers.0.norm_out.weight", &[512]),
            ("encoder.layers.0.self_attn.pos_bias_u", &[8, 64]),
            ("encoder.pre_encode.conv.0.weight", &[256, 1, 3, 3]),
            ("preprocessor.featurizer.fb.weight", &[80, 257]),
            ("encoder.pre_encode.conv.3.weight", &[256, 256, 1, 1]),
            ("decoder.prediction.dec_rnn.lstm.bias_hh_l0", &[2560]),
        ] {
            assert_eq!(dtype(name, shape, TargetType::Q8_0, Scope::All), None, "{name}");
        }
    }
}
