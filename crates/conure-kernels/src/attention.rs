//! Attention with relative positions (Transformer-XL as NeMo computes it), in tiles.
//!
//! For query i and key j of one head, `score = ((q_i + u) k_j + (q_i + v) p_c) / sqrt(dk)` with `c = j - i + offset`. Scores
//! exist only for one tile of rows and one block of keys at a time; softmax runs along (the maximum and the sum are
//! corrected from block to block), so memory does not grow with T. Blocks start at fixed multiples of the key index and
//! masked keys add exact zeros: a row's result depends neither on the batch nor on how rows are shared out.

use crate::buffer::{Carve, SharedMut, with_scratch};
use crate::isa::{Kernel, dispatch};
use crate::simd::{F32Panel, MAX_PANEL, MAX_TILE_ROWS, Simd, TILE_K, TILE_STRIDE, pack_columns};
use crate::{Cpu, Result, check};

const NAME: &str = "rel_pos_attention";

/// Keys of a block: their packed keys, positions and values stay in the second-level cache.
const KEYS: usize = 256;

/// The most rows of a task; they share the packing of the keys.
const ROWS: usize = 18 * MAX_TILE_ROWS;

/// Multiply-adds that are worth a task of their own.
const TASK_WORK: usize = 2 << 20;

/// Which keys a query sees, besides being valid itself and seeing valid keys only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All keys.
    Full,
    /// Frames in chunks of `right + 1`: a query sees its own chunk and the `left / (right + 1)` chunks before it.
    /// `usize::MAX` on the left means all.
    ChunkedLimited {
        /// Frames to the left.
        left: usize,
        /// Frames to the right within the chunk.
        right: usize,
    },
    /// Keys from `left` frames before the query to `right` after it. The position table has only those
    /// `left + right + 1` rows.
    Banded {
        /// Frames to the left.
        left: usize,
        /// Frames to the right.
        right: usize,
    },
}

impl Mask {
    /// Rows P of the table of projected positions for `frames` frames, from the leftmost relative position on.
    pub fn positions(self, frames: usize) -> usize {
        match self {
            Mask::Full | Mask::ChunkedLimited { .. } => (2 * frames).saturating_sub(1),
            Mask::Banded { left, right } => left.saturating_add(right).saturating_add(1),
        }
    }

    /// The table's row for a key at the query's own frame.
    fn offset(self, frames: usize) -> usize {
        match self {
            Mask::Full | Mask::ChunkedLimited { .. } => frames.saturating_sub(1),
            Mask::Banded { left, .. } => left,
        }
    }

    /// The keys `lo..hi` that valid query `i` sees among `valid` ones.
    #[inline(always)]
    fn visible(self, i: usize, valid: usize) -> (usize, usize) {
        match self {
            Mask::Full => (0, valid),
            Mask::ChunkedLimited { left, right } => {
                let size = right.saturating_add(1);
                let chunk = i / size;
                let first = chunk.saturating_sub(left / size);
                (first * size, (chunk + 1).saturating_mul(size).min(valid))
            }
            Mask::Banded { left, right } => {
                (i.saturating_sub(left), i.saturating_add(right).saturating_add(1).min(valid))
            }
        }
    }
}

/// The operands of [`RelPosAttention::run`]. B batch, T frames, H heads, dk head dimension, P positions.
#[derive(Clone, Copy, Debug)]
pub struct RelPosAttention<'a> {
    /// `[B, T, H * dk]`.
    pub q: &'a [f32],
    /// `[B, T, H * dk]`.
    pub k: &'a [f32],
    /// `[B, T, H * dk]`.
    pub v: &'a [f32],
    /// Projected positions `[P, H * dk]`, P as [`Mask::positions`] says: full, `T - 1` down to `-(T - 1)`; banded, `left`
    /// down to `-right`.
    pub positions: &'a [f32],
    /// `[H, dk]`, added to q for the content score.
    pub bias_u: &'a [f32],
    /// `[H, dk]`, added to q for the position score.
    pub bias_v: &'a [f32],
    /// `[B]`: valid frames. Keys beyond are not seen, queries beyond give 0. Over T means T, negative means 0.
    pub lengths: &'a [i32],
    /// T.
    pub frames: usize,
    /// H.
    pub heads: usize,
    /// dk, at most 512.
    pub head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
}

impl RelPosAttention<'_> {
    /// `out` `[B, T, H * dk]`: the context of each query, 0 where it is masked. Time grows with the keys seen, working
    /// memory (each thread's own, under 2 MiB for dk = 128) with neither T nor B.
    ///
    /// # Errors
    /// [`crate::KernelError::Length`] if a slice does not have its shape, [`crate::KernelError::Invalid`] if dk is over 512.
    pub fn run(&self, cpu: &Cpu, out: &mut [f32]) -> Result<()> {
        let (batch, width) = self.check(out)?;
        if out.is_empty() {
            return Ok(());
        }
        let rows = self.task_rows(cpu.threads().count(), batch);
        let groups = self.frames.div_ceil(rows);
        let out = SharedMut::new(out);
        let scratch_len = scratch_len(rows, self.head_dim);
        cpu.threads().run(batch * self.heads * groups, |task, _| {
            let (item, group) = (task / groups, task % groups);
            let (b, head) = (item / self.heads, item % self.heads);
            let r0 = group * rows;
            let valid = usize::try_from(self.lengths[b]).unwrap_or(0).min(self.frames);
            let r1 = (r0 + rows).min(self.frames);
            for t in r0.max(valid)..r1 {
                // SAFETY: tasks have disjoint rows or heads.
                unsafe { out.part((b * self.frames + t) * width + head * self.head_dim, self.head_dim) }
                    .fill(0.0);
            }
            if r0 < valid {
                let task = Task { args: self, out, b, head, valid, r0, r1: r1.min(valid) };
                with_scratch(scratch_len, |scratch| dispatch(cpu.isa(), TaskKernel { task, rows, scratch }));
            }
        })
    }

    fn check(&self, out: &[f32]) -> Result<(usize, usize)> {
        let (batch, width) = (self.lengths.len(), check::size(NAME, "q", &[self.heads, self.head_dim])?);
        for (name, len) in [("q", self.q.len()), ("k", self.k.len()), ("v", self.v.len()), ("out", out.len())]
        {
            check::length(NAME, name, "[B, T, H * dk]", &[batch, self.frames, width], len)?;
        }
        let positions = self.mask.positions(self.frames);
        check::length(NAME, "positions", "[P, H * dk]", &[positions, width], self.positions.len())?;
        check::length(NAME, "bias_u", "[H, dk]", &[width], self.bias_u.len())?;
        check::length(NAME, "bias_v", "[H, dk]", &[width], self.bias_v.len())?;
        check::valid(NAME, self.head_dim <= TILE_K, || {
            format!("a head dimension of {} is over {TILE_K}", self.head_dim)
        })?;
        Ok((batch, width))
    }

    /// Rows of a task: few enough for all threads to have work, many enough to pay for packing the keys.
    fn task_rows(&self, threads: usize, batch: usize) -> usize {
        let keys = match self.mask {
            Mask::Banded { left, right } => left.saturating_add(right).saturating_add(1).min(self.frames),
            _ => self.frames,
        };
        let work = keys * self.head_dim * 3;
        let all = (batch * self.heads * self.frames).saturating_mul(work);
        let tasks = if threads == 1 { 1 } else { (all / TASK_WORK).clamp(1, threads * 4) };
        let groups = tasks.div_ceil(batch * self.heads);
        self.frames.div_ceil(groups).next_multiple_of(MAX_TILE_ROWS).clamp(MAX_TILE_ROWS, ROWS)
    }
}

/// Columns of the value panels.
const fn padded(columns: usize) -> usize {
    columns.next_multiple_of(MAX_PANEL)
}

/// Rows of the packed window of positions: one for each difference of a task's rows and a block's keys.
const fn window(rows: usize) -> usize {
    padded(rows + KEYS) + MAX_PANEL
}

/// Columns of the tile of position scores.
const POSITIONS: usize = padded(KEYS + MAX_TILE_ROWS) + 2 * MAX_PANEL;

fn scratch_len(rows: usize, dk: usize) -> usize {
    Carve::padded(MAX_TILE_ROWS * TILE_STRIDE) * 3
        + Carve::padded(MAX_TILE_ROWS * POSITIONS)
        + Carve::padded(KEYS * dk)
        + Carve::padded(window(rows) * dk)
        + Carve::padded(KEYS * padded(dk))
        + Carve::padded(rows * padded(dk))
        + 2 * Carve::padded(rows)
}

/// Rows `r0..r1` of one head of one item; all are valid.
#[derive(Clone, Copy)]
struct Task<'a> {
    args: &'a RelPosAttention<'a>,
    out: SharedMut<'a, f32>,
    b: usize,
    head: usize,
    valid: usize,
    r0: usize,
    r1: usize,
}

struct TaskKernel<'a, 'b> {
    task: Task<'a>,
    rows: usize,
    scratch: &'b mut [f32],
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
    /// `[panel of dk][key][PANEL]`.
    values: &'b mut [f32],
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
            values: carve.take(KEYS * padded(dk)),
            sums: carve.take(rows * padded(dk)),
            largest: carve.take(rows),
            total: carve.take(rows),
        };
        scratch.sums.fill(0.0);
        scratch.total.fill(0.0);
        scratch.largest.fill(f32::NEG_INFINITY);
        // Ranges move to the right with the query, so the first and the last row bound them.
        let first = mask.visible(task.r0, task.valid).0;
        let last = mask.visible(task.r1 - 1, task.valid).1;
        let mut start = first - first % KEYS;
        while start < last {
            let j0 = start.max(first - first % MAX_PANEL);
            let j1 = (start + KEYS).min(last);
            let c0 = j0 as isize - (task.r1 - 1) as isize + mask.offset(task.args.frames) as isize;
            let block = Block { j0, j1, c0 };
            task.pack(s, block, &mut scratch);
            for i in (task.r0..task.r1).step_by(S::TILE_ROWS) {
                task.tile(s, block, i, S::TILE_ROWS.min(task.r1 - i), &mut scratch);
            }
            start += KEYS;
        }
        task.store(s, &scratch);
    }
}

impl Task<'_> {
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
        let (base, stride) = (self.b * frames, self.args.heads * dk);
        let count = block.j1 - block.j0;
        let keys = &k[base * stride + self.head * dk..];
        pack_rows(s, keys, stride, frames, block.j0 as isize, count, dk, scratch.keys);
        let (table, differences) = (mask.positions(frames), count + self.r1 - self.r0 - 1);
        let positions = &positions[self.head * dk..];
        pack_rows(s, positions, stride, table, block.c0, differences, dk, scratch.positions);
        let padded_count = count.next_multiple_of(S::PANEL);
        for j in 0..padded_count {
            let row = (j < count).then(|| self.head_row(v, base + block.j0 + j));
            for (p, d) in (0..dk).step_by(S::PANEL).enumerate() {
                let width = S::PANEL.min(dk - d);
                let dst = &mut scratch.values[(p * padded_count + j) * S::PANEL..][..S::PANEL];
                match row {
                    Some(row) => dst[..width].copy_from_slice(&row[d..d + width]),
                    None => dst[..width].fill(0.0),
                }
                dst[width..].fill(0.0);
            }
        }
    }

    /// Rows `i..i + rows` against a block of keys.
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S, block: Block, i: usize, rows: usize, scratch: &mut Scratch<'_>) {
        let RelPosAttention { q, bias_u, bias_v, frames, head_dim: dk, mask, .. } = *self.args;
        let lo = mask.visible(i, self.valid).0.max(block.j0);
        let hi = mask.visible(i + rows - 1, self.valid).1.min(block.j1);
        if lo >= hi {
            return;
        }
        // Whole panels of keys, relative to the block.
        let from = (lo - block.j0) / S::PANEL * S::PANEL;
        let to = (hi - block.j0).next_multiple_of(S::PANEL);
        for r in 0..rows {
            let q = self.head_row(q, self.b * frames + i + r);
            let (u, v) = (&bias_u[self.head * dk..][..dk], &bias_v[self.head * dk..][..dk]);
            let content = &mut scratch.q_content[r * TILE_STRIDE..][..dk];
            let position = &mut scratch.q_position[r * TILE_STRIDE..][..dk];
            for ((c, q), u) in content.iter_mut().zip(q).zip(u) {
                *c = q + u;
            }
            for ((p, q), v) in position.iter_mut().zip(q).zip(v) {
                *p = q + v;
            }
        }
        // Row r and key j (relative) meet position column j + shift - r of the packed window.
        let shift = self.r1 - 1 - i;
        let p_from = (from + shift + 1 - rows) / S::PANEL * S::PANEL;
        let p_to = (to + shift).next_multiple_of(S::PANEL);
        for j in (from..to).step_by(S::PANEL) {
            let (b, c) = (scratch.keys[j * dk..][..dk * S::PANEL].as_ptr(), scratch.scores[j..].as_mut_ptr());
            // SAFETY: the q tile has `rows` rows of dk, the panel dk rows, and scores TILE_ROWS rows of TILE_STRIDE.
            unsafe { s.tile(rows, 1, scratch.q_content.as_ptr(), F32Panel(b), dk, c, TILE_STRIDE, false) };
        }
        for j in (p_from..p_to).step_by(S::PANEL) {
            let b = scratch.positions[j * dk..][..dk * S::PANEL].as_ptr();
            let c = scratch.shifted[j - p_from..].as_mut_ptr();
            // SAFETY: as above; p_to - p_from is at most POSITIONS.
            unsafe { s.tile(rows, 1, scratch.q_position.as_ptr(), F32Panel(b), dk, c, POSITIONS, false) };
        }
        for r in 0..rows {
            let (lo, hi) = mask.visible(i + r, self.valid);
            let range = Range {
                from,
                to,
                lo: lo.clamp(block.j0, block.j1) - block.j0,
                hi: hi.clamp(block.j0, block.j1) - block.j0,
            };
            let scores = &mut scratch.scores[r * TILE_STRIDE..][..to];
            let shifted = &scratch.shifted[r * POSITIONS + from + shift - r - p_from..][..to - from];
            let row = i + r - self.r0;
            let sums = &mut scratch.sums[row * padded(dk)..][..padded(dk)];
            softmax_step(
                s,
                std::f32::consts::LOG2_E / (dk as f32).sqrt(),
                range,
                scores,
                shifted,
                &mut scratch.largest[row],
                &mut scratch.total[row],
                sums,
            );
        }
        let padded_count = (block.j1 - block.j0).next_multiple_of(S::PANEL);
        for (p, d) in (0..dk).step_by(S::PANEL).enumerate() {
            let b = scratch.values[(p * padded_count + from) * S::PANEL..][..(to - from) * S::PANEL].as_ptr();
            let c = scratch.sums[(i - self.r0) * padded(dk) + d..].as_mut_ptr();
            // SAFETY: the scores have `rows` rows of `to - from` from column `from` on, the panel as many rows, and each
            // row of sums has PANEL floats from column d on because it is padded.
            unsafe {
                s.tile(rows, 1, scratch.scores[from..].as_ptr(), F32Panel(b), to - from, c, padded(dk), true)
            };
        }
    }

    /// Divides the sums by the totals and stores them.
    #[inline(always)]
    fn store<S: Simd>(&self, _s: S, scratch: &Scratch<'_>) {
        let RelPosAttention { frames, heads, head_dim: dk, .. } = *self.args;
        for t in self.r0..self.r1 {
            let row = t - self.r0;
            let total = scratch.total[row];
            let factor = if total > 0.0 { 1.0 / total } else { 0.0 };
            // SAFETY: tasks have disjoint rows or heads.
            let out = unsafe { self.out.part(((self.b * frames + t) * heads + self.head) * dk, dk) };
            for (out, sum) in out.iter_mut().zip(&scratch.sums[row * padded(dk)..]) {
                *out = if total > 0.0 || total.is_nan() { sum * factor } else { 0.0 };
            }
        }
    }
}

/// Columns of a row of scores: `from..to` were computed, `lo..hi` are visible.
#[derive(Clone, Copy)]
struct Range {
    from: usize,
    to: usize,
    lo: usize,
    hi: usize,
}

/// Turns a row's scores into `2^(scale * (score - largest))` (0 where masked) and takes the running maximum, total and sums along.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn softmax_step<S: Simd>(
    s: S,
    scale: f32,
    range: Range,
    scores: &mut [f32],
    shifted: &[f32],
    largest: &mut f32,
    total: &mut f32,
    sums: &mut [f32],
) {
    let Range { from, to, lo, hi } = range;
    if lo >= hi {
        scores[from..to].fill(0.0);
        return;
    }
    // One accumulator for each vector of a panel: the order of sums does not depend on `from`.
    let vectors = S::PANEL / S::LANES;
    let whole = lo <= from && hi >= to;
    let mut max = [s.splat(f32::NEG_INFINITY); 4];
    for j in (from..to).step_by(S::PANEL) {
        for v in 0..vectors {
            let j = j + v * S::LANES;
            // SAFETY: from and to are multiples of the panel, so j + LANES <= to, which both rows reach.
            unsafe {
                let sum = s.add(s.load(scores.as_ptr().add(j)), s.load(shifted.as_ptr().add(j - from)));
                s.store(scores.as_mut_ptr().add(j), sum);
                max[v] = s.max(sum, max[v]);
            }
        }
    }
    if !whole {
        scores[from..lo.max(from)].fill(f32::NEG_INFINITY);
        scores[hi.min(to)..to].fill(f32::NEG_INFINITY);
        max = [s.splat(f32::NEG_INFINITY); 4];
        for j in (from..to).step_by(S::LANES) {
            // SAFETY: as above.
            max[0] = s.max(unsafe { s.load(scores.as_ptr().add(j)) }, max[0]);
        }
    }
    let max = s.max_lane(s.max(s.max(max[0], max[1]), s.max(max[2], max[3])));
    let max = if max > *largest { max } else { *largest };
    // 2^(scale * (old - new)) for what is already summed; 0 at the first block, where old is -infinity.
    let correction = if *largest == max { 1.0 } else { ((*largest - max) * scale).exp2() };
    *largest = max;
    let (factor, shift) = (s.splat(scale), s.splat(-max * scale));
    let mut sum = [s.splat(0.0); 4];
    for j in (from..to).step_by(S::PANEL) {
        for v in 0..vectors {
            let j = j + v * S::LANES;
            // SAFETY: as above.
            unsafe {
                let e = s.exp2_nonpositive(s.fma(s.load(scores.as_ptr().add(j)), factor, shift));
                s.store(scores.as_mut_ptr().add(j), e);
                sum[v] = s.add(sum[v], e);
            }
        }
    }
    let sum = s.add(s.add(sum[0], sum[1]), s.add(sum[2], sum[3]));
    *total = *total * correction + s.sum(sum);
    if correction != 1.0 {
        let correction = s.splat(correction);
        for v in sums.chunks_exact_mut(S::LANES) {
            // SAFETY: the chunk has LANES floats.
            unsafe { s.store(v.as_mut_ptr(), s.mul(s.load(v.as_ptr()), correction)) };
        }
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

#[cfg(test)]
mod tests;
