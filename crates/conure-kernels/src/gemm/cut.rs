//! How a product is shared out: blocks of rows, each copied once by a worker, against panels of columns.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Product;
use crate::isa::TileSize;
use crate::simd::{TILE_K, TILE_STRIDE, panels_at_once};

/// Multiply-adds that are worth a worker: about 10 us.
const WORKER_WORK: usize = 1 << 20;

/// Rows that take as long as it takes to fetch the weights: 85 multiply-adds against 6 weights of f32 a nanosecond.
const FREE_ROWS: usize = 13;

/// Tiles of rows in a block, if there are enough: against fewer the panels would stream from memory faster than one core
/// can fetch them.
const BLOCK_TILES: usize = 6;

/// Blocks of rows for each worker: one that is held up leaves its last blocks to the others.
const BLOCKS_PER_WORKER: usize = 4;

/// The same where each block widens all weights anew: the more rows a block has, the less that is of its work.
const WIDENED_BLOCKS_PER_WORKER: usize = 2;

/// Tiles of whole rows in a block that are too few, since each block reads all panels anew: K is multiplied in parts then, of which
/// more tiles fit. 93 rows by 1024 x 4096 go at 180 GFLOP/s on one core so, and at 158 in three blocks; 750 rows at 172 and 167, in
/// f16 at 169 and 148 (best of 4 s in turns).
const FEW_TILES: usize = 3;

/// Tiles of a block whose K is multiplied in parts.
const PART_TILES: usize = 12;

/// Floats of sums at most that wait for the next part of K: 4 MB.
const PART_SUMS: usize = 1 << 20;

/// Claims for each worker.
const CLAIMS_PER_WORKER: usize = 16;

/// Counters that claims are taken from.
const COUNTERS: usize = 64;

/// The sizes that a product is cut into: rows into blocks, panels into segments where there are fewer blocks than workers,
/// and segments into claims. A worker stays in its own blocks and segment as long as there is something left, because it
/// fetches the next panel while it computes with one.
pub(super) struct Cut {
    /// Threads that take part.
    pub(super) workers: usize,
    /// Rows of a block; its copy stays in the second-level cache.
    pub(super) rows: usize,
    blocks: usize,
    /// Panels of the product.
    panels: usize,
    segments: usize,
    /// Panels of a segment.
    segment: usize,
    /// Panels of a claim.
    chunk: usize,
    /// Groups of blocks, each with a counter for each segment.
    groups: usize,
    /// How much of K is multiplied at a time, whole [`TILE_K`]: all, or a part.
    pub(super) k: usize,
}

/// A block of rows against some panels.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) block: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Where a worker takes its claims from.
pub(super) struct Cursor {
    counter: usize,
    /// Counters that may have something left.
    left: usize,
}

/// What is claimed so far.
pub(super) struct Claims([AtomicUsize; COUNTERS]);

impl Default for Claims {
    fn default() -> Claims {
        Claims([const { AtomicUsize::new(0) }; COUNTERS])
    }
}

impl Cut {
    pub(super) fn new(product: &Product<'_>, size: TileSize, threads: usize) -> Cut {
        let (m, k) = (product.m, product.k);
        let work = m.max(FREE_ROWS).saturating_mul(product.columns.n).saturating_mul(k);
        let workers = (work / WORKER_WORK).clamp(1, threads);
        let (tiles, k_blocks) = (m.div_ceil(size.rows), k.div_ceil(TILE_K).max(1));
        // What fits: tiles, times blocks of K.
        let room = size.chunk_bytes / (size.rows * TILE_STRIDE * 4);
        let whole = (room / k_blocks).max(1);
        let sums = m.saturating_mul(product.columns.panels() * product.columns.panel);
        let in_parts = whole <= FEW_TILES && tiles > whole && sums <= PART_SUMS;
        let least = tiles.div_ceil(if in_parts { PART_TILES } else { whole });
        let per_worker = if product.widened() { WIDENED_BLOCKS_PER_WORKER } else { BLOCKS_PER_WORKER };
        let wanted = if workers == 1 { 1 } else { (tiles / BLOCK_TILES).min(workers * per_worker) };
        let rows = m.div_ceil(wanted.max(least).max(1));

        // Tiles of one or two rows take several panels at once.
        let unit = panels_at_once(m).next_multiple_of(product.columns.unit());
        let mut cut = Cut::of(workers, m, rows, product.columns.panels(), unit);
        if in_parts {
            let most = (room / rows.div_ceil(size.rows)).max(1);
            cut.k = k_blocks.div_ceil(k_blocks.div_ceil(most)) * TILE_K;
        }
        cut
    }

    /// `m` rows in blocks of `rows`, and `panels` that stay together by `unit`, for `workers`.
    pub(super) fn of(workers: usize, m: usize, rows: usize, panels: usize, unit: usize) -> Cut {
        let blocks = m.div_ceil(rows);
        let segments = workers.div_ceil(blocks).min((COUNTERS / blocks).max(1));
        let segment = panels.div_ceil(segments).next_multiple_of(unit);
        let segments = panels.div_ceil(segment);
        let chunks = if workers == 1 { 1 } else { (workers * CLAIMS_PER_WORKER / blocks / segments).max(1) };
        let chunk = segment.div_ceil(chunks).next_multiple_of(unit);
        let groups = blocks.min(COUNTERS / segments);
        Cut { workers, rows, blocks, panels, segments, segment, chunk, groups, k: usize::MAX }
    }

    fn counters(&self) -> usize {
        self.groups * self.segments
    }

    /// Where worker `worker` begins: each at claims of its own.
    pub(super) fn begin(&self, worker: usize) -> Cursor {
        Cursor { counter: worker * self.counters() / self.workers, left: self.counters() }
    }

    /// The next claim, or `None` when nothing is left.
    pub(super) fn claim(&self, claims: &Claims, at: &mut Cursor) -> Option<Claim> {
        while at.left > 0 {
            let (group, segment) = (at.counter / self.segments, at.counter % self.segments);
            let start = segment * self.segment;
            let end = (start + self.segment).min(self.panels);
            let chunks = (end - start).div_ceil(self.chunk);
            let claim = claims.0[at.counter].fetch_add(1, Ordering::Relaxed);
            let block = self.first_block(group) + claim / chunks;
            if block < self.first_block(group + 1) {
                let from = start + claim % chunks * self.chunk;
                return Some(Claim { block, from, to: (from + self.chunk).min(end) });
            }
            at.counter = (at.counter + 1) % self.counters();
            at.left -= 1;
        }
        None
    }

    fn first_block(&self, group: usize) -> usize {
        group * self.blocks / self.groups
    }
}
