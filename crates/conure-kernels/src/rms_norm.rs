//! RMS norm of rows.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{Cpu, Result, check};

const NAME: &str = "rms_norm";

/// Elements that are worth a task of their own.
const GRAIN: usize = 16 * 1024;

struct RmsNormKernel<'a> {
    rows: usize,
    gamma: &'a [f32],
    eps: f32,
    x: *const f32,
    /// Null if nothing is added.
    residual: *const f32,
    out: *mut f32,
}

impl Kernel for RmsNormKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNormKernel { rows, gamma, eps, x, residual, out } = self;
        let width = gamma.len();
        for r in 0..rows {
            // SAFETY: `rms_norm` made the pointers from slices of rows * width floats.
            unsafe {
                let (x, out) = (x.add(r * width), out.add(r * width));
                // Four sums, so that additions do not wait for each other.
                let mut acc = [s.splat(0.0); 4];
                for_lanes!(S, width, |i, n| {
                    let v = load_n(s, x.add(i), n);
                    let u = i / S::LANES % 4;
                    acc[u] = s.fma(v, v, acc[u]);
                });
                let squares = s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])));
                let factor = s.splat(1.0 / (squares / width as f32 + eps).sqrt());
                for_lanes!(S, width, |i, n| {
                    let v = s.mul(load_n(s, x.add(i), n), factor);
                    let g = load_n(s, gamma.as_ptr().add(i), n);
                    let y = if residual.is_null() {
                        s.mul(v, g)
                    } else {
                        s.fma(v, g, load_n(s, residual.add(r * width + i), n))
                    };
                    store_n(s, out.add(i), y, n);
                });
            }
        }
    }
}

/// What is added to each normed row.
#[derive(Clone, Copy, Debug)]
pub enum Added<'a> {
    /// Nothing.
    Nothing,
    /// `[rows, D]`.
    Rows(&'a [f32]),
    /// What `out` holds.
    InPlace,
}

/// `out = added + x / sqrt(mean(x^2) + eps) * gamma` for each row; `x`, `out` `[rows, D]`, `gamma` `[D]`. Without `x`, that
/// of `out` is normed in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape, [`crate::KernelError::Invalid`] if `out` were both
/// `x` and what is added.
pub fn rms_norm(
    cpu: &Cpu,
    x: Option<&[f32]>,
    rows: usize,
    gamma: &[f32],
    eps: f32,
    added: Added<'_>,
    out: &mut [f32],
) -> Result<()> {
    let width = gamma.len();
    check::length(NAME, "out", "[rows, D]", &[rows, width], out.len())?;
    if let Some(x) = x {
        check::length(NAME, "x", "[rows, D]", &[rows, width], x.len())?;
    }
    if let Added::Rows(residual) = added {
        check::length(NAME, "residual", "[rows, D]", &[rows, width], residual.len())?;
    }
    check::valid(NAME, x.is_some() || !matches!(added, Added::InPlace), || {
        "the output cannot be both what is normed and what is added".to_string()
    })?;
    if out.is_empty() {
        return Ok(());
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, GRAIN / width, |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from * width, (to - from) * width) }.as_mut_ptr();
        let x = x.map_or(out.cast_const(), |x| x[from * width..to * width].as_ptr());
        let residual = match added {
            Added::Nothing => std::ptr::null(),
            Added::Rows(residual) => residual[from * width..to * width].as_ptr(),
            Added::InPlace => out.cast_const(),
        };
        dispatch(cpu.isa(), RmsNormKernel { rows: to - from, gamma, eps, x, residual, out });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    #[test]
    fn agrees_with_f64_with_and_without_a_residual() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::new(2).unwrap()).unwrap();
            for (rows, width) in [(0, 4), (1, 1), (3, 15), (2, 64), (3, 131), (70, 1030)] {
                let wave = |n: usize, seed: f32| -> Vec<f32> {
                    (0..n).map(|i| ((i as f32 + seed) * 0.731).sin() * 3.0 + 0.5).collect()
                };
                let (x, gamma, residual) =
                    (wave(rows * width, 0.0), wave(width, 1.0), wave(rows * width, 2.0));
                let mut expected = Vec::new();
                for row in x.chunks_exact(width) {
                    let mean = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / width as f64;
                    expected.extend(
                        row.iter().zip(&gamma).map(|(&v, &g)| v as f64 / (mean + 1e-6).sqrt() * g as f64),
                    );
                }
                let close = |found: &[f32], add: bool| {
                    for (i, (&f, &e)) in found.iter().zip(&expected).enumerate() {
                        let e = e + if add { residual[i] as f64 } else { 0.0 };
                        assert!(
                            (f as f64 - e).abs() <= 3e-6 * (1.0 + e.abs()),
                            "{isa} {rows}x{width} [{i}]: {f} for {e}"
                        );
                    }
                };
                let mut out = vec![7.0; rows * width];
                rms_norm(&cpu, Some(&x), rows, &gamma, 1e-6, Added::Nothing, &mut out).unwrap();
                close(&out, false);
                rms_norm(&cpu, Some(&x), rows, &gamma, 1e-6, Added::Rows(&residual), &mut out).unwrap();
                close(&out, true);
                let mut same = residual.clone();
                rms_norm(&cpu, Some(&x), rows, &gamma, 1e-6, Added::InPlace, &mut same).unwrap();
                assert_eq!(same, out);
                let mut same = x.clone();
                rms_norm(&cpu, None, rows, &gamma, 1e-6, Added::Rows(&residual), &mut same).unwrap();
                assert_eq!(same, out);
            }
        }
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let mut out = [0.0; 6];
        assert!(rms_norm(&cpu, Some(&[0.0; 5]), 2, &[1.0; 3], 1e-6, Added::Nothing, &mut out).is_err());
        assert!(rms_norm(&cpu, None, 2, &[1.0; 3], 1e-6, Added::InPlace, &mut out).is_err());
        assert!(rms_norm(&cpu, None, 3, &[1.0; 3], 1e-6, Added::Nothing, &mut out).is_err());
    }
}
