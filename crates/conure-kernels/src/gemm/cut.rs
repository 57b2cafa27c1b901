//! How a product is shared out: blocks of rows, each copied once by a worker, against panels of columns.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Product;
use crate::isa::TileSize;
use crate::simd::{TILE_K, TILE_STRIDE};

/// Multiply-adds that are worth waking a worker for: about 10 us.
const WORKER_WORK: usize = 1 << 20;

/// Tiles of rows in a block, if there are enough: against fewer the panels would stream from memory faster than one core
/// can fetch them.
const BLOCK_TILES: usize = 6;

/// Blocks of rows for each worker: one that is held up leaves its last blocks to the others.
const BLOCKS_PER_WORKER: usize = 4;

/// Claims for each worker.
const CLAIMS_PER_WORKER: usize = 16;

/// Counters that claims are taken from.
const COUNTERS: usize = 64;

/// The sizes that a product is cut into.
pub(super) struct Cut {
    /// Threads that take part.
    pub(super) workers: usize,
    /// Rows of a block; its copy stays in the second-level cache.
    pub(super) rows: usize,
    blocks: usize,
    /// Panels of a claim.
    panels: usize,
    /// Claims that a block is made of.
    chunks: usize,
    counters: usize,
    /// Panels of the product.
    all: usize,
}

/// Where a worker takes its claims from.
pub(super) struct Cursor {
    counter: usize,
    /// Counters that may have something left.
    left: usize,
}

/// What is claimed so far, for each group of blocks.
pub(super) struct Claims([AtomicUsize; COUNTERS]);

impl Default for Claims {
    fn default() -> Claims {
        Claims([const { AtomicUsize::new(0) }; COUNTERS])
    }
}

impl Cut {
    pub(super) fn new(product: &Product<'_>, size: TileSize, threads: usize) -> Cut {
        let (m, k) = (product.m, product.k);
        let work = m.saturating_mul(product.columns.n).saturating_mul(k);
        let workers = (work / WORKER_WORK).clamp(1, threads);
        let tile_bytes = k.div_ceil(TILE_K).max(1) * size.rows * TILE_STRIDE * 4;
        let tiles = m.div_ceil(size.rows);
        let least = tiles.div_ceil((size.chunk_bytes / tile_bytes).max(1));
        let wanted = if workers == 1 { 1 } else { (tiles / BLOCK_TILES).min(workers * BLOCKS_PER_WORKER) };
        let rows = m.div_ceil(wanted.max(least).max(1));
        let blocks = m.div_ceil(rows);
        let unit = if product.columns.halves { 2 } else { 1 };
        let all = product.columns.panels();
        let chunks = if workers == 1 { 1 } else { (workers * CLAIMS_PER_WORKER / blocks).max(1) };
        let panels = all.div_ceil(chunks).next_multiple_of(unit);
        Cut {
            workers,
            rows,
            blocks,
            panels,
            chunks: all.div_ceil(panels),
            counters: blocks.min(COUNTERS),
            all,
        }
    }

    /// Where worker `worker` begins: at blocks of its own; it helps with the others' in the end.
    pub(super) fn begin(&self, worker: usize) -> Cursor {
        Cursor { counter: worker * self.counters / self.workers, left: self.counters }
    }

    /// The next claim, `(block, first panel, end)`, or `None` when nothing is left.
    #[inline(always)]
    pub(super) fn claim(&self, claims: &Claims, at: &mut Cursor) -> Option<(usize, usize, usize)> {
        while at.left > 0 {
            let (start, end) = (self.group(at.counter), self.group(at.counter + 1));
            let claim = claims.0[at.counter].fetch_add(1, Ordering::Relaxed);
            let (block, chunk) = (start + claim / self.chunks, claim % self.chunks);
            if block < end {
                return Some((block, chunk * self.panels, ((chunk + 1) * self.panels).min(self.all)));
            }
            at.counter = (at.counter + 1) % self.counters;
            at.left -= 1;
        }
        None
    }

    /// The first block of a counter.
    fn group(&self, counter: usize) -> usize {
        counter * self.blocks / self.counters
    }
}
