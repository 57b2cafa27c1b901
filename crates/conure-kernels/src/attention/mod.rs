//! Attention with relative positions (Transformer-XL as NeMo computes it), in tiles.
//!
//! For query i and key j of one head, `score = ((q_i + u) k_j + (q_i + v) p_c) / sqrt(dk)` with `c = j - i + offset`. Scores
//! exist only for one tile of rows and one block of keys at a time; softmax runs along (the maximum and the sum are
//! corrected from block to block), so memory does not grow with T. Blocks start at fixed multiples of the key index and
//! masked keys add exact zeros: a row's result depends neither on the batch nor on how rows are shared out.

mod softmax;
mod task;

use crate::buffer::{SharedMut, with_scratch};
use crate::isa::{dispatch, tile_size};
use crate::simd::TILE_K;
use crate::{Cpu, Result, check};

use task::{Task, TaskKernel, scratch_len};

const NAME: &str = "rel_pos_attention";

/// Keys of a block: their packed keys, positions and values stay in the second-level cache.
const KEYS: usize = 256;

/// The most rows of a task (whole tiles of 14, 6 and 4); they share the packing of the keys.
const ROWS: usize = 1008;

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
    /// Rows P of the table of projected positions for `frames` frames of which the last `queries` are asked about, from the
    /// leftmost relative position on.
    pub fn positions(self, frames: usize, queries: usize) -> usize {
        match self {
            Mask::Full | Mask::ChunkedLimited { .. } => (frames + queries).saturating_sub(1),
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
    pub(crate) fn visible(self, i: usize, valid: usize) -> (usize, usize) {
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

/// The operands of [`RelPosAttention::run`]. B batch, T frames, C frames before them, H heads, dk head dimension, P
/// positions.
#[derive(Clone, Copy, Debug)]
pub struct RelPosAttention<'a> {
    /// `[B, T, H * dk]`.
    pub q: &'a [f32],
    /// `[B, C + T, H * dk]`.
    pub k: &'a [f32],
    /// `[B, C + T, H * dk]`.
    pub v: &'a [f32],
    /// Projected positions `[P, H * dk]`, P as [`Mask::positions`] says: full, `C + T - 1` down to `-(T - 1)`; banded,
    /// `left` down to `-right`.
    pub positions: &'a [f32],
    /// `[H, dk]`, added to q for the content score.
    pub bias_u: &'a [f32],
    /// `[H, dk]`, added to q for the position score.
    pub bias_v: &'a [f32],
    /// `[B]`: valid frames. Keys beyond are not seen, queries beyond give 0. Over T means T, negative means 0.
    pub lengths: &'a [i32],
    /// T.
    pub frames: usize,
    /// C: frames before those of the queries, which are only keys; the mask counts from the first of them.
    pub context: usize,
    /// `[B]`: how many of the context's frames are there, from its end; empty where C is 0.
    pub cached: &'a [i32],
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
        let rows = self.task_rows(tile_size(cpu.isa()).rows, cpu.threads().count(), batch);
        let groups = self.frames.div_ceil(rows);
        let out = SharedMut::new(out);
        let scratch_len = scratch_len(rows, self.head_dim);
        cpu.threads().run(batch * self.heads * groups, |task, _| {
            let (item, group) = (task / groups, task % groups);
            let (b, head) = (item / self.heads, item % self.heads);
            let r0 = group * rows;
            let count = |list: &[i32]| list.get(b).and_then(|&n| usize::try_from(n).ok()).unwrap_or(0);
            let valid = count(self.lengths).min(self.frames);
            let r1 = (r0 + rows).min(self.frames);
            for t in r0.max(valid)..r1 {
                // SAFETY: tasks have disjoint rows or heads.
                unsafe { out.part((b * self.frames + t) * width + head * self.head_dim, self.head_dim) }
                    .fill(0.0);
            }
            if r0 < valid {
                // From here on rows count from the first frame of the context, as keys do.
                let c = self.context;
                let first = c - count(self.cached).min(c);
                let (r0, r1) = (c + r0, c + r1.min(valid));
                let task = Task { args: self, out, b, head, first, valid: c + valid, r0, r1 };
                with_scratch(scratch_len, |scratch| dispatch(cpu.isa(), TaskKernel { task, rows, scratch }));
            }
        })
    }

    fn check(&self, out: &[f32]) -> Result<(usize, usize)> {
        let (batch, width) = (self.lengths.len(), check::size(NAME, "q", &[self.heads, self.head_dim])?);
        for (name, len) in [("q", self.q.len()), ("out", out.len())] {
            check::length(NAME, name, "[B, T, H * dk]", &[batch, self.frames, width], len)?;
        }
        let keys = self.keys();
        for (name, len) in [("k", self.k.len()), ("v", self.v.len())] {
            check::length(NAME, name, "[B, C + T, H * dk]", &[batch, keys, width], len)?;
        }
        let cached = if self.context == 0 { 0 } else { batch };
        check::length(NAME, "cached", "[B]", &[cached], self.cached.len())?;
        let positions = self.mask.positions(keys, self.frames);
        check::length(NAME, "positions", "[P, H * dk]", &[positions, width], self.positions.len())?;
        check::length(NAME, "bias_u", "[H, dk]", &[width], self.bias_u.len())?;
        check::length(NAME, "bias_v", "[H, dk]", &[width], self.bias_v.len())?;
        check::valid(NAME, self.head_dim <= TILE_K, || {
            format!("a head dimension of {} is over {TILE_K}", self.head_dim)
        })?;
        Ok((batch, width))
    }

    /// C + T.
    fn keys(&self) -> usize {
        self.context.saturating_add(self.frames)
    }

    /// Rows of a task: few enough for all threads to have work, many enough to pay for packing the keys.
    fn task_rows(&self, tile_rows: usize, threads: usize, batch: usize) -> usize {
        let keys = match self.mask {
            Mask::Banded { left, right } => left.saturating_add(right).saturating_add(1).min(self.keys()),
            _ => self.keys(),
        };
        let work = keys * self.head_dim * 3;
        let all = (batch * self.heads * self.frames).saturating_mul(work);
        let tasks = if threads == 1 { 1 } else { (all / TASK_WORK).clamp(1, threads * 4) };
        let groups = tasks.div_ceil(batch * self.heads);
        self.frames.div_ceil(groups).next_multiple_of(tile_rows).min(ROWS)
    }
}

#[cfg(test)]
mod tests;
