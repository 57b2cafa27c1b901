//! `rope`: rotary position embedding.

use crate::count::elements;
use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{read, write};
use conure_kernels::rotary::Pairs;
use conure_tensor::{Axis, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "rope";

/// Rotary position embedding (Su et al. 2021): pairs of elements of each head turned by the angles that
/// [`crate::RotaryAngles`] gives.
///
/// Inputs: `x [B, T, H, K]` f32, `angles [B, T, R]` f32 with `R <= K` even: R/2 cosines, then R/2 sines. Output: `[B, T, H,
/// K]` f32; elements from R on are kept. With [`Pairs::Adjacent`] elements 2j and 2j+1 turn together (what GGUF files call
/// normal), with [`Pairs::Halves`] j and j + R/2 (NEOX): `(a, b)` becomes `(a cos - b sin, a sin + b cos)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements turn together.
    pub pairs: Pairs,
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let pairs = match self.pairs {
            Pairs::Adjacent => "adjacent",
            Pairs::Halves => "halves",
        };
        vec![("pairs", Attr::Text(pairs))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let x = ins.f32_of(0, 4, "[B, T, H, K]")?;
        let angles = ins.f32_of(1, 3, "[B, T, R]")?;
        ins.same(Axis::B, dim(x, 0), dim(angles, 0))?;
        ins.same(Axis::T, dim(x, 1), dim(angles, 1))?;
        match (dim(angles, 2).as_constant(), dim(x, 3).as_constant()) {
            (Some(turned), Some(width)) if turned % 2 == 0 && turned <= width => Ok(one(x.clone())),
            _ => Err(ins.wrong(1, format!("[B, T, R] with an even R of at most K, {}", dim(x, 3)))),
        }
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (x, angles) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let half = angles.last() / 2;
        let mut out = x.data.clone();
        for (i, head) in out.chunks_exact_mut(x.last().max(1)).enumerate() {
            let row = angles.row(i / x.dim(2).max(1));
            for j in 0..half {
                let (cos, sin) = (row[j], row[half + j]);
                let (p, q) = match self.pairs {
                    Pairs::Adjacent => (2 * j, 2 * j + 1),
                    Pairs::Halves => (j, j + half),
                };
                (head[p], head[q]) = (head[p] * cos - head[q] * sin, head[p] * sin + head[q] * cos);
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        3.0 * elements(outputs, 0)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
