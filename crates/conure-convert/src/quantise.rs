//! Which tensors are stored in which type.
//!
//! Only the linear layers that parakeet.cpp's reader takes in any type: the subsampling's output, feed-forward,
//! attention, and the joint's two inputs. Everything else stays f32, or its reader would refuse the file.

use conure_tensor::DType;

/// The type of the tensors that may be stored smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetType {
    /// 4 bytes a value; exact.
    F32,
    /// 2 bytes a value.
    #[default]
    F16,
    /// 34 bytes for 32 values.
    Q8_0,
}

impl TargetType {
    /// All of them.
    pub const ALL: [TargetType; 3] = [TargetType::F32, TargetType::F16, TargetType::Q8_0];

    /// The type of this name (`f32`, `f16`, `q8_0`), in either case.
    pub fn from_name(name: &str) -> Option<TargetType> {
        TargetType::ALL.into_iter().find(|t| t.dtype().name().eq_ignore_ascii_case(name))
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            TargetType::F32 => DType::F32,
            TargetType::F16 => DType::F16,
            TargetType::Q8_0 => DType::Q8_0,
        }
    }
}

/// The type for a tensor, and the reason where one of the list stays f32 all the same.
pub(crate) fn stored_as(name: &str, shape: &[usize], target: TargetType) -> (DType, Option<String>) {
    let wanted = target.dtype();
    if wanted == DType::F32 || !may_be_quantised(name) {
        return (DType::F32, None);
    }
    let [rows, columns] = *shape else {
        return (DType::F32, Some(format!("it has {} axes, not 2", shape.len())));
    };
    if rows < 32 || columns < 32 {
        return (DType::F32, Some(format!("{rows} x {columns} is below 32 x 32")));
    }
    if columns % wanted.block_len() != 0 {
        let block = wanted.block_len();
        return (DType::F32, Some(format!("its rows of {columns} do not fill blocks of {block}")));
    }
    (wanted, None)
}

/// Whether a tensor may be stored in another type than f32.
pub(crate) fn may_be_quantised(name: &str) -> bool {
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

    #[test]
    fn only_the_list_is_quantised() {
        let q = TargetType::Q8_0;
        for (name, shape, want) in [
            ("encoder.layers.16.feed_forward1.linear1.weight", &[2048, 512][..], DType::Q8_0),
            ("encoder.layers.0.self_attn.linear_pos.weight", &[512, 512], DType::Q8_0),
            ("encoder.pre_encode.out.weight", &[512, 2560], DType::Q8_0),
            ("joint.pred.weight", &[640, 640], DType::Q8_0),
            ("joint.enc.weight", &[16, 640], DType::F32),
            ("joint.enc.weight", &[640, 48], DType::F32),
            ("joint.joint_net.2.weight", &[1030, 640], DType::F32),
            ("encoder.layers.0.conv.pointwise_conv1.weight", &[1024, 512, 1], DType::F32),
            ("encoder.layers.0.feed_forward1.linear1.bias", &[2048], DType::F32),
            ("decoder.prediction.embed.weight", &[1025, 640], DType::F32),
            ("ctc_decoder.decoder_layers.0.weight", &[1025, 512, 1], DType::F32),
        ] {
            assert_eq!(stored_as(name, shape, q).0, want, "{name} {shape:?}");
            assert_eq!(stored_as(name, shape, TargetType::F32).0, DType::F32);
        }
        assert_eq!(stored_as("joint.enc.weight", &[640, 48], TargetType::F16).0, DType::F16);
        assert!(stored_as("joint.enc.weight", &[640, 48], q).1.is_some());
        assert_eq!(TargetType::from_name("Q8_0"), Some(q));
    }
}
