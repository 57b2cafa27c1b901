//! `causal_conv1d`: every channel convolved with its own last values, in pieces.

use crate::activation::silu;
use crate::count::{dims, elements};
use crate::infer::{Inputs, dim};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{ints, read, write};
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "causal_conv1d";

/// Depthwise convolution with the last K values of each channel, and SiLU after it, of a sequence that comes in pieces (Gu, Dao,
/// "Mamba", 2023).
///
/// Inputs: `x [B, T, C]` f32, `w [C, 1, K]` in any stored form (the last tap is that of the newest value), `state
/// [items, K - 1, C]` f32 with `items` at least B: the values before the piece, oldest first; `at [B]` i32: the tokens before
/// the piece. Where there are none, the values before are zeros, whatever the state holds. Outputs: `[B, T, C]` f32, and the
/// next state: its first B items end in the values of the piece, the others stay.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConv1d;

impl Op for CausalConv1d {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 4)?;
        let x = ins.f32_of(0, 3, "[B, T, C]")?;
        let w = ins.weight(1, 3, "[C, 1, K]")?;
        let state = ins.f32_of(2, 3, "[items, K - 1, C]")?;
        let at = ins.i32(3, Some(1), "[B]")?;
        ins.same(Axis::C, dim(x, 2), dim(w, 0))?;
        ins.same(Axis("channels per group"), &conure_tensor::Dim::from(1), dim(w, 1))?;
        ins.same(Axis::C, dim(x, 2), dim(state, 2))?;
        ins.same(Axis("K"), dim(w, 2), &dim(state, 1).plus(1))?;
        ins.same(Axis::B, dim(x, 0), dim(at, 0))?;
        fewer(&ins, dim(x, 0), dim(state, 0), 2)?;
        Ok(Outputs::from_iter([ValueType::f32(x.clone()), ValueType::f32(state.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, w, state) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?, read(NAME, inputs, 2)?);
        let at = ints(NAME, inputs, 3)?;
        let (tokens, c, before) = (x.dim(1), x.dim(2), state.dim(1));
        let (mut out, mut next) = (Vec::new(), state.data.clone());
        for (b, &at) in at.iter().enumerate() {
            // Place `before + t` is token t.
            let value = |place: usize, ch: usize| match place.checked_sub(before) {
                Some(t) => x.data[(b * tokens + t) * c + ch],
                None if at == 0 => 0.0,
                None => state.data[(b * before + place) * c + ch],
            };
            for t in 0..tokens {
                out.extend((0..c).map(|ch| {
                    silu((0..=before).map(|k| value(t + k, ch) * w.data[ch * (before + 1) + k]).sum())
                }));
            }
            for place in 0..before {
                for ch in 0..c {
                    next[(b * before + place) * c + ch] = value(tokens + place, ch);
                }
            }
        }
        write(NAME, outputs, 0, out)?;
        write(NAME, outputs, 1, next)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        elements(outputs, 0) * (2.0 * dims(inputs, 1).last().map_or(1.0, |&k| k as f64) + 2.0)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Refuses a state, input `i`, of fewer items than the run has, where both are known.
pub(crate) fn fewer(
    ins: &Inputs<'_>,
    batch: &conure_tensor::Dim,
    items: &conure_tensor::Dim,
    i: usize,
) -> Result<(), OpError> {
    match (batch.as_constant(), items.as_constant()) {
        (Some(batch), Some(items)) if items < batch => {
            Err(ins.wrong(i, format!("a state of at least {batch} items")))
        }
        _ => Ok(()),
    }
}
