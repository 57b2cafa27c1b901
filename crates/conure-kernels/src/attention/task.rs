//! One task of attention: some rows of one head against all keys they see, block by block.

use super::softmax::{Range, softmax_step};
use super::{KEYS, RelPosAttention};
use crate::buffer::{Carve, SharedMut};
use crate::isa::Kernel;
use crate::simd::{F32Panel, MAX_PANEL, MAX_TILE_ROWS, Simd, TILE_STRIDE, pack_columns};
use crate::weighted::{Seen, ValueRows, Values, padded};

/// Rows of the packed window of positions: one for each difference of a task's rows and a block's keys.
const fn window(rows: usize) -> usize {
    padded(rows + KEYS) + MAX_PANEL
}

/// Columns of the tile of position scores.
const POSITIONS: usize = padded(KEYS + MAX_TILE_ROWS) + 2 * MAX_PANEL;

/// Floats of working memory for tasks of up to `rows` rows.
pub(super) fn scratch_len(rows: usize, dk: usize) -> usize {
    Carve::padded(MAX_TILE_ROWS * TILE_STRIDE) * 3
        + Carve::padded(MAX_TILE_ROWS * POSITIONS)
        + Carve::padded(KEYS * dk)
        + Carve::padded(window(rows) * dk)
        + Values::room(KEYS, dk)
        + Carve::padded(rows * padded(dk))
        + 2 * Carve::padded(rows)
}

/// Rows `r0..r1` of one head of one item; all are valid. Rows and keys count from the first frame of the context.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) args: &'a RelPosAttention<'a>,
    pub(super) out: SharedMut<'a, f32>,
    /// The item of the batch.
    pub(super) b: usize,
    pub(super) head: usize,
    /// The item's first key that is there, and one past its last.
    pub(super) first: usize,
    pub(super) valid: usize,
    pub(super) r0: usize,
    pub(super) r1: usize,
}

/// A task with its working memory of [`scratch_len`] for `rows`.
pub(super) struct TaskKernel<'a, 'b> {
    pub(super) task: Task<'a>,
    pub(super) rows: usize,
    pub(super) scratch: &'b mut [f32],
}

/// A task's working memory.
struct Scratch<'b> {
    /// `[TILE_ROWS][TILE_STRIDE]`: q + u of the tile.
    q_content: &'b mut [f32],
    /// `[TILE_ROWS][TILE_STRIDE]`: q + v of the tile.
    q_position: &'b mut [f32],
    /// `[TILE_ROWS][TILE_STRIDE]`: scores of the tile and the block of keys, then their exponentials.
    scores: &'b mut [f32],
    /// `[TILE_ROWS][POSITIONS]`: position scores.
    shifted: &'b mut [f32],
    /// `[panel of keys][dk][PANEL]`.
    keys: &'b mut [f32],
    /// `[panel of window][dk][PANEL]`.
    positions: &'b mut [f32],
    values: Values<'b>,
    /// `[rows][padded dk]`: weighted sums so far.
    sums: &'b mut [f32],
    /// `[rows]`: largest score so far.
    largest: &'b mut [f32],
    /// `[rows]`: sum of exponentials so far.
    total: &'b mut [f32],
}

/// A block of keys `j0..j1` as seen by a task.
#[derive(Clone, Copy)]
struct Block {
    j0: usize,
    j1: usize,
    /// The position row (which may lie outside the table) in column 0 of the packed window.
    c0: isize,
}

impl Kernel for TaskKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TaskKernel { task, rows, scratch } = self;
        let (dk, mask) = (task.args.head_dim, task.args.mask);
        let mut carve = Carve::new(scratch);
        let tile = MAX_TILE_ROWS * TILE_STRIDE;
        let mut scratch = Scratch {
            q_content: carve.take(tile),
            q_position: carve.take(tile),
            scores: carve.take(tile),
            shifted: carve.take(MAX_TILE_ROWS * POSITIONS),
            keys: carve.take(KEYS * dk),
            positions: carve.take(window(rows) * dk),
            values: Values::carve(&mut carve, KEYS, dk),
            sums: carve.take(rows * padded(dk)),
            largest: carve.take(rows),
            total: carve.take(rows),
        };
        scratch.sums.fill(0.0);
        scratch.total.fill(0.0);
        scratch.largest.fill(f32::NEG_INFINITY);
        // Ranges move to the right with the query, so the first and the last row bound them.
        let first = task.visible(task.r0).0;
        let last = task.visible(task.r1 - 1).1;
        let mut start = first - first % KEYS;
        while start < last {
            let j0 = start.max(first - first % MAX_PANEL);
            let j1 = (start + KEYS).min(last);
            let c0 = j0 as isize - (task.r1 - 1) as isize + mask.offset(task.args.keys()) as isize;
            let block = Block { j0, j1, c0 };
            task.pack(s, block, &mut scratch);
            for i in (task.r0..task.r1).step_by(S::TILE_ROWS) {
                task.tile(s, block, i, S::TILE_ROWS.min(task.r1 - i), &mut scratch);
            }
            start += KEYS;
        }
        task.store(&scratch);
    }
}

impl Task<'_> {
    /// The keys that row `i` sees.
    #[inline(always)]
    fn visible(&self, i: usize) -> (usize, usize) {
        let (lo, hi) = self.args.mask.visible(i, self.valid);
        (lo.max(self.first), hi)
    }

    /// Row `i` of the queries and of the output.
    #[inline(always)]
    fn query_row(&self, i: usize) -> usize {
        self.b * self.args.frames + i - self.args.context
    }

    /// One head's part of row `t` of a `[.., H * dk]` tensor.
    #[inline(always)]
    fn head_row<'t>(&self, tensor: &'t [f32], t: usize) -> &'t [f32] {
        let dk = self.args.head_dim;
        &tensor[(t * self.args.heads + self.head) * dk..][..dk]
    }

    /// Packs the keys, values and positions of a block.
    #[inline(always)]
    fn pack<S: Simd>(&self, s: S, block: Block, scratch: &mut Scratch<'_>) {
        let RelPosAttention { k, v, positions, frames, head_dim: dk, mask, .. } = *self.args;
        let all = self.args.keys();
        let (base, stride) = (self.b * all, self.args.heads * dk);
        let count = block.j1 - block.j0;
        let keys = &k[base * stride + self.head * dk..];
        pack_rows(s, keys, stride, all, block.j0 as isize, count, dk, scratch.keys);
        let (table, differences) = (mask.positions(all, frames), count + self.r1 - self.r0 - 1);
        let positions = &positions[self.head * dk..];
        pack_rows(s, positions, stride, table, block.c0, differences, dk, scratch.positions);
        scratch.values.pack(
            s,
            count,
            Rows { tensor: &v[(base + block.j0) * stride + self.head * dk..], stride },
        );
    }

    /// Rows `i..i + rows` against a block of keys.
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S, block: Block, i: usize, rows: usize, scratch: &mut Scratch<'_>) {
        let dk = self.args.head_dim;
        let lo = self.visible(i).0.max(block.j0);
        let hi = self.visible(i + rows - 1).1.min(block.j1);
        if lo >= hi {
            return;
        }
        // Whole panels of keys, relative to the block.
        let from = (lo - block.j0) / S::PANEL * S::PANEL;
        let to = (hi - block.j0).next_multiple_of(S::PANEL);
        self.queries(i, rows, scratch);
        // Row r and key j (relative) meet position column j + shift - r of the packed window.
        let shift = self.r1 - 1 - i;
        let p_from = (from + shift + 1 - rows) / S::PANEL * S::PANEL;
        let p_to = (to + shift).next_multiple_of(S::PANEL);
        for j in (from..to).step_by(S::PANEL) {
            let b = F32Panel::new(scratch.keys[j * dk..][..dk * S::PANEL].as_ptr());
            let c = scratch.scores[j..].as_mut_ptr();
            // SAFETY: the q tile has `rows` rows of dk, the panel dk rows, and scores TILE_ROWS rows of TILE_STRIDE.
            unsafe { s.tile(rows, 1, scratch.q_content.as_ptr(), b, dk, c, TILE_STRIDE, false) };
        }
        for j in (p_from..p_to).step_by(S::PANEL) {
            let b = F32Panel::new(scratch.positions[j * dk..][..dk * S::PANEL].as_ptr());
            let c = scratch.shifted[j - p_from..].as_mut_ptr();
            // SAFETY: as above; p_to - p_from is at most POSITIONS.
            unsafe { s.tile(rows, 1, scratch.q_position.as_ptr(), b, dk, c, POSITIONS, false) };
        }
        let mut seen: [Seen; MAX_TILE_ROWS] = [(0, 0); MAX_TILE_ROWS];
        for (r, seen) in seen.iter_mut().enumerate().take(rows) {
            let (lo, hi) = self.visible(i + r);
            let clip = |j: usize| j.clamp(block.j0, block.j1) - block.j0;
            *seen = (clip(lo), clip(hi));
            let range = Range { from, to, lo: seen.0, hi: seen.1 };
            let scores = &mut scratch.scores[r * TILE_STRIDE..][..to];
            let shifted = &scratch.shifted[r * POSITIONS + from + shift - r - p_from..][..to - from];
            let row = i + r - self.r0;
            let sums = &mut scratch.sums[row * padded(dk)..][..padded(dk)];
            let (largest, total) = (&mut scratch.largest[row], &mut scratch.total[row]);
            softmax_step(s, self.scale(), range, scores, shifted, largest, total, sums);
        }
        let sums = &mut scratch.sums[(i - self.r0) * padded(dk)..];
        scratch.values.add(s, scratch.scores, (from, to), &seen[..rows], sums);
    }

    /// What turns a score into an exponent of two.
    fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.args.head_dim as f32).sqrt()
    }

    /// The queries `i..i + rows` with both biases.
    #[inline(always)]
    fn queries(&self, i: usize, rows: usize, scratch: &mut Scratch<'_>) {
        let RelPosAttention { q, bias_u, bias_v, head_dim: dk, .. } = *self.args;
        let (u, v) = (&bias_u[self.head * dk..][..dk], &bias_v[self.head * dk..][..dk]);
        for r in 0..rows {
            let q = self.head_row(q, self.query_row(i + r));
            let content = &mut scratch.q_content[r * TILE_STRIDE..][..dk];
            let position = &mut scratch.q_position[r * TILE_STRIDE..][..dk];
            for ((c, q), u) in content.iter_mut().zip(q).zip(u) {
                *c = q + u;
            }
            for ((p, q), v) in position.iter_mut().zip(q).zip(v) {
                *p = q + v;
            }
        }
    }

    /// Divides the sums by the totals and stores them.
    #[inline(always)]
    fn store(&self, scratch: &Scratch<'_>) {
        let RelPosAttention { heads, head_dim: dk, .. } = *self.args;
        for t in self.r0..self.r1 {
            let row = t - self.r0;
            let total = scratch.total[row];
            // A row sees itself at least: a total of 0 means scores of -infinity only, and no number comes of those.
            let factor = 1.0 / total;
            // SAFETY: tasks have disjoint rows or heads.
            let out = unsafe { self.out.part((self.query_row(t) * heads + self.head) * dk, dk) };
            for (out, sum) in out.iter_mut().zip(&scratch.sums[row * padded(dk)..]) {
                *out = sum * factor;
            }
        }
    }
}

/// The rows of one head, `stride` apart.
struct Rows<'a> {
    tensor: &'a [f32],
    stride: usize,
}

impl ValueRows for Rows<'_> {
    #[inline(always)]
    fn copy<S: Simd>(&self, _s: S, j: usize, d: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.tensor[j * self.stride + d..][..out.len()]);
    }
}

/// Packs `count` rows of `dk` floats, `stride` apart, as columns `[panel of rows][dk][PANEL]`: rows `first..first + count`
/// of a tensor that has `rows`; those outside are zeros.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn pack_rows<S: Simd>(
    s: S,
    tensor: &[f32],
    stride: usize,
    rows: usize,
    first: isize,
    count: usize,
    dk: usize,
    out: &mut [f32],
) {
    for p in (0..count).step_by(S::PANEL) {
        let panel = &mut out[p * dk..][..dk * S::PANEL];
        let (start, width) = (first + p as isize, S::PANEL.min(count - p));
        if start >= 0 && start as usize + width <= rows {
            let src = &tensor[start as usize * stride..];
            // SAFETY: the rows exist (`tensor` starts at this head's columns), the panel has dk * PANEL floats.
            unsafe { pack_columns(s, width, dk, src.as_ptr(), stride, panel.as_mut_ptr()) };
            continue;
        }
        for c in 0..S::PANEL {
            let row = start + c as isize;
            let row = (c < width && row >= 0 && (row as usize) < rows)
                .then(|| &tensor[row as usize * stride..][..dk]);
            for d in 0..dk {
                panel[d * S::PANEL + c] = row.map_or(0.0, |row| row[d]);
            }
        }
    }
}
