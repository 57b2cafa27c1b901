//! Gated units of two tensors: a function of the gate times what it gates.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, sigmoid, silu, store_n, tanh};
use crate::{Cpu, Result, check};

const NAME: &str = "gated";

/// Elements that are worth a task of their own: 5 to 10 us of work.
const GRAIN: usize = 8 * 1024;

/// What becomes of a gate and what it gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, gelu by its approximation with tanh.
    GeluTanh,
    /// `g sigmoid(1.702 g) (u + 1)` with `g = min(gate, limit)` and `u` within `-limit ..= limit`.
    ClampedSwiglu(f32),
}

/// `sqrt(2 / pi)` of the tanh approximation of gelu, and its cubic term.
const GELU: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

struct GatedKernel {
    gate: Gate,
    len: usize,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
}

impl Kernel for GatedKernel {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let GatedKernel { gate, len, a, b, out } = self;
        macro_rules! map {
            (|$x:ident, $y:ident| $f:expr) => {
                for_lanes!(S, len, |i, n| {
                    // SAFETY: `gated` made the pointers from slices of `len`; out may equal a or b, each element of which
                    // is read first.
                    unsafe {
                        let ($x, $y) = (load_n(s, a.add(i), n), load_n(s, b.add(i), n));
                        store_n(s, out.add(i), $f, n);
                    }
                })
            };
        }
        let one = s.splat(1.0);
        match gate {
            Gate::Silu => map!(|x, y| s.mul(silu(s, x), y)),
            Gate::GeluTanh => map!(|x, y| {
                let inner = s.mul(s.mul(s.splat(GELU), x), s.fma(s.mul(s.splat(CUBIC), x), x, one));
                let half = s.mul(s.splat(0.5), s.mul(x, y));
                s.fma(half, tanh(s, inner), half)
            }),
            Gate::ClampedSwiglu(limit) => {
                let (high, low) = (s.splat(limit), s.splat(-limit));
                map!(|x, y| {
                    let (g, u) = (s.min(high, x), s.max(low, s.min(high, y)));
                    let activated = s.mul(g, sigmoid(s, s.mul(s.splat(1.702), g)));
                    s.fma(activated, u, activated)
                })
            }
        }
    }
}

/// `out = f(gate, up)`; without `gate`, that of `out` is overwritten.
///
/// # Errors
/// [`crate::KernelError::Length`] if the lengths differ.
pub fn gated(cpu: &Cpu, kind: Gate, gate: Option<&[f32]>, up: &[f32], out: &mut [f32]) -> Result<()> {
    let len = out.len();
    check::length(NAME, "up", "that of out", &[len], up.len())?;
    if let Some(gate) = gate {
        check::length(NAME, "gate", "that of out", &[len], gate.len())?;
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(len, GRAIN, |from, to| {
        // SAFETY: the ranges are disjoint.
        let out = unsafe { out.part(from, to - from) }.as_mut_ptr();
        let a = gate.map_or(out.cast_const(), |a| a[from..to].as_ptr());
        dispatch(cpu.isa(), GatedKernel { gate: kind, len: to - from, a, b: up[from..to].as_ptr(), out });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    #[test]
    fn agrees_with_f64() {
        let n = 5000;
        let a: Vec<f32> = (0..n).map(|i| (i as f32 / n as f32 - 0.5) * 40.0).collect();
        let b: Vec<f32> = (0..n).map(|i| ((i * 7919 % n) as f32 / n as f32 - 0.5) * 20.0).collect();
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::new(2).unwrap()).unwrap();
            for kind in [Gate::Silu, Gate::GeluTanh, Gate::ClampedSwiglu(7.0)] {
                let exact = |x: f64, y: f64| match kind {
                    Gate::Silu => x / (1.0 + (-x).exp()) * y,
                    Gate::GeluTanh => {
                        0.5 * x * (1.0 + (0.797_884_560_802_865_4 * x * (1.0 + 0.044715 * x * x)).tanh()) * y
                    }
                    Gate::ClampedSwiglu(limit) => {
                        let (g, u) = (x.min(limit.into()), y.clamp(-f64::from(limit), limit.into()));
                        g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
                    }
                };
                let mut out = vec![0.0; n];
                gated(&cpu, kind, Some(&a), &b, &mut out).unwrap();
                for (i, &o) in out.iter().enumerate() {
                    let e = exact(a[i].into(), b[i].into());
                    // 1 + tanh loses digits where gelu is nearly 0: relative to x y.
                    let bound = 4e-7 * (1e-3 + e.abs() + (a[i] * b[i]).abs() as f64);
                    assert!(
                        (o as f64 - e).abs() <= bound,
                        "{isa} {kind:?} ({}, {}): {o} for {e}",
                        a[i],
                        b[i]
                    );
                }
                let mut same = a.clone();
                gated(&cpu, kind, None, &b, &mut same).unwrap();
                assert_eq!(same, out);
            }
        }
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        assert!(gated(&cpu, Gate::Silu, None, &[0.0; 3], &mut [0.0; 4]).is_err());
    }
}
