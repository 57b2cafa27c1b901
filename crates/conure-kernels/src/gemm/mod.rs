//! Matrix products: packed weights ([`linear`]) and plain operands ([`matmul`]), with what follows them fused.
//!
//! Every output is one chain of multiply-adds over K, in order, in f32, whatever the number of rows, the threads and
//! the way the weights are stored; so a row's result does not depend on what it is batched with. With
//! [`Precision::Fast`](crate::Precision::Fast) and weights in a block format it is a chain over groups of K: see `quantised.rs`; in
//! [`Precision::Int8`](crate::Precision::Int8) one sum of integers: see `channels.rs`.

mod blocks;
mod channels;
mod cut;
mod epilogue;
mod experts;
mod packed;
mod patches;
mod quantised;
mod round;
mod row;
mod share;
mod worker;

pub use epilogue::{Activation, Epilogue, Residual};
pub use experts::{ExpertMatrices, ExpertProduct, expert_linear, expert_scratch};
pub(crate) use packed::Columns;
pub use packed::PackedMatrix;
pub use patches::{Patches, convolve};

use cut::{Claims, Cut};
use patches::Left;
use worker::{Worker, WorkerKernel};

use crate::buffer::{SharedMut, with_operand, with_scratch};
use crate::isa::{Isa, dispatch, tile_size};
use crate::{Cpu, Result, check};
use conure_tensor::DType;
use std::ops::Range;

/// How the right operand of [`matmul`] lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhs {
    /// `[N, K]`: the product is `a b^T`.
    Nk,
    /// `[K, N]`: the product is `a b`.
    Kn,
}

/// `out[M, N] = residual + scale * f(x[M, K] W^T + bias)`, with `weights` W `[N, K]`; `out` is `[M, N / 2]` for
/// [`Activation::Glu`].
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape; [`crate::KernelError::Invalid`] if a gated unit
/// is asked for on weights not packed for it.
pub fn linear(
    cpu: &Cpu,
    x: &[f32],
    m: usize,
    weights: &PackedMatrix,
    epilogue: &Epilogue<'_>,
    out: &mut [f32],
) -> Result<()> {
    let product = Product {
        kernel: "linear",
        m,
        k: weights.k,
        left: Left::Dense(x),
        columns: weights.columns,
        source: Source::Packed(weights),
        epilogue: *epilogue,
    };
    product.run(cpu, weights.isa, out)
}

/// `out[M, N] = residual + scale * f(a[M, K] b + bias)`, with `b` as `layout` says.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape; [`crate::KernelError::Invalid`] if a gated unit
/// is asked for and N is odd.
#[allow(clippy::too_many_arguments)]
pub fn matmul(
    cpu: &Cpu,
    a: &[f32],
    b: &[f32],
    layout: Rhs,
    m: usize,
    n: usize,
    k: usize,
    epilogue: &Epilogue<'_>,
    out: &mut [f32],
) -> Result<()> {
    check::length("matmul", "b", if layout == Rhs::Nk { "[N, K]" } else { "[K, N]" }, &[n, k], b.len())?;
    let glu = epilogue.activation == Activation::Glu;
    check::valid("matmul", !glu || n.is_multiple_of(2), || format!("a gated unit needs an even N, not {n}"))?;
    let columns = Columns { n, panel: tile_size(cpu.isa()).panel, halves: glu };
    let source = match layout {
        Rhs::Nk => Source::Nk(b),
        Rhs::Kn => Source::Kn(b),
    };
    let left = Left::Dense(a);
    Product { kernel: "matmul", m, k, left, columns, source, epilogue: *epilogue }.run(cpu, cpu.isa(), out)
}

/// Where the right operand's panels come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    Packed(&'a PackedMatrix),
    Nk(&'a [f32]),
    Kn(&'a [f32]),
}

#[derive(Clone, Copy)]
struct Product<'a> {
    kernel: &'static str,
    m: usize,
    k: usize,
    left: Left<'a>,
    columns: Columns,
    source: Source<'a>,
    epilogue: Epilogue<'a>,
}

impl Product<'_> {
    /// Columns of the output.
    fn width(&self) -> usize {
        if self.epilogue.activation == Activation::Glu { self.columns.n / 2 } else { self.columns.n }
    }

    /// Whether the weights are stored in another type than f32.
    fn widened(&self) -> bool {
        matches!(self.source, Source::Packed(weights) if weights.dtype() != DType::F32)
    }

    fn check(&self, out: &[f32]) -> Result<()> {
        let kernel = self.kernel;
        if let Left::Dense(x) = self.left {
            check::length(kernel, "x", "[M, K]", &[self.m, self.k], x.len())?;
        }
        check::length(kernel, "out", "[M, N]", &[self.m, self.width()], out.len())?;
        if let Some(bias) = self.epilogue.bias {
            check::length(kernel, "bias", "[N]", &[self.columns.n], bias.len())?;
        }
        if let Residual::Add(residual) = self.epilogue.residual {
            check::length(kernel, "residual", "[M, N]", &[self.m, self.width()], residual.len())?;
        }
        let glu = self.epilogue.activation == Activation::Glu;
        check::valid(kernel, !glu || self.columns.halves, || {
            "a gated unit needs weights packed with PackedMatrix::new_glu".to_string()
        })
    }

    fn run(&self, cpu: &Cpu, isa: Isa, out: &mut [f32]) -> Result<()> {
        self.check(out)?;
        if out.is_empty() {
            return Ok(());
        }
        let out = SharedMut::new(out);
        if let (Source::Packed(PackedMatrix { blocks: Some(blocks), .. }), Left::Dense(x)) =
            (self.source, self.left)
            && self.k > 0
        {
            if self.m == 1 {
                return row::run(self, x, blocks, cpu, isa, out);
            }
            if blocks.as_bytes(cpu) {
                return quantised::run(self, x, blocks, cpu, isa, out);
            }
        }
        let cut = Cut::new(self, tile_size(isa), cpu.threads().count());
        let part = |k: Range<usize>, sums: Option<SharedMut<'_, f32>>| {
            let claims = Claims::default();
            cpu.threads().run(cut.workers, |worker, _| {
                let k = k.clone();
                let worker = Worker { product: self, cut: &cut, claims: &claims, worker, k, sums, out };
                with_scratch(worker.scratch_len(), |scratch| dispatch(isa, WorkerKernel { worker, scratch }));
            })
        };
        if cut.k >= self.k {
            return part(0..self.k, None);
        }
        with_operand(self.m * self.columns.panels() * self.columns.panel, |sums| {
            let sums = SharedMut::new(sums);
            (0..self.k).step_by(cut.k).try_for_each(|k| part(k..self.k.min(k + cut.k), Some(sums)))
        })
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_channels;
#[cfg(test)]
mod tests_quantised;
