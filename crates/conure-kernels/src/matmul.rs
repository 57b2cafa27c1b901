//! Products of many pairs of matrices.

use crate::buffer::SharedMut;
use crate::gemm::{Epilogue, Rhs, matmul};
use crate::{Cpu, Result, check};

/// Multiply-adds of one product from which on its own tasks keep all threads busy.
const LARGE: usize = 1 << 20;

/// Multiply-adds that are worth a task of their own: about 10 us.
const GRAIN: usize = 128 * 1024;

/// `out [batch, M, N]`, where matrix `i` is the product of the matrices of `a` and `b` that `place(i)` names: a's are
/// `[M, K]`, b's as `layout` says. A product with one column or one row is a dot product per element.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not hold whole matrices, [`crate::KernelError::Invalid`] if `place` names one
/// that is not there.
pub fn batched(
    cpu: &Cpu,
    (a, b): (&[f32], &[f32]),
    layout: Rhs,
    [m, n, k]: [usize; 3],
    place: impl Fn(usize) -> (usize, usize) + Sync,
    out: &mut [f32],
) -> Result<()> {
    const NAME: &str = "batched matmul";
    let size = check::size(NAME, "out", &[m, n])?;
    if size == 0 || out.is_empty() {
        return Ok(());
    }
    let batch = out.len() / size;
    check::length(NAME, "out", "[batch, M, N]", &[batch, m, n], out.len())?;
    let (a_size, b_size) = (check::size(NAME, "a", &[m, k])?, check::size(NAME, "b", &[n, k])?);
    let there = (0..batch).map(&place).all(|(i, j)| {
        i.saturating_add(1).saturating_mul(a_size) <= a.len()
            && j.saturating_add(1).saturating_mul(b_size) <= b.len()
    });
    check::valid(NAME, there, || format!("{} and {} elements for {batch} products", a.len(), b.len()))?;
    let vector = n == 1 || (m == 1 && layout == Rhs::Nk);
    let one = |i: usize, out: &mut [f32]| {
        let (ai, bi) = place(i);
        let (a, b) = (&a[ai * a_size..][..a_size], &b[bi * b_size..][..b_size]);
        if vector {
            let (rows, vector) = if n == 1 { (a, b) } else { (b, a) };
            for (i, out) in out.iter_mut().enumerate() {
                *out = rows[i * k..][..k].iter().zip(vector).fold(0.0, |sum, (x, y)| sum + x * y);
            }
            return Ok(());
        }
        matmul(cpu, a, b, layout, m, n, k, &Epilogue::default(), out)
    };
    let work = size.saturating_mul(k.max(1));
    if work >= LARGE && !vector {
        return out.chunks_exact_mut(size).enumerate().try_for_each(|(i, out)| one(i, out));
    }
    let out = SharedMut::new(out);
    let failed = std::sync::Mutex::new(Ok(()));
    cpu.threads().run_ranges(batch, GRAIN.div_ceil(work), |from, to| {
        for i in from..to {
            // SAFETY: the ranges of products are disjoint.
            let result = one(i, unsafe { out.part(i * size, size) });
            if result.is_err() {
                *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = result;
            }
        }
    })?;
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
