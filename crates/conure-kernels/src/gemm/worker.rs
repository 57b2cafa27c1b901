//! What one thread does for a product: it copies a block of rows so that tiles can read it, then takes panel after panel
//! past all of its tiles.

use super::cut::{Claim, Claims, Cut};
use super::packed::{Format, Panels};
use super::{Activation, Epilogue, Product, Residual, Source, epilogue};
use crate::buffer::{Carve, SharedMut};
use crate::isa::Kernel;
use crate::simd::{
    F32Panel, MAX_PANEL, MAX_TILE_ROWS, Simd, TILE_K, TILE_STRIDE, pack_columns, panels_at_once,
};
use std::ops::Range;

/// The most panels that are taken at once.
const MAX_GROUP: usize = panels_at_once(1);

/// A worker of a product.
#[derive(Clone)]
pub(super) struct Worker<'a> {
    pub(super) product: &'a Product<'a>,
    pub(super) cut: &'a Cut,
    pub(super) claims: &'a Claims,
    pub(super) worker: usize,
    /// The part of K that is multiplied, from a multiple of TILE_K on.
    pub(super) k: Range<usize>,
    /// Where the sums of all rows wait for the next part: `[panel][M][PANEL]`, of a gated unit's two panels `[M][2 PANEL]`. None
    /// if there is one part.
    pub(super) sums: Option<SharedMut<'a, f32>>,
    pub(super) out: SharedMut<'a, f32>,
}

/// A worker with its working memory of [`Worker::scratch_len`].
pub(super) struct WorkerKernel<'a, 'b> {
    pub(super) worker: Worker<'a>,
    pub(super) scratch: &'b mut [f32],
}

/// A block of rows, cut evenly into tiles.
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    count: usize,
    tiles: usize,
}

impl Rows {
    /// The first row of tile `t`.
    #[inline(always)]
    fn tile(&self, t: usize) -> usize {
        t * self.count / self.tiles
    }
}

/// How tiles read panels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Where they are: always in f32, else when so few rows use them that to widen them would cost more than it saves.
    Direct,
    /// The first tile where they are, and it widens them for the others: 7.4 s of the 110M encoder in f16 on two threads take
    /// 79 ms so, and took 85 ms when all were widened first (medians of 56 turns; 77 ms in f32).
    FirstWidens,
    /// As f32, after they were widened or arranged.
    Widened,
}

impl Worker<'_> {
    fn reading(&self, tile_rows: usize) -> Reading {
        match self.product.source {
            Source::Packed(w) => match w.format {
                Format::F32 => Reading::Direct,
                Format::F16 | Format::BF16 if self.cut.rows <= 2 * tile_rows => Reading::Direct,
                Format::F16 | Format::BF16 => Reading::FirstWidens,
                Format::Blocks => Reading::Widened,
            },
            Source::Nk(_) | Source::Kn(_) => Reading::Widened,
        }
    }

    /// Floats of working memory.
    pub(super) fn scratch_len(&self) -> usize {
        let (k, blocks) = (self.k.len(), self.k.len().div_ceil(TILE_K));
        let packed = match self.product.source {
            Source::Packed(w) => w.format == Format::F32,
            _ => false,
        };
        Carve::padded(self.cut.rows * blocks * TILE_STRIDE)
            + Carve::padded(MAX_TILE_ROWS * MAX_GROUP * MAX_PANEL)
            + if packed { 0 } else { Carve::padded(MAX_GROUP * MAX_PANEL * k) }
    }

    /// The blocks of K: where they begin and their lengths.
    #[inline(always)]
    fn k_blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let end = self.k.end;
        self.k.clone().step_by(TILE_K).map(move |k0| (k0, TILE_K.min(end - k0)))
    }

    /// Copies the rows of a block: `[K block][row][TILE_STRIDE]`.
    #[inline(always)]
    fn copy_rows(&self, rows: Rows, to: &mut [f32]) {
        for (k0, kc) in self.k_blocks() {
            let to = &mut to[(k0 - self.k.start) / TILE_K * rows.count * TILE_STRIDE..];
            for (r, to) in to.chunks_mut(TILE_STRIDE).enumerate().take(rows.count) {
                self.product.left.copy(rows.start + r, self.product.k, k0, &mut to[..kc]);
            }
        }
    }

    /// Panels `p..p + count` as f32, `[K block][panel][k][PANEL]`.
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S, p: usize, count: usize, to: &mut [f32]) {
        for (k0, kc) in self.k_blocks() {
            for i in 0..count {
                let at = ((k0 - self.k.start) * count + i * kc) * S::PANEL;
                self.fill(s, k0, kc, p + i, &mut to[at..at + kc * S::PANEL]);
            }
        }
    }

    /// Panel `p` of the K block at `k0`, as f32 `[kc][panel]`, into `dst`.
    #[inline(always)]
    fn fill<S: Simd>(&self, s: S, k0: usize, kc: usize, p: usize, dst: &mut [f32]) {
        let (start, width) = self.product.columns.of(p);
        match self.product.source {
            Source::Packed(weights) => {
                if let Some(blocks) = &weights.blocks {
                    blocks.widen(s, k0, kc, p, dst);
                }
            }
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

    /// The panels `p..p + count` of the K block at `k0`, for tile `t`: while it is computed, its part of the next panels
    /// is fetched. With weights that are widened too, and with bytes, 7.4 s of the 110M encoder on two threads take 83 ms in f16
    /// where they took 95, and 48 ms in q8_0 where they took 55 (medians of 17 turns).
    #[inline(always)]
    fn panels<S: Simd>(
        &self,
        wide: &mut [f32],
        k0: usize,
        p: usize,
        count: usize,
        t: usize,
        reading: Reading,
    ) -> Panels {
        let kc = TILE_K.min(self.k.end - k0);
        let more = self.product.columns.panels() > p + count;
        let ahead = if more { count * kc * S::PANEL } else { 0 };
        if reading == Reading::Direct
            && let Source::Packed(w) = self.product.source
        {
            return w.panels(k0, kc, p, count).then(ahead, t, kc);
        }
        let wide = &mut wide[(k0 - self.k.start) * count * S::PANEL..][..count * kc * S::PANEL];
        match (self.product.source, reading) {
            // SAFETY: `wide` has room for `count` panels, and only this worker has it.
            (Source::Packed(w), Reading::FirstWidens) if t == 0 => unsafe {
                w.panels(k0, kc, p, count).then(ahead, t, kc).widening(wide.as_mut_ptr())
            },
            (source, _) => {
                let b = F32Panel::new(wide.as_ptr());
                Panels::F32(match source {
                    Source::Packed(w) if more => {
                        // What is widened next comes from memory too.
                        let next = w.stored(k0, kc, p + count);
                        b.then_at(next.as_ptr().cast(), next.len() / size_of::<f32>(), t, kc)
                    }
                    _ => b,
                })
            }
        }
    }
}

impl Product<'_> {
    /// Finishes and stores the sums, `ldc` apart, of rows `m..m + rows` and panels `p..p + count`.
    ///
    /// # Safety
    /// No other thread writes or reads these rows and columns of the output.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn finish<S: Simd>(
        &self,
        s: S,
        out: SharedMut<'_, f32>,
        m: usize,
        rows: usize,
        p: usize,
        count: usize,
        sums: &[f32],
        ldc: usize,
    ) {
        let Epilogue { bias, activation, scale, residual } = self.epilogue;
        let columns = self.columns;
        let glu = activation == Activation::Glu;
        let at = |start| bias.map_or(std::ptr::null(), |b: &[f32]| b[start..].as_ptr());
        for i in (0..count).step_by(if glu { 2 } else { 1 }) {
            let (start, width) = columns.of(p + i);
            let tile = epilogue::Tile {
                rows,
                width,
                sums: sums[i * S::PANEL..].as_ptr(),
                ldc,
                bias: at(start),
                gates: if glu { sums[(i + 1) * S::PANEL..].as_ptr() } else { std::ptr::null() },
                gate_bias: if glu { at(columns.n / 2 + start) } else { std::ptr::null() },
            };
            for r in 0..rows {
                let index = (m + r) * self.width() + start;
                // SAFETY: the contract.
                let out = unsafe { out.part(index, width) }.as_mut_ptr();
                let residual = match residual {
                    Residual::None => std::ptr::null(),
                    Residual::Add(residual) => residual[index..index + width].as_ptr(),
                    Residual::InPlace => out.cast_const(),
                };
                // SAFETY: all pointers are null or come from slices of at least `width`; the sums have `rows` rows.
                unsafe { epilogue::finish_row(s, activation, scale, &tile, r, residual, out) };
            }
        }
    }
}

impl Worker<'_> {
    /// All tiles of a block of rows against the panels `p..p + count`.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn panels_past_rows<S: Simd>(
        &self,
        s: S,
        rows: Rows,
        p: usize,
        count: usize,
        reading: Reading,
        copied: &[f32],
        wide: &mut [f32],
        sums: &mut [f32],
    ) {
        if reading == Reading::Widened {
            self.widen(s, p, count, wide);
        }
        for t in 0..rows.tiles {
            let (from, to) = (rows.tile(t), rows.tile(t + 1));
            let sums = match self.sums {
                Some(all) => {
                    let (m, width) = (self.product.m, count * S::PANEL);
                    let at = p * S::PANEL * m + (rows.start + from) * width;
                    // SAFETY: claims have disjoint rows or columns, and there is one part of K at a time.
                    unsafe { all.part(at, (to - from) * width) }
                }
                None => &mut *sums,
            };
            for (k0, kc) in self.k_blocks() {
                let a = copied[((k0 - self.k.start) / TILE_K * rows.count + from) * TILE_STRIDE..].as_ptr();
                let b = self.panels::<S>(wide, k0, p, count, t, reading);
                // SAFETY: `a` has `to - from` rows of `kc` floats TILE_STRIDE apart, `b` has count * kc * PANEL weights, and
                // `sums` has as many rows of count * PANEL floats.
                unsafe { b.multiply(s, to - from, count, a, kc, sums, k0 > 0) };
            }
            if self.k.end < self.product.k {
                continue;
            }
            let (m, ldc) = (rows.start + from, count * S::PANEL);
            // SAFETY: claims have disjoint rows or columns, and a panel's columns belong to one claim.
            unsafe { self.product.finish(s, self.out, m, to - from, p, count, sums, ldc) };
        }
    }
}

impl Kernel for WorkerKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let WorkerKernel { worker, scratch } = self;
        let (Product { m, columns, .. }, k) = (*worker.product, worker.k.len());
        let unit = columns.unit();
        let reading = worker.reading(S::TILE_ROWS);
        let mut carve = Carve::new(scratch);
        let sums = carve.take(MAX_TILE_ROWS * MAX_GROUP * MAX_PANEL);
        let rows_len = worker.cut.rows * k.div_ceil(TILE_K) * TILE_STRIDE;
        let copied = carve.take(rows_len);
        let wide = carve.take(if reading == Reading::Direct { 0 } else { MAX_GROUP * MAX_PANEL * k });
        if k == 0 {
            sums.fill(0.0);
        }
        let mut present = None;
        let mut cursor = worker.cut.begin(worker.worker);
        while let Some(Claim { block, from, to }) = worker.cut.claim(worker.claims, &mut cursor) {
            let start = block * worker.cut.rows;
            let count = worker.cut.rows.min(m - start);
            let rows = Rows { start, count, tiles: count.div_ceil(S::TILE_ROWS) };
            if present != Some(block) {
                worker.copy_rows(rows, copied);
                present = Some(block);
            }
            let at_once = panels_at_once(count).next_multiple_of(unit);
            for p in (from..to).step_by(at_once) {
                worker.panels_past_rows(s, rows, p, at_once.min(to - p), reading, copied, wide, sums);
            }
        }
    }
}
