//! Functions of one element, or of two in the same place. None cares about shape, except where a row or channel axis is
//! named.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, exp, for_lanes, load_n, sigmoid, silu, store_n, tanh};
use crate::{Cpu, Result, check};

/// Elements that are worth a task of their own: 5 to 10 us of work.
const GRAIN: usize = 16 * 1024;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`, within 3 ulp.
    Silu,
    /// `1 / (1 + e^-x)`, within 3 ulp.
    Sigmoid,
    /// Within 4 ulp.
    Tanh,
    /// `e^x`, within 2 ulp; results under 2e-38 are 0.
    Exp,
}

impl Unary {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, v: S::V) -> S::V {
        match self {
            Unary::Relu => s.max(s.splat(0.0), v),
            Unary::Silu => silu(s, v),
            Unary::Sigmoid => sigmoid(s, v),
            Unary::Tanh => tanh(s, v),
            Unary::Exp => exp(s, v),
        }
    }
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
}

/// What one element becomes; the second operand is read where the form has one.
#[derive(Clone, Copy)]
enum Form {
    Unary(Unary),
    Binary(Binary),
    /// `a + s * b`.
    ScaleAdd(f32),
    /// `s * a`.
    Scale(f32),
}

struct MapKernel {
    form: Form,
    len: usize,
    a: *const f32,
    /// Null where the form has no second operand.
    b: *const f32,
    out: *mut f32,
}

impl Kernel for MapKernel {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let MapKernel { form, len, a, b, out } = self;
        macro_rules! map {
            (|$x:ident| $f:expr) => {
                for_lanes!(S, len, |i, n| {
                    // SAFETY: `map` made the pointers from slices of `len`; out may equal a, each element is read first.
                    unsafe {
                        let $x = load_n(s, a.add(i), n);
                        store_n(s, out.add(i), $f, n);
                    }
                })
            };
            (|$x:ident, $y:ident| $f:expr) => {
                for_lanes!(S, len, |i, n| {
                    // SAFETY: as above.
                    unsafe {
                        let ($x, $y) = (load_n(s, a.add(i), n), load_n(s, b.add(i), n));
                        store_n(s, out.add(i), $f, n);
                    }
                })
            };
        }
        match form {
            Form::Unary(Unary::Relu) => map!(|x| Unary::Relu.apply(s, x)),
            Form::Unary(Unary::Silu) => map!(|x| Unary::Silu.apply(s, x)),
            Form::Unary(Unary::Sigmoid) => map!(|x| Unary::Sigmoid.apply(s, x)),
            Form::Unary(Unary::Tanh) => map!(|x| Unary::Tanh.apply(s, x)),
            Form::Unary(Unary::Exp) => map!(|x| Unary::Exp.apply(s, x)),
            Form::Binary(Binary::Add) => map!(|x, y| s.add(x, y)),
            Form::Binary(Binary::Sub) => map!(|x, y| s.sub(x, y)),
            Form::Binary(Binary::Mul) => map!(|x, y| s.mul(x, y)),
            Form::ScaleAdd(scale) => {
                let scale = s.splat(scale);
                map!(|x, y| s.fma(scale, y, x))
            }
            Form::Scale(scale) => {
                let scale = s.splat(scale);
                map!(|x| s.mul(scale, x))
            }
        }
    }
}

/// Runs `form` over `out`'s length; without `a` the output is also the first operand.
fn map(
    cpu: &Cpu,
    kernel: &'static str,
    form: Form,
    a: Option<&[f32]>,
    b: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let len = out.len();
    for (name, operand) in [("a", a), ("b", b)] {
        if let Some(operand) = operand {
            check::length(kernel, name, "that of out", &[len], operand.len())?;
        }
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(len, GRAIN, |from, to| {
        // SAFETY: the ranges are disjoint.
        let out = unsafe { out.part(from, to - from) }.as_mut_ptr();
        let a = a.map_or(out.cast_const(), |a| a[from..to].as_ptr());
        let b = b.map_or(std::ptr::null(), |b| b[from..to].as_ptr());
        dispatch(cpu.isa(), MapKernel { form, len: to - from, a, b, out });
    })
}

/// `out = op(x)`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn unary(cpu: &Cpu, op: Unary, x: &[f32], out: &mut [f32]) -> Result<()> {
    map(cpu, "unary", Form::Unary(op), Some(x), None, out)
}

/// `x = op(x)`.
///
/// # Errors
/// [`crate::KernelError::TaskPanicked`] only.
pub fn unary_in_place(cpu: &Cpu, op: Unary, x: &mut [f32]) -> Result<()> {
    map(cpu, "unary", Form::Unary(op), None, None, x)
}

/// `out = op(a, b)`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn binary(cpu: &Cpu, op: Binary, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<()> {
    map(cpu, "binary", Form::Binary(op), Some(a), Some(b), out)
}

/// `a = op(a, b)`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn binary_in_place(cpu: &Cpu, op: Binary, a: &mut [f32], b: &[f32]) -> Result<()> {
    map(cpu, "binary", Form::Binary(op), None, Some(b), a)
}

/// `out = a + s * b`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn scale_add(cpu: &Cpu, a: &[f32], s: f32, b: &[f32], out: &mut [f32]) -> Result<()> {
    map(cpu, "scale_add", Form::ScaleAdd(s), Some(a), Some(b), out)
}

/// `a += s * b`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn scale_add_in_place(cpu: &Cpu, a: &mut [f32], s: f32, b: &[f32]) -> Result<()> {
    map(cpu, "scale_add", Form::ScaleAdd(s), None, Some(b), a)
}

/// `out = s * x`.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn scale(cpu: &Cpu, s: f32, x: &[f32], out: &mut [f32]) -> Result<()> {
    map(cpu, "scale", Form::Scale(s), Some(x), None, out)
}

/// `x *= s`.
///
/// # Errors
/// [`crate::KernelError::TaskPanicked`] only.
pub fn scale_in_place(cpu: &Cpu, s: f32, x: &mut [f32]) -> Result<()> {
    map(cpu, "scale", Form::Scale(s), None, None, x)
}

struct GluKernel<'a> {
    x: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for GluKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.width;
        for (x, out) in self.x.chunks_exact(2 * width).zip(self.out.chunks_exact_mut(width)) {
            let (a, g, out) = (x.as_ptr(), x[width..].as_ptr(), out.as_mut_ptr());
            for_lanes!(S, width, |i, n| {
                // SAFETY: i + n <= width, which both halves and the output have.
                unsafe {
                    let v = s.mul(load_n(s, a.add(i), n), sigmoid(s, load_n(s, g.add(i), n)));
                    store_n(s, out.add(i), v, n);
                }
            });
        }
    }
}

/// Gated linear unit over the last axis: `x` `[rows, 2 * width]`, `out` `[rows, width]`, the first half times the
/// sigmoid of the second.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn glu(cpu: &Cpu, x: &[f32], rows: usize, width: usize, out: &mut [f32]) -> Result<()> {
    check::length("glu", "x", "[rows, 2 * width]", &[rows, 2, width], x.len())?;
    check::length("glu", "out", "[rows, width]", &[rows, width], out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, GRAIN / width, |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from * width, (to - from) * width) };
        dispatch(cpu.isa(), GluKernel { x: &x[2 * from * width..2 * to * width], width, out });
    })
}

struct ScaleShiftKernel<'a> {
    x: *const f32,
    rows: usize,
    scale: &'a [f32],
    shift: &'a [f32],
    activation: Option<Unary>,
    out: *mut f32,
}

impl Kernel for ScaleShiftKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let channels = self.scale.len();
        for r in 0..self.rows {
            for_lanes!(S, channels, |i, n| {
                // SAFETY: `scale_shift` made the pointers from slices of rows * channels; i + n <= channels.
                unsafe {
                    let x = load_n(s, self.x.add(r * channels + i), n);
                    let scale = load_n(s, self.scale.as_ptr().add(i), n);
                    let mut v = s.fma(x, scale, load_n(s, self.shift.as_ptr().add(i), n));
                    if let Some(op) = self.activation {
                        v = op.apply(s, v);
                    }
                    store_n(s, self.out.add(r * channels + i), v, n);
                }
            });
        }
    }
}

/// `out = f(x * scale + shift)` per channel (a folded batch norm, or a bias with `scale` of ones): `x`, `out`
/// `[rows, C]`, `scale`, `shift` `[C]`. Without `x`, in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
#[allow(clippy::too_many_arguments)]
pub fn scale_shift(
    cpu: &Cpu,
    x: Option<&[f32]>,
    rows: usize,
    scale: &[f32],
    shift: &[f32],
    activation: Option<Unary>,
    out: &mut [f32],
) -> Result<()> {
    let channels = scale.len();
    check::length("scale_shift", "shift", "[C]", &[channels], shift.len())?;
    check::length("scale_shift", "out", "[rows, C]", &[rows, channels], out.len())?;
    if let Some(x) = x {
        check::length("scale_shift", "x", "[rows, C]", &[rows, channels], x.len())?;
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, GRAIN / channels.max(1), |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from * channels, (to - from) * channels) }.as_mut_ptr();
        let x = x.map_or(out.cast_const(), |x| x[from * channels..to * channels].as_ptr());
        let kernel = ScaleShiftKernel { x, rows: to - from, scale, shift, activation, out };
        dispatch(cpu.isa(), kernel);
    })
}

/// A batch norm's running statistics as `x * scale + shift`: `scale = gamma / sqrt(variance + eps)`,
/// `shift = beta - mean * scale`; all `[C]`, computed in f64.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn fold_batch_norm(
    gamma: &[f32],
    beta: &[f32],
    mean: &[f32],
    variance: &[f32],
    eps: f32,
    scale: &mut [f32],
    shift: &mut [f32],
) -> Result<()> {
    let channels = scale.len();
    for (name, len) in [
        ("gamma", gamma.len()),
        ("beta", beta.len()),
        ("mean", mean.len()),
        ("variance", variance.len()),
        ("shift", shift.len()),
    ] {
        check::length("fold_batch_norm", name, "[C]", &[channels], len)?;
    }
    for c in 0..channels {
        let factor = f64::from(gamma[c]) / (f64::from(variance[c]) + f64::from(eps)).sqrt();
        scale[c] = factor as f32;
        shift[c] = (f64::from(beta[c]) - f64::from(mean[c]) * factor) as f32;
    }
    Ok(())
}

/// Sets the frames from `lengths[b]` on to zero: `x` `[B, T, row]`, `lengths` `[B]` in frames. A length over T masks
/// nothing, a negative one everything.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn mask_time(x: &mut [f32], lengths: &[i32], frames: usize, row: usize) -> Result<()> {
    check::length("mask_time", "x", "[B, T, row]", &[lengths.len(), frames, row], x.len())?;
    if x.is_empty() {
        return Ok(());
    }
    for (item, &length) in x.chunks_exact_mut(frames * row).zip(lengths) {
        let valid = usize::try_from(length).unwrap_or(0).min(frames);
        item[valid * row..].fill(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn cpus() -> Vec<Cpu> {
        Isa::available()
            .flat_map(|isa| [1, 3].map(|n| Cpu::new(isa, Threads::new(n).unwrap()).unwrap()))
            .collect()
    }

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin() * 3.0).collect()
    }

    fn close(found: &[f32], expected: impl Iterator<Item = f32>, what: &str) {
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            assert!((f - e).abs() <= 1e-6 * (1.0 + e.abs()), "{what}[{i}]: {f} for {e}");
        }
    }

    type One = fn(f32) -> f32;
    type Two = fn(f32, f32) -> f32;

    const LENGTHS: [usize; 7] = [0, 1, 3, 15, 16, 17, 70_001];

    #[test]
    fn unary_and_binary_agree_with_their_definitions() {
        let ops: [(Unary, One); 5] = [
            (Unary::Relu, |x| x.max(0.0)),
            (Unary::Silu, |x| x / (1.0 + (-x).exp())),
            (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
            (Unary::Tanh, f32::tanh),
            (Unary::Exp, f32::exp),
        ];
        let pairs: [(Binary, Two); 3] =
            [(Binary::Add, |a, b| a + b), (Binary::Sub, |a, b| a - b), (Binary::Mul, |a, b| a * b)];
        for cpu in cpus() {
            for len in LENGTHS {
                let (a, b) = (wave(len, 0.0), wave(len, 5.0));
                let mut out = vec![9.0; len];
                for (op, f) in ops {
                    let what = format!("{op:?} {len} {}", cpu.isa());
                    unary(&cpu, op, &a, &mut out).unwrap();
                    close(&out, a.iter().map(|&x| f(x)), &what);
                    let mut same = a.clone();
                    unary_in_place(&cpu, op, &mut same).unwrap();
                    assert_eq!(same, out, "{what}");
                }
                for (op, f) in pairs {
                    binary(&cpu, op, &a, &b, &mut out).unwrap();
                    close(&out, a.iter().zip(&b).map(|(&x, &y)| f(x, y)), "binary");
                    let mut same = a.clone();
                    binary_in_place(&cpu, op, &mut same, &b).unwrap();
                    assert_eq!(same, out);
                }
                scale_add(&cpu, &a, 0.5, &b, &mut out).unwrap();
                close(&out, a.iter().zip(&b).map(|(x, y)| x + 0.5 * y), "scale_add");
                let mut same = a.clone();
                scale_add_in_place(&cpu, &mut same, 0.5, &b).unwrap();
                assert_eq!(same, out);
                scale(&cpu, 3.0, &a, &mut out).unwrap();
                close(&out, a.iter().map(|x| x * 3.0), "scale");
                let mut same = a.clone();
                scale_in_place(&cpu, 3.0, &mut same).unwrap();
                assert_eq!(same, out);
            }
        }
    }

    #[test]
    fn glu_and_scale_shift() {
        for cpu in cpus() {
            for (rows, width) in [(0, 3), (1, 1), (3, 17), (2, 16), (500, 96)] {
                let x = wave(rows * 2 * width, 1.0);
                let mut out = vec![9.0; rows * width];
                glu(&cpu, &x, rows, width, &mut out).unwrap();
                let expected = (0..rows * width).map(|i| {
                    let (r, c) = (i / width, i % width);
                    x[r * 2 * width + c] / (1.0 + (-x[r * 2 * width + width + c]).exp())
                });
                close(&out, expected, "glu");
                let (scale, shift) = (wave(width, 2.0), wave(width, 3.0));
                let x = &x[..rows * width];
                scale_shift(&cpu, Some(x), rows, &scale, &shift, Some(Unary::Relu), &mut out).unwrap();
                let expected =
                    x.iter().enumerate().map(|(i, x)| (x * scale[i % width] + shift[i % width]).max(0.0));
                close(&out, expected, "scale_shift");
                let mut same = x.to_vec();
                scale_shift(&cpu, None, rows, &scale, &shift, Some(Unary::Relu), &mut same).unwrap();
                assert_eq!(same, out);
            }
        }
    }

    #[test]
    fn batch_norm_folds() {
        let (mut scale, mut shift) = ([0.0; 2], [0.0; 2]);
        fold_batch_norm(&[2.0, 1.0], &[1.0, 0.0], &[3.0, -1.0], &[4.0, 0.25], 0.0, &mut scale, &mut shift)
            .unwrap();
        assert_eq!((scale, shift), ([1.0, 2.0], [-2.0, 2.0]));
    }

    #[test]
    fn mask_time_zeroes_the_tail_only() {
        let mut x = vec![1.0; 3 * 4 * 2];
        mask_time(&mut x, &[2, -1, 9], 4, 2).unwrap();
        assert_eq!(x[..8], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((&x[8..16], &x[16..]), (&[0.0; 8][..], &[1.0; 8][..]));
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let mut out = [0.0; 4];
        assert!(unary(&cpu, Unary::Relu, &[0.0; 3], &mut out).is_err());
        assert!(binary(&cpu, Binary::Add, &[0.0; 4], &[0.0; 5], &mut out).is_err());
        assert!(glu(&cpu, &[0.0; 7], 2, 2, &mut out).is_err());
        assert!(glu(&cpu, &[], usize::MAX, 2, &mut out).is_err());
        assert!(scale_shift(&cpu, None, 2, &[0.0; 2], &[0.0; 3], None, &mut out).is_err());
        assert!(mask_time(&mut out, &[1], 3, 1).is_err());
    }
}
