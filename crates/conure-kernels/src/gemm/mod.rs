//! Matrix products: packed weights ([`linear`]) and plain operands ([`matmul`]), with what follows them fused.
//!
//! Every output is one chain of multiply-adds over K, in order, in f32, whatever the number of rows, the threads and
//! the way the weights are stored; so a row's result does not depend on what it is batched with.

mod epilogue;
mod packed;

pub use epilogue::{Activation, Epilogue, Residual};
pub(crate) use packed::Columns;
pub use packed::PackedMatrix;

use packed::{Format, Panels};

use crate::buffer::{Carve, SharedMut, with_scratch};
use crate::isa::{Isa, Kernel, TileSize, dispatch, tile_size};
use crate::simd::{F32Panel, MAX_TILE_ROWS, Simd, TILE_K, TILE_STRIDE, pack_columns, panels_at_once};
use crate::{Cpu, Result, check};

/// Multiply-adds that are worth a task of their own: about 10 us.
const TASK_WORK: usize = 1 << 20;

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
        x,
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
    Product { kernel: "matmul", m, k, x: a, columns, source, epilogue: *epilogue }.run(cpu, cpu.isa(), out)
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
    x: &'a [f32],
    columns: Columns,
    source: Source<'a>,
    epilogue: Epilogue<'a>,
}

impl Product<'_> {
    /// Columns of the output.
    fn width(&self) -> usize {
        if self.epilogue.activation == Activation::Glu { self.columns.n / 2 } else { self.columns.n }
    }

    fn check(&self, out: &[f32]) -> Result<()> {
        let kernel = self.kernel;
        check::length(kernel, "x", "[M, K]", &[self.m, self.k], self.x.len())?;
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
        let size = tile_size(isa);
        let grid = Grid::new(self, size, cpu.threads().count());
        let out = SharedMut::new(out);
        cpu.threads().run(grid.tasks(), |task, _| {
            let task = grid.task(self, out, task);
            with_scratch(task.scratch_len(size.rows), |scratch| dispatch(isa, TaskKernel { task, scratch }));
        })
    }
}

/// How a product is cut into tasks.
struct Grid {
    rows: usize,
    panels: usize,
    row_chunks: usize,
    panel_chunks: usize,
}

impl Grid {
    fn new(product: &Product<'_>, size: TileSize, threads: usize) -> Grid {
        let panels = product.columns.panels();
        let unit = if product.columns.halves { 2 } else { 1 };
        let panel_bytes = product.k.max(1) * product.columns.panel * 4;
        let cached = (size.chunk_bytes / panel_bytes).clamp(1, panels).next_multiple_of(unit);
        let work = product.m.saturating_mul(product.columns.n).saturating_mul(product.k);
        let wanted = if threads == 1 { 1 } else { (work / TASK_WORK).clamp(1, threads * 4) };
        // Columns first, but not below four panels if rows can be cut instead: a task copies its rows once.
        let least = if product.m > 4 * size.rows { 4 } else { 1 };
        let chunk = panels.div_ceil(wanted).max(least).next_multiple_of(unit).min(cached);
        let panel_chunks = panels.div_ceil(chunk);
        let row_chunks = wanted.div_ceil(panel_chunks);
        let rows = product.m.div_ceil(row_chunks).next_multiple_of(size.rows).min(product.m);
        Grid { rows, panels: chunk, row_chunks: product.m.div_ceil(rows), panel_chunks }
    }

    fn tasks(&self) -> usize {
        self.row_chunks * self.panel_chunks
    }

    /// Task `i`: neighbouring tasks share columns.
    fn task<'a>(&self, product: &'a Product<'a>, out: SharedMut<'a, f32>, i: usize) -> Task<'a> {
        let (pc, rc) = (i / self.row_chunks, i % self.row_chunks);
        let (p0, m0) = (pc * self.panels, rc * self.rows);
        let p1 = (p0 + self.panels).min(product.columns.panels());
        Task { product, out, m0, m1: (m0 + self.rows).min(product.m), p0, p1 }
    }
}

/// Rows `m0..m1` of the panels `p0..p1`.
#[derive(Clone, Copy)]
struct Task<'a> {
    product: &'a Product<'a>,
    out: SharedMut<'a, f32>,
    m0: usize,
    m1: usize,
    p0: usize,
    p1: usize,
}

impl Task<'_> {
    fn columns(&self) -> usize {
        (self.p1 - self.p0) * self.product.columns.panel
    }

    /// Whether the panels are read where they are: always in f32, else when so few rows use them that widening them
    /// first would cost more than it saves.
    fn direct(&self, tile_rows: usize) -> bool {
        match self.product.source {
            Source::Packed(w) => w.format == Format::F32 || self.m1 - self.m0 <= 2 * tile_rows,
            Source::Nk(_) | Source::Kn(_) => false,
        }
    }

    fn scratch_len(&self, tile_rows: usize) -> usize {
        let panels = if self.direct(tile_rows) { 0 } else { self.columns() * self.product.k };
        Carve::padded(MAX_TILE_ROWS * TILE_STRIDE)
            + Carve::padded(MAX_TILE_ROWS * self.columns())
            + Carve::padded(panels)
    }

    /// Panel `p` of the K block at `k0`, as f32 `[kc][panel]`, into `dst`.
    #[inline(always)]
    fn fill<S: Simd>(&self, s: S, k0: usize, kc: usize, p: usize, dst: &mut [f32]) {
        let (start, width) = self.product.columns.of(p);
        match self.product.source {
            Source::Packed(weights) => weights.widen(s, k0, kc, p, dst),
            Source::Nk(b) => {
                let rows = &b[start * self.product.k + k0..];
                // SAFETY: rows start .. start + width have K floats, of which k0 .. k0 + kc are read; dst has kc * PANEL.
                unsafe {
                    pack_columns(
                        s,
                        width,
                        kc,
                        rows.as_ptr(),
                        self.product.k,
                        dst[..kc * S::PANEL].as_mut_ptr(),
                    )
                };
            }
            Source::Kn(b) => {
                for (i, row) in dst.chunks_exact_mut(S::PANEL).enumerate().take(kc) {
                    row[..width].copy_from_slice(&b[(k0 + i) * self.product.columns.n + start..][..width]);
                    row[width..].fill(0.0);
                }
            }
        }
    }

    /// Finishes and stores the sums of rows `m..m + rows`.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, m: usize, rows: usize, sums: &[f32]) {
        let Epilogue { bias, activation, scale, residual } = self.product.epilogue;
        let columns = self.product.columns;
        let glu = activation == Activation::Glu;
        let at = |start| bias.map_or(std::ptr::null(), |b: &[f32]| b[start..].as_ptr());
        let mut p = self.p0;
        while p < self.p1 {
            // Panels that lie side by side in the output are finished in one go.
            let (start, mut width) = columns.of(p);
            let first = p;
            p += if glu { 2 } else { 1 };
            while !glu && !columns.halves && p < self.p1 {
                width += columns.of(p).1;
                p += 1;
            }
            for r in 0..rows {
                let index = (m + r) * self.product.width() + start;
                // SAFETY: tasks have disjoint rows or columns, and a panel's columns belong to one task.
                let out = unsafe { self.out.part(index, width) }.as_mut_ptr();
                let residual = match residual {
                    Residual::None => std::ptr::null(),
                    Residual::Add(residual) => residual[index..index + width].as_ptr(),
                    Residual::InPlace => out.cast_const(),
                };
                let row = &sums[r * self.columns() + (first - self.p0) * columns.panel..];
                let gates = if glu { row[columns.panel..][..width].as_ptr() } else { std::ptr::null() };
                let gate_bias = if glu { at(columns.n / 2 + start) } else { std::ptr::null() };
                let (sums, bias) = (row[..width].as_ptr(), at(start));
                // SAFETY: all pointers are null or come from slices of at least `width`.
                unsafe {
                    epilogue::finish_row(
                        s, activation, scale, width, sums, bias, gates, gate_bias, residual, out,
                    );
                }
            }
        }
    }
}

struct TaskKernel<'a, 'b> {
    task: Task<'a>,
    scratch: &'b mut [f32],
}

impl Kernel for TaskKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let task = self.task;
        let Product { k, x, .. } = *task.product;
        let ldc = task.columns();
        let mut carve = Carve::new(self.scratch);
        let a = carve.take(MAX_TILE_ROWS * TILE_STRIDE);
        let sums = carve.take(MAX_TILE_ROWS * ldc);
        let direct = task.direct(S::TILE_ROWS);
        let panels = carve.take(if direct { 0 } else { ldc * k });
        if !direct {
            for k0 in (0..k).step_by(TILE_K) {
                let kc = TILE_K.min(k - k0);
                for p in task.p0..task.p1 {
                    let at = k0 * ldc + (p - task.p0) * kc * S::PANEL;
                    task.fill(s, k0, kc, p, &mut panels[at..at + kc * S::PANEL]);
                }
            }
        }
        for m in (task.m0..task.m1).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(task.m1 - m);
            if k == 0 {
                sums.fill(0.0);
            }
            for k0 in (0..k).step_by(TILE_K) {
                let kc = TILE_K.min(k - k0);
                for r in 0..rows {
                    a[r * TILE_STRIDE..][..kc].copy_from_slice(&x[(m + r) * k + k0..][..kc]);
                }
                let mut p = task.p0;
                while p < task.p1 {
                    let count = if task.p1 - p < panels_at_once(rows) { 1 } else { panels_at_once(rows) };
                    let at = (p - task.p0) * S::PANEL;
                    let b = match task.product.source {
                        Source::Packed(w) if direct => w.panels(k0, kc, p, count),
                        _ => Panels::F32(F32Panel(
                            panels[k0 * ldc + at * kc..][..count * kc * S::PANEL].as_ptr(),
                        )),
                    };
                    let (a, c, more) = (a.as_ptr(), sums[at..].as_mut_ptr(), k0 > 0);
                    // SAFETY: `a` has `rows` rows of `kc` floats TILE_STRIDE apart, `b` has count * kc * PANEL weights,
                    // and row r of `sums` has count * PANEL floats from column `at` on, ldc apart.
                    unsafe {
                        match b {
                            Panels::F32(b) => s.tile(rows, count, a, b, kc, c, ldc, more),
                            Panels::F16(b) => s.tile(rows, count, a, b, kc, c, ldc, more),
                            Panels::BF16(b) => s.tile(rows, count, a, b, kc, c, ldc, more),
                            Panels::Q8(b) => s.tile(rows, count, a, b, kc, c, ldc, more),
                        }
                    }
                    p += count;
                }
            }
            task.finish(s, m, rows, sums);
        }
    }
}

#[cfg(test)]
mod tests;
