//! Second moments of the rows that a matrix is multiplied with, and their triangular factor: what rounding a weight costs in
//! its products, and how the weights after it can make up for it.
//!
//! For rows x `[K]`, `H = sum of x x^T`. An error E `[N, K]` of weights changes their products by E x, by
//! `trace(E H E^T)` in squares over all rows. With `H = M M^T`, M upper triangular, that is the sum of the squares of E M, whose
//! column k depends on the errors of the weights up to k only: weights can be rounded one column after the other, each so that its
//! column of E M is least (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
//! 2022, in the form that needs no inverse).

use crate::buffer::{SharedMut, zeroed};
use crate::gemm::{Epilogue, Residual, Rhs, matmul};
use crate::{Cpu, Result, check};
use std::ops::Range;

const NAME: &str = "second moments";

/// Rows that are added at once: a decoder gives them one by one, and a product of one row is bound by memory.
const ROWS: usize = 256;

/// Columns of a block of a [`Factor`]: that of the largest block format.
const PANEL: usize = 256;

/// The sum of `x x^T` over rows x `[K]`, in f32: some hundred sums of 256 rows each enter an element, so that it is
/// good to about 1e-5 of the diagonal, far below what [`Moments::factor`] adds to that.
#[derive(Clone, Debug)]
pub struct Moments {
    k: usize,
    rows: u64,
    /// `[K, K]`.
    sums: Vec<f32>,
    /// Rows to be added, `[.., K]`.
    waiting: Vec<f32>,
}

impl Moments {
    /// No rows yet, of `k` values each.
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`] for `K * K` floats.
    pub fn new(k: usize) -> Result<Moments> {
        let sums = zeroed(NAME, check::size(NAME, "H", &[k, k])?)?;
        Ok(Moments { k, rows: 0, sums, waiting: Vec::new() })
    }

    /// Bytes that moments of `k` values take.
    pub fn bytes(k: usize) -> usize {
        k.saturating_mul(k).saturating_add(2 * ROWS * k).saturating_mul(size_of::<f32>())
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds rows `[.., K]`.
    ///
    /// # Errors
    /// [`crate::KernelError::Length`] if they are no whole rows.
    pub fn add(&mut self, cpu: &Cpu, mut x: &[f32]) -> Result<()> {
        let rows = x.len() / self.k.max(1);
        check::length(NAME, "x", "[.., K]", &[rows, self.k], x.len())?;
        self.rows += rows as u64;
        while !x.is_empty() {
            let more = x.len().min(ROWS * self.k - self.waiting.len());
            let (now, later) = x.split_at(more);
            self.waiting.extend_from_slice(now);
            x = later;
            if self.waiting.len() == ROWS * self.k {
                self.settle(cpu)?;
            }
        }
        Ok(())
    }

    /// Adds the rows that wait.
    ///
    /// # Errors
    /// None but faults of the thread pool.
    pub fn settle(&mut self, cpu: &Cpu) -> Result<()> {
        let (k, x) = (self.k, &self.waiting);
        let rows = x.len() / k.max(1);
        if rows == 0 {
            return Ok(());
        }
        let mut columns: Vec<f32> = zeroed(NAME, x.len())?; // [K, rows]
        for (i, column) in columns.chunks_exact_mut(rows).enumerate() {
            column.iter_mut().zip(x.iter().skip(i).step_by(k)).for_each(|(to, &from)| *to = from);
        }
        let sum = Epilogue { residual: Residual::InPlace, ..Epilogue::default() };
        matmul(cpu, &columns, x, Rhs::Kn, k, k, rows, &sum, &mut self.sums)?;
        self.waiting.clear();
        Ok(())
    }

    /// What errors `[N, K]` of weights change in their products: of each of the N outputs the sum of squares over all rows, the
    /// diagonal of `E H E^T`. Rows that wait do not count.
    ///
    /// # Errors
    /// [`crate::KernelError::Length`] if they are no whole rows.
    pub fn changes(&self, cpu: &Cpu, errors: &[f32]) -> Result<Vec<f64>> {
        let (k, n) = (self.k, errors.len() / self.k.max(1));
        let mut products: Vec<f32> = zeroed(NAME, errors.len())?;
        matmul(cpu, errors, &self.sums, Rhs::Kn, n, k, k, &Epilogue::default(), &mut products)?;
        let rows = errors.chunks_exact(k.max(1)).zip(products.chunks_exact(k.max(1)));
        Ok(rows.map(|(error, product)| dot(error, product).max(0.0)).collect())
    }

    /// The factor of H with `damping` times its mean diagonal added to the diagonal; with more of it where rounding leaves H less
    /// than that. `None` if every row was zero.
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`].
    pub fn factor(&self, cpu: &Cpu, damping: f32) -> Result<Option<Factor>> {
        let k = self.k;
        let mean = (0..k).map(|i| f64::from(self.sums[i * k + i])).sum::<f64>() / k.max(1) as f64;
        if mean <= 0.0 || !mean.is_finite() {
            return Ok(None);
        }
        let mut added = (mean * f64::from(damping)) as f32;
        // Each try adds ten times as much: at most four until the diagonal dominates.
        for _ in 0..8 {
            if let Some(factor) = Factor::new(cpu, &self.sums, k, added)? {
                return Ok(Some(factor));
            }
            added *= 10.0;
        }
        Ok(None)
    }
}

/// The upper triangular M with `H = M M^T`, in blocks.
#[derive(Clone, Debug)]
pub struct Factor {
    k: usize,
    /// Block `(i, j)`, i at most j, at `j (j + 1) / 2 + i`: rows of panel i, columns of panel j.
    blocks: Vec<Vec<f32>>,
}

impl Factor {
    /// Columns of the matrix.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The panels: ranges of columns that begin at multiples of 256.
    pub fn panels(&self) -> usize {
        self.k.div_ceil(PANEL)
    }

    /// The columns of panel `j`.
    pub fn columns(&self, j: usize) -> Range<usize> {
        columns(self.k, j)
    }

    /// Rows of panel `i` and columns of panel `j`, row-major; `i` is at most `j`.
    pub fn block(&self, i: usize, j: usize) -> &[f32] {
        &self.blocks[place(i, j)]
    }

    /// The factor of `h` `[K, K]` with `added` on its diagonal; `None` if that is not positive definite.
    fn new(cpu: &Cpu, h: &[f32], k: usize, added: f32) -> Result<Option<Factor>> {
        let panels = k.div_ceil(PANEL);
        let mut factor = Factor { k, blocks: vec![Vec::new(); panels * (panels + 1) / 2] };
        for j in (0..panels).rev() {
            for i in 0..=j {
                let block = factor.remainder(cpu, h, i, j)?;
                factor.blocks[place(i, j)] = block;
            }
            let width = columns(k, j).len();
            let mut last = std::mem::take(&mut factor.blocks[place(j, j)]);
            (0..width).for_each(|c| last[c * width + c] += added);
            if !triangle(&mut last, width) {
                return Ok(None);
            }
            for i in 0..j {
                divide(cpu, &mut factor.blocks[place(i, j)], &last, width)?;
            }
            factor.blocks[place(j, j)] = last;
        }
        Ok(Some(factor))
    }

    /// Block `(i, j)` of H without what the panels after j account for.
    fn remainder(&self, cpu: &Cpu, h: &[f32], i: usize, j: usize) -> Result<Vec<f32>> {
        let (rows, across) = (columns(self.k, i), columns(self.k, j));
        let mut block: Vec<f32> = zeroed(NAME, rows.len() * across.len())?;
        for (to, row) in block.chunks_exact_mut(across.len()).zip(rows.clone()) {
            to.copy_from_slice(&h[row * self.k..][across.clone()]);
        }
        let minus = Epilogue { scale: -1.0, residual: Residual::InPlace, ..Epilogue::default() };
        for l in j + 1..self.panels() {
            let (m, n, k) = (rows.len(), across.len(), columns(self.k, l).len());
            matmul(cpu, self.block(i, l), self.block(j, l), Rhs::Nk, m, n, k, &minus, &mut block)?;
        }
        Ok(block)
    }
}

fn columns(k: usize, panel: usize) -> Range<usize> {
    panel * PANEL..((panel + 1) * PANEL).min(k)
}

fn place(i: usize, j: usize) -> usize {
    j * (j + 1) / 2 + i
}

/// Makes of `b` `[n, n]` the upper U with `b = U U^T`; `false` if there is none. What is below the diagonal becomes 0.
fn triangle(b: &mut [f32], n: usize) -> bool {
    for c in (0..n).rev() {
        let (above, row) = b.split_at_mut(c * n);
        let row = &mut row[..n];
        let own: f64 = row[c + 1..].iter().map(|&u| f64::from(u).powi(2)).sum();
        let pivot = f64::from(row[c]) - own;
        if pivot <= 0.0 || !pivot.is_finite() {
            return false;
        }
        let root = pivot.sqrt();
        row[c] = root as f32;
        row[..c].fill(0.0);
        for other in above.chunks_exact_mut(n) {
            let common: f64 = dot(&other[c + 1..], &row[c + 1..]);
            other[c] = ((f64::from(other[c]) - common) / root) as f32;
        }
    }
    true
}

/// Makes of `b` `[.., n]` the X with `X U^T = b`, U `[n, n]` upper triangular.
fn divide(cpu: &Cpu, b: &mut [f32], u: &[f32], n: usize) -> Result<()> {
    let rows = b.len() / n.max(1);
    let shared = SharedMut::new(b);
    cpu.threads().run_ranges(rows, 16, |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let part = unsafe { shared.part(from * n, (to - from) * n) };
        for x in part.chunks_exact_mut(n) {
            for c in (0..n).rev() {
                let row = &u[c * n..][..n];
                let after = dot(&x[c + 1..], &row[c + 1..]);
                x[c] = ((f64::from(x[c]) - after) / f64::from(row[c])) as f32;
            }
        }
    })
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn cpu(threads: usize) -> Cpu {
        Cpu::new(Isa::available().last().unwrap(), Threads::new(threads).unwrap()).unwrap()
    }

    /// Rows of `k` values that depend on each other.
    fn rows(count: usize, k: usize) -> Vec<f32> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut x: Vec<f32> = (0..count * k).map(|_| next()).collect();
        for row in x.chunks_exact_mut(k) {
            (1..k).for_each(|i| row[i] = 0.8 * row[i - 1] + 0.3 * row[i]);
        }
        x
    }

    #[test]
    fn sums_are_those_of_all_rows_however_they_come() {
        let (k, count) = (37, 600);
        let x = rows(count, k);
        let expected: Vec<f64> = (0..k * k)
            .map(|at| x.chunks_exact(k).map(|r| f64::from(r[at / k]) * f64::from(r[at % k])).sum())
            .collect();
        for (threads, step) in [(1, 1), (2, 7), (2, count)] {
            let (cpu, mut moments) = (cpu(threads), Moments::new(k).unwrap());
            x.chunks(step * k).for_each(|x| moments.add(&cpu, x).unwrap());
            moments.settle(&cpu).unwrap();
            assert_eq!((moments.k(), moments.rows()), (k, count as u64));
            for (sum, expected) in moments.sums.iter().zip(&expected) {
                assert!((f64::from(*sum) - expected).abs() < 1e-3, "{sum} {expected}");
            }
            // Of one weight that is off by 2: four times the sum of that input's squares.
            let mut errors = vec![0.0; 2 * k];
            errors[k + 5] = 2.0;
            let changes = moments.changes(&cpu, &errors).unwrap();
            assert_eq!((changes.len(), changes[0]), (2, 0.0));
            assert!((changes[1] - 4.0 * expected[5 * k + 5]).abs() < 1e-2, "{changes:?}");
        }
        let mut moments = Moments::new(3).unwrap();
        assert!(moments.add(&cpu(1), &[0.0; 4]).is_err());
    }

    #[test]
    fn a_factor_times_its_transpose_is_what_it_is_of() {
        for k in [1, 5, 256, 300, 700] {
            let cpu = cpu(2);
            let mut moments = Moments::new(k).unwrap();
            moments.add(&cpu, &rows(2 * k + 3, k)).unwrap();
            moments.settle(&cpu).unwrap();
            let factor = moments.factor(&cpu, 0.01).unwrap().unwrap();
            let mut m = vec![0f64; k * k];
            for j in 0..factor.panels() {
                for i in 0..=j {
                    for (row, values) in
                        factor.columns(i).zip(factor.block(i, j).chunks_exact(factor.columns(j).len()))
                    {
                        for (column, &value) in factor.columns(j).zip(values) {
                            m[row * k + column] = f64::from(value);
                            assert!(column >= row || value == 0.0, "{row} {column}");
                        }
                    }
                }
            }
            let mean = (0..k).map(|i| f64::from(moments.sums[i * k + i])).sum::<f64>() / k as f64;
            for (at, &h) in moments.sums.iter().enumerate() {
                let (r, c) = (at / k, at % k);
                let product: f64 = (0..k).map(|l| m[r * k + l] * m[c * k + l]).sum();
                let expected = f64::from(h) + if r == c { 0.01 * mean } else { 0.0 };
                assert!((product - expected).abs() < 1e-4 * mean, "{k}: {product} {expected} at {r} {c}");
            }
        }
    }

    #[test]
    fn rows_of_zeros_have_no_factor_and_equal_inputs_have_one() {
        let cpu = cpu(1);
        let mut moments = Moments::new(4).unwrap();
        moments.add(&cpu, &[0.0; 8]).unwrap();
        moments.settle(&cpu).unwrap();
        assert!(moments.factor(&cpu, 0.01).unwrap().is_none());
        moments.add(&cpu, &[1.0; 4]).unwrap();
        moments.settle(&cpu).unwrap();
        assert!(moments.factor(&cpu, 0.01).unwrap().is_some());
        // Without anything on the diagonal equal inputs leave nothing to divide by: some is added.
        assert!(moments.factor(&cpu, 0.0).unwrap().is_none());
    }
}
