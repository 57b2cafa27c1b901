//! The experts of mixtures: in one tensor each, or all in one, as a GGUF file stacks them.

use super::Source;
use super::config::Family;
use crate::error::ConvertError;
use crate::source::{TensorSource, to_f32};
use conure_tensor::DType;
use std::collections::BTreeMap;
use std::path::Path;

/// Which rows of a stored matrix are the rows of one that is written: those from `first` on, so many apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Take {
    first: usize,
    step: usize,
}

const ALL: Take = Take { first: 0, step: 1 };
/// Gates and what they gate take turns in gpt-oss.
const EVEN: Take = Take { first: 0, step: 2 };
const ODD: Take = Take { first: 1, step: 2 };

/// Where the matrices of all experts come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Experts {
    /// A tensor `[N, K]` for each.
    Each(Vec<usize>),
    /// One tensor `[E, K, N]`.
    Transposed(Whole),
    /// One tensor `[E, N]`: biases.
    Vectors(Whole),
    /// MXFP4: nibbles `[E, N, K / 32, 16]`, those of neighbours in a byte, and exponents `[E, N, K / 32]`.
    Blocks {
        /// The nibbles.
        whole: Whole,
        /// The exponents.
        scales: usize,
    },
}

/// A tensor with all experts, and what is taken of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    index: usize,
    take: Take,
}

/// A stack that is written: its name, its shape, where it comes from.
pub(super) type Stack = (String, Vec<usize>, Experts);

/// The experts met so far, by the names of the stacks.
#[derive(Debug, Default)]
pub(super) struct Collected {
    each: BTreeMap<String, BTreeMap<usize, usize>>,
    /// Tensors of gpt-oss: by layer and name.
    whole: BTreeMap<(usize, String), usize>,
}

/// The stacks that single experts' matrices go to.
const EACH: [(&str, &str); 6] = [
    ("w1", "ffn_gate_exps"),
    ("w2", "ffn_down_exps"),
    ("w3", "ffn_up_exps"),
    ("gate_proj", "ffn_gate_exps"),
    ("down_proj", "ffn_down_exps"),
    ("up_proj", "ffn_up_exps"),
];

/// What the tensors of gpt-oss hold: stacks and their rows.
const WHOLE: [(&str, &[(&str, Take)]); 2] = [
    ("gate_up_proj", &[("ffn_gate_exps", EVEN), ("ffn_up_exps", ODD)]),
    ("down_proj", &[("ffn_down_exps", ALL)]),
];

impl Collected {
    /// Notes the tensor `index` of the source if it belongs to experts.
    pub(super) fn take(&mut self, name: &str, index: usize, family: Family) -> bool {
        self.note(name, index, family).is_some()
    }

    fn note(&mut self, name: &str, index: usize, family: Family) -> Option<()> {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        let rest = rest.strip_prefix("mlp.experts.").or(rest.strip_prefix("block_sparse_moe.experts."))?;
        if let Some((expert, part)) = rest.split_once('.') {
            let part = part.strip_suffix(".weight")?;
            let ours = EACH.iter().find(|(theirs, _)| *theirs == part)?.1;
            let stack = self.each.entry(format!("blk.{layer}.{ours}.weight")).or_default();
            return stack.insert(expert.parse().ok()?, index).is_none().then_some(());
        }
        let known = WHOLE.iter().any(|(theirs, _)| rest.starts_with(theirs));
        if family != Family::GptOss || !known {
            return None;
        }
        self.whole.insert((layer, rest.to_owned()), index).is_none().then_some(())
    }

    /// The stacks, each of `count` experts.
    pub(super) fn stacks(
        self,
        path: &Path,
        count: usize,
        source: &Source,
    ) -> Result<Vec<Stack>, ConvertError> {
        let fail = |name: &str, reason: String| ConvertError::Tensor {
            path: path.into(),
            tensor: name.to_owned(),
            reason,
        };
        let shape = |index: usize| source.tensors().get(index).map_or(&[][..], |t| t.shape.as_slice());
        let mut stacks = Vec::new();
        for (name, experts) in self.each {
            if experts.len() != count || experts.keys().enumerate().any(|(i, &e)| i != e) {
                let reason = format!("there are {} of {count} experts", experts.len());
                return Err(fail(&name, reason));
            }
            let indices: Vec<usize> = experts.into_values().collect();
            let one = shape(indices[0]);
            if one.len() != 2 || indices.iter().any(|&i| shape(i) != one) {
                return Err(fail(&name, "its experts are not matrices of one shape".into()));
            }
            stacks.push((name, [&[count], one].concat(), Experts::Each(indices)));
        }
        for ((layer, theirs), &index) in &self.whole {
            let stem = theirs.trim_end_matches("_bias").trim_end_matches("_blocks");
            let kind = if theirs.ends_with("_bias") { "bias" } else { "weight" };
            let Some((_, parts)) = WHOLE.iter().find(|(name, _)| *name == stem) else { continue };
            for &(ours, take) in *parts {
                let name = format!("blk.{layer}.{ours}.{kind}");
                let whole = Whole { index, take };
                let (rows, experts) = match (theirs.ends_with("_blocks"), shape(index)) {
                    (true, &[e, n, blocks, 16]) if e == count => {
                        let scales = self.whole.get(&(*layer, format!("{stem}_scales"))).copied();
                        let scales = scales.filter(|&s| shape(s) == [e, n, blocks]).ok_or_else(|| {
                            fail(&name, format!("there are no scales [{e}, {n}, {blocks}] for its blocks"))
                        })?;
                        (n, Experts::Blocks { whole, scales })
                    }
                    (false, &[e, _, n]) if e == count && kind == "weight" => (n, Experts::Transposed(whole)),
                    (false, &[e, n]) if e == count && kind == "bias" => (n, Experts::Vectors(whole)),
                    (_, other) => {
                        return Err(fail(&name, format!("{theirs} is {other:?}, not of {count} experts")));
                    }
                };
                if rows % take.step != 0 {
                    return Err(fail(&name, format!("{rows} rows of gates and what they gate are odd")));
                }
                let n = rows / take.step;
                let shape = match (&experts, shape(index)) {
                    (Experts::Blocks { .. }, &[_, _, blocks, _]) => vec![count, n, 32 * blocks],
                    (Experts::Transposed(_), &[_, k, _]) => vec![count, n, k],
                    _ => vec![count, n],
                };
                stacks.push((name, shape, experts));
            }
        }
        Ok(stacks)
    }
}

impl Experts {
    /// The type that the values have and keep, if it is one of blocks.
    pub(super) fn blocks(&self) -> Option<DType> {
        matches!(self, Experts::Blocks { .. }).then_some(DType::MXFP4)
    }

    /// The values of expert `e` of `count`, row-major.
    pub(super) fn values(&self, source: &Source, e: usize, count: usize) -> Result<Vec<f32>, ConvertError> {
        let (whole, transposed) = match self {
            Experts::Each(indices) => return source.read_f32(indices.get(e).copied().unwrap_or(usize::MAX)),
            Experts::Transposed(whole) => (whole, true),
            Experts::Vectors(whole) | Experts::Blocks { whole, .. } => (whole, false),
        };
        let tensor = source.tensors().get(whole.index);
        let columns = tensor.and_then(|t| t.shape.last()).map_or(1, |&n| n.max(1));
        let dtype = tensor.map_or(crate::pickle::ScalarType::F32, |t| t.dtype);
        let values = to_f32(dtype, &source.read_part(whole.index, e, count)?);
        let Take { first, step } = whole.take;
        let taken = (first..columns).step_by(step);
        Ok(if transposed {
            taken.flat_map(|n| values.iter().skip(n).step_by(columns).copied()).collect()
        } else {
            taken.filter_map(|n| values.get(n).copied()).collect()
        })
    }

    /// The bytes of expert `e` of `count` in blocks as GGUF lays them.
    pub(super) fn block_bytes(
        &self,
        source: &Source,
        e: usize,
        count: usize,
    ) -> Result<Vec<u8>, ConvertError> {
        let Experts::Blocks { whole, scales } = self else { return Ok(Vec::new()) };
        let shape = source.tensors().get(whole.index).map_or(&[][..], |t| t.shape.as_slice());
        let blocks = shape.get(2).map_or(1, |&n| n.max(1));
        let nibbles = source.read_part(whole.index, e, count)?;
        let exponents = source.read_part(*scales, e, count)?;
        let rows = nibbles.chunks_exact(16 * blocks).zip(exponents.chunks_exact(blocks));
        let mut out = Vec::with_capacity(17 * exponents.len() / whole.take.step);
        for (nibbles, exponents) in rows.skip(whole.take.first).step_by(whole.take.step) {
            for (nibbles, &e) in nibbles.as_chunks::<16>().0.iter().zip(exponents) {
                out.push(e);
                out.extend(relaid(nibbles));
            }
        }
        Ok(out)
    }
}

/// Byte j holds elements 2 j and 2 j + 1; it is to hold j and j + 16.
fn relaid(nibbles: &[u8; 16]) -> [u8; 16] {
    let element = |i: usize| if i.is_multiple_of(2) { nibbles[i / 2] & 15 } else { nibbles[i / 2] >> 4 };
    std::array::from_fn(|j| element(j) | element(j + 16) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_of_neighbours_are_parted() {
        // Element i is i mod 16.
        let stored: [u8; 16] = std::array::from_fn(|j| (((2 * j) % 16) | (((2 * j + 1) % 16) << 4)) as u8);
        let expected: [u8; 16] = std::array::from_fn(|j| (j | (j << 4)) as u8);
        assert_eq!(relaid(&stored), expected);
    }

    #[test]
    fn tensors_of_experts_are_told_from_others() {
        let mut c = Collected::default();
        for (name, family, taken) in [
            ("model.layers.0.block_sparse_moe.experts.3.w1.weight", Family::Llama, true),
            ("model.layers.0.block_sparse_moe.experts.3.w1.weight", Family::Llama, false), // twice
            ("model.layers.0.block_sparse_moe.experts.3.w4.weight", Family::Llama, false),
            ("model.layers.0.block_sparse_moe.gate.weight", Family::Llama, false),
            ("model.layers.1.mlp.experts.0.down_proj.weight", Family::Qwen3Moe, true),
            ("model.layers.1.mlp.experts.gate_up_proj", Family::Qwen3Moe, false),
            ("model.layers.1.mlp.experts.gate_up_proj", Family::GptOss, true),
            ("model.layers.1.mlp.experts.gate_up_proj_blocks", Family::GptOss, true),
            ("model.layers.1.mlp.router.weight", Family::GptOss, false),
        ] {
            assert_eq!(c.take(name, 0, family), taken, "{name}");
        }
        let names: Vec<&str> = c.each.keys().map(String::as_str).collect();
        assert_eq!(names, ["blk.0.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"]);
    }
}
