//! `rotary_angles`: cosines and sines of the angles by which `rope` turns, made once for all layers.

use crate::count::elements;
use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{ints, read, write};
use conure_tensor::{Axis, Dim, Shape, TensorMut, TensorView};
use smallvec::SmallVec;
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "rotary_angles";

/// How angles are stretched for contexts longer than those of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not.
    None,
    /// All alike (Chen et al. 2023): divided by the factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// By their wavelength (YaRN; Peng et al. 2023): pairs that turn more than `beta_fast` times within the original context
    /// are kept, those that turn less than `beta_slow` times are divided by the factor, between them it goes gradually.
    Yarn {
        /// The factor.
        factor: f32,
        /// Positions of the context in training.
        original: f32,
        /// Turns from which on a pair is kept.
        beta_fast: f32,
        /// Turns up to which a pair is stretched in full.
        beta_slow: f32,
        /// How much of all this applies: 1.
        extrapolation: f32,
    },
}

/// Which of four positions (time, height, width, and one more) each pair of a multimodal model turns by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Pairs of each position.
    pub sizes: [usize; 4],
    /// Whether the first three take turns (`t h w t h w ...`, as long as each has pairs left) instead of blocks.
    pub interleaved: bool,
}

impl Sections {
    /// The position that pair `j` turns by.
    pub(crate) fn of(&self, j: usize) -> usize {
        let [t, h, w, e] = self.sizes;
        let s = j % (t + h + w + e).max(1);
        if self.interleaved {
            return match s % 3 {
                1 if s < 3 * h => 1,
                2 if s < 3 * w => 2,
                0 if s < 3 * t => 0,
                _ => 3,
            };
        }
        if s < t {
            0
        } else if s < t + h {
            1
        } else if s < t + h + w {
            2
        } else {
            3
        }
    }
}

/// The angles of rotary positions (Su et al. 2021): pair j of R/2 turns by `position * base^(-2j/R)`, divided by factor j and
/// scaled.
///
/// Inputs: `positions [B, T]` i32 (`[4, B, T]` with [`RotaryAngles::sections`]), then `factors [R/2]` if
/// [`RotaryAngles::factors`]. Output: `[B, T, R]` f32: R/2 cosines, then R/2 sines, both times the magnitude.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryAngles {
    /// R, the elements of a head that turn: even.
    pub turned: usize,
    /// The base of the frequencies.
    pub base: f32,
    /// How they are stretched.
    pub scaling: RopeScaling,
    /// What cosines and sines are multiplied by.
    pub magnitude: f32,
    /// Whether there is a factor for each pair.
    pub factors: bool,
    /// For models with several positions per token.
    pub sections: Option<Sections>,
}

/// As many frequencies as fit without memory of their own.
type Frequencies = SmallVec<[f64; 256]>;

impl RotaryAngles {
    /// Radians per position of each pair.
    fn frequencies(&self, factors: Option<&[f32]>) -> Frequencies {
        let (n, base) = (self.turned as f64, f64::from(self.base));
        (0..self.turned / 2)
            .map(|j| {
                let plain = base.powf(-2.0 * j as f64 / n) / factors.map_or(1.0, |f| f64::from(f[j]));
                match self.scaling {
                    RopeScaling::None => plain,
                    RopeScaling::Linear { factor } => plain / f64::from(factor),
                    RopeScaling::Yarn { factor, original, beta_fast, beta_slow, extrapolation } => {
                        let turns = |beta: f32| {
                            n * (f64::from(original) / (2.0 * std::f64::consts::PI * f64::from(beta))).ln()
                                / (2.0 * base.ln())
                        };
                        let low = turns(beta_fast).floor().max(0.0);
                        let high = turns(beta_slow).ceil().min(n - 1.0);
                        let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                        let kept = (1.0 - ramp) * f64::from(extrapolation);
                        plain * (kept + (1.0 - kept) / f64::from(factor))
                    }
                }
            })
            .collect()
    }
}

impl Op for RotaryAngles {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let mut attrs = vec![
            ("turned", Attr::Int(int(self.turned))),
            ("base", Attr::Float(self.base)),
            ("magnitude", Attr::Float(self.magnitude)),
            ("factors", Attr::Int(i64::from(self.factors))),
        ];
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => attrs.push(("linear", Attr::Float(factor))),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, extrapolation } => attrs.extend([
                ("yarn", Attr::Float(factor)),
                ("original", Attr::Float(original)),
                ("beta_fast", Attr::Float(beta_fast)),
                ("beta_slow", Attr::Float(beta_slow)),
                ("extrapolation", Attr::Float(extrapolation)),
            ]),
        }
        if let Some(sections) = self.sections {
            attrs.push(("sections", Attr::Ints(sections.sizes.map(int).to_vec())));
            attrs.push(("interleaved", Attr::Int(i64::from(sections.interleaved))));
        }
        attrs
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1 + usize::from(self.factors))?;
        if !self.turned.is_multiple_of(2) || self.base <= 1.0 || !self.base.is_finite() {
            return Err(ins.attribute(format!(
                "{} elements that turn with base {}; expected an even number and a base over 1",
                self.turned, self.base
            )));
        }
        let first = usize::from(self.sections.is_some());
        let positions = match self.sections {
            None => ins.i32(0, Some(2), "[B, T]")?,
            Some(_) => ins.i32(0, Some(3), "[4, B, T]")?,
        };
        if self.sections.is_some() && *dim(positions, 0) != Dim::from(4) {
            return Err(ins.wrong(0, "i32 [4, B, T]"));
        }
        if self.factors {
            ins.vector(1, Axis::K, &Dim::from(self.turned / 2))?;
        }
        Ok(one(Shape::new([
            (Axis::B, dim(positions, first).clone()),
            (Axis::T, dim(positions, first + 1).clone()),
            (Axis::K, Dim::from(self.turned)),
        ])))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let positions = ints(NAME, inputs, 0)?;
        let factors = if self.factors { Some(read(NAME, inputs, 1)?) } else { None };
        let factors: Option<Vec<f32>> = factors.map(|f| f.data.iter().map(|&v| v as f32).collect());
        let freqs = self.frequencies(factors.as_deref());
        let rows = positions.len() / if self.sections.is_some() { 4 } else { 1 };
        let mut out = Vec::with_capacity(rows * self.turned);
        for row in 0..rows {
            let angle = |j: usize| {
                let kind = self.sections.map_or(0, |s| s.of(j));
                f64::from(positions[kind * rows + row]) * freqs[j]
            };
            let m = f64::from(self.magnitude);
            out.extend((0..freqs.len()).map(|j| m * angle(j).cos()));
            out.extend((0..freqs.len()).map(|j| m * angle(j).sin()));
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, _inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        2.0 * elements(outputs, 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_find_their_section() {
        let of = |sizes, interleaved, upto| {
            let s = Sections { sizes, interleaved };
            (0..upto).map(|j| s.of(j)).collect::<Vec<_>>()
        };
        assert_eq!(of([2, 1, 1, 0], false, 6), [0, 0, 1, 2, 0, 0]);
        assert_eq!(of([3, 2, 2, 0], true, 7), [0, 1, 2, 0, 1, 2, 0]);
        // Qwen3-VL: pairs 61 and 62 have no position left and fall to the fourth.
        let sections = Sections { sizes: [24, 20, 20, 0], interleaved: true };
        assert_eq!([sections.of(60), sections.of(61), sections.of(62), sections.of(63)], [0, 3, 3, 0]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let plain = RotaryAngles {
            turned: 64,
            base: 150_000.0,
            scaling: RopeScaling::None,
            magnitude: 1.0,
            factors: false,
            sections: None,
        };
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            original: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            extrapolation: 1.0,
        };
        let yarn = RotaryAngles { scaling, ..plain.clone() };
        let (plain, yarn) = (plain.frequencies(None), yarn.frequencies(None));
        let ratio = |j: usize| plain[j] / yarn[j];
        // The bounds of this model are 8 and 18.
        for j in 0..=8 {
            assert!((ratio(j) - 1.0).abs() < 1e-9, "{j}: {}", ratio(j));
        }
        assert!((1.0 / ratio(13) - (0.5 + 0.5 / 32.0)).abs() < 1e-9, "{}", ratio(13));
        for j in 18..32 {
            assert!((ratio(j) - 32.0).abs() < 1e-9, "{j}: {}", ratio(j));
        }
    }
}
