//! Roundings that know what the weights are multiplied with: not each weight to its nearest value, but all of a row so that
//! their products change least.
//!
//! With moments `H = M M^T` of the inputs ([`conure_kernels::moments`]) the change of a row's products is the sum of the squares
//! of `e M`, e being the errors of its weights. Column k of that is `M_kk` times `(w_k + s_k / M_kk) - q_k`, where
//! `s_k = sum of e_i M_ik over i < k`: each weight in turn goes to the value nearest to what makes up for those before it.
//!
//! ```text
//!   panel of 256 columns:   s = E of the panels before it times their rows of M        (a product of matrices)
//!     block of 32 or 256:   c = w, corrected for all before the block, without rounding ─▶ scales: the block's own search,
//!                           tried wider and narrower, the best for the sum of squares stays
//!       column:             q = nearest to w + s / M;  s of the columns after it += (w - q) M
//! ```

use conure_kernels::gemm::{Epilogue, Residual, Rhs, matmul};
use conure_kernels::moments::{Factor, Moments};
use conure_kernels::{Cpu, KernelError};
use conure_tensor::DType;
use conure_tensor::quant;
use conure_tensor::quant::grid::Grid;
use conure_tensor::quant::parts::{Layout, Parts};
use std::sync::OnceLock;

/// What is added to the diagonal of the moments, as a part of its mean, so that directions count as well that the recordings hardly
/// have. How far the embedded model's encoder is off on recordings that it was not calibrated with, as a part of how far with nearest
/// values, at 0.1, 0.2 and 0.3: q8_0 0.75, 0.74, 0.78; q4_k 0.81, 0.80, 0.80; q6_k 0.92, 0.84, 0.85.
const DAMPING: f32 = 0.2;

/// Rows of a task: enough for the products of its errors to be bound by arithmetic.
const ROWS: usize = 64;

/// Factors of a block's scale that are tried: wider ones leave room for weights that make up for others. Narrower ones cut the
/// largest weights off, which makes up for itself only in directions that the recordings have: with 0.9 and 0.95 too, q8_0 was off
/// by 0.96 of the nearest instead of 0.75.
const WIDTHS: [f32; 3] = [1.0, 1.02, 1.05];

/// A matrix in blocks.
pub(crate) struct Rounded {
    /// The blocks of all rows.
    pub bytes: Vec<u8>,
    /// Their values, `[N, K]`.
    pub values: Vec<f32>,
}

/// The matrix `weights` `[N, K]`, rounded for the inputs that `factor` is of; `None` where a block would hold what `dtype` cannot.
pub(crate) fn round(
    cpu: &Cpu,
    dtype: DType,
    weights: &[f32],
    factor: &Factor,
) -> Result<Option<Rounded>, KernelError> {
    let (k, Some(layout)) = (factor.k(), Layout::of(dtype)) else { return Ok(None) };
    let tasks: Vec<&[f32]> = weights.chunks(ROWS * k).collect();
    let done: Vec<OnceLock<Result<Option<Rounded>, KernelError>>> =
        tasks.iter().map(|_| OnceLock::new()).collect();
    cpu.threads().run(tasks.len(), |i, _| {
        done[i].get_or_init(|| Rows { cpu, dtype, layout, factor }.round(tasks[i]));
    })?;
    let mut all = Rounded { bytes: Vec::new(), values: Vec::with_capacity(weights.len()) };
    for part in done.into_iter().filter_map(OnceLock::into_inner) {
        let Some(part) = part? else { return Ok(None) };
        all.bytes.extend(part.bytes);
        all.values.extend(part.values);
    }
    Ok(Some(all))
}

/// The factor of these moments, as [`round`] wants it.
pub(crate) fn factor(cpu: &Cpu, moments: &Moments) -> Result<Option<Factor>, KernelError> {
    moments.factor(cpu, DAMPING)
}

/// How some rows are rounded.
struct Rows<'a> {
    cpu: &'a Cpu,
    dtype: DType,
    layout: Layout,
    factor: &'a Factor,
}

/// A block with scales, and what became of its columns.
struct Trial {
    parts: Parts,
    /// The sum of squares of its columns of `e M`.
    cost: f32,
    errors: Vec<f32>,
    values: Vec<f32>,
}

impl Rows<'_> {
    fn round(&self, weights: &[f32]) -> Result<Option<Rounded>, KernelError> {
        let k = self.factor.k();
        let rows = weights.len() / k;
        let row_bytes = self.dtype.bytes_for(k).unwrap_or(0);
        let block_bytes = self.dtype.block_bytes();
        let mut all = Rounded { bytes: vec![0; rows * row_bytes], values: vec![0.0; weights.len()] };
        let mut errors: Vec<Vec<f32>> = Vec::new();
        for j in 0..self.factor.panels() {
            let columns = self.factor.columns(j);
            let mut sums = self.sums(&errors, rows, j)?;
            let mut panel = vec![0.0; rows * columns.len()];
            let outputs = all.bytes.chunks_exact_mut(row_bytes).zip(all.values.chunks_exact_mut(k));
            let inputs = weights.chunks_exact(k).zip(sums.chunks_exact_mut(columns.len()));
            for (((weights, s), (bytes, values)), errors) in
                inputs.zip(outputs).zip(panel.chunks_exact_mut(columns.len()))
            {
                for at in (0..columns.len()).step_by(self.layout.block) {
                    let from = columns.start + at;
                    let w = &weights[from..from + self.layout.block];
                    let Some(best) = self.block(w, s, j, at) else { return Ok(None) };
                    self.spread(&best.errors, s, j, at);
                    values[from..from + self.layout.block].copy_from_slice(&best.values);
                    errors[at..at + self.layout.block].copy_from_slice(&best.errors);
                    let Some(block) = best.parts.block(self.dtype) else { return Ok(None) };
                    let begin = from / self.layout.block * block_bytes;
                    bytes[begin..begin + block_bytes].copy_from_slice(&block);
                }
            }
            errors.push(panel);
        }
        Ok(Some(all))
    }

    /// What the errors of the panels before panel `j` leave in its columns of `E M`, `[rows, columns]`.
    fn sums(&self, errors: &[Vec<f32>], rows: usize, j: usize) -> Result<Vec<f32>, KernelError> {
        let n = self.factor.columns(j).len();
        let mut sums = vec![0.0; rows * n];
        let add = Epilogue { residual: Residual::InPlace, ..Epilogue::default() };
        for (i, panel) in errors.iter().enumerate() {
            let (m, k) = (self.factor.block(i, j), self.factor.columns(i).len());
            matmul(self.cpu, panel, m, Rhs::Kn, rows, n, k, &add, &mut sums)?;
        }
        Ok(sums)
    }

    /// The best block for the weights `w`, which begin at column `at` of panel `j`.
    fn block(&self, w: &[f32], s: &[f32], j: usize, at: usize) -> Option<Trial> {
        let targets = self.pass(w, s, j, at, |_, target| target).values;
        let base = Parts::of(self.dtype, &quant::encoded(self.dtype, &targets).ok()?)?;
        let mut best: Option<Trial> = None;
        for width in WIDTHS {
            let Some(mut parts) = scaled(&self.layout, &base, width) else { continue };
            let grids: Vec<Grid> =
                (0..self.layout.groups()).map(|g| Grid::of(&self.layout, &parts, g)).collect();
            let mut q = [0u8; 256];
            let mut trial = self.pass(w, s, j, at, |i, target| {
                let (quantum, value) = grids[i / self.layout.group].nearest(target);
                q[i] = quantum;
                value
            });
            parts.q = q;
            trial.parts = parts;
            if best.as_ref().is_none_or(|b| trial.cost < b.cost) {
                best = Some(trial);
            }
        }
        best
    }

    /// Goes through a block's columns; `value` gives each the value that it gets, from its number and its target.
    fn pass(
        &self,
        w: &[f32],
        s: &[f32],
        j: usize,
        at: usize,
        mut value: impl FnMut(usize, f32) -> f32,
    ) -> Trial {
        let width = self.factor.columns(j).len();
        let m = self.factor.block(j, j);
        let n = w.len();
        let mut s = s[at..at + n].to_vec();
        let (mut cost, mut errors, mut values) = (0.0, vec![0.0; n], vec![0.0; n]);
        for i in 0..n {
            let row = &m[(at + i) * width + at..][..n];
            let target = w[i] + s[i] / row[i];
            let v = value(i, target);
            let error = w[i] - v;
            cost += (row[i] * (target - v)).powi(2);
            (errors[i], values[i]) = (error, v);
            for (s, &m) in s[i + 1..].iter_mut().zip(&row[i + 1..]) {
                *s += error * m;
            }
        }
        let parts = Parts { q: [0; 256], d: [0; 2], m: [0; 2], scales: [0; 16], mins: [0; 8] };
        Trial { parts, cost, errors, values }
    }

    /// Adds what a block's errors leave in the columns of its panel after it.
    fn spread(&self, errors: &[f32], s: &mut [f32], j: usize, at: usize) {
        let width = self.factor.columns(j).len();
        let after = at + errors.len();
        for (i, &error) in errors.iter().enumerate() {
            let row = &self.factor.block(j, j)[(at + i) * width..][..width];
            for (s, &m) in s[after..].iter_mut().zip(&row[after..]) {
                *s += error * m;
            }
        }
    }
}

/// The block's scales times `width`, about the middle of what it spans.
fn scaled(layout: &Layout, base: &Parts, width: f32) -> Option<Parts> {
    if width == 1.0 {
        return Some(*base);
    }
    let half = |bytes: [u8; 2]| half::f16::from_le_bytes(bytes).to_f32();
    let bytes = |v: f32| half::f16::from_f32(v).to_le_bytes();
    let mut parts = *base;
    if layout.exponents {
        parts.d[0] = if width < 1.0 { base.d[0].checked_sub(1)? } else { base.d[0].checked_add(1)? };
        return Some(parts);
    }
    let d = half(base.d);
    parts.d = bytes(d * width);
    if layout.mins {
        let steps = ((1 << layout.bits) - 1) as f32;
        parts.m = if layout.integer_scales {
            bytes(half(base.m) * width)
        } else {
            bytes(half(base.m) + 0.5 * steps * (d - d * width))
        };
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conure_kernels::{Isa, Threads};

    fn cpu(threads: usize) -> Cpu {
        Cpu::new(Isa::available().last().unwrap(), Threads::new(threads).unwrap()).unwrap()
    }

    /// Numbers in -1 to 1.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Moments of rows of `k` values, each of which goes on from the one before it.
    fn moments(cpu: &Cpu, k: usize) -> Moments {
        let mut x = noise(4 * k * k, 5);
        for row in x.chunks_exact_mut(k) {
            (1..k).for_each(|i| row[i] = 0.9 * row[i - 1] + 0.4 * row[i]);
        }
        let mut moments = Moments::new(k).unwrap();
        moments.add(cpu, &x).unwrap();
        moments.settle(cpu).unwrap();
        moments
    }

    fn total(cpu: &Cpu, moments: &Moments, values: &[f32], weights: &[f32]) -> f64 {
        let errors: Vec<f32> = weights.iter().zip(values).map(|(w, v)| w - v).collect();
        moments.changes(cpu, &errors).unwrap().iter().sum()
    }

    #[test]
    fn products_change_less_than_with_nearest_values_in_every_format() {
        let (n, k) = (70, 512);
        let weights = noise(n * k, 3);
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
            let mut last = Vec::new();
            for threads in [1, 3] {
                let cpu = cpu(threads);
                let moments = moments(&cpu, k);
                let factor = factor(&cpu, &moments).unwrap().unwrap();
                let rounded = round(&cpu, dtype, &weights, &factor).unwrap().unwrap();
                let mut decoded = vec![0.0; n * k];
                quant::decode(dtype, &rounded.bytes, &mut decoded).unwrap();
                assert!(decoded == rounded.values, "{dtype}: blocks are not the values that were chosen");
                quant::decode(dtype, &quant::encoded(dtype, &weights).unwrap(), &mut decoded).unwrap();
                let [nearest, found] =
                    [&decoded, &rounded.values].map(|v| total(&cpu, &moments, v, &weights));
                assert!(found < 0.5 * nearest, "{dtype}: {found} {nearest}");
                assert!(last.is_empty() || last == rounded.bytes, "{dtype}: threads change the result");
                last = rounded.bytes;
            }
        }
    }

    #[test]
    fn a_weight_makes_up_for_those_before_it() {
        // Steps of 1 (32 values up to 127); inputs 0 and 1 are always equal, so that only the sum of their weights counts.
        let cpu = cpu(1);
        let mut moments = Moments::new(32).unwrap();
        for i in 0..32 {
            let mut x = [0.0; 32];
            x[i] = 0.1;
            moments.add(&cpu, &x).unwrap();
        }
        let mut equal = [0.0; 32];
        equal[..2].fill(10.0);
        moments.add(&cpu, &equal).unwrap();
        moments.settle(&cpu).unwrap();
        let mut weights = [0.0; 32];
        (weights[0], weights[1], weights[31]) = (3.4, 5.4, 127.0);
        let factor = moments.factor(&cpu, 1e-4).unwrap().unwrap();
        let rounded = round(&cpu, DType::Q8_0, &weights, &factor).unwrap().unwrap();
        // 8.8 is nearest to 9, of which 3.4 takes 3; the nearest values of both would be 8.
        assert_eq!(rounded.values[..2], [3.0, 6.0]);
        assert_eq!((rounded.values[2], rounded.values[31]), (0.0, 127.0));
        // Of all roundings of the two, none is better.
        let best = total(&cpu, &moments, &rounded.values, &weights);
        for (a, b) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b))) {
            let mut other = rounded.values.clone();
            (other[0], other[1]) = (a as f32, b as f32);
            assert!(total(&cpu, &moments, &other, &weights) >= best - 1e-3, "{a} {b}");
        }
    }

    #[test]
    fn what_no_block_holds_is_left_to_the_nearest() {
        let cpu = cpu(1);
        let moments = moments(&cpu, 32);
        let factor = factor(&cpu, &moments).unwrap().unwrap();
        assert!(round(&cpu, DType::Q8_0, &[f32::NAN; 32], &factor).unwrap().is_none());
        assert!(round(&cpu, DType::F16, &[1.0; 32], &factor).unwrap().is_none());
    }
}
