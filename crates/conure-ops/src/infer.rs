//! What shape rules are made of: checks of number, type, rank and length that name the op, the input and the axis.

use crate::op::{OpError, Outputs, ValueType, arity, same};
use conure_tensor::{Axis, DType, Dim, Shape};

/// The inputs of one op while its shape rule looks at them.
pub(crate) struct Inputs<'a> {
    op: &'static str,
    types: &'a [&'a ValueType],
}

impl<'a> Inputs<'a> {
    /// Exactly `count` inputs.
    pub(crate) fn exactly(
        op: &'static str,
        types: &'a [&'a ValueType],
        count: usize,
    ) -> Result<Inputs<'a>, OpError> {
        arity(op, types, count)?;
        Ok(Inputs { op, types })
    }

    /// At least one input.
    pub(crate) fn some(op: &'static str, types: &'a [&'a ValueType]) -> Result<Inputs<'a>, OpError> {
        if types.is_empty() {
            return Err(OpError::Arity { op, expected: "1 or more".to_string(), found: 0 });
        }
        Ok(Inputs { op, types })
    }

    fn get(&self, i: usize) -> Result<&'a ValueType, OpError> {
        self.types.get(i).copied().ok_or_else(|| OpError::Arity {
            op: self.op,
            expected: format!("more than {i}"),
            found: self.types.len(),
        })
    }

    /// The error that input `i` is not what it should be.
    pub(crate) fn wrong(&self, i: usize, expected: impl Into<String>) -> OpError {
        let found = self.types.get(i).map_or_else(|| "missing".to_string(), |t| t.to_string());
        OpError::Input { op: self.op, input: i, found, expected: expected.into() }
    }

    /// The error that an attribute makes no sense.
    pub(crate) fn attribute(&self, what: impl Into<String>) -> OpError {
        OpError::Attribute { op: self.op, what: what.into() }
    }

    /// Element type of input `i`.
    pub(crate) fn dtype(&self, i: usize) -> Result<DType, OpError> {
        Ok(self.get(i)?.dtype)
    }

    /// Shape of input `i`, which must be f32; `what` says what is expected.
    pub(crate) fn f32(&self, i: usize, what: &str) -> Result<&'a Shape, OpError> {
        let t = self.get(i)?;
        if t.dtype == DType::F32 { Ok(&t.shape) } else { Err(self.wrong(i, format!("f32 {what}"))) }
    }

    /// Shape of input `i`, which must be f32 of this rank.
    pub(crate) fn f32_of(&self, i: usize, rank: usize, what: &str) -> Result<&'a Shape, OpError> {
        let shape = self.f32(i, what)?;
        if shape.rank() == rank { Ok(shape) } else { Err(self.wrong(i, format!("f32 {what}"))) }
    }

    /// Shape of input `i`, which must be f32 with at least this rank.
    pub(crate) fn f32_from(&self, i: usize, rank: usize, what: &str) -> Result<&'a Shape, OpError> {
        let shape = self.f32(i, what)?;
        if shape.rank() >= rank { Ok(shape) } else { Err(self.wrong(i, format!("f32 {what}"))) }
    }

    /// Shape of input `i`, which must be i32 of this rank (`None`: of any).
    pub(crate) fn i32(&self, i: usize, rank: Option<usize>, what: &str) -> Result<&'a Shape, OpError> {
        let t = self.get(i)?;
        if t.dtype == DType::I32 && rank.is_none_or(|r| r == t.shape.rank()) {
            return Ok(&t.shape);
        }
        Err(self.wrong(i, format!("i32 {what}")))
    }

    /// Shape of input `i`, a weight of this rank whose elements stand for real numbers in any stored form.
    pub(crate) fn weight(&self, i: usize, rank: usize, what: &str) -> Result<&'a Shape, OpError> {
        let t = self.get(i)?;
        if is_real(t.dtype) && t.shape.rank() == rank {
            return Ok(&t.shape);
        }
        Err(self.wrong(i, what))
    }

    /// Shape of input `i`, whose elements are single numbers, not blocks.
    pub(crate) fn plain(&self, i: usize) -> Result<&'a Shape, OpError> {
        let t = self.get(i)?;
        if t.dtype.is_quantised() {
            return Err(self.wrong(i, "a type without blocks (f32, f16, bf16, i32, i64)"));
        }
        Ok(&t.shape)
    }

    /// Checks a vector of `length` along `axis`, a weight or computed.
    pub(crate) fn vector(&self, i: usize, axis: Axis, length: &Dim) -> Result<(), OpError> {
        let shape = self.weight(i, 1, &format!("[{axis}]"))?;
        self.same(axis, length, dim(shape, 0))
    }

    /// Checks that two lengths agree.
    pub(crate) fn same(&self, axis: Axis, left: &Dim, right: &Dim) -> Result<(), OpError> {
        same(self.op, axis, left, right)
    }

    /// Checks that two shapes agree in every axis.
    pub(crate) fn same_shape(&self, left: usize, right: usize) -> Result<(), OpError> {
        let (a, b) = (&self.get(left)?.shape, &self.get(right)?.shape);
        if a.rank() != b.rank() {
            return Err(self.wrong(right, format!("the shape of input {left}, {a}")));
        }
        for ((axis, l), (_, r)) in a.iter().zip(b.iter()) {
            self.same(axis, l, r)?;
        }
        Ok(())
    }
}

/// Whether elements of this type stand for real numbers.
pub(crate) fn is_real(dtype: DType) -> bool {
    !matches!(dtype, DType::I32 | DType::I64)
}

/// Length of axis `i` of a shape whose rank was checked; a length of 1 past the end.
pub(crate) fn dim(shape: &Shape, i: usize) -> &Dim {
    static ONE: std::sync::OnceLock<Dim> = std::sync::OnceLock::new();
    shape.get(i).unwrap_or_else(|| ONE.get_or_init(|| Dim::from(1)))
}

/// Index of the last axis.
pub(crate) fn last(shape: &Shape) -> usize {
    shape.rank().saturating_sub(1)
}

/// One f32 output.
pub(crate) fn one(shape: Shape) -> Outputs {
    Outputs::from_iter([ValueType::f32(shape)])
}

/// `floor((length + pad - kernel) / stride) + 1`: the frames of a convolution. `kernel` counts the dilated extent.
pub(crate) fn conv_frames(length: &Dim, pad: usize, kernel: usize, stride: usize) -> Dim {
    let offset =
        i64::try_from(pad).unwrap_or(i64::MAX).saturating_sub(i64::try_from(kernel).unwrap_or(i64::MAX));
    length.plus(offset).floor_div(i64::try_from(stride).unwrap_or(i64::MAX)).plus(1)
}
