//! Kernels over the rows of a matrix: layer norm, softmax, argmax.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, exp, for_lanes, load_n, store_n};
use crate::{Cpu, Result, check};

/// Elements that are worth a task of their own.
const GRAIN: usize = 16 * 1024;

#[derive(Clone, Copy)]
enum Op<'a> {
    LayerNorm { gamma: &'a [f32], beta: Option<&'a [f32]>, eps: f32 },
    Softmax,
    LogSoftmax,
}

struct RowsKernel<'a> {
    op: Op<'a>,
    rows: usize,
    width: usize,
    x: *const f32,
    out: *mut f32,
}

/// Sum of `f` over vectors of a row: four accumulators taken in turn, added in a fixed order. Vectors beyond the row
/// are left out, lanes beyond it are masked by `$tail`.
macro_rules! row_sum {
    ($s:ident, $S:ident, $width:expr, |$i:ident, $n:ident| $f:expr) => {{
        let mut acc = [$s.splat(0.0); 4];
        let width = $width;
        let mut at = 0;
        while at + 4 * $S::LANES <= width {
            for (u, acc) in acc.iter_mut().enumerate() {
                let ($i, $n) = (at + u * $S::LANES, $S::LANES);
                *acc = $s.add(*acc, $f);
            }
            at += 4 * $S::LANES;
        }
        let mut u = 0;
        while at < width {
            let ($i, $n) = (at, (width - at).min($S::LANES));
            acc[u] = $s.add(acc[u], $f);
            u += 1;
            at += $S::LANES;
        }
        $s.sum($s.add($s.add(acc[0], acc[1]), $s.add(acc[2], acc[3])))
    }};
}

/// `(x - mean) / sqrt(variance + eps) * gamma + beta` of one row.
///
/// # Safety
/// `gamma.len()` floats are readable at `x` and writable at `out`, which may be the same.
#[inline(always)]
unsafe fn layer_norm_row<S: Simd>(
    s: S,
    gamma: &[f32],
    beta: Option<&[f32]>,
    eps: f32,
    x: *const f32,
    out: *mut f32,
) {
    let width = gamma.len();
    let total = row_sum!(s, S, width, |i, n| {
        // SAFETY: i + n <= width.
        unsafe { load_n(s, x.add(i), n) }
    });
    let mean = s.splat(total / width as f32);
    let squares = row_sum!(s, S, width, |i, n| {
        // Lanes past the row are zero, not the mean: their difference must not count.
        // SAFETY: as above.
        unsafe {
            let d = s.sub(load_n(s, x.add(i), n), mean);
            let d = if n == S::LANES { d } else { keep_first(s, d, n) };
            s.mul(d, d)
        }
    });
    let rstd = s.splat(1.0 / (squares / width as f32 + eps).sqrt());
    for_lanes!(S, width, |i, n| {
        // SAFETY: as above.
        unsafe {
            let d = s.mul(s.sub(load_n(s, x.add(i), n), mean), rstd);
            let g = load_n(s, gamma.as_ptr().add(i), n);
            let v = match beta {
                Some(beta) => s.fma(d, g, load_n(s, beta.as_ptr().add(i), n)),
                None => s.mul(d, g),
            };
            store_n(s, out.add(i), v, n);
        }
    });
}

/// `v` with the lanes from `n` on zero.
#[inline(always)]
fn keep_first<S: Simd>(s: S, v: S::V, n: usize) -> S::V {
    let mut lanes = [0.0f32; 16];
    // SAFETY: LANES <= 16 and n < LANES.
    unsafe {
        s.store(lanes.as_mut_ptr(), v);
        s.load_first(lanes.as_ptr(), n)
    }
}

/// Softmax of one row, or its logarithm.
///
/// # Safety
/// `width > 0` floats are readable at `x` and writable at `out`, which may be the same.
#[inline(always)]
unsafe fn softmax_row<S: Simd>(s: S, log: bool, width: usize, x: *const f32, out: *mut f32) {
    let mut largest = s.splat(f32::NEG_INFINITY);
    let mut tail = f32::NEG_INFINITY;
    for_lanes!(S, width, |i, n| {
        // SAFETY: i + n <= width.
        unsafe {
            if n == S::LANES {
                largest = s.max(s.load(x.add(i)), largest);
            } else {
                for j in i..i + n {
                    tail = tail.max(*x.add(j));
                }
            }
        }
    });
    let largest = s.max_lane(largest).max(tail);
    let shift = s.splat(largest);
    if log {
        let total = row_sum!(s, S, width, |i, n| {
            // SAFETY: as above.
            let e = exp(s, s.sub(unsafe { load_n(s, x.add(i), n) }, shift));
            if n == S::LANES { e } else { keep_first(s, e, n) }
        });
        // Two subtractions, not one of the sum: the maximum may be far larger than the logarithm.
        let ln = s.splat(total.ln());
        for_lanes!(S, width, |i, n| {
            // SAFETY: as above.
            unsafe { store_n(s, out.add(i), s.sub(s.sub(load_n(s, x.add(i), n), shift), ln), n) };
        });
    } else {
        let total = row_sum!(s, S, width, |i, n| {
            // SAFETY: as above.
            unsafe {
                let e = exp(s, s.sub(load_n(s, x.add(i), n), shift));
                store_n(s, out.add(i), e, n);
                if n == S::LANES { e } else { keep_first(s, e, n) }
            }
        });
        let factor = s.splat(1.0 / total);
        for_lanes!(S, width, |i, n| {
            // SAFETY: as above.
            unsafe { store_n(s, out.add(i), s.mul(load_n(s, out.add(i), n), factor), n) };
        });
    }
}

impl Kernel for RowsKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in 0..self.rows {
            // SAFETY: `run` made the pointers from slices of rows * width floats.
            unsafe {
                let (x, out) = (self.x.add(r * self.width), self.out.add(r * self.width));
                match self.op {
                    Op::LayerNorm { gamma, beta, eps } => layer_norm_row(s, gamma, beta, eps, x, out),
                    Op::Softmax => softmax_row(s, false, self.width, x, out),
                    Op::LogSoftmax => softmax_row(s, true, self.width, x, out),
                }
            }
        }
    }
}

fn run(
    cpu: &Cpu,
    kernel: &'static str,
    op: Op<'_>,
    x: Option<&[f32]>,
    rows: usize,
    width: usize,
    out: &mut [f32],
) -> Result<()> {
    check::length(kernel, "out", "[rows, width]", &[rows, width], out.len())?;
    if let Some(x) = x {
        check::length(kernel, "x", "[rows, width]", &[rows, width], x.len())?;
    }
    if out.is_empty() {
        return Ok(());
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, GRAIN / width, |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from * width, (to - from) * width) }.as_mut_ptr();
        let x = x.map_or(out.cast_const(), |x| x[from * width..to * width].as_ptr());
        dispatch(cpu.isa(), RowsKernel { op, rows: to - from, width, x, out });
    })
}

/// Layer norm of each row: `(x - mean) / sqrt(variance + eps) * gamma + beta`, the variance over D; `x`, `out`
/// `[rows, D]`, `gamma`, `beta` `[D]`. Without `x`, in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn layer_norm(
    cpu: &Cpu,
    x: Option<&[f32]>,
    rows: usize,
    gamma: &[f32],
    beta: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) -> Result<()> {
    if let Some(beta) = beta {
        check::length("layer_norm", "beta", "[D]", &[gamma.len()], beta.len())?;
    }
    run(cpu, "layer_norm", Op::LayerNorm { gamma, beta, eps }, x, rows, gamma.len(), out)
}

/// Softmax of each row; `x`, `out` `[rows, width]`. Without `x`, in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn softmax(cpu: &Cpu, x: Option<&[f32]>, rows: usize, width: usize, out: &mut [f32]) -> Result<()> {
    run(cpu, "softmax", Op::Softmax, x, rows, width, out)
}

/// Natural logarithm of the softmax of each row; `x`, `out` `[rows, width]`. Without `x`, in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn log_softmax(cpu: &Cpu, x: Option<&[f32]>, rows: usize, width: usize, out: &mut [f32]) -> Result<()> {
    run(cpu, "log_softmax", Op::LogSoftmax, x, rows, width, out)
}

struct ArgmaxKernel<'a>(&'a [f32]);

impl Kernel for ArgmaxKernel<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let x = self.0;
        let mut largest = s.splat(f32::NEG_INFINITY);
        let whole = x.len() - x.len() % S::LANES;
        for chunk in x[..whole].chunks_exact(S::LANES) {
            // SAFETY: the chunk has LANES floats.
            largest = s.max(unsafe { s.load(chunk.as_ptr()) }, largest);
        }
        let tail = x[whole..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let largest = s.max_lane(largest).max(tail);
        x.iter().position(|&v| v == largest).unwrap_or(0)
    }
}

/// The index of the largest element: the first of equals, 0 for an empty row. NaN is never chosen, unless all are.
pub fn argmax(cpu: &Cpu, row: &[f32]) -> usize {
    dispatch(cpu.isa(), ArgmaxKernel(row))
}

/// [`argmax`] of each row: `x` `[rows, width]`, `out` `[rows]`.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn argmax_rows(cpu: &Cpu, x: &[f32], rows: usize, width: usize, out: &mut [i32]) -> Result<()> {
    check::length("argmax", "x", "[rows, width]", &[rows, width], x.len())?;
    check::length("argmax", "out", "[rows]", &[rows], out.len())?;
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, GRAIN / width.max(1), |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from, to - from) };
        for (r, out) in (from..to).zip(out) {
            *out = argmax(cpu, &x[r * width..(r + 1) * width]) as i32;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn cpus() -> Vec<Cpu> {
        Isa::available()
            .flat_map(|isa| [1, 2].map(|n| Cpu::new(isa, Threads::new(n).unwrap()).unwrap()))
            .collect()
    }

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin() * 3.0 + 0.5).collect()
    }

    const SHAPES: [(usize, usize); 9] =
        [(0, 4), (1, 1), (2, 3), (3, 15), (2, 16), (2, 17), (5, 64), (3, 131), (40, 1030)];

    fn close(found: &[f32], expected: &[f64], what: &str) {
        for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
            assert!((f as f64 - e).abs() <= 3e-6 * (1.0 + e.abs()), "{what}[{i}]: {f} for {e}");
        }
    }

    #[test]
    fn layer_norm_agrees_with_f64() {
        for cpu in cpus() {
            for (rows, width) in SHAPES {
                let (x, gamma, beta) = (wave(rows * width, 0.0), wave(width, 1.0), wave(width, 2.0));
                let mut out = vec![7.0; rows * width];
                layer_norm(&cpu, Some(&x), rows, &gamma, Some(&beta), 1e-5, &mut out).unwrap();
                let mut expected = Vec::new();
                for row in x.chunks_exact(width) {
                    let mean = row.iter().map(|&v| v as f64).sum::<f64>() / width as f64;
                    let var = row.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / width as f64;
                    let normal = row.iter().map(|&v| (v as f64 - mean) / (var + 1e-5).sqrt());
                    expected.extend(normal.enumerate().map(|(i, v)| v * gamma[i] as f64 + beta[i] as f64));
                }
                close(&out, &expected, &format!("{} {rows}x{width}", cpu.isa()));
                let mut same = x.clone();
                layer_norm(&cpu, None, rows, &gamma, Some(&beta), 1e-5, &mut same).unwrap();
                assert_eq!(same, out);
            }
        }
    }

    #[test]
    fn softmaxes_agree_with_f64() {
        for cpu in cpus() {
            for (rows, width) in SHAPES {
                let x = wave(rows * width, 0.0);
                let mut out = vec![7.0; rows * width];
                let (mut soft, mut log) = (Vec::new(), Vec::new());
                for row in x.chunks_exact(width) {
                    let max = row.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v as f64));
                    let total: f64 = row.iter().map(|&v| (v as f64 - max).exp()).sum();
                    soft.extend(row.iter().map(|&v| (v as f64 - max).exp() / total));
                    log.extend(row.iter().map(|&v| v as f64 - max - total.ln()));
                }
                softmax(&cpu, Some(&x), rows, width, &mut out).unwrap();
                close(&out, &soft, &format!("softmax {} {rows}x{width}", cpu.isa()));
                let mut same = x.clone();
                softmax(&cpu, None, rows, width, &mut same).unwrap();
                assert_eq!(same, out);
                log_softmax(&cpu, Some(&x), rows, width, &mut out).unwrap();
                close(&out, &log, &format!("log_softmax {} {rows}x{width}", cpu.isa()));
            }
        }
    }

    #[test]
    fn argmax_takes_the_first_of_equals_and_skips_nan() {
        for cpu in cpus() {
            let mut x = vec![0.0; 100];
            assert_eq!(argmax(&cpu, &x), 0);
            (x[41], x[83], x[99]) = (2.0, 2.0, 2.0);
            x[3] = f32::NAN;
            assert_eq!(argmax(&cpu, &x), 41, "{}", cpu.isa());
            x[99] = 3.0;
            assert_eq!(argmax(&cpu, &x), 99);
            assert_eq!(argmax(&cpu, &[f32::NAN; 20]), 0);
            assert_eq!(argmax(&cpu, &[]), 0);
            let mut out = [9; 2];
            argmax_rows(&cpu, &x, 2, 50, &mut out).unwrap();
            assert_eq!(out, [41, 49]);
        }
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        assert!(layer_norm(&cpu, None, 2, &[1.0; 3], Some(&[0.0; 2]), 1e-5, &mut [0.0; 6]).is_err());
        assert!(softmax(&cpu, Some(&[0.0; 5]), 2, 3, &mut [0.0; 6]).is_err());
        assert!(argmax_rows(&cpu, &[0.0; 5], 2, 3, &mut [0; 2]).is_err());
    }
}
