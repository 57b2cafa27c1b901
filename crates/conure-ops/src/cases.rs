//! Conformance cases: what an op is run on to hold every device's kernel to the reference.
//!
//! A [`Case`] is an op, the types of its inputs with a seeded generator for each, and the tolerance with its reason.
//! The walk over all of them is `tests/conformance.rs`.

use crate::op::Op;
use conure_tensor::{DType, Tensor, TensorError, quant};
use std::ops::Range;
use std::sync::Arc;

/// One op on inputs of one type and shape.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is special about it.
    pub name: String,
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// What goes in, in the order of the op.
    pub inputs: Vec<Input>,
    /// How far from the reference a kernel may be.
    pub tolerance: Tolerance,
}

/// How far a kernel may be from the reference, which is computed in f64 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Greatest sum of squared errors, as a part of the sum of squares of the reference.
    pub nmse: f64,
    /// Greatest error of one element, as a part of `1 + |reference|`.
    pub element: f64,
    /// Why it cannot be less.
    pub why: &'static str,
}

impl Tolerance {
    /// Bit for bit.
    pub const EXACT: Tolerance =
        Tolerance { nmse: 0.0, element: 0.0, why: "elements are moved or set, nothing is computed" };
    /// One rounded operation per element.
    pub const ROUNDED: Tolerance =
        Tolerance { nmse: 1e-14, element: 1.2e-7, why: "one operation per element, rounded to f32" };
    /// A function approximated to a few units in the last place.
    pub const FUNCTION: Tolerance = Tolerance {
        nmse: 1e-13,
        element: 4e-7,
        why: "a polynomial in f32, within 4 units in the last place",
    };
    /// Sums in f32.
    pub const SUMS: Tolerance = Tolerance {
        nmse: 2e-12,
        element: 6e-6,
        why: "up to 300 products summed in f32, in another order than the reference's (measured: 2e-6)",
    };
    /// Longer sums.
    pub const LONG_SUMS: Tolerance = Tolerance {
        nmse: 2e-12,
        element: 3e-5,
        why: "up to 513 products of deviation 0.5 summed in f32, where they cancel (measured: 1.2e-5)",
    };
    /// Products of quantised weights with rounded activations.
    pub const ROUNDED_ACTIVATIONS: Tolerance = Tolerance {
        nmse: 3e-4,
        element: 0.3,
        why: "a group's largest of 32 normal activations is about 2.1 deviations, a step 1/127 of it, its rounding 1/sqrt(12) \
              of a step: 0.5 % of a deviation for each term, 2.3e-5 of the square; elements are sums of up to 512 terms, whose \
              errors add to 0.05 deviations, five times that at worst; the gates of an LSTM cell are such sums, and its outputs \
              have up to five times their relative error (measured: 1.6e-4)",
    };
    /// Products of rounded weights with rounded activations, with one scale for an output and for a row.
    pub const ROUNDED_ROWS: Tolerance = Tolerance {
        nmse: 1e-2,
        element: 0.5,
        why: "the largest of 512 normal numbers is about 3.1 deviations, a step 1/127 of it, its rounding 1/sqrt(12) of a step: 0.7 % of \
              a deviation for each factor of a term, 1e-4 of the square for both; elements and cells as with rounded activations, and a case of one gated output has 5.7e-3",
    };
}

/// An input of a case.
#[derive(Clone, Debug)]
pub struct Input {
    /// Element type.
    pub dtype: DType,
    /// Lengths, slowest first.
    pub shape: Vec<usize>,
    /// What it is filled with.
    pub fill: Fill,
    /// Whether it is a weight: fixed at load, given to the kernel in the layout that the kernel wants.
    pub weight: bool,
}

/// What an input holds.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Normally distributed around 0 with this deviation.
    Normal(f32),
    /// Evenly distributed over this range.
    Uniform(f32, f32),
    /// These integers, repeated.
    Ints(Vec<i32>),
    /// Normally distributed, and between them NaN, infinities, zeros of both signs, very small and very large numbers.
    Special,
    /// Normally distributed, but these elements have this value.
    Except(Vec<(Range<usize>, f32)>),
}

/// What [`Fill::Special`] puts at every third element.
const SPECIAL: [f32; 12] =
    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-20, -1e-20, 1e30, -1e30, 100.0, -100.0, 1.0];

impl Input {
    /// A computed f32 tensor, normally distributed.
    pub fn f32(shape: &[usize]) -> Input {
        Input { dtype: DType::F32, shape: shape.to_vec(), fill: Fill::Normal(1.0), weight: false }
    }

    /// A computed i32 tensor of these integers, repeated.
    pub fn i32(shape: &[usize], values: &[i32]) -> Input {
        Input { dtype: DType::I32, shape: shape.to_vec(), fill: Fill::Ints(values.to_vec()), weight: false }
    }

    /// A weight of this type, normally distributed.
    pub fn weight(dtype: DType, shape: &[usize]) -> Input {
        Input { dtype, shape: shape.to_vec(), fill: Fill::Normal(0.5), weight: true }
    }

    /// The same with this type.
    pub fn typed(mut self, dtype: DType) -> Input {
        self.dtype = dtype;
        self
    }

    /// The same, but rows of its last axis have one value throughout.
    pub fn except(self, rows: &[(Range<usize>, f32)]) -> Input {
        let width = self.shape.last().copied().unwrap_or(1);
        let parts = rows.iter().map(|(at, value)| (at.start * width..at.end * width, *value));
        self.filled(Fill::Except(parts.collect()))
    }

    /// The same, filled so.
    pub fn filled(mut self, fill: Fill) -> Input {
        self.fill = fill;
        self
    }

    /// The tensor, the same for the same `seed`.
    ///
    /// # Errors
    /// If the shape does not fill whole blocks.
    pub fn tensor(&self, seed: u64) -> Result<Tensor, TensorError> {
        let mut out = Tensor::zeros(self.dtype, &self.shape)?;
        let count: usize = self.shape.iter().product();
        match (&self.fill, self.dtype) {
            (Fill::Ints(values), DType::I32) => {
                for (slot, &v) in out.view_mut().as_mut_slice::<i32>()?.iter_mut().zip(values.iter().cycle())
                {
                    *slot = v;
                }
            }
            (fill, DType::I32) => {
                let values = numbers(fill, count, seed);
                for (slot, v) in out.view_mut().as_mut_slice::<i32>()?.iter_mut().zip(values) {
                    *slot = (v * 1000.0) as i32;
                }
            }
            (fill, DType::I64) => {
                let values = numbers(fill, count, seed);
                for (slot, v) in out.view_mut().as_mut_slice::<i64>()?.iter_mut().zip(values) {
                    *slot = (f64::from(v) * 1e12) as i64;
                }
            }
            (fill, dtype) => {
                // An f16 too large for its type becomes an infinity, which is as good; blocks hold all that the other
                // generators make.
                let _ = quant::encode(dtype, &numbers(fill, count, seed), out.view_mut().bytes_mut());
            }
        }
        Ok(out)
    }
}

impl Case {
    /// A case without inputs yet, to be met [exactly](Tolerance::EXACT).
    pub fn new(name: impl Into<String>, op: impl Op) -> Case {
        Case { name: name.into(), op: Arc::new(op), inputs: Vec::new(), tolerance: Tolerance::EXACT }
    }

    /// The same with one more input.
    pub fn with(mut self, input: Input) -> Case {
        self.inputs.push(input);
        self
    }

    /// The same with one more input if `there`.
    pub fn with_if(self, there: bool, input: Input) -> Case {
        if there { self.with(input) } else { self }
    }

    /// The same with this tolerance.
    pub fn within(mut self, tolerance: Tolerance) -> Case {
        self.tolerance = tolerance;
        self
    }

    /// The inputs' content, always the same for one case.
    ///
    /// # Errors
    /// If a shape does not fill whole blocks.
    pub fn tensors(&self) -> Result<Vec<Tensor>, TensorError> {
        let seed =
            self.op.name().bytes().chain(self.name.bytes()).fold(0xcbf2_9ce4_8422_2325u64, |hash, b| {
                (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
            });
        self.inputs.iter().zip(0u64..).map(|(input, i)| input.tensor(seed.wrapping_add(i << 40))).collect()
    }
}

/// Numbers between 0 and 1 (SplitMix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Nearly normal: the sum of twelve uniform numbers has variance 1.
fn normal(state: &mut u64) -> f64 {
    (0..12).map(|_| uniform(state)).sum::<f64>() - 6.0
}

fn numbers(fill: &Fill, count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|i| match fill {
            Fill::Normal(deviation) => normal(&mut state) as f32 * deviation,
            Fill::Uniform(low, high) => low + (high - low) * uniform(&mut state) as f32,
            Fill::Ints(values) => values.get(i % values.len().max(1)).copied().unwrap_or(0) as f32,
            Fill::Special if i % 3 == 1 => SPECIAL[i / 3 % SPECIAL.len()],
            Fill::Special => normal(&mut state) as f32,
            Fill::Except(parts) => {
                let drawn = normal(&mut state) as f32;
                parts.iter().find(|(at, _)| at.contains(&i)).map_or(drawn, |&(_, value)| value)
            }
        })
        .collect()
}
