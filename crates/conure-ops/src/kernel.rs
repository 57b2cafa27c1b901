//! What the CPU sides of ops share: operands in the forms that kernels take, and the packing of weights.

use crate::activation::Activation;
use crate::op::{CpuCall, CpuInput, OpError, Packed, ValueType};
use crate::values::{decode, output};
use conure_kernels::gemm::{self, Epilogue, PackedMatrix, Rhs};
use conure_kernels::{Cpu, KernelError, conv2d, elementwise};
use conure_tensor::{DType, Dims, TensorMut, TensorView};
use std::sync::Arc;

/// What a kernel said, as an error of `op`, which a kernel of that name does not name again.
pub(crate) fn refused(op: &'static str) -> impl Fn(KernelError) -> OpError {
    move |e| {
        let text = e.to_string();
        let what = text.strip_prefix(op).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
        OpError::Kernel { op, what: what.to_owned() }
    }
}

/// Output `i` as f32.
pub(crate) fn out_f32<'b>(
    op: &'static str,
    outputs: &'b mut [TensorMut<'_>],
    i: usize,
) -> Result<&'b mut [f32], OpError> {
    Ok(output(op, outputs, i)?.as_mut_slice::<f32>()?)
}

/// Input `i` as f32, or `None` if it is what output 0 holds.
pub(crate) fn operand<'a>(
    call: &CpuCall<'a, '_>,
    op: &'static str,
    i: usize,
) -> Result<Option<&'a [f32]>, OpError> {
    match call.inputs.get(i) {
        Some(CpuInput::InPlace) => Ok(None),
        _ => call.slice::<f32>(op, i).map(Some),
    }
}

/// Input `i` as f32 in output 0, where it is already or is copied to.
pub(crate) fn moved<'b>(
    op: &'static str,
    input: Option<&[f32]>,
    outputs: &'b mut [TensorMut<'_>],
) -> Result<&'b mut [f32], OpError> {
    let out = out_f32(op, outputs, 0)?;
    match input {
        Some(x) if x.len() == out.len() => out.copy_from_slice(x),
        Some(x) => {
            let what = format!("input of {} elements for an output of {}", x.len(), out.len());
            return Err(OpError::Kernel { op, what });
        }
        None => {}
    }
    Ok(out)
}

/// The first `count` floats of the scratch, and the rest.
pub(crate) fn scratch<'b>(
    op: &'static str,
    scratch: &'b mut [u8],
    count: usize,
) -> Result<(&'b mut [f32], &'b mut [f32]), OpError> {
    let found = scratch.len();
    let floats = bytemuck::try_cast_slice_mut::<u8, f32>(scratch).ok();
    floats.and_then(|f| f.split_at_mut_checked(count)).ok_or_else(|| OpError::Kernel {
        op,
        what: format!("scratch of {found} bytes, needs {count} aligned floats"),
    })
}

/// The key of a small weight (bias, scale, kernel of a few taps): as stored if f32, else widened.
pub(crate) fn small_key(weight: &ValueType) -> Option<&'static str> {
    (weight.dtype != DType::F32).then_some("f32")
}

/// A small weight widened to f32.
pub(crate) fn pack_small(op: &'static str, weight: &TensorView<'_>) -> Result<Packed, OpError> {
    Ok(Arc::new(decode(op, weight)?))
}

/// Input `i`, a small weight, as f32: stored so, or as [`pack_small`] gave it.
pub(crate) fn small<'a>(call: &CpuCall<'a, '_>, op: &'static str, i: usize) -> Result<&'a [f32], OpError> {
    match call.inputs.get(i) {
        Some(CpuInput::Packed(_)) => Ok(call.packed::<Vec<f32>>(op, i)?.as_slice()),
        _ => call.slice::<f32>(op, i),
    }
}

/// As [`small`], if `there`.
pub(crate) fn small_if<'a>(
    there: bool,
    call: &CpuCall<'a, '_>,
    op: &'static str,
    i: usize,
) -> Result<Option<&'a [f32]>, OpError> {
    if there { small(call, op, i).map(Some) } else { Ok(None) }
}

/// The key of a matrix packed for products.
pub(crate) const MATRIX: &str = "matrix";

/// The key of a matrix packed for products that end in a gated linear unit.
pub(crate) const MATRIX_GLU: &str = "matrix_glu";

/// A weight `[N, ...]` packed for products: what follows the first axis is K. `glu`: as [`MATRIX_GLU`], N is even.
pub(crate) fn pack_matrix(
    op: &'static str,
    cpu: &Cpu,
    weight: &TensorView<'_>,
    glu: bool,
) -> Result<Packed, OpError> {
    let n = weight.shape().first().copied().unwrap_or(1);
    let k = weight.shape().iter().skip(1).product();
    let packed = PackedMatrix::for_products(cpu, weight.dtype(), weight.bytes(), n, k, glu);
    let packed = packed.map_err(refused(op))?;
    Ok(Arc::new(packed))
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Matrix<'a> {
    Packed(&'a PackedMatrix),
    /// `[N, K]`.
    Plain(&'a [f32]),
}

/// Input `i` as the right side of a product.
pub(crate) fn matrix<'a>(call: &CpuCall<'a, '_>, op: &'static str, i: usize) -> Result<Matrix<'a>, OpError> {
    match call.inputs.get(i) {
        Some(CpuInput::Packed(_)) => Ok(Matrix::Packed(call.packed::<PackedMatrix>(op, i)?)),
        _ => Ok(Matrix::Plain(call.slice::<f32>(op, i)?)),
    }
}

impl Matrix<'_> {
    /// `out [M, N] = residual + scale * f(x [M, K] w^T + bias)`.
    pub(crate) fn product(
        self,
        op: &'static str,
        cpu: &Cpu,
        x: &[f32],
        [m, n, k]: [usize; 3],
        epilogue: &Epilogue<'_>,
        out: &mut [f32],
    ) -> Result<(), OpError> {
        match self {
            Matrix::Packed(w) if (w.n(), w.k()) == (n, k) => gemm::linear(cpu, x, m, w, epilogue, out),
            Matrix::Packed(w) => {
                let what = format!("weight packed as [{}, {}], used as [{n}, {k}]", w.n(), w.k());
                return Err(OpError::Kernel { op, what });
            }
            Matrix::Plain(w) => gemm::matmul(cpu, x, w, Rhs::Nk, m, n, k, epilogue, out),
        }
        .map_err(refused(op))
    }
}

/// The key of a convolution's weight with the output channels fastest.
pub(crate) const TAPS_MAJOR: &str = "taps_major";

/// A convolution's weight as f32 `[taps, C/groups, O]`.
pub(crate) struct Taps {
    /// The elements.
    pub(crate) values: Vec<f32>,
    /// As stored: `[O, C/groups, taps...]`.
    pub(crate) shape: Dims,
}

/// A convolution's weight `[O, C/groups, taps...]` as [`Taps`].
pub(crate) fn pack_taps(op: &'static str, weight: &TensorView<'_>) -> Result<Packed, OpError> {
    let stored = decode(op, weight)?;
    let mut values = vec![0f32; stored.len()];
    taps_major(op, &stored, weight.shape(), &mut values)?;
    Ok(Arc::new(Taps { values, shape: Dims::from_slice(weight.shape()) }))
}

/// Reorders `[O, C/groups, taps...]` to `[taps, C/groups, O]`.
fn taps_major(op: &'static str, weight: &[f32], shape: &[usize], out: &mut [f32]) -> Result<(), OpError> {
    let taps = shape.iter().skip(2).product();
    conv2d::taps_major(weight, dim(shape, 0), dim(shape, 1), taps, out).map_err(refused(op))
}

/// Input `i`, a convolution's weight, as `[taps, C/groups, O]`, with its shape as stored; a computed one is reordered
/// in `room`.
pub(crate) fn taps<'b>(
    inputs: &'b [CpuInput<'_>],
    op: &'static str,
    i: usize,
    room: &'b mut [u8],
) -> Result<(&'b [f32], &'b [usize]), OpError> {
    match inputs.get(i) {
        Some(CpuInput::Packed(p)) => match p.downcast_ref::<Taps>() {
            Some(taps) => Ok((&taps.values, &taps.shape)),
            None => Err(OpError::Kernel { op, what: format!("input {i} is not packed as expected") }),
        },
        Some(CpuInput::Tensor(w)) => {
            let (out, _) = scratch(op, room, w.elements())?;
            taps_major(op, w.as_slice::<f32>()?, w.shape(), out)?;
            Ok((out, w.shape()))
        }
        _ => Err(OpError::Kernel { op, what: format!("input {i} should be a weight") }),
    }
}

/// The activation as a function of the elementwise kernels; `None` for none and for what gates whole rows.
pub(crate) fn function(activation: Activation) -> Option<elementwise::Unary> {
    match activation {
        Activation::None | Activation::Glu => None,
        Activation::Relu => Some(elementwise::Unary::Relu),
        Activation::Silu => Some(elementwise::Unary::Silu),
        Activation::Sigmoid => Some(elementwise::Unary::Sigmoid),
        Activation::Tanh => Some(elementwise::Unary::Tanh),
    }
}

/// The activation as a product's last step; `None` if that step does not know it.
pub(crate) fn fused(activation: Activation) -> Option<gemm::Activation> {
    match activation {
        Activation::None => Some(gemm::Activation::None),
        Activation::Relu => Some(gemm::Activation::Relu),
        Activation::Silu => Some(gemm::Activation::Silu),
        Activation::Sigmoid => Some(gemm::Activation::Sigmoid),
        Activation::Glu => Some(gemm::Activation::Glu),
        Activation::Tanh => None,
    }
}

/// Product of all lengths but the last.
pub(crate) fn rows(shape: &[usize]) -> usize {
    shape.iter().rev().skip(1).product()
}

/// Length of axis `i`; 1 past the end.
pub(crate) fn dim(shape: &[usize], i: usize) -> usize {
    shape.get(i).copied().unwrap_or(1)
}

/// Length of the last axis; 1 for a scalar.
pub(crate) fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// Copies bytes of equal length.
pub(crate) fn copy(op: &'static str, from: &[u8], to: &mut [u8]) -> Result<(), OpError> {
    if from.len() != to.len() {
        let what = format!("{} bytes for {}", from.len(), to.len());
        return Err(OpError::Kernel { op, what });
    }
    to.copy_from_slice(from);
    Ok(())
}
