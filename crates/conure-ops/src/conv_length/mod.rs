//! `conv_length`: the lengths of the items after a convolution.

use crate::infer::Inputs;
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{input, output};
use conure_tensor::{DType, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "conv_length";

/// The lengths of the items of a batch after a convolution in time: `floor((L + pad - kernel) / stride) + 1`, at
/// least 0. As in NeMo, a causal subsampling convolution (kernel 3, pad 3) turns length 0 into 1.
///
/// Input: `lengths [B]` i32. Output: `[B]` i32.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvLength {
    /// Frames that the kernel covers.
    pub kernel: usize,
    /// Frames from one output to the next.
    pub stride: usize,
    /// Zero frames added, before and after together.
    pub pad: usize,
}

impl ConvLength {
    /// The length after the convolution.
    pub(crate) fn apply(&self, length: i32) -> i32 {
        let wide = |n: usize| i64::try_from(n).unwrap_or(i64::MAX / 4);
        let covered = i64::from(length) + wide(self.pad) - wide(self.kernel);
        let frames = covered.div_euclid(wide(self.stride).max(1)) + 1;
        i32::try_from(frames.max(0)).unwrap_or(i32::MAX)
    }
}

impl Op for ConvLength {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let int = |n: usize| Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
        vec![("kernel", int(self.kernel)), ("stride", int(self.stride)), ("pad", int(self.pad))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let lengths = ins.i32(0, Some(1), "[B]")?;
        if self.stride == 0 {
            return Err(ins.attribute("stride is 0, must be at least 1"));
        }
        Ok(Outputs::from_iter([ValueType::new(DType::I32, lengths.clone())]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let lengths = input(NAME, inputs, 0)?.as_slice::<i32>()?;
        let out = output(NAME, outputs, 0)?.as_mut_slice::<i32>()?;
        for (slot, &length) in out.iter_mut().zip(lengths) {
            *slot = self.apply(length);
        }
        Ok(())
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
    use super::ConvLength;

    #[test]
    fn lengths_are_nemos() {
        let plain = ConvLength { kernel: 3, stride: 2, pad: 2 };
        let causal = ConvLength { kernel: 3, stride: 2, pad: 3 };
        let thrice = |op: &ConvLength, l| op.apply(op.apply(op.apply(l)));
        assert_eq!((thrice(&plain, 743), thrice(&causal, 743)), (93, 94));
        assert_eq!((plain.apply(0), causal.apply(0)), (0, 1));
        assert_eq!((plain.apply(-9), plain.apply(i32::MAX)), (0, 1 << 30));
    }
}
