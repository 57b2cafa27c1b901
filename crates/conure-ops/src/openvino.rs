//! What the OpenVINO sides of ops write with: layers of a model, without knowing how a model is written.
//!
//! An op's `openvino.rs` says with which layers OpenVINO computes it. Values keep the axes that they have in the graph,
//! channels last; OpenVINO's convolutions want channels second. A convolution therefore ends in a transposition, and what
//! follows element by element is written before that (`Ir::source`): transpositions meet and vanish, and the device sees
//! the chain of convolution, norm and function that it fuses.

mod append;
mod emit;

pub use append::append;
pub use emit::{Cache, Choices, Emit};

use crate::activation::Activation;
use crate::infer::{dim, last};
use crate::op::{OpError, ValueType};
use conure_tensor::{DType, Dim, Shape};
use smallvec::SmallVec;

/// A value of the model that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port(pub u64);

impl Port {
    /// Output `index` of the layer that this is output 0 of.
    pub fn nth(self, index: u64) -> Port {
        Port(self.0 + index)
    }
}

/// An order of axes.
pub type Perm = SmallVec<[usize; 6]>;

/// The OpenVINO side of an op.
pub trait OpenVinoOp {
    /// Whether OpenVINO takes these types; `fixed` says which inputs are weights or constants.
    ///
    /// # Errors
    /// Why not, for the placement's report.
    fn supports(&self, _inputs: &[&ValueType], _fixed: &[bool]) -> Result<(), String> {
        Ok(())
    }

    /// Whether input `index` may be a cache as columns ([`Emit::cache`]), and which input then says where the items stand.
    fn reads_cache(&self, _index: usize) -> Option<usize> {
        None
    }

    /// Writes the layers; the outputs.
    ///
    /// # Errors
    /// What cannot be written.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError>;
}

/// One output.
pub(crate) fn port(out: Port) -> Result<SmallVec<[Port; 2]>, OpError> {
    Ok(SmallVec::from_iter([out]))
}

/// A length in a shape to reshape to.
#[derive(Clone, Debug)]
pub(crate) enum Len<'a> {
    Fixed(usize),
    /// That of the same axis of the input.
    Same,
    /// What is left; once.
    Rest,
    Dim(&'a Dim),
}

/// The model around one op: its types, and short names for common layers.
pub struct Ir<'a> {
    emit: &'a mut dyn Emit,
    types: &'a [&'a ValueType],
    outputs: &'a [ValueType],
}

impl<'a> Ir<'a> {
    /// For an op with inputs and outputs of these types.
    pub fn new(emit: &'a mut dyn Emit, types: &'a [&'a ValueType], outputs: &'a [ValueType]) -> Ir<'a> {
        Ir { emit, types, outputs }
    }

    /// The forms that are wanted.
    pub(crate) fn choices(&self) -> Choices {
        self.emit.choices()
    }

    /// Number of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.types.len()
    }

    /// Shape of input `i`; of no axes past the last.
    pub(crate) fn shape(&self, i: usize) -> &'a Shape {
        static NONE: std::sync::OnceLock<Shape> = std::sync::OnceLock::new();
        self.types.get(i).map_or_else(|| NONE.get_or_init(|| Shape::fixed(&[])), |t| &t.shape)
    }

    /// Shape of output `i`.
    pub(crate) fn out_shape(&self, i: usize) -> &'a Shape {
        self.outputs.get(i).map_or_else(|| self.shape(usize::MAX), |t| &t.shape)
    }

    /// Length `axis` of input `i`, if it is fixed; 1 past the end.
    pub(crate) fn fixed(&self, i: usize, axis: usize) -> Result<usize, OpError> {
        dim(self.shape(i), axis).as_constant().ok_or_else(|| OpError::Kernel {
            op: "openvino",
            what: format!("axis {axis} of {} must be fixed", self.shape(i)),
        })
    }

    pub(crate) fn input(&mut self, i: usize) -> Result<Port, OpError> {
        self.emit.input(i, None)
    }

    /// See [`Emit::cache`].
    pub(crate) fn cache(&self, i: usize) -> Option<Cache> {
        self.emit.cache(i)
    }

    /// The values of input `i`, a small weight or a constant: for what is computed once, when the model is written.
    pub(crate) fn values(&self, i: usize) -> Result<Vec<f32>, OpError> {
        self.emit.values(i)
    }

    /// Input `i` in another fixed shape: for nothing if it is a weight.
    pub(crate) fn shaped(&mut self, i: usize, shape: &[usize]) -> Result<Port, OpError> {
        if self.emit.is_fixed(i) {
            return self.emit.input(i, Some(shape));
        }
        let x = self.input(i)?;
        let lens: Vec<Len<'_>> = shape.iter().map(|&d| Len::Fixed(d)).collect();
        self.reshape(x, &lens)
    }

    pub(crate) fn at_most(&mut self, length: &Dim, most: usize, what: &'static str) {
        self.emit.at_most(length, most, what);
    }

    pub(crate) fn within(&mut self, i: usize, low: i32, high: i32, what: &'static str) {
        self.emit.within(i, low, high, what);
    }

    pub(crate) fn layer(
        &mut self,
        kind: &'static str,
        version: &'static str,
        attrs: &[(&'static str, &str)],
        inputs: &[Port],
    ) -> Port {
        self.emit.layer(kind, version, attrs, inputs, 1)
    }

    pub(crate) fn f32s(&mut self, shape: &[usize], values: &[f32]) -> Result<Port, OpError> {
        self.emit.literal(DType::F32, shape, bytemuck::cast_slice(values))
    }

    pub(crate) fn f32(&mut self, value: f32) -> Result<Port, OpError> {
        self.f32s(&[], &[value])
    }

    /// `[N]` i64.
    pub(crate) fn i64s(&mut self, values: &[i64]) -> Result<Port, OpError> {
        self.emit.literal(DType::I64, &[values.len()], bytemuck::cast_slice(values))
    }

    pub(crate) fn i64(&mut self, value: i64) -> Result<Port, OpError> {
        self.emit.literal(DType::I64, &[], bytemuck::cast_slice(&[value]))
    }

    pub(crate) fn i32s(&mut self, shape: &[usize], values: &[i32]) -> Result<Port, OpError> {
        self.emit.literal(DType::I32, shape, bytemuck::cast_slice(values))
    }

    pub(crate) fn i32(&mut self, value: i32) -> Result<Port, OpError> {
        self.i32s(&[], &[value])
    }

    /// A length, as `[1]` i64.
    pub(crate) fn length(&mut self, length: &Dim) -> Result<Port, OpError> {
        match length.as_constant() {
            Some(n) => self.i64s(&[wide(n)]),
            None => self.emit.length(length),
        }
    }

    /// See [`Emit::keep`].
    pub(crate) fn keep(&mut self, x: Port, shape: &Shape) -> Result<Port, OpError> {
        self.emit.keep(x, shape)
    }

    /// A function of one value that needs no attributes.
    pub(crate) fn unary(&mut self, kind: &'static str, x: Port) -> Port {
        self.layer(kind, "opset1", &[], &[x])
    }

    /// A function of two values, the axes of the one repeated to fit the other.
    pub(crate) fn binary(&mut self, kind: &'static str, a: Port, b: Port) -> Port {
        self.layer(kind, "opset1", &[("auto_broadcast", "numpy")], &[a, b])
    }

    pub(crate) fn select(&mut self, condition: Port, yes: Port, no: Port) -> Port {
        self.layer("Select", "opset1", &[("auto_broadcast", "numpy")], &[condition, yes, no])
    }

    pub(crate) fn matmul(&mut self, a: Port, b: Port, transpose_b: bool) -> Port {
        let b_attr = if transpose_b { "true" } else { "false" };
        self.layer("MatMul", "opset1", &[("transpose_a", "false"), ("transpose_b", b_attr)], &[a, b])
    }

    pub(crate) fn convert(&mut self, x: Port, to: &'static str) -> Port {
        self.layer("Convert", "opset1", &[("destination_type", to)], &[x])
    }

    pub(crate) fn unsqueeze(&mut self, x: Port, axes: &[i64]) -> Result<Port, OpError> {
        let axes = self.i64s(axes)?;
        Ok(self.layer("Unsqueeze", "opset1", &[], &[x, axes]))
    }

    pub(crate) fn concat(&mut self, axis: usize, parts: &[Port]) -> Port {
        match parts {
            [one] => *one,
            _ => self.layer("Concat", "opset1", &[("axis", &axis.to_string())], parts),
        }
    }

    /// `parts` equal parts along an axis; the first of them.
    pub(crate) fn split(&mut self, x: Port, axis: i64, parts: usize) -> Result<Port, OpError> {
        let axis = self.i64(axis)?;
        let attrs = [("num_splits", parts.to_string())];
        Ok(self.emit.layer("Split", "opset1", &[(attrs[0].0, &attrs[0].1)], &[x, axis], parts))
    }

    /// The axes in another order. Two such layers in a row are one or none.
    pub(crate) fn transpose(&mut self, x: Port, perm: &[usize]) -> Result<Port, OpError> {
        let (source, perm): (Port, Perm) = match self.emit.transposed(x) {
            Some((source, first)) => {
                (source, perm.iter().map(|&p| first.get(p).copied().unwrap_or(p)).collect())
            }
            None => (x, Perm::from_slice(perm)),
        };
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return Ok(source);
        }
        let order: Vec<i64> = perm.iter().map(|&p| wide(p)).collect();
        let order = self.i64s(&order)?;
        let out = self.layer("Transpose", "opset1", &[], &[source, order]);
        self.emit.note_transposed(out, source, &perm);
        Ok(out)
    }

    /// `x` before its last transposition, and that: where to write what works element by element. Every axis `i` of `x` is
    /// axis `perm[i]` there. [`Ir::restore`] makes `x`'s order again.
    pub(crate) fn source(&self, x: Port, rank: usize) -> (Port, Perm) {
        self.emit.transposed(x).unwrap_or_else(|| (x, (0..rank).collect()))
    }

    /// The inverse of [`Ir::source`].
    pub(crate) fn restore(&mut self, y: Port, perm: &[usize]) -> Result<Port, OpError> {
        self.transpose(y, perm)
    }

    /// Input `i`, a vector along the last of `perm.len()` axes, where the axes lie in the order of [`Ir::source`].
    pub(crate) fn channels(&mut self, i: usize, perm: &[usize]) -> Result<Port, OpError> {
        let length = self.fixed(i, 0)?;
        let mut shape = vec![1; perm.len()];
        if let Some(slot) = perm.last().and_then(|&axis| shape.get_mut(axis)) {
            *slot = length;
        }
        self.shaped(i, &shape)
    }

    pub(crate) fn reshape(&mut self, x: Port, to: &[Len<'_>]) -> Result<Port, OpError> {
        let number = |l: &Len<'_>| match l {
            Len::Fixed(n) => Some(wide(*n)),
            Len::Same => Some(0),
            Len::Rest => Some(-1),
            Len::Dim(d) => d.as_constant().map(wide),
        };
        // A length of 0 that is meant has no place where 0 means "the same".
        let special = to.iter().any(|l| matches!(l, Len::Same));
        let numbers: Option<Vec<i64>> = to.iter().map(number).collect();
        let shape = match numbers {
            Some(numbers) => self.i64s(&numbers)?,
            None => {
                let parts = to.iter().map(|l| match (number(l), l) {
                    (None, Len::Dim(d)) => self.length(d),
                    (n, _) => self.i64s(&[n.unwrap_or(-1)]),
                });
                let parts = parts.collect::<Result<Vec<Port>, _>>()?;
                self.concat(0, &parts)
            }
        };
        let special = if special { "true" } else { "false" };
        Ok(self.layer("Reshape", "opset1", &[("special_zero", special)], &[x, shape]))
    }

    /// `x` of shape `from` as `to`, with as little left to the run as can be.
    pub(crate) fn reshape_to(&mut self, x: Port, from: &Shape, to: &Shape) -> Result<Port, OpError> {
        let unknown = to.iter().filter(|(_, d)| d.as_constant().is_none()).count();
        let zero = to.iter().chain(from.iter()).any(|(_, d)| d.as_constant() == Some(0));
        let lens: Vec<Len<'_>> = to
            .iter()
            .enumerate()
            .map(|(i, (_, d))| match d.as_constant() {
                Some(n) => Len::Fixed(n),
                None if !zero && from.get(i) == Some(d) => Len::Same,
                None if !zero && unknown == 1 => Len::Rest,
                None => Len::Dim(d),
            })
            .collect();
        self.reshape(x, &lens)
    }

    /// `start .. end` of an axis.
    pub(crate) fn slice(&mut self, x: Port, axis: usize, start: i64, end: Port) -> Result<Port, OpError> {
        self.slice_by(x, axis, start, end, 1)
    }

    /// `start .. end` of an axis, every `step`th.
    pub(crate) fn slice_by(
        &mut self,
        x: Port,
        axis: usize,
        start: i64,
        end: Port,
        step: i64,
    ) -> Result<Port, OpError> {
        let (start, step, axes) = (self.i64s(&[start])?, self.i64s(&[step])?, self.i64s(&[wide(axis)])?);
        Ok(self.layer("Slice", "opset8", &[], &[x, start, end, step, axes]))
    }

    /// `start .. end` of an axis, both decided by the run.
    pub(crate) fn slice_from(
        &mut self,
        x: Port,
        axis: usize,
        start: Port,
        end: Port,
    ) -> Result<Port, OpError> {
        let (step, axes) = (self.i64s(&[1])?, self.i64s(&[wide(axis)])?);
        Ok(self.layer("Slice", "opset8", &[], &[x, start, end, step, axes]))
    }

    /// Zeros before and after; `[N]` i64 each.
    pub(crate) fn pad(&mut self, x: Port, before: Port, after: Port) -> Result<Port, OpError> {
        let zero = self.f32(0.0)?;
        Ok(self.layer("Pad", "opset1", &[("pad_mode", "constant")], &[x, before, after, zero]))
    }

    pub(crate) fn gather(&mut self, x: Port, ids: Port, axis: i64) -> Result<Port, OpError> {
        let axis = self.i64(axis)?;
        Ok(self.layer("Gather", "opset8", &[("batch_dims", "0")], &[x, ids, axis]))
    }

    /// `[1]` as a single number.
    pub(crate) fn scalar(&mut self, x: Port) -> Result<Port, OpError> {
        let axis = self.i64s(&[0])?;
        Ok(self.layer("Squeeze", "opset1", &[], &[x, axis]))
    }

    /// `0, 1, ..` below `length`, i32.
    pub(crate) fn count(&mut self, length: &Dim) -> Result<Port, OpError> {
        let end = self.length(length)?;
        let end = self.scalar(end)?;
        let (start, step) = (self.i64(0)?, self.i64(1)?);
        Ok(self.layer("Range", "opset4", &[("output_type", "i32")], &[start, end, step]))
    }

    /// `floor(x / by)` of integers. Devices divide integers as f32 and cut off towards zero: what is left over, which is
    /// exact, is divided again, and brought to the side of the floor.
    pub(crate) fn floor_div(&mut self, x: Port, by: i32) -> Result<Port, OpError> {
        if by == 1 {
            return Ok(x);
        }
        let (divisor, zero) = (self.i32(by)?, self.i32(0)?);
        let attrs = [("auto_broadcast", "numpy"), ("m_pythondiv", "false")];
        let mut quotient = None;
        let mut left = x;
        for _ in 0..2 {
            let part = self.layer("Divide", "opset1", &attrs, &[left, divisor]);
            let whole = self.binary("Multiply", part, divisor);
            left = self.binary("Subtract", left, whole);
            quotient = Some(quotient.map_or(part, |q| self.binary("Add", q, part)));
        }
        let below = self.binary("Less", left, zero);
        let below = self.convert(below, "i32");
        Ok(self.binary("Subtract", quotient.unwrap_or(x), below))
    }

    /// Whether frame t lies before the end of item b: `[B, T]` truth values, for `lengths` `[B]` i32.
    pub(crate) fn before_end(&mut self, lengths: Port, frames: &Dim) -> Result<Port, OpError> {
        let frames = self.count(frames)?;
        let lengths = self.unsqueeze(lengths, &[1])?;
        Ok(self.binary("Less", frames, lengths))
    }

    /// The function at the end of a layer.
    pub(crate) fn activation(&mut self, activation: Activation, x: Port) -> Result<Port, OpError> {
        Ok(match activation {
            Activation::None => x,
            Activation::Relu => self.unary("ReLU", x),
            Activation::Silu => self.swish(x)?,
            Activation::Sigmoid => self.unary("Sigmoid", x),
            Activation::Tanh => self.unary("Tanh", x),
            Activation::Glu => self.glu(x)?,
        })
    }

    pub(crate) fn swish(&mut self, x: Port) -> Result<Port, OpError> {
        let beta = self.f32(1.0)?;
        Ok(self.layer("Swish", "opset4", &[], &[x, beta]))
    }

    /// The first half of the last axis times the sigmoid of the second.
    pub(crate) fn glu(&mut self, x: Port) -> Result<Port, OpError> {
        let value = self.split(x, -1, 2)?;
        let gate = self.unary("Sigmoid", value.nth(1));
        Ok(self.binary("Multiply", value, gate))
    }

    /// Index of the last axis of input `i`.
    pub(crate) fn last_axis(&self, i: usize) -> usize {
        last(self.shape(i))
    }
}

/// A length as OpenVINO takes it.
pub(crate) fn wide(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Numbers as an attribute's list.
pub(crate) fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// That input `i` must be a weight.
pub(crate) fn must_be_fixed(fixed: &[bool], i: usize) -> Result<(), String> {
    if fixed.get(i).copied().unwrap_or(false) {
        return Ok(());
    }
    Err(format!("input {i} is computed, and OpenVINO takes a weight there"))
}
