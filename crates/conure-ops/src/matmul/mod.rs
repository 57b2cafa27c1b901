//! `matmul`: the product of two computed matrices, or of many.

use crate::count::{dims, elements};
use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{output, read, write};
use conure_tensor::{Axis, DType, Dim, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "matmul";

/// Matrix products of two computed tensors. ([`crate::Linear`] is the product with a weight.)
///
/// Inputs: `a [..., M, K]` and `b [..., K, N]`, or `[..., N, K]` if [`MatMul::transpose_b`], each f32 or f16. The axes before
/// the last two are counted from the right; one that is missing or 1 on one side is repeated. Output: `[..., M, N]` f32, sums in
/// f32. ggml's MUL_MAT of `src0` and `src1` is `a = src1`, `b = src0`, transposed.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// Whether b is stored `[..., N, K]`, so that this is `a b^T`.
    pub transpose_b: bool,
}

impl MatMul {
    /// Which axes of b, from the right, are K and N.
    fn b_axes(&self) -> (usize, usize) {
        if self.transpose_b { (1, 2) } else { (2, 1) }
    }
}

/// Axis `i` of a shape, counted from the right, from 1.
fn back(shape: &Shape, i: usize) -> (Axis, &Dim) {
    match shape.rank().checked_sub(i) {
        Some(at) => (shape.axis(at), dim(shape, at)),
        None => (Axis::ANY, dim(shape, usize::MAX)),
    }
}

/// Which matrix of a tensor with these batch axes belongs to matrix `index` of the output, whose batch axes are `out`.
pub(crate) fn batch_at(batch: &[usize], out: &[usize], mut index: usize) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (i, &length) in out.iter().rev().enumerate() {
        let own = batch.len().checked_sub(i + 1).map_or(1, |j| batch[j]);
        if own != 1 {
            at += index % length * stride;
        }
        index /= length.max(1);
        stride *= own;
    }
    at
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("transpose_b", Attr::Int(i64::from(self.transpose_b)))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        for (i, ty) in inputs.iter().enumerate() {
            if !matches!(ty.dtype, DType::F32 | DType::F16) || ty.shape.rank() < 2 {
                return Err(ins.wrong(i, "f32 or f16 with at least two axes"));
            }
        }
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let (k, n) = self.b_axes();
        ins.same(Axis::K, back(a, 1).1, back(b, k).1)?;
        let rank = a.rank().max(b.rank());
        let one_long = Dim::from(1);
        let mut axes = Vec::new();
        for i in (3..=rank).rev() {
            let ((axis, left), (other, right)) = (back(a, i), back(b, i));
            if *left != one_long && *right != one_long {
                ins.same(axis, left, right)?;
            }
            let axis = if axis == Axis::ANY { other } else { axis };
            axes.push((axis, if *left == one_long { right.clone() } else { left.clone() }));
        }
        axes.push((back(a, 2).0, back(a, 2).1.clone()));
        axes.push((back(b, n).0, back(b, n).1.clone()));
        Ok(one(Shape::new(axes)))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (a, b) = (read(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let shape = output(NAME, outputs, 0)?.shape().to_vec();
        let Some((batch, &[m, n])) = shape.split_last_chunk::<2>() else { return Ok(()) };
        let k = a.last();
        let batch_of = |shape: &[usize]| shape[..shape.len().saturating_sub(2)].to_vec();
        let (a_batch, b_batch) = (batch_of(&a.shape), batch_of(&b.shape));
        let mut out = Vec::new();
        for index in 0..batch.iter().product() {
            let (ai, bi) = (batch_at(&a_batch, batch, index), batch_at(&b_batch, batch, index));
            for (row, column) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let product = |l: usize| {
                    let at = if self.transpose_b { column * k + l } else { l * n + column };
                    a.data[(ai * m + row) * k + l] * b.data[bi * n * k + at]
                };
                out.push((0..k).map(product).sum::<f64>());
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        2.0 * elements(outputs, 0) * dims(inputs, 0).last().copied().unwrap_or(0) as f64
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
