//! Axes in another order.

use crate::buffer::SharedMut;
use crate::{Cpu, KernelError, Result};

/// Elements that are worth a task of their own: about 10 us.
const GRAIN: usize = 16 * 1024;

/// Lines read side by side where neighbours of the input lie on different lines of the output: a cache line of them.
const BLOCK: usize = 16;

/// The most axes.
const MAX_AXES: usize = 8;

/// Fills `out`, of lengths `shape`, with elements of `N` bytes whose neighbours along axis `i` lie `strides[i]` elements apart
/// in `from`.
///
/// # Errors
/// [`KernelError::Invalid`] if there are more than eight axes, another number of strides, or an element lies outside of `from`.
pub fn permute<const N: usize>(
    cpu: &Cpu,
    from: &[[u8; N]],
    shape: &[usize],
    strides: &[usize],
    out: &mut [[u8; N]],
) -> Result<()> {
    let invalid = || KernelError::Invalid {
        kernel: "permute",
        reason: format!("{} elements as {shape:?} with strides {strides:?} of {}", out.len(), from.len()),
    };
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if shape.len() != strides.len() || shape.len() > MAX_AXES || elements != Some(out.len()) {
        return Err(invalid());
    }
    if out.is_empty() {
        return Ok(());
    }
    let last =
        shape.iter().zip(strides).try_fold(0usize, |n, (&d, &s)| n.checked_add((d - 1).checked_mul(s)?));
    if last.is_none_or(|last| last >= from.len()) {
        return Err(invalid());
    }
    let axes = Axes::merged(shape, strides);
    let width = axes.shape[axes.count - 1];
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(elements.unwrap_or(0) / width, GRAIN.div_ceil(width), |start, end| {
        // SAFETY: the ranges of lines are disjoint.
        let out = unsafe { out.part(start * width, (end - start) * width) };
        axes.lines(from, start, end, out);
    })
}

/// Axes without those of length 1, neighbours that move together as one.
#[derive(Clone, Copy)]
struct Axes {
    shape: [usize; MAX_AXES],
    strides: [usize; MAX_AXES],
    count: usize,
}

impl Axes {
    fn merged(shape: &[usize], strides: &[usize]) -> Axes {
        let mut axes = Axes { shape: [1; MAX_AXES], strides: [0; MAX_AXES], count: 0 };
        for (&length, &stride) in shape.iter().zip(strides).filter(|(d, _)| **d != 1) {
            match axes.count.checked_sub(1) {
                Some(before) if axes.strides[before] == length * stride => {
                    axes.shape[before] *= length;
                    axes.strides[before] = stride;
                }
                _ => {
                    axes.shape[axes.count] = length;
                    axes.strides[axes.count] = stride;
                    axes.count += 1;
                }
            }
        }
        axes.count = axes.count.max(1);
        axes
    }

    /// Where line `line` of the output begins in the input.
    fn begin(&self, mut line: usize) -> usize {
        let mut at = 0;
        for axis in (0..self.count - 1).rev() {
            at += line % self.shape[axis] * self.strides[axis];
            line /= self.shape[axis];
        }
        at
    }

    /// Lines `start..end`.
    fn lines<const N: usize>(&self, from: &[[u8; N]], start: usize, end: usize, out: &mut [[u8; N]]) {
        let (width, step) = (self.shape[self.count - 1], self.strides[self.count - 1]);
        // Lines whose elements lie side by side in the input.
        let beside = match self.count.checked_sub(2) {
            Some(axis) if self.strides[axis] == 1 && step != 1 => self.shape[axis],
            _ => 1,
        };
        let mut line = start;
        while line < end {
            let count = (beside - line % beside).min(BLOCK).min(end - line);
            let from = &from[self.begin(line)..];
            let out = &mut out[(line - start) * width..][..count * width];
            if step == 1 {
                out.copy_from_slice(&from[..width]);
            } else if count == BLOCK {
                for first in (0..width).step_by(BLOCK) {
                    for i in first..(first + BLOCK).min(width) {
                        let values = &from[i * step..][..BLOCK];
                        for (line, &value) in values.iter().enumerate() {
                            out[line * width + i] = value;
                        }
                    }
                }
            } else {
                for i in 0..width {
                    for (line, &value) in from[i * step..][..count].iter().enumerate() {
                        out[line * width + i] = value;
                    }
                }
            }
            line += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    #[test]
    fn agrees_with_the_definition() {
        let cpu = Cpu::new(Isa::Scalar, Threads::new(2).unwrap()).unwrap();
        let cases: [(&[usize], &[usize]); 12] = [
            (&[7], &[0]),
            (&[3, 5], &[1, 0]),
            (&[40, 70], &[1, 0]),
            (&[2, 33, 17], &[0, 2, 1]),
            (&[3, 100, 100], &[1, 2, 0]),
            (&[100, 100, 3], &[2, 0, 1]),
            (&[2, 3, 4, 5], &[3, 1, 0, 2]),
            (&[1, 4, 1, 6], &[2, 3, 0, 1]),
            (&[2, 9, 4, 8], &[0, 2, 1, 3]),
            (&[1, 1, 1], &[0, 2, 1]),
            (&[], &[]),
            (&[300, 2, 90], &[2, 1, 0]),
        ];
        for (shape, perm) in cases {
            let count: usize = shape.iter().product();
            let from: Vec<[u8; 4]> = (0..count as u32).map(u32::to_le_bytes).collect();
            let strides: Vec<usize> = perm.iter().map(|&a| shape[a + 1..].iter().product()).collect();
            let to: Vec<usize> = perm.iter().map(|&a| shape[a]).collect();
            let mut out = vec![[0xff; 4]; count];
            permute(&cpu, &from, &to, &strides, &mut out).unwrap();
            for (k, found) in out.iter().enumerate() {
                let (mut rest, mut at) = (k, 0);
                for (&length, &stride) in to.iter().zip(&strides).rev() {
                    at += rest % length * stride;
                    rest /= length;
                }
                assert_eq!(*found, from[at], "{shape:?} {perm:?} [{k}]");
            }
        }
        let from = [[0u8; 2]; 6];
        assert!(permute(&cpu, &from, &[2, 3], &[3, 1], &mut [[0; 2]; 6]).is_ok());
        assert!(permute(&cpu, &from, &[2, 3], &[3, 2], &mut [[0; 2]; 6]).is_err());
        assert!(permute(&cpu, &from, &[2, 3], &[1], &mut [[0; 2]; 6]).is_err());
        assert!(permute(&cpu, &from, &[2, 3], &[3, 1], &mut [[0; 2]; 5]).is_err());
    }
}
