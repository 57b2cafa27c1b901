//! The cell of an LSTM layer: what follows the two products that make its gates.

use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, sigmoid, store_n, tanh};
use crate::{Cpu, Result, check};

const NAME: &str = "lstm";

struct CellKernel<'a> {
    gates: &'a [f32],
    c: &'a [f32],
    new_h: &'a mut [f32],
    new_c: &'a mut [f32],
    units: usize,
}

impl Kernel for CellKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let units = self.units;
        let new = self.new_h.chunks_exact_mut(units).zip(self.new_c.chunks_exact_mut(units));
        let old = self.gates.chunks_exact(4 * units).zip(self.c.chunks_exact(units));
        for ((gates, c), (new_h, new_c)) in old.zip(new) {
            let (gates, c, new_h, new_c) =
                (gates.as_ptr(), c.as_ptr(), new_h.as_mut_ptr(), new_c.as_mut_ptr());
            for_lanes!(S, units, |at, n| {
                // SAFETY: at + n <= P; gates has 4 P floats, the others have P.
                unsafe {
                    let i = sigmoid(s, load_n(s, gates.add(at), n));
                    let f = sigmoid(s, load_n(s, gates.add(units + at), n));
                    let g = tanh(s, load_n(s, gates.add(2 * units + at), n));
                    let o = sigmoid(s, load_n(s, gates.add(3 * units + at), n));
                    let next = s.fma(f, load_n(s, c.add(at), n), s.mul(i, g));
                    store_n(s, new_c.add(at), next, n);
                    store_n(s, new_h.add(at), s.mul(o, tanh(s, next)), n);
                }
            });
        }
    }
}

/// The new state of every item of a batch: `gates` `[B, 4 P]` in the order input, forget, cell, output, `c` `[B, P]` the
/// old cells; `new_h`, `new_c` `[B, P]`. One thread: a batch of a few hundred units is the work of a microsecond.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn cells(
    cpu: &Cpu,
    gates: &[f32],
    c: &[f32],
    batch: usize,
    units: usize,
    new_h: &mut [f32],
    new_c: &mut [f32],
) -> Result<()> {
    check::length(NAME, "gates", "[B, 4 P]", &[batch, 4, units], gates.len())?;
    check::length(NAME, "c", "[B, P]", &[batch, units], c.len())?;
    check::length(NAME, "new_h", "[B, P]", &[batch, units], new_h.len())?;
    check::length(NAME, "new_c", "[B, P]", &[batch, units], new_c.len())?;
    if units > 0 {
        dispatch(cpu.isa(), CellKernel { gates, c, new_h, new_c, units });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin() * 3.0).collect()
    }

    #[test]
    fn cells_agree_with_the_equations() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::single()).unwrap();
            for (batch, units) in [(1, 1), (1, 17), (3, 33), (2, 64)] {
                let (gates, c) = (wave(4 * batch * units, 0.0), wave(batch * units, 6.0));
                let (mut h, mut next) = (vec![f32::NAN; c.len()], vec![f32::NAN; c.len()]);
                cells(&cpu, &gates, &c, batch, units, &mut h, &mut next).unwrap();
                for (i, &old) in c.iter().enumerate() {
                    let gate = |g: usize| gates[i / units * 4 * units + g * units + i % units] as f64;
                    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
                    let cell = sigmoid(gate(1)) * old as f64 + sigmoid(gate(0)) * gate(2).tanh();
                    let out = sigmoid(gate(3)) * cell.tanh();
                    let (dh, dc) = ((h[i] as f64 - out).abs(), (next[i] as f64 - cell).abs());
                    assert!(dh < 1e-6 && dc < 2e-6, "{isa} {units}: {dh} {dc}");
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let (mut h, mut c) = ([0.0; 2], [0.0; 2]);
        assert!(cells(&cpu, &[0.0; 8], &[0.0; 2], 1, 2, &mut h, &mut c).is_ok());
        assert!(cells(&cpu, &[0.0; 7], &[0.0; 2], 1, 2, &mut h, &mut c).is_err());
        assert!(cells(&cpu, &[0.0; 8], &[0.0; 3], 1, 2, &mut h, &mut c).is_err());
        assert!(cells(&cpu, &[0.0; 8], &[0.0; 2], 1, 2, &mut h[..1], &mut c).is_err());
    }
}
