//! Many queries: blocks of keys are packed once per task and meet its rows in the tiles of the matrix products.

use super::cache::Cache;
use super::softmax::{Running, step};
use super::{KEYS, Sdpa};
use crate::buffer::{Carve, SharedMut, with_scratch};
use crate::isa::{Kernel, dispatch};
use crate::simd::{F32Panel, MAX_TILE_ROWS, Simd, TILE_STRIDE, pack_columns};
use crate::weighted::{Seen, ValueRows, Values, padded};
use crate::{Cpu, Result};

/// The most rows (a token and one of its query heads) of a task; they share the packing of the keys.
const ROWS: usize = 256;

/// Floats of working memory for tasks of up to `rows` rows.
fn room(rows: usize, head_dim: usize, value_dim: usize) -> usize {
    Carve::padded(MAX_TILE_ROWS * TILE_STRIDE) * 2
        + Carve::padded(KEYS * head_dim) * 2
        + Values::room(KEYS, value_dim)
        + Carve::padded(rows * padded(value_dim))
        + 2 * Carve::padded(rows)
}

/// Tokens `t0..t1` of the query heads that share one key head of one item.
#[derive(Clone, Copy)]
struct Task<'a> {
    args: &'a Sdpa<'a>,
    k: Cache<'a>,
    v: Cache<'a>,
    out: SharedMut<'a, f32>,
    b: usize,
    head: usize,
    t0: usize,
    t1: usize,
}

struct TaskKernel<'a, 'b> {
    task: Task<'a>,
    scratch: &'b mut [f32],
}

/// A task's working memory.
struct Scratch<'b> {
    /// `[TILE_ROWS][TILE_STRIDE]`: the queries of a tile.
    queries: &'b mut [f32],
    /// `[TILE_ROWS][TILE_STRIDE]`: scores of a tile and a block of keys, then their exponentials.
    scores: &'b mut [f32],
    /// `[key][K]`, widened.
    plain: &'b mut [f32],
    /// `[panel of keys][K][PANEL]`.
    keys: &'b mut [f32],
    values: Values<'b>,
    /// `[rows][padded J]`: weighted sums so far.
    sums: &'b mut [f32],
    largest: &'b mut [f32],
    total: &'b mut [f32],
}

/// The values of one head of one item, from row `start` of the cache on.
struct Rows<'a> {
    cache: Cache<'a>,
    item: usize,
    head: usize,
    start: usize,
}

impl ValueRows for Rows<'_> {
    #[inline(always)]
    fn copy<S: Simd>(&self, s: S, j: usize, d: usize, out: &mut [f32]) {
        self.cache.row(self.item, self.start + j, self.head).widen(s, d, out);
    }
}

pub(super) fn run(args: &Sdpa<'_>, cpu: &Cpu, k: Cache<'_>, v: Cache<'_>, out: &mut [f32]) -> Result<()> {
    let (group, batch, tokens) = (args.group(), args.batch(), args.tokens);
    let lanes = cpu.threads().count();
    let most = (ROWS / group).max(1);
    // Enough tasks for all threads, also when there are few heads.
    let wanted = (4 * lanes).div_ceil(batch * args.key_heads);
    let per_task = if lanes == 1 { most } else { tokens.div_ceil(wanted).clamp(1, most) };
    let groups = tokens.div_ceil(per_task);
    let out = SharedMut::new(out);
    let len = room(per_task * group, args.head_dim, args.value_dim);
    cpu.threads().run(batch * args.key_heads * groups, |task, _| {
        let (item, i) = (task / groups, task % groups);
        let (b, head) = (item / args.key_heads, item % args.key_heads);
        let (t0, t1) = (i * per_task, ((i + 1) * per_task).min(tokens));
        let task = Task { args, k, v, out, b, head, t0, t1 };
        with_scratch(len, |scratch| dispatch(cpu.isa(), TaskKernel { task, scratch }));
    })
}

impl Kernel for TaskKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TaskKernel { task, scratch } = self;
        let Task { args, b, t0, t1, .. } = task;
        let rows = (t1 - t0) * args.group();
        let mut carve = Carve::new(scratch);
        let mut scratch = Scratch {
            queries: carve.take(MAX_TILE_ROWS * TILE_STRIDE),
            scores: carve.take(MAX_TILE_ROWS * TILE_STRIDE),
            plain: carve.take(KEYS * args.head_dim),
            keys: carve.take(KEYS * args.head_dim),
            values: Values::carve(&mut carve, KEYS, args.value_dim),
            sums: carve.take(rows * padded(args.value_dim)),
            largest: carve.take(rows),
            total: carve.take(rows),
        };
        scratch.sums.fill(0.0);
        scratch.total.fill(0.0);
        scratch.largest.fill(f32::NEG_INFINITY);
        let first = args.visible(b, t0).0;
        let last = args.visible(b, t1 - 1).1;
        let mut start = first - first % KEYS;
        while start < last {
            let end = (start + KEYS).min(last);
            task.pack(s, (start, end), &mut scratch);
            for i in (0..rows).step_by(S::TILE_ROWS) {
                task.tile(s, (start, end), i, S::TILE_ROWS.min(rows - i), &mut scratch);
            }
            start += KEYS;
        }
        task.store(&scratch);
    }
}

impl Task<'_> {
    /// Token and query head of row `i`.
    #[inline(always)]
    fn row(&self, i: usize) -> (usize, usize) {
        let group = self.args.group();
        (self.t0 + i / group, self.head * group + i % group)
    }

    /// Packs the keys and values of a block.
    #[inline(always)]
    fn pack<S: Simd>(&self, s: S, (start, end): (usize, usize), scratch: &mut Scratch<'_>) {
        let Sdpa { head_dim, .. } = *self.args;
        let count = end - start;
        for (j, row) in scratch.plain.chunks_exact_mut(head_dim).enumerate().take(count) {
            self.k.row(self.b, start + j, self.head).widen(s, 0, row);
        }
        for p in (0..count).step_by(S::PANEL) {
            let (width, panel) = (S::PANEL.min(count - p), &mut scratch.keys[p * head_dim..]);
            let panel = &mut panel[..head_dim * S::PANEL];
            // SAFETY: rows p .. p + width of `plain` have head_dim floats each, the panel head_dim * PANEL.
            unsafe {
                let from = scratch.plain[p * head_dim..].as_ptr();
                pack_columns(s, width, head_dim, from, head_dim, panel.as_mut_ptr());
            }
        }
        scratch.values.pack(s, count, Rows { cache: self.v, item: self.b, head: self.head, start });
    }

    /// Rows `i..i + rows` against a block of keys.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        s: S,
        (start, end): (usize, usize),
        i: usize,
        rows: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let Sdpa { head_dim, value_dim, tokens, heads, .. } = *self.args;
        let lo = self.args.visible(self.b, self.row(i).0).0.max(start);
        let hi = self.args.visible(self.b, self.row(i + rows - 1).0).1.min(end);
        if lo >= hi {
            return;
        }
        // Whole panels of keys, relative to the block.
        let from = (lo - start) / S::PANEL * S::PANEL;
        let to = (hi - start).next_multiple_of(S::PANEL);
        for r in 0..rows {
            let (t, h) = self.row(i + r);
            let query = &self.args.q[((self.b * tokens + t) * heads + h) * head_dim..][..head_dim];
            scratch.queries[r * TILE_STRIDE..][..head_dim].copy_from_slice(query);
        }
        for j in (from..to).step_by(S::PANEL) {
            let b = F32Panel::new(scratch.keys[j * head_dim..][..head_dim * S::PANEL].as_ptr());
            let c = scratch.scores[j..].as_mut_ptr();
            // SAFETY: the queries have `rows` rows of head_dim <= TILE_K, the panel head_dim rows, the scores TILE_ROWS rows
            // of TILE_STRIDE, in which column j + PANEL <= KEYS lies.
            unsafe { s.tile(rows, 1, scratch.queries.as_ptr(), b, head_dim, c, TILE_STRIDE, false) };
        }
        let mut seen: [Seen; MAX_TILE_ROWS] = [(0, 0); MAX_TILE_ROWS];
        for (r, seen) in seen.iter_mut().enumerate().take(rows) {
            let (row_lo, row_hi) = self.args.visible(self.b, self.row(i + r).0);
            let clip = |j: usize| (j.clamp(start, end) - start).clamp(from, to);
            *seen = (clip(row_lo), clip(row_hi));
            let scores = &mut scratch.scores[r * TILE_STRIDE..][from..to];
            let mut running = Running { largest: scratch.largest[i + r], total: scratch.total[i + r] };
            let in_scores = (seen.0 - from, seen.1 - from);
            let factor = step(s, self.args.rule(), in_scores, scores, &mut running);
            (scratch.largest[i + r], scratch.total[i + r]) = (running.largest, running.total);
            if factor != 1.0 {
                let sums = &mut scratch.sums[(i + r) * padded(value_dim)..][..padded(value_dim)];
                sums.iter_mut().for_each(|v| *v *= factor);
            }
        }
        let sums = &mut scratch.sums[i * padded(value_dim)..];
        scratch.values.add(s, scratch.scores, (from, to), &seen[..rows], sums);
    }

    /// Divides the sums by the totals and stores them.
    #[inline(always)]
    fn store(&self, scratch: &Scratch<'_>) {
        let Sdpa { tokens, heads, value_dim, .. } = *self.args;
        for i in 0..(self.t1 - self.t0) * self.args.group() {
            let (t, h) = self.row(i);
            let running = Running { largest: scratch.largest[i], total: scratch.total[i] };
            let factor = running.finish(self.args.sink(h));
            // SAFETY: tasks have disjoint tokens or heads.
            let out = unsafe { self.out.part(((self.b * tokens + t) * heads + h) * value_dim, value_dim) };
            let (lo, hi) = self.args.visible(self.b, t);
            if lo == hi {
                out.fill(0.0);
                continue;
            }
            for (out, sum) in out.iter_mut().zip(&scratch.sums[i * padded(value_dim)..]) {
                *out = sum * factor;
            }
        }
    }
}
