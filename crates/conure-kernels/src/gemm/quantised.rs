//! Products of bytes: activations rounded to signed bytes, weights in a block format as they are.
//!
//! Defined by: each group of a row of activations (32, for Q6_K 16 along K, the weights' groups) becomes `a * q` with
//! `a` its largest magnitude / 127 and `q` the nearest integers, halves to even. An output is the sum over the groups,
//! in order and in f32, of `scale * a * sum of (weight quantum * q)`, which is exact in integers, and of what the group's
//! minimum adds. So a result depends on its row and column alone, and differs between instruction sets only as far as their
//! multiply-adds round differently.

use super::Product;
use super::blocks::{Blocks, MAX_UNIT};
use super::cut::{Claim, Claims, Cut};
use super::round::{Shape, round_rows};
use crate::buffer::{Carve, LINE, SharedMut, with_operand, with_scratch};
use crate::isa::{DotKernel, Isa, dispatch_dot};
use crate::simd::{
    Channels32, Dot, DotTile, Group, MAX_DOT_ROWS, Simd, Small16, Small32, SmallMins32, Wide32,
};
use crate::{Cpu, Result};

/// Rows whose activations are rounded and kept at a time: bounds the memory, and the weights' unpacking, which is done
/// anew for each, is nothing against so many rows.
const ROWS_AT_ONCE: usize = 64 * MAX_DOT_ROWS;

/// Multiply-adds of bytes that are worth a task of their own: about 10 us.
const TASK_WORK: usize = 3 << 20;

/// Rows that take as long as it takes to fetch and unpack the weights: 0.4 MB of them, a task, take one core 30 us.
const FREE_ROWS: usize = 24;

/// K that a panel is multiplied with at a time where rows are few: this part of it and the rows' sums stay in the
/// first-level cache.
const PART_K: usize = 2 * MAX_UNIT;

/// Rows that are few. Of more the sums would be fetched for each part, which costs more than to fetch the panel for each tile.
const FEW_ROWS: usize = 128;

/// How many rows a block of activations has.
fn block_rows(isa: Isa) -> usize {
    struct Rows;
    impl DotKernel for Rows {
        type Output = usize;
        #[inline(always)]
        fn run<D: Dot>(self, _d: D) -> usize {
            D::ROWS
        }
    }
    dispatch_dot(isa, Rows)
}

/// `out` as [`super::linear`] says, of `x` `[M, K]` and weights in a block format.
///
/// Workers stay in their own panels, so that the next one is fetched while they compute with one; few rows take a panel in parts;
/// rows are put in order as vectors. By these three 7.4 s of the 110M encoder in q8_0 on two threads take 41.4 ms, where tasks
/// dealt out singly, with whole panels and words put in order one by one, took 46.9 (medians of 55 turns); in q4_k 50.7 and 54.3.
pub(super) fn run(
    product: &Product<'_>,
    x: &[f32],
    blocks: &Blocks,
    cpu: &Cpu,
    isa: Isa,
    out: SharedMut<'_, f32>,
) -> Result<()> {
    let rows = block_rows(isa);
    let shape = Shape { rows, groups: product.k / blocks.group(product.k), k: product.k };
    for start in (0..product.m).step_by(ROWS_AT_ONCE) {
        let end = (start + ROWS_AT_ONCE).min(product.m);
        let count = (end - start).div_ceil(rows);
        with_operand(count * shape.block_len(), |operand| -> Result<()> {
            round_rows(&x[start * shape.k..end * shape.k], blocks, cpu, isa, shape, operand)?;
            let (operand, m) = (&*operand, end - start);
            let cut = cut(product, cpu.threads().count(), m, rows);
            let claims = Claims::default();
            let task =
                Task { product, blocks, shape, activations: operand, out, start, m, rows: cut.rows.min(m) };
            cpu.threads().run(cut.workers, |worker, _| {
                with_scratch(task.scratch_len(), |scratch| {
                    dispatch_dot(isa, Multiply { task, cut: &cut, claims: &claims, worker, scratch });
                });
            })
        })?;
    }
    Ok(())
}

/// A product of `m` rows is cut by columns, and by rows (whole blocks of them) only where columns are too few.
fn cut(product: &Product<'_>, threads: usize, m: usize, block_rows: usize) -> Cut {
    let (panels, unit) = (product.columns.panels(), product.columns.unit());
    let work = m.max(FREE_ROWS).saturating_mul(product.columns.n).saturating_mul(product.k);
    let workers = (work / TASK_WORK).clamp(1, threads);
    let blocks = m.div_ceil(block_rows);
    let by_rows = workers.div_ceil((panels / unit).max(1)).min(blocks);
    Cut::of(workers, m, blocks.div_ceil(by_rows) * block_rows, panels, unit)
}

/// What the workers of a product have in common.
#[derive(Clone, Copy)]
struct Task<'a> {
    product: &'a Product<'a>,
    blocks: &'a Blocks,
    shape: Shape,
    /// Of `m` rows from row `start` of the output on.
    activations: &'a [f32],
    out: SharedMut<'a, f32>,
    start: usize,
    m: usize,
    /// Of these, how many a claim has at most.
    rows: usize,
}

impl Task<'_> {
    /// Panels that are multiplied together.
    fn pair(&self) -> usize {
        self.product.columns.unit()
    }

    /// Units of a panel that are multiplied at a time: all, or about [`PART_K`].
    fn units_at_once(&self) -> usize {
        let all = self.product.k / self.blocks.layout.block;
        let parts = if self.rows <= FEW_ROWS { self.product.k.div_ceil(PART_K).max(1) } else { 1 };
        all.div_ceil(parts).max(1)
    }

    /// Floats of the sums that are kept: of all rows where K is taken in parts.
    fn sums_len(&self) -> usize {
        let block = self.shape.rows;
        let rows = if self.rows <= FEW_ROWS { self.rows.next_multiple_of(block) } else { block };
        rows * self.pair() * self.product.columns.panel
    }

    /// Floats of a panel's quanta and of its scales, in units at once.
    fn panel_len(&self) -> (usize, usize) {
        let (np, units, layout) = (self.product.columns.panel, self.units_at_once(), self.blocks.layout);
        (units * layout.block * np / 4, units * layout.groups() * np)
    }

    /// Floats of scratch: the sums and, of each panel, quanta, scales and minima.
    fn scratch_len(&self) -> usize {
        let (quanta, scales) = self.panel_len();
        let panel = Carve::padded(quanta) + 2 * Carve::padded(scales);
        Carve::padded(self.sums_len()) + self.pair() * panel
    }
}

/// The work of a worker.
struct Multiply<'a, 'b> {
    task: Task<'a>,
    cut: &'a Cut,
    claims: &'a Claims,
    worker: usize,
    scratch: &'b mut [f32],
}

impl DotKernel for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        by_group(d, self.task.blocks, self);
    }
}

/// Work that is compiled for each way in which groups of weights are stored.
pub(super) trait ByGroup {
    fn run<D: Dot, G: Group>(self, d: D);
}

/// Runs `kernel` for the groups of `blocks`.
#[inline(always)]
pub(super) fn by_group<D: Dot, K: ByGroup>(d: D, blocks: &Blocks, kernel: K) {
    match (blocks.wide, blocks.layout.group, blocks.layout.mins) {
        _ if blocks.channels(0).is_some() => kernel.run::<D, Channels32>(d),
        (true, _, _) => kernel.run::<D, Wide32>(d),
        (_, _, true) => kernel.run::<D, SmallMins32>(d),
        (_, 16, _) => kernel.run::<D, Small16>(d),
        _ => kernel.run::<D, Small32>(d),
    }
}

/// A panel's weights, or a part of them along K, ready to multiply.
struct Panel<'a> {
    quanta: &'a mut [u8],
    scales: &'a mut [f32],
    mins: &'a mut [f32],
}

impl<'b> ByGroup for Multiply<'_, 'b> {
    #[inline(always)]
    fn run<D: Dot, G: Group>(self, d: D) {
        let Multiply { task, cut, claims, worker, scratch } = self;
        let (pair, (quanta, scales)) = (task.pair(), task.panel_len());
        let mut carve = Carve::new(scratch);
        let sums = carve.take(task.sums_len());
        let mut panels: [Panel<'b>; 2] = std::array::from_fn(|i| {
            let some = |len| if i < pair { len } else { 0 };
            Panel {
                quanta: bytemuck::cast_slice_mut(carve.take(some(quanta))),
                scales: carve.take(some(scales)),
                mins: carve.take(some(scales)),
            }
        });
        let mut cursor = cut.begin(worker);
        while let Some(Claim { block, from, to }) = cut.claim(claims, &mut cursor) {
            let first = block * cut.rows;
            let count = task.rows.min(task.m - first);
            for p in (from..to).step_by(pair) {
                task.rows_past_panel::<D, G>(d, first, count, p, &mut panels[..pair], sums);
            }
        }
    }
}

impl Task<'_> {
    /// `rows` rows from row `first` on, the start of a block of rows, against panels from `p` on: a part of K after the other,
    /// which all rows read while it is in the nearest cache.
    #[inline(always)]
    fn rows_past_panel<D: Dot, G: Group>(
        &self,
        d: D,
        first: usize,
        rows: usize,
        p: usize,
        panels: &mut [Panel<'_>],
        sums: &mut [f32],
    ) {
        let (s, blocks, pair) = (d.simd(), self.blocks, panels.len());
        let (block, groups) = (blocks.layout.block, blocks.layout.groups());
        let (at_once, all) = (self.units_at_once(), self.product.k / block);
        let ldc = pair * D::S::PANEL;
        let activations = &self.activations[first / D::ROWS * self.shape.block_len()..];
        let tiles = rows.div_ceil(D::ROWS);
        for u0 in (0..all).step_by(at_once) {
            let units = at_once.min(all - u0);
            let groups = units * groups;
            for (i, panel) in panels.iter_mut().enumerate() {
                unpack(s, blocks, p + i, u0..u0 + units, panel);
            }
            // The same part of the panels that follow, which this worker is likely to take next.
            let more = p + 2 * pair <= self.product.columns.panels();
            let (k0, kc) = (u0 * block, units * block);
            let next: [&[u8]; 2] =
                std::array::from_fn(
                    |i| {
                        if more && i < pair { blocks.stored(k0, kc, p + pair + i) } else { &[] }
                    },
                );
            let ahead = next[0].len().div_ceil(tiles * groups).next_multiple_of(LINE);
            let blocks_of_rows = activations.chunks_exact(self.shape.block_len()).take(tiles);
            for (t, x) in blocks_of_rows.enumerate() {
                let rows = D::ROWS.min(rows - t * D::ROWS);
                let sums = &mut sums[if at_once < all { t * D::ROWS * ldc } else { 0 }..][..D::ROWS * ldc];
                for (i, panel) in panels.iter().enumerate() {
                    let mut tile = tile_of::<D>(blocks, p + i, u0, panel, x, self.shape);
                    tile.groups = groups;
                    (tile.fresh, tile.last) = (u0 == 0, u0 + units == all);
                    let fetched = t * groups * ahead;
                    if fetched < next[i].len() {
                        (tile.next, tile.ahead) = (next[i].as_ptr().wrapping_add(fetched), ahead);
                    }
                    tile.c = sums[i * D::S::PANEL..].as_mut_ptr();
                    tile.ldc = ldc;
                    // SAFETY: `tile_of` took the operands from slices with as many groups; the sums have ROWS rows of
                    // `pair` panels.
                    unsafe { d.tile::<G>(rows, &tile) };
                }
                if u0 + units == all {
                    let m = self.start + first + t * D::ROWS;
                    // SAFETY: claims have disjoint rows or columns, and a panel's columns belong to one claim.
                    unsafe { self.product.finish(s, self.out, m, rows, p, pair, sums, ldc) };
                }
            }
        }
    }
}

/// Unpacks `units` of a panel; quanta that are multiplied where they are stay there, and so do scales of whole columns.
#[inline(always)]
fn unpack<S: Simd>(s: S, blocks: &Blocks, p: usize, units: std::ops::Range<usize>, panel: &mut Panel<'_>) {
    if blocks.channels(p).is_some() {
        return;
    }
    let (block, groups) = (blocks.layout.block, blocks.layout.groups());
    for (i, u) in units.enumerate() {
        if blocks.layout.bits != 8 {
            blocks.quanta(s, p, u, &mut panel.quanta[i * block * S::PANEL..]);
        }
        let at = i * groups * S::PANEL;
        blocks.scales(s, p, u, &mut panel.scales[at..], &mut panel.mins[at..]);
    }
}

/// The operands of a tile from unit `u0` of panel `p` on: the weights of `panel`, the rows of the block `x`.
#[inline(always)]
fn tile_of<D: Dot>(
    blocks: &Blocks,
    p: usize,
    u0: usize,
    panel: &Panel<'_>,
    x: &[f32],
    shape: Shape,
) -> DotTile {
    let layout = blocks.layout;
    let (w, stride) = match blocks.in_place(p, u0) {
        Some((quanta, stride)) => (quanta.as_ptr(), stride),
        None => (panel.quanta.as_ptr(), layout.group * D::S::PANEL),
    };
    let (bytes, rest) = x.split_at(shape.bytes_len());
    let (scales, sums) = rest.split_at(shape.scales_len());
    let channels = blocks.channels(p);
    let group = if channels.is_some() { 0 } else { u0 * layout.groups() * D::ROWS };
    DotTile {
        w,
        stride,
        scales: channels.unwrap_or(panel.scales).as_ptr(),
        mins: panel.mins.as_ptr(),
        x: bytes[u0 * layout.block / 4 * D::ROWS..].as_ptr().cast(),
        x_scales: scales[group..].as_ptr(),
        x_sums: sums[group..].as_ptr(),
        groups: 0,
        next: std::ptr::null(),
        ahead: 0,
        fresh: false,
        last: false,
        c: std::ptr::null_mut(),
        ldc: 0,
    }
}
