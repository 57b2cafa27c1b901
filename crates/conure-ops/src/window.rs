//! The window that a convolution moves over an image, and that [`crate::Im2col`] cuts out.

use crate::infer::conv_frames;
use crate::op::Attr;
use conure_kernels::conv2d::Axis;
use conure_tensor::Dim;

/// A window of two axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Taps of each axis.
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// Zeros before and after the first axis, before and after the second.
    pub(crate) pad: [usize; 4],
    /// Distances between taps.
    pub(crate) dilation: [usize; 2],
}

impl Window {
    /// The same as the kernels take one axis.
    pub(crate) fn axis(&self, i: usize) -> Axis {
        Axis {
            kernel: self.kernel[i],
            stride: self.stride[i],
            dilation: self.dilation[i],
            before: self.pad[2 * i],
            after: self.pad[2 * i + 1],
        }
    }

    /// Where tap `k` of position `at` of axis `i` reads, if that is inside `0 .. length`.
    pub(crate) fn source(&self, i: usize, at: usize, k: usize, length: usize) -> Option<usize> {
        (at * self.stride[i] + k * self.dilation[i]).checked_sub(self.pad[2 * i]).filter(|&s| s < length)
    }

    /// Positions along axis `i` of this length. The window has at least one tap.
    pub(crate) fn positions(&self, i: usize, length: &Dim) -> Dim {
        let pad = self.pad[2 * i].saturating_add(self.pad[2 * i + 1]);
        let extent = (self.kernel[i].max(1) - 1).saturating_mul(self.dilation[i]).saturating_add(1);
        conv_frames(length, pad, extent, self.stride[i])
    }

    /// Its attributes but the kernel, which is one of the op or the shape of a weight.
    pub(crate) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("stride", ints(&self.stride)), ("pad", ints(&self.pad)), ("dilation", ints(&self.dilation))]
    }
}

/// Lengths as an attribute.
pub(crate) fn ints(lengths: &[usize]) -> Attr {
    Attr::Ints(lengths.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect())
}
