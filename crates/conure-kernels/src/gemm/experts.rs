//! Products with the matrices of experts: each row with the matrix that its number names.
//!
//! Rows are sorted by expert, and each expert's are multiplied at once: copied together, multiplied, copied back. As a row's
//! result does not depend on what it is batched with, it does not depend on this either.

use super::{Epilogue, PackedMatrix, Rhs, linear, matmul};
use crate::buffer::{Carve, SharedMut};
use crate::{Cpu, Result, check};

const NAME: &str = "expert_linear";

/// Rows of an expert that are copied together at most. More would not make a product faster (`worker.rs` cuts it into fewer)
/// and 512 rows of 4096 floats are 8 MB.
const ROWS_AT_ONCE: usize = 512;

/// Floats that are worth a task of copying: about 5 us.
const COPY_GRAIN: usize = 16 * 1024;

/// The matrices of all experts, each `[N, K]`.
#[derive(Clone, Copy, Debug)]
pub enum ExpertMatrices<'a> {
    /// One for each.
    Packed(&'a [PackedMatrix]),
    /// `[E, N, K]`.
    Plain(&'a [f32]),
}

/// What rows are multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct ExpertProduct<'a> {
    /// The matrices.
    pub matrices: ExpertMatrices<'a>,
    /// E.
    pub count: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Added to the outputs, `[E, N]`.
    pub bias: Option<&'a [f32]>,
    /// The expert of each row of the output.
    pub ids: &'a [i32],
    /// Rows of the output that come from one row of x: as many follow each other.
    pub shared: usize,
}

/// Floats of working memory for `rows` rows of the output.
pub fn expert_scratch(rows: usize, count: usize, n: usize, k: usize) -> usize {
    let at_once = rows.min(ROWS_AT_ONCE);
    [count, rows, at_once * k, at_once * n].into_iter().map(Carve::padded).sum()
}

/// `out[r] = W[ids[r]] x[r / shared] + bias[ids[r]]`: x is `[R / shared, K]`, out `[R, N]`. `scratch` has
/// [`expert_scratch`] floats.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape; [`crate::KernelError::Invalid`] if a number names no
/// expert.
pub fn expert_linear(
    cpu: &Cpu,
    x: &[f32],
    product: &ExpertProduct<'_>,
    scratch: &mut [f32],
    out: &mut [f32],
) -> Result<()> {
    let &ExpertProduct { count, n, k, ids, shared, .. } = product;
    product.check(x, scratch, out)?;
    let mut carve = Carve::new(scratch);
    let ends: &mut [u32] = bytemuck::cast_slice_mut(carve.take(count));
    let order: &mut [u32] = bytemuck::cast_slice_mut(carve.take(ids.len()));
    sort(ids, ends, order)?;
    let at_once = ids.len().min(ROWS_AT_ONCE);
    let (xs, ys) = (carve.take(at_once * k), carve.take(at_once * n));
    let mut start = 0;
    for (expert, &end) in ends.iter().enumerate() {
        let rows = &order[start..end as usize];
        start = end as usize;
        for rows in rows.chunks(ROWS_AT_ONCE) {
            if let [row] = rows {
                let row = *row as usize;
                let x = &x[row / shared * k..][..k];
                product.multiply(cpu, expert, x, 1, &mut out[row * n..(row + 1) * n])?;
                continue;
            }
            let (xs, ys) = (&mut xs[..rows.len() * k], &mut ys[..rows.len() * n]);
            gather(cpu, x, rows, shared, k, xs)?;
            product.multiply(cpu, expert, xs, rows.len(), ys)?;
            scatter(cpu, ys, rows, n, out)?;
        }
    }
    Ok(())
}

impl ExpertProduct<'_> {
    fn check(&self, x: &[f32], scratch: &[f32], out: &[f32]) -> Result<()> {
        let &ExpertProduct { count, n, k, ids, shared, .. } = self;
        check::valid(NAME, shared > 0 && ids.len().is_multiple_of(shared), || {
            format!("{} rows of the output do not come from whole rows of x, {shared} each", ids.len())
        })?;
        check::length(NAME, "x", "[M, K]", &[ids.len() / shared, k], x.len())?;
        check::length(NAME, "out", "[M, U, N]", &[ids.len(), n], out.len())?;
        if let Some(bias) = self.bias {
            check::length(NAME, "bias", "[E, N]", &[count, n], bias.len())?;
        }
        match self.matrices {
            ExpertMatrices::Plain(w) => check::length(NAME, "w", "[E, N, K]", &[count, n, k], w.len())?,
            ExpertMatrices::Packed(w) => {
                let fit = w.len() == count && w.iter().all(|w| (w.n, w.k) == (n, k));
                check::valid(NAME, fit, || {
                    format!("{} matrices were packed, {count} of [{n}, {k}] are used", w.len())
                })?;
            }
        }
        check::valid(NAME, scratch.len() >= expert_scratch(ids.len(), count, n, k), || {
            format!("scratch of {} floats is too short", scratch.len())
        })
    }

    /// `rows` rows with the matrix of `expert`.
    fn multiply(&self, cpu: &Cpu, expert: usize, x: &[f32], rows: usize, out: &mut [f32]) -> Result<()> {
        let (n, k) = (self.n, self.k);
        let bias = self.bias.map(|b| &b[expert * n..(expert + 1) * n]);
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        match self.matrices {
            ExpertMatrices::Packed(w) => linear(cpu, x, rows, &w[expert], &epilogue, out),
            ExpertMatrices::Plain(w) => {
                let w = &w[expert * n * k..(expert + 1) * n * k];
                matmul(cpu, x, w, Rhs::Nk, rows, n, k, &epilogue, out)
            }
        }
    }
}

/// Rows in the order of their experts, and where those of each end.
fn sort(ids: &[i32], ends: &mut [u32], order: &mut [u32]) -> Result<()> {
    let count = ends.len();
    ends.fill(0);
    for &id in ids {
        let slot = usize::try_from(id).ok().and_then(|id| ends.get_mut(id));
        check::valid(NAME, slot.is_some(), || format!("id {id} is outside the {count} experts"))?;
        if let Some(slot) = slot {
            *slot += 1;
        }
    }
    let mut start = 0;
    for end in ends.iter_mut() {
        let rows = *end;
        *end = start;
        start += rows;
    }
    for (row, &id) in (0u32..).zip(ids) {
        let slot = &mut ends[id as usize];
        order[*slot as usize] = row;
        *slot += 1;
    }
    Ok(())
}

/// Row `i` of `to` becomes row `rows[i] / shared` of `x`.
fn gather(cpu: &Cpu, x: &[f32], rows: &[u32], shared: usize, k: usize, to: &mut [f32]) -> Result<()> {
    let to = SharedMut::new(to);
    cpu.threads().run_ranges(rows.len(), (COPY_GRAIN / k.max(1)).max(1), |from, until| {
        for i in from..until {
            // SAFETY: each row of `to` is written once.
            let to = unsafe { to.part(i * k, k) };
            to.copy_from_slice(&x[rows[i] as usize / shared * k..][..k]);
        }
    })
}

/// Row `rows[i]` of `out` becomes row `i` of `y`.
fn scatter(cpu: &Cpu, y: &[f32], rows: &[u32], n: usize, out: &mut [f32]) -> Result<()> {
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows.len(), (COPY_GRAIN / n.max(1)).max(1), |from, until| {
        for i in from..until {
            // SAFETY: `rows` has every row of the output at most once.
            let out = unsafe { out.part(rows[i] as usize * n, n) };
            out.copy_from_slice(&y[i * n..][..n]);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Precision, Threads};
    use conure_tensor::{DType, quant};

    fn noise(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| (((i + seed) * 7919 % 1013) as f32 / 1013.0 - 0.5) * 2.0).collect()
    }

    #[test]
    fn a_row_is_that_of_its_expert_alone_whatever_is_beside_it() {
        let (count, n, k) = (5, 33, 64);
        let bias = noise(count * n, 3);
        let x = noise(1200 * k, 1);
        for precision in Precision::ALL {
            for threads in [1, 3] {
                let cpu = Cpu::new(Isa::detect().unwrap(), Threads::new(threads).unwrap()).unwrap();
                let cpu = cpu.with_precision(precision);
                for dtype in [DType::F32, DType::MXFP4] {
                    let bytes = quant::encoded(dtype, &noise(count * n * k, 2)).unwrap();
                    let pack = |w: &[u8]| PackedMatrix::new(&cpu, dtype, w, n, k).unwrap();
                    let packed: Vec<_> = bytes.chunks_exact(bytes.len() / count).map(pack).collect();
                    // Expert 3 has no rows; the others 1 to more than are copied together.
                    for (shared, rows) in [(1, 1usize), (2, 6), (1, 1200), (3, 1200)] {
                        let ids: Vec<i32> = (0..rows).map(|i| [0, 0, 4, 0, 1, 2][i * i % 11 % 6]).collect();
                        let product = ExpertProduct {
                            matrices: ExpertMatrices::Packed(&packed),
                            bias: Some(&bias),
                            ids: &ids,
                            count,
                            n,
                            k,
                            shared,
                        };
                        let mut scratch = vec![f32::NAN; expert_scratch(rows, count, n, k)];
                        let mut out = vec![f32::NAN; rows * n];
                        expert_linear(&cpu, &x[..rows / shared * k], &product, &mut scratch, &mut out)
                            .unwrap();
                        for (row, &id) in ids.iter().enumerate() {
                            let mut alone = vec![0.0; n];
                            let x = &x[row / shared * k..][..k];
                            product.multiply(&cpu, id as usize, x, 1, &mut alone).unwrap();
                            assert!(out[row * n..][..n] == alone, "{dtype} {shared} {rows}, row {row}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let w = noise(3 * 2 * 4, 1);
        fn plain<'a>(w: &'a [f32], ids: &'a [i32]) -> ExpertProduct<'a> {
            let matrices = ExpertMatrices::Plain(w);
            ExpertProduct { matrices, count: 3, n: 2, k: 4, bias: None, ids, shared: 1 }
        }
        let run = |product: &ExpertProduct<'_>, x: usize, scratch: usize, out: usize| {
            let (mut scratch, mut out) = (vec![0.0; scratch], vec![0.0; out]);
            expert_linear(&cpu, &vec![1.0; x], product, &mut scratch, &mut out).map_err(|e| e.to_string())
        };
        assert_eq!(run(&plain(&w, &[2, 0]), 8, 96, 4), Ok(()));
        assert_eq!(run(&plain(&w, &[]), 0, 96, 0), Ok(()));
        for (id, said) in [(3, "id 3 is outside the 3 experts"), (-1, "id -1 is outside the 3 experts")] {
            assert!(run(&plain(&w, &[0, id]), 8, 96, 4).unwrap_err().contains(said));
        }
        assert!(run(&plain(&w, &[2, 0]), 4, 96, 4).unwrap_err().contains("x has 4"));
        assert!(run(&plain(&w, &[2, 0]), 8, 96, 5).unwrap_err().contains("out has 5"));
        assert!(run(&plain(&w, &[2, 0]), 8, 8, 4).unwrap_err().contains("scratch"));
        let odd = ExpertProduct { shared: 2, ..plain(&w, &[0, 1, 2]) };
        assert!(run(&odd, 4, 96, 6).unwrap_err().contains("2 each"));
        let packed = [PackedMatrix::from_f32(&cpu, &w[..8], 2, 4).unwrap()];
        let few = ExpertProduct { matrices: ExpertMatrices::Packed(&packed), ..plain(&w, &[0]) };
        assert!(run(&few, 4, 96, 2).unwrap_err().contains("1 matrices"));
    }
}
