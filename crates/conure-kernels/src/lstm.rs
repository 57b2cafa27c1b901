//! One step of an LSTM layer.

use conure_tensor::DType;

use crate::gemm::{Epilogue, PackedMatrix, Residual, linear};
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, sigmoid, store_n, tanh};
use crate::{Cpu, Result, check};

const NAME: &str = "lstm";

/// The weights of one layer, packed. Gate order i, f, g, o; I inputs, P hidden units.
#[derive(Debug)]
pub struct LstmCell {
    input: PackedMatrix,
    hidden: PackedMatrix,
    bias: Vec<f32>,
}

struct CellKernel<'a> {
    gates: &'a [f32],
    h: &'a mut [f32],
    c: &'a mut [f32],
    units: usize,
}

impl Kernel for CellKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let units = self.units;
        let rows = self.h.chunks_exact_mut(units).zip(self.c.chunks_exact_mut(units));
        for (gates, (h, c)) in self.gates.chunks_exact(4 * units).zip(rows) {
            let (gates, h, c) = (gates.as_ptr(), h.as_mut_ptr(), c.as_mut_ptr());
            for_lanes!(S, units, |at, n| {
                // SAFETY: at + n <= P; gates has 4 P floats, h and c have P.
                unsafe {
                    let i = sigmoid(s, load_n(s, gates.add(at), n));
                    let f = sigmoid(s, load_n(s, gates.add(units + at), n));
                    let g = tanh(s, load_n(s, gates.add(2 * units + at), n));
                    let o = sigmoid(s, load_n(s, gates.add(3 * units + at), n));
                    let next = s.fma(f, load_n(s, c.add(at), n), s.mul(i, g));
                    store_n(s, c.add(at), next, n);
                    store_n(s, h.add(at), s.mul(o, tanh(s, next)), n);
                }
            });
        }
    }
}

impl LstmCell {
    /// Packs `w_ih` `[4 P, I]`, `w_hh` `[4 P, P]` (both of `dtype`) and the biases `[4 P]`.
    ///
    /// # Errors
    /// Those of [`PackedMatrix::new`]; [`crate::KernelError::Length`] if a bias does not have its shape.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        cpu: &Cpu,
        dtype: DType,
        w_ih: &[u8],
        w_hh: &[u8],
        b_ih: &[f32],
        b_hh: &[f32],
        inputs: usize,
        units: usize,
    ) -> Result<LstmCell> {
        let gates = check::size(NAME, "gates", &[4, units])?;
        check::length(NAME, "b_ih", "[4 P]", &[gates], b_ih.len())?;
        check::length(NAME, "b_hh", "[4 P]", &[gates], b_hh.len())?;
        Ok(LstmCell {
            input: PackedMatrix::new(cpu, dtype, w_ih, gates, inputs)?,
            hidden: PackedMatrix::new(cpu, dtype, w_hh, gates, units)?,
            bias: b_ih.iter().zip(b_hh).map(|(a, b)| a + b).collect(),
        })
    }

    /// I.
    pub fn inputs(&self) -> usize {
        self.input.k()
    }

    /// P.
    pub fn units(&self) -> usize {
        self.hidden.k()
    }

    /// Floats of working memory for `batch` rows: the gates.
    pub fn scratch_len(&self, batch: usize) -> usize {
        batch.saturating_mul(self.bias.len())
    }

    /// `h, c = lstm(x, h, c)`: `x` `[B, I]`, `h`, `c` `[B, P]` updated in place, `scratch` of
    /// [`LstmCell::scratch_len`].
    ///
    /// # Errors
    /// [`crate::KernelError::Length`] if a slice does not have its shape.
    pub fn step(
        &self,
        cpu: &Cpu,
        x: &[f32],
        batch: usize,
        h: &mut [f32],
        c: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<()> {
        let units = self.units();
        check::length(NAME, "x", "[B, I]", &[batch, self.inputs()], x.len())?;
        check::length(NAME, "h", "[B, P]", &[batch, units], h.len())?;
        check::length(NAME, "c", "[B, P]", &[batch, units], c.len())?;
        check::length(NAME, "scratch", "[B, 4 P]", &[batch, 4, units], scratch.len())?;
        if h.is_empty() {
            return Ok(());
        }
        let epilogue = Epilogue { bias: Some(&self.bias), ..Epilogue::default() };
        linear(cpu, x, batch, &self.input, &epilogue, scratch)?;
        let epilogue = Epilogue { residual: Residual::InPlace, ..Epilogue::default() };
        linear(cpu, h, batch, &self.hidden, &epilogue, scratch)?;
        dispatch(cpu.isa(), CellKernel { gates: scratch, h, c, units });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin()).collect()
    }

    #[test]
    fn a_step_agrees_with_the_equations() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::new(2).unwrap()).unwrap();
            for (batch, inputs, units) in [(1, 1, 1), (1, 5, 17), (3, 40, 33), (2, 64, 64)] {
                let (w_ih, w_hh) = (wave(4 * units * inputs, 0.0), wave(4 * units * units, 1.0));
                let (b_ih, b_hh) = (wave(4 * units, 2.0), wave(4 * units, 3.0));
                let (x, mut h, mut c) =
                    (wave(batch * inputs, 4.0), wave(batch * units, 5.0), wave(batch * units, 6.0));
                let (h0, c0) = (h.clone(), c.clone());
                let bytes = |w: &[f32]| bytemuck::cast_slice::<f32, u8>(w).to_vec();
                let (a, b) = (bytes(&w_ih), bytes(&w_hh));
                let cell = LstmCell::new(&cpu, DType::F32, &a, &b, &b_ih, &b_hh, inputs, units).unwrap();
                let mut scratch = vec![f32::NAN; cell.scratch_len(batch)];
                cell.step(&cpu, &x, batch, &mut h, &mut c, &mut scratch).unwrap();
                for r in 0..batch {
                    for u in 0..units {
                        let gate = |g: usize| {
                            let row = g * units + u;
                            let mut z = (b_ih[row] + b_hh[row]) as f64;
                            z += (0..inputs)
                                .map(|k| (w_ih[row * inputs + k] * x[r * inputs + k]) as f64)
                                .sum::<f64>();
                            z += (0..units)
                                .map(|k| (w_hh[row * units + k] * h0[r * units + k]) as f64)
                                .sum::<f64>();
                            z
                        };
                        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
                        let next =
                            sigmoid(gate(1)) * c0[r * units + u] as f64 + sigmoid(gate(0)) * gate(2).tanh();
                        let out = sigmoid(gate(3)) * next.tanh();
                        let (dh, dc) =
                            ((h[r * units + u] as f64 - out).abs(), (c[r * units + u] as f64 - next).abs());
                        assert!(dh < 5e-6 && dc < 5e-6, "{isa} {units}: {dh} {dc}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let w = [0u8; 4 * 2 * 2 * 4];
        let cell = LstmCell::new(&cpu, DType::F32, &w, &w, &[0.0; 8], &[0.0; 8], 2, 2).unwrap();
        assert!(LstmCell::new(&cpu, DType::F32, &w, &w, &[0.0; 7], &[0.0; 8], 2, 2).is_err());
        let (mut h, mut c) = ([0.0; 2], [0.0; 2]);
        assert!(cell.step(&cpu, &[0.0; 2], 1, &mut h, &mut c, &mut [0.0; 8]).is_ok());
        assert!(cell.step(&cpu, &[0.0; 2], 1, &mut h, &mut c, &mut [0.0; 7]).is_err());
        assert!(cell.step(&cpu, &[0.0; 3], 1, &mut h, &mut c, &mut [0.0; 8]).is_err());
    }
}
