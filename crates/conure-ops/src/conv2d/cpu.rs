//! `conv2d` on the CPU: a product where the kernel is one tap, a product of gathered patches where channels mix, and a direct
//! convolution where they do not or there is but one.

use super::{Conv2d, NAME};
use crate::activation::Activation;
use crate::infer;
use crate::kernel::{
    MATRIX, Matrix, TAPS_MAJOR, dim, function, fused, last, out_f32, pack_matrix, pack_small, pack_taps,
    refused, rows, small_if, small_key, taps,
};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use crate::values::decode;
use conure_kernels::conv2d::Conv2d as Kernel;
use conure_kernels::gemm::{self, Epilogue, PackedMatrix, Patches};
use conure_kernels::{Cpu, elementwise};
use conure_tensor::{DType, TensorView};
use std::borrow::Cow;
use std::sync::Arc;

/// The key of a weight whose rows are patches: `[O, kT kF C]`, packed for products.
const PATCHES: &str = "patches";

/// A weight packed so, with its taps.
struct PatchWeights {
    matrix: PackedMatrix,
    taps: [usize; 2],
}

impl Conv2d {
    /// Whether it is computed as a product of patches. A single input channel gives patches too short to pay, and groups that
    /// see only each other are not one product.
    fn is_of_patches(&self, group_channels: Option<usize>) -> bool {
        self.groups == 1 && group_channels.is_some_and(|c| c > 1)
    }

    /// Whether each output sees one position only, so that this is a product.
    fn is_product(&self, taps: [Option<usize>; 2]) -> bool {
        taps == [Some(1); 2] && self.stride == [1, 1] && self.pad == [0; 4] && self.groups == 1
    }

    /// The weight as the right side of a product, if this is one.
    fn product<'a>(&self, call: &CpuCall<'a, '_>) -> Result<Option<Matrix<'a>>, OpError> {
        match call.inputs.get(1) {
            Some(CpuInput::Packed(p)) => Ok(p.downcast_ref::<PackedMatrix>().map(Matrix::Packed)),
            Some(CpuInput::Tensor(w)) if self.is_product([2, 3].map(|i| Some(dim(w.shape(), i)))) => {
                Ok(Some(Matrix::Plain(w.as_slice::<f32>()?)))
            }
            _ => Ok(None),
        }
    }

    fn multiply(&self, call: &mut CpuCall<'_, '_>, w: Matrix<'_>) -> Result<Activation, OpError> {
        let x = call.tensor(NAME, 0)?;
        let (m, k, x) = (rows(x.shape()), last(x.shape()), x.as_slice::<f32>()?);
        let n = call.outputs.first().map_or(1, |o| last(o.shape()));
        let bias = small_if(self.bias, call, NAME, 2)?;
        let fused = fused(self.activation);
        let activation = fused.unwrap_or(gemm::Activation::None);
        let epilogue = Epilogue { bias, activation, ..Epilogue::default() };
        let out = out_f32(NAME, call.outputs, 0)?;
        w.product(NAME, call.cpu, x, [m, n, k], &epilogue, out)?;
        Ok(if fused.is_some() { Activation::None } else { self.activation })
    }

    /// The convolution as a product of patches.
    fn gather(&self, call: &mut CpuCall<'_, '_>, w: &PatchWeights) -> Result<Activation, OpError> {
        let x = call.tensor(NAME, 0)?;
        let shape = x.shape();
        let window = self.window(w.taps);
        let patches = Patches {
            x: x.as_slice::<f32>()?,
            batch: dim(shape, 0),
            frames: dim(shape, 1),
            bins: dim(shape, 2),
            channels: dim(shape, 3),
            time: window.axis(0),
            freq: window.axis(1),
        };
        let bias = small_if(self.bias, call, NAME, 2)?;
        let fused = fused(self.activation);
        let activation = fused.unwrap_or(gemm::Activation::None);
        let epilogue = Epilogue { bias, activation, ..Epilogue::default() };
        let out = out_f32(NAME, call.outputs, 0)?;
        gemm::convolve(call.cpu, &patches, &w.matrix, &epilogue, out).map_err(refused(NAME))?;
        Ok(if fused.is_some() { Activation::None } else { self.activation })
    }

    fn convolve(&self, call: &mut CpuCall<'_, '_>) -> Result<Activation, OpError> {
        let x = call.tensor(NAME, 0)?;
        let (shape, x) = (x.shape(), x.as_slice::<f32>()?);
        let bias = small_if(self.bias, call, NAME, 2)?;
        let (weights, w) = taps(call.inputs, NAME, 1, call.scratch)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        let relu = self.activation == Activation::Relu;
        let window = self.window([dim(w, 2), dim(w, 3)]);
        let kernel = Kernel {
            weights,
            bias,
            time: window.axis(0),
            freq: window.axis(1),
            channels: dim(shape, 3),
            out_channels: dim(w, 0),
            groups: self.groups,
            relu,
        };
        kernel.run(call.cpu, x, dim(shape, 0), dim(shape, 1), dim(shape, 2), out).map_err(refused(NAME))?;
        Ok(if relu { Activation::None } else { self.activation })
    }
}

impl CpuOp for Conv2d {
    fn scratch(&self, inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        // For a computed weight; a stored one is reordered once, and is small either way.
        inputs.get(1).map_or(0, |w| 4 * w.iter().product::<usize>())
    }

    fn pack_key(&self, input: usize, weight: &ValueType) -> Option<&'static str> {
        let taps = [2, 3].map(|i| infer::dim(&weight.shape, i).as_constant());
        match input {
            1 if self.is_product(taps) => Some(MATRIX),
            1 if self.is_of_patches(infer::dim(&weight.shape, 1).as_constant()) => Some(PATCHES),
            1 => Some(TAPS_MAJOR),
            2 => small_key(weight),
            _ => None,
        }
    }

    fn pack_on(&self, cpu: &Cpu, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        match input {
            1 if self.is_product([2, 3].map(|i| Some(dim(weight.shape(), i)))) => {
                pack_matrix(NAME, cpu, weight, false)
            }
            1 if self.is_of_patches(weight.shape().get(1).copied()) => pack_patches(cpu, weight),
            1 => pack_taps(NAME, weight),
            _ => pack_small(NAME, weight),
        }
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        if call.outputs.first_mut().is_some_and(|o| o.bytes_mut().is_empty()) {
            return Ok(());
        }
        let gathered = match call.inputs.get(1) {
            Some(CpuInput::Packed(p)) => p.downcast_ref::<PatchWeights>(),
            _ => None,
        };
        let rest = match (gathered, self.product(call)?) {
            (Some(w), _) => self.gather(call, w)?,
            (_, Some(w)) => self.multiply(call, w)?,
            (None, None) => self.convolve(call)?,
        };
        match function(rest) {
            Some(f) => elementwise::unary_in_place(call.cpu, f, out_f32(NAME, call.outputs, 0)?)
                .map_err(refused(NAME)),
            None => Ok(()),
        }
    }
}

/// A weight `[O, C, kT, kF]` as the rows `[O, kT kF C]` of a packed matrix, in its own type where that has no blocks.
fn pack_patches(cpu: &Cpu, weight: &TensorView<'_>) -> Result<Packed, OpError> {
    let shape = weight.shape();
    let [o, c, kt, kf] = [0, 1, 2, 3].map(|i| dim(shape, i));
    let taps = kt * kf;
    let (dtype, stored) = if weight.dtype().is_quantised() {
        let decoded = decode(NAME, weight)?;
        (DType::F32, Cow::Owned(bytemuck::cast_slice::<f32, u8>(&decoded).to_vec()))
    } else {
        (weight.dtype(), Cow::Borrowed(weight.bytes()))
    };
    let size = dtype.block_bytes();
    let mut rows = vec![0u8; stored.len()];
    for (i, to) in rows.chunks_exact_mut(size).enumerate() {
        let (out, tap, channel) = (i / (taps * c), i / c % taps, i % c);
        let from = ((out * c + channel) * taps + tap) * size;
        to.copy_from_slice(&stored[from..from + size]);
    }
    let matrix = PackedMatrix::new(cpu, dtype, &rows, o, taps * c).map_err(refused(NAME))?;
    Ok(Arc::new(PatchWeights { matrix, taps: [kt, kf] }))
}
