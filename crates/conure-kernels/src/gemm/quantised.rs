//! Products of bytes: activations rounded to signed bytes, weights in a block format as they are.
//!
//! Defined by: each group of a row of activations (32, for Q6_K 16 along K, the weights' groups) becomes `a * q` with
//! `a` its largest magnitude / 127 and `q` the nearest integers, halves to even. An output is the sum over the groups,
//! in order and in f32, of `scale * a * sum of (weight quantum * q)`, which is exact in integers, and of what the group's
//! minimum adds. So a result depends on its row and column alone, and differs between instruction sets only as far as their
//! multiply-adds round differently.

use super::blocks::{Blocks, MAX_UNIT};
use super::row::{self, Row};
use super::{Activation, Product};
use crate::buffer::{Carve, SharedMut, with_operand, with_scratch};
use crate::isa::{DotKernel, Isa, dispatch_dot};
use crate::simd::{Bytes, Dot, DotTile, MAX_DOT_ROWS, Simd, Small16, Small32, SmallMins32, Wide32};
use crate::{Cpu, Result};

/// Rows whose activations are rounded and kept at a time: bounds the memory, and the weights' unpacking, which is done
/// anew for each, is nothing against so many rows.
const ROWS_AT_ONCE: usize = 64 * MAX_DOT_ROWS;

/// Multiply-adds of bytes that are worth a task of their own: about 10 us.
const TASK_WORK: usize = 3 << 20;

/// Rows that take as long as it takes to fetch and unpack the weights: 0.4 MB of them, a task, take one core 30 us.
const FREE_ROWS: usize = 24;

/// Rounding so few activations is not worth waking threads.
const ROUND_ALONE: usize = 1 << 14;

/// Activations of a row that are rounded before they go to their places, which are words apart: what is read at once after it was
/// stored in parts waits until it is in the cache.
const ROUND_AT_ONCE: usize = 256;

/// K that few rows are multiplied with at a time: the unpacked panel stays in the first-level cache.
const FEW_ROWS_K: usize = 2 * MAX_UNIT;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The most lanes of 32 bits that any instruction set has.
const MAX_LANES: usize = 16;

/// Magnitudes of a whole group below this are rounded to zero: their scale has no inverse.
const TINY: f32 = 1e-30;

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
pub(super) fn run(
    product: &Product<'_>,
    x: &[f32],
    blocks: &Blocks,
    cpu: &Cpu,
    isa: Isa,
    out: SharedMut<'_, f32>,
) -> Result<()> {
    let rows = block_rows(isa);
    let shape = Shape { rows, groups: product.k / blocks.layout.group, k: product.k };
    for start in (0..product.m).step_by(ROWS_AT_ONCE) {
        let end = (start + ROWS_AT_ONCE).min(product.m);
        let count = (end - start).div_ceil(rows);
        with_operand(count * shape.block_len(), |operand| -> Result<()> {
            round_rows(&x[start * shape.k..end * shape.k], blocks, cpu, isa, shape, operand)?;
            let operand = &*operand;
            let grid = Grid::new(product, cpu.threads().count(), end - start, rows);
            cpu.threads().run(grid.tasks(), |i, _| {
                let (p0, p1, r0, r1) = grid.task(product, i);
                let task = Task { product, out, m0: start + r0, m1: (start + r1).min(end), p0, p1 };
                let activations = &operand[r0 / rows * shape.block_len()..];
                with_scratch(scratch_len(&task, blocks, rows), |scratch| {
                    dispatch_dot(isa, Multiply { task, blocks, activations, shape, scratch });
                });
            })
        })?;
    }
    Ok(())
}

/// How rounded activations lie in memory, in blocks of `rows` rows: bytes `[K / 4][rows][4]`, then scales and then sums
/// `[groups][rows]`, as [`DotTile`] describes them.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    groups: usize,
    k: usize,
}

impl Shape {
    /// Floats that the bytes take.
    fn bytes_len(self) -> usize {
        Carve::padded(self.k / 4 * self.rows)
    }

    /// Floats that the scales take, and the sums.
    fn scales_len(self) -> usize {
        Carve::padded(self.groups * self.rows)
    }

    fn block_len(self) -> usize {
        self.bytes_len() + 2 * self.scales_len()
    }
}

/// How a product is cut into tasks: columns, and rows only where columns are too few.
struct Grid {
    panels: usize,
    rows: usize,
    row_chunks: usize,
    panel_chunks: usize,
}

impl Grid {
    fn new(product: &Product<'_>, threads: usize, m: usize, block_rows: usize) -> Grid {
        let panels = product.columns.panels();
        let unit = if product.columns.halves { 2 } else { 1 };
        let work = m.max(FREE_ROWS).saturating_mul(product.columns.n).saturating_mul(product.k);
        let wanted = if threads == 1 { 1 } else { (work / TASK_WORK).clamp(1, threads * 4) };
        let chunk = panels.div_ceil(wanted).next_multiple_of(unit);
        let panel_chunks = panels.div_ceil(chunk);
        let blocks = m.div_ceil(block_rows);
        let row_chunks = (wanted / panel_chunks).clamp(1, blocks);
        let rows = blocks.div_ceil(row_chunks) * block_rows;
        Grid { panels: chunk, rows, row_chunks: m.div_ceil(rows), panel_chunks }
    }

    fn tasks(&self) -> usize {
        self.row_chunks * self.panel_chunks
    }

    /// Panels and rows of task `i`.
    fn task(&self, product: &Product<'_>, i: usize) -> (usize, usize, usize, usize) {
        let (pc, rc) = (i / self.row_chunks, i % self.row_chunks);
        let (p0, r0) = (pc * self.panels, rc * self.rows);
        (p0, (p0 + self.panels).min(product.columns.panels()), r0, r0 + self.rows)
    }
}

/// Rounds rows of activations into `operand`.
fn round_rows(
    x: &[f32],
    blocks: &Blocks,
    cpu: &Cpu,
    isa: Isa,
    shape: Shape,
    operand: &mut [f32],
) -> Result<()> {
    let k = shape.k;
    let one = |x: &[f32], block: &mut [f32]| dispatch_dot(isa, Round { x, block, shape, blocks });
    let parts = operand.chunks_exact_mut(shape.block_len());
    if x.len() <= ROUND_ALONE {
        x.chunks((shape.rows * k).max(1)).zip(parts).for_each(|(x, block)| one(x, block));
        return Ok(());
    }
    let count = parts.len();
    let operand = SharedMut::new(operand);
    cpu.threads().run_ranges(count, 1, |from, to| {
        for i in from..to {
            // SAFETY: each block of rows has its own part.
            let block = unsafe { operand.part(i * shape.block_len(), shape.block_len()) };
            one(&x[i * shape.rows * k..((i + 1) * shape.rows * k).min(x.len())], block);
        }
    })
}

/// Rounds up to `shape.rows` rows to a block.
struct Round<'a> {
    x: &'a [f32],
    block: &'a mut [f32],
    shape: Shape,
    blocks: &'a Blocks,
}

impl DotKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let s = d.simd();
        let (shape, group) = (self.shape, self.blocks.layout.group);
        let (bytes, rest) = self.block.split_at_mut(shape.bytes_len());
        let words: &mut [u32] = bytemuck::cast_slice_mut(bytes);
        let scales = &mut rest[..shape.scales_len()];
        for (r, x) in self.x.chunks_exact(shape.k).enumerate().take(D::ROWS) {
            let mut poison = s.splat(0.0);
            for (part, x) in x.chunks(ROUND_AT_ONCE).enumerate() {
                let mut rounded = [0u32; ROUND_AT_ONCE / 4];
                let bytes = rounded.as_mut_ptr().cast::<i8>();
                let of_part = scales[part * ROUND_AT_ONCE / group * D::ROWS..].chunks_exact_mut(D::ROWS);
                for ((g, x), scales) in x.chunks_exact(group).enumerate().zip(of_part) {
                    // SAFETY: group `g` of the part has its own bytes; it has a multiple of LANES elements.
                    let (scale, of_group) = unsafe { round_group(s, x, bytes.add(g * group)) };
                    poison = s.add(poison, of_group);
                    scales[r] = scale;
                }
                let of_part = words[part * ROUND_AT_ONCE / 4 * D::ROWS..].chunks_exact_mut(D::ROWS);
                for (words, &word) in of_part.zip(&rounded[..x.len() / 4]) {
                    words[r] = word;
                }
            }
            if s.sum(poison).is_nan() {
                // The row's outputs are NaN, as they are in f32 but for sums of infinities.
                scales.iter_mut().skip(r).step_by(D::ROWS).for_each(|scale| *scale = f32::NAN);
            }
        }
        sum_groups(d, self.blocks, shape, self.block);
    }
}

/// Rounds a group to `out`; its scale, and a vector that has NaN in it if the group has NaN or an infinity.
///
/// # Safety
/// `out` has room for as many bytes as `x` has floats, a multiple of LANES.
#[inline(always)]
unsafe fn round_group<S: Simd>(s: S, x: &[f32], out: *mut i8) -> (f32, S::V) {
    // 1.5 * 2^23: adding it leaves a float whose last bit counts ones.
    let magic = s.splat(12_582_912.0);
    let (mut largest, mut poison) = (s.splat(0.0), s.splat(0.0));
    for x in x.chunks_exact(S::LANES) {
        // SAFETY: `x` has LANES floats.
        let v = unsafe { s.load(x.as_ptr()) };
        largest = s.max(s.max(v, s.sub(s.splat(0.0), v)), largest);
        // The maximum may overlook NaN.
        poison = s.fma(v, s.splat(0.0), poison);
    }
    let largest = s.max_lane(largest);
    let (scale, inverse) =
        if largest < TINY { (0.0, 0.0) } else { (largest * (1.0 / 127.0), 127.0 / largest) };
    for (i, x) in x.chunks_exact(S::LANES).enumerate() {
        // SAFETY: `x` has LANES floats; the contract of `out`.
        unsafe {
            let q = s.mul(s.load(x.as_ptr()), s.splat(inverse));
            s.store_i8(out.add(i * S::LANES), s.sub(s.add(q, magic), magic));
        }
    }
    (scale, poison)
}

/// The sums of all groups of a block of rows, as [`DotTile::x_sums`] wants them: a lane is a row.
#[inline(always)]
fn sum_groups<D: Dot>(d: D, blocks: &Blocks, shape: Shape, block: &mut [f32]) {
    let (s, layout) = (d.simd(), blocks.layout);
    // What stored quanta are too large by.
    let excess = if blocks.biased { -128 } else { -i32::from(blocks.offset) };
    let (operands, sums) = block.split_at_mut(shape.bytes_len() + shape.scales_len());
    let chunks = layout.group / 4;
    for g in 0..shape.groups {
        for first in (0..D::ROWS).step_by(D::S::LANES) {
            let rows = D::S::LANES.min(D::ROWS - first);
            let mut acc = s.splat_i32(0);
            for j in 0..chunks {
                let at = (g * chunks + j) * D::ROWS + first;
                let word = &operands[at..at + D::S::LANES];
                // SAFETY: LANES words. What lies beyond the rows is summed too, and not used.
                acc = d.dot::<false>(acc, s.splat_i32(0x0101_0101), unsafe {
                    s.load_bytes(word.as_ptr().cast())
                });
            }
            let mut lanes = [0i32; MAX_LANES];
            // SAFETY: there are at least LANES.
            unsafe { s.store_bytes(lanes.as_mut_ptr().cast(), acc) };
            for (r, &sum) in (first..).zip(&lanes[..rows]) {
                let at = g * D::ROWS + r;
                sums[at] = if layout.mins {
                    operands[shape.bytes_len() + at] * sum as f32
                } else {
                    f32::from_bits(excess.wrapping_mul(sum) as u32)
                };
            }
        }
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

/// Units of a panel that are multiplied at a time.
fn units_at_once(task: &Task<'_>, blocks: &Blocks, rows: usize) -> usize {
    let all = task.product.k / blocks.layout.block;
    if task.m1 - task.m0 <= rows { (FEW_ROWS_K / blocks.layout.block).min(all) } else { all }
}

/// Floats of scratch: the sums of a block of rows and, of one panel or of a gated unit's two, quanta, scales and minima.
fn scratch_len(task: &Task<'_>, blocks: &Blocks, rows: usize) -> usize {
    let np = task.product.columns.panel;
    let (units, layout) = (units_at_once(task, blocks, rows), blocks.layout);
    let quanta = Carve::padded(units * layout.block * np / 4);
    let scales = Carve::padded(units * layout.groups() * np);
    Carve::padded(2 * rows * np) + 2 * (quanta + 2 * scales)
}

/// The work of a task.
struct Multiply<'a, 'b> {
    task: Task<'a>,
    blocks: &'a Blocks,
    /// From the block of the task's first row on.
    activations: &'a [f32],
    shape: Shape,
    scratch: &'b mut [f32],
}

impl DotKernel for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let layout = self.blocks.layout;
        match (self.blocks.wide, layout.group, layout.mins) {
            (true, _, _) => self.multiply::<D, Wide32>(d),
            (_, _, true) => self.multiply::<D, SmallMins32>(d),
            (_, 16, _) => self.multiply::<D, Small16>(d),
            _ => self.multiply::<D, Small32>(d),
        }
    }
}

/// A panel's weights, or a part of them along K, ready to multiply.
struct Panel<'a> {
    quanta: &'a mut [u8],
    scales: &'a mut [f32],
    mins: &'a mut [f32],
}

impl Multiply<'_, '_> {
    #[inline(always)]
    fn multiply<D: Dot, G: crate::simd::Group>(self, d: D) {
        let (task, blocks, s) = (self.task, self.blocks, d.simd());
        let np = task.product.columns.panel;
        let at_once = units_at_once(&task, blocks, D::ROWS);
        let all = task.product.k / blocks.layout.block;
        let pair = if task.product.epilogue.activation == Activation::Glu { 2 } else { 1 };
        let mut carve = Carve::new(self.scratch);
        let sums = carve.take(2 * D::ROWS * np);
        let mut panels: [Panel<'_>; 2] = std::array::from_fn(|_| Panel {
            quanta: bytemuck::cast_slice_mut(carve.take(at_once * blocks.layout.block * np / 4)),
            scales: carve.take(at_once * blocks.layout.groups() * np),
            mins: carve.take(at_once * blocks.layout.groups() * np),
        });
        if task.m1 - task.m0 == 1 {
            let (bytes, rest) = self.activations.split_at(self.shape.bytes_len());
            let (x_scales, x_sums) = rest.split_at(self.shape.scales_len());
            let x = Row { bytes, scales: x_scales, sums: x_sums };
            for p in (task.p0..task.p1).step_by(pair) {
                sums[..pair * np].fill(0.0);
                for i in 0..pair {
                    row::panel::<D, G>(d, blocks, p + i, x, &mut sums[i * np..]);
                }
                // SAFETY: as below.
                unsafe { task.product.finish(s, task.out, task.m0, 1, p, pair, sums, pair * np) };
            }
            return;
        }
        for p in (task.p0..task.p1).step_by(pair) {
            // All of K at once, or a part of it for a single block of rows.
            for u0 in (0..all).step_by(at_once.max(1)) {
                let units = at_once.min(all - u0);
                for (i, panel) in panels.iter_mut().enumerate().take(pair) {
                    unpack(s, blocks, p + i, u0..u0 + units, panel);
                }
                let blocks_of_rows = (task.m0..task.m1).step_by(D::ROWS);
                // What follows lies behind these panels, and is another task's from `p1` on.
                let more = p + pair < task.p1 && units == all;
                let next = if more { blocks.stored(0, task.product.k, p + pair) } else { &[] };
                let groups = units * blocks.layout.groups();
                let calls = blocks_of_rows.len() * pair;
                let ahead = (pair * next.len()).div_ceil(calls * groups).next_multiple_of(LINE);
                let mut fetched = 0;
                for (m, x) in blocks_of_rows.zip(self.activations.chunks_exact(self.shape.block_len())) {
                    let rows = D::ROWS.min(task.m1 - m);
                    if u0 == 0 {
                        sums[..rows * pair * np].fill(0.0);
                    }
                    for (i, panel) in panels.iter().enumerate().take(pair) {
                        let mut tile = tile_of::<D>(blocks, p + i, u0, panel, x, self.shape);
                        tile.groups = groups;
                        if fetched < pair * next.len() {
                            (tile.next, tile.ahead) = (next.as_ptr().wrapping_add(fetched), ahead);
                            fetched += groups * ahead;
                        }
                        tile.c = sums[i * np..].as_mut_ptr();
                        tile.ldc = pair * np;
                        // SAFETY: `tile_of` took the operands from slices with as many groups; the sums have ROWS rows
                        // of `pair` panels.
                        unsafe { d.tile::<G>(rows, &tile) };
                    }
                    if u0 + units == all {
                        // SAFETY: tasks have disjoint rows or columns, and a panel's columns belong to one task.
                        unsafe { task.product.finish(s, task.out, m, rows, p, pair, sums, pair * np) };
                    }
                }
            }
        }
    }
}

/// Unpacks `units` of a panel; quanta that are multiplied where they are stay there.
#[inline(always)]
fn unpack<S: Simd>(s: S, blocks: &Blocks, p: usize, units: std::ops::Range<usize>, panel: &mut Panel<'_>) {
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
    let group = u0 * layout.groups() * D::ROWS;
    DotTile {
        w,
        stride,
        scales: panel.scales.as_ptr(),
        mins: panel.mins.as_ptr(),
        x: bytes[u0 * layout.block / 4 * D::ROWS..].as_ptr().cast(),
        x_scales: scales[group..].as_ptr(),
        x_sums: sums[group..].as_ptr(),
        groups: 0,
        next: std::ptr::null(),
        ahead: 0,
        c: std::ptr::null_mut(),
        ldc: 0,
    }
}
