//! `transpose` on the CPU.

use super::{NAME, Transpose};
use crate::op::{CpuCall, CpuOp, OpError, ValueType};
use crate::values::output;
use conure_tensor::Dims;

impl CpuOp for Transpose {
    fn supports(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let x = call.tensor(NAME, 0)?;
        let strides = self.strides(x.shape());
        let out = output(NAME, call.outputs, 0)?;
        let shape = Dims::from_slice(out.shape());
        match out.dtype().block_bytes() {
            2 => gather::<2>(x.bytes(), &shape, &strides, out.bytes_mut()),
            4 => gather::<4>(x.bytes(), &shape, &strides, out.bytes_mut()),
            _ => gather::<8>(x.bytes(), &shape, &strides, out.bytes_mut()),
        }
        .ok_or_else(|| OpError::Kernel {
            op: NAME,
            what: format!("{:?} does not become {shape:?}", x.shape()),
        })
    }
}

/// Fills `out`, of `shape`, with elements of `N` bytes whose neighbours lie `strides` elements apart in `from`; `None`
/// if one would lie outside.
fn gather<const N: usize>(from: &[u8], shape: &[usize], strides: &[usize], out: &mut [u8]) -> Option<()> {
    let (from, out) = (from.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let (&width, outer) = shape.split_last()?;
    let (&step, strides) = strides.split_last()?;
    let mut at = Dims::from_elem(0, outer.len());
    for row in out.chunks_exact_mut(width.max(1)) {
        let start: usize = at.iter().zip(strides).map(|(i, s)| i * s).sum();
        if step == 1 {
            row.copy_from_slice(from.get(start..start + width)?);
        } else {
            let source = from.get(start..=start + (width - 1) * step)?;
            for (slot, value) in row.iter_mut().zip(source.iter().step_by(step)) {
                *slot = *value;
            }
        }
        for (i, &length) in at.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < length {
                break;
            }
            *i = 0;
        }
    }
    Some(())
}
