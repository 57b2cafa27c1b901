//! A few queries: every key and value is read once, where it lies.
//!
//! Blocks of keys are tasks of their own, so that one head of one sequence keeps all threads busy; what they find is put
//! together in the order of the blocks.

use super::cache::Cache;
use super::softmax::{Running, step};
use super::{KEYS, Sdpa};
use crate::buffer::{Carve, SharedMut, with_scratch};
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{Cpu, Result};
use std::ops::Range;

/// Query rows that share one reading of the keys in registers.
const ROWS: usize = 4;

/// Vectors of values that are summed in registers at a time.
const VECTORS: usize = 4;

/// Floats that a block leaves for one query: its sums, the largest score, the total.
const fn part_len(value_dim: usize) -> usize {
    (value_dim + 2).next_multiple_of(16)
}

pub(super) fn scratch_len(
    batch: usize,
    tokens: usize,
    heads: usize,
    value_dim: usize,
    capacity: usize,
) -> usize {
    batch * heads * tokens * capacity.div_ceil(KEYS) * part_len(value_dim)
}

/// One block of keys of one head of one item.
struct Block<'a, 'b> {
    args: &'a Sdpa<'a>,
    k: Cache<'a>,
    v: Cache<'a>,
    b: usize,
    head: usize,
    /// The first row of the block.
    start: usize,
    /// `[T * H / G][part_len]`.
    parts: &'b mut [f32],
    scratch: &'b mut [f32],
}

pub(super) fn run(
    args: &Sdpa<'_>,
    cpu: &Cpu,
    k: Cache<'_>,
    v: Cache<'_>,
    scratch: &mut [f32],
    out: &mut [f32],
) -> Result<()> {
    let Sdpa { tokens, heads, key_heads, value_dim, .. } = *args;
    let (group, part) = (args.group(), part_len(value_dim));
    let rows = tokens * group;
    let (batch, blocks) = (args.batch(), args.capacity.div_ceil(KEYS));
    // Blocks that the item farthest along has; others leave theirs out.
    let span = |b: usize| (args.visible(b, 0).0 / KEYS, args.visible(b, tokens - 1).1.div_ceil(KEYS));
    let most = (0..batch).map(|b| span(b).1 - span(b).0).max().unwrap_or(0);
    let parts = SharedMut::new(scratch);
    cpu.threads().run(batch * key_heads * most, |task, _| {
        let (item, i) = (task / most, task % most);
        let (b, head) = (item / key_heads, item % key_heads);
        let (first, end) = span(b);
        if first + i >= end {
            return;
        }
        // SAFETY: every block of every head of every item has a place of its own.
        let parts = unsafe { parts.part((item * blocks + i) * rows * part, rows * part) };
        let room = Carve::padded(rows * KEYS) + Carve::padded(rows.next_multiple_of(ROWS) * args.head_dim);
        with_scratch(room, |scratch| {
            let start = (first + i) * KEYS;
            dispatch(cpu.isa(), Block { args, k, v, b, head, start, parts, scratch });
        });
    })?;
    for (item, out) in out.chunks_exact_mut(tokens * heads * value_dim).enumerate() {
        let count = span(item).1 - span(item).0;
        for (row, out) in out.chunks_exact_mut(value_dim).enumerate() {
            let (t, h) = (row / heads, row % heads);
            let (lo, hi) = args.visible(item, t);
            if lo == hi {
                out.fill(0.0);
                continue;
            }
            let (head, r) = (h / group, t * group + h % group);
            let place = |i: usize| (((item * key_heads + head) * blocks + i) * rows + r) * part;
            // SAFETY: all tasks are done; nothing else reads or writes the parts.
            let found = |i: usize| unsafe { parts.part(place(i), part) };
            merge((0..count).map(found), args.sink(h), out);
        }
    }
    Ok(())
}

/// Puts together what the blocks found for one query.
fn merge<'p>(parts: impl Iterator<Item = &'p mut [f32]>, sink: Option<f32>, out: &mut [f32]) {
    let width = out.len();
    let mut running = Running::START;
    out.fill(0.0);
    for part in parts {
        let (largest, total) = (part[width], part[width + 1]);
        if total == 0.0 {
            continue;
        }
        let factor = running.raise(running.largest.max(largest));
        let own = (largest - running.largest).exp2();
        running.total += own * total;
        for (out, sum) in out.iter_mut().zip(&part[..width]) {
            *out = *out * factor + own * sum;
        }
    }
    let factor = running.finish(sink);
    out.iter_mut().for_each(|v| *v *= factor);
}

impl Kernel for Block<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Block { args, k, v, b, head, start, parts, scratch } = self;
        let Sdpa { tokens, heads, head_dim, value_dim, .. } = *args;
        let group = args.group();
        let (rows, part) = (tokens * group, part_len(value_dim));
        let lo = args.visible(b, 0).0.max(start);
        let hi = args.visible(b, tokens - 1).1.min(start + KEYS);
        let (from, count) = (lo - start, hi.saturating_sub(lo));
        let mut carve = Carve::new(scratch);
        let scores = carve.take(rows * KEYS);
        let queries = carve.take(rows.next_multiple_of(ROWS) * head_dim);
        for (r, query) in queries.chunks_exact_mut(head_dim).enumerate() {
            if r < rows {
                let h = head * group + r % group;
                query.copy_from_slice(
                    &args.q[((b * tokens + r / group) * heads + h) * head_dim..][..head_dim],
                );
            } else {
                query.fill(0.0);
            }
        }
        for j in 0..count {
            let key = k.row(b, lo + j, head);
            for r0 in (0..rows).step_by(ROWS) {
                let mut acc = [s.splat(0.0); ROWS];
                for_lanes!(S, head_dim, |d, n| {
                    let key = key.load(s, d, n);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: the queries are padded to whole groups of ROWS rows of head_dim.
                        let q = unsafe { load_n(s, queries.as_ptr().add((r0 + r) * head_dim + d), n) };
                        *acc = s.fma(q, key, *acc);
                    }
                });
                for (r, acc) in acc.into_iter().enumerate().take(rows - r0) {
                    scores[(r0 + r) * KEYS + from + j] = s.sum(acc);
                }
            }
        }
        for (r, part) in parts.chunks_exact_mut(part).enumerate() {
            let (row_lo, row_hi) = args.visible(b, r / group);
            let seen = (row_lo.clamp(lo, hi) - start, row_hi.clamp(lo, hi) - start);
            let mut running = Running::START;
            step(s, args.rule(), seen, &mut scores[r * KEYS..][..KEYS], &mut running);
            part[value_dim] = running.largest;
            part[value_dim + 1] = running.total;
        }
        let weights = &scores[from..];
        for r0 in (0..rows).step_by(ROWS) {
            let weights = &weights[r0 * KEYS..];
            let parts = &mut parts[r0 * part..];
            let value = |j: usize| v.row(b, lo + j, head);
            let seen = |r: usize| {
                let (row_lo, row_hi) = args.visible(b, (r0 + r).min(rows - 1) / group);
                row_lo.clamp(lo, hi.max(lo)) - lo..row_hi.clamp(lo, hi.max(lo)) - lo
            };
            match rows - r0 {
                1 => sum_values::<S, 1>(s, [seen(0)], weights, value, value_dim, parts),
                2 => sum_values::<S, 2>(s, [0, 1].map(seen), weights, value, value_dim, parts),
                3 => sum_values::<S, 3>(s, [0, 1, 2].map(seen), weights, value, value_dim, parts),
                _ => sum_values::<S, 4>(s, [0, 1, 2, 3].map(seen), weights, value, value_dim, parts),
            }
        }
    }
}

/// `parts[r][d] = sum over j in seen[r] of weights[r][j] * value(j)[d]`, for R rows, whose ranges begin and end in order. What a
/// row does not see has weight 0, but may be NaN and must not meet it.
#[inline(always)]
fn sum_values<'v, S: Simd, const R: usize>(
    s: S,
    seen: [Range<usize>; R],
    weights: &[f32],
    value: impl Fn(usize) -> super::cache::Row<'v>,
    value_dim: usize,
    parts: &mut [f32],
) {
    let part = part_len(value_dim);
    let all = seen[0].start..seen[R - 1].end;
    // What every row sees, which is nearly all.
    let start = seen[R - 1].start.min(all.end);
    let common = start..seen[0].end.clamp(start, all.end);
    let mut d = 0;
    while d < value_dim {
        let vectors = ((value_dim - d) / S::LANES).min(VECTORS);
        let n = if vectors == 0 { value_dim - d } else { S::LANES };
        let vectors = vectors.max(1);
        let mut acc = [[s.splat(0.0); VECTORS]; R];
        for j in all.start..common.start {
            add_value::<S, R, true>(s, &mut acc, &seen, weights, j, value(j), (d, n, vectors));
        }
        for j in common.clone() {
            add_value::<S, R, false>(s, &mut acc, &seen, weights, j, value(j), (d, n, vectors));
        }
        for j in common.end..all.end {
            add_value::<S, R, true>(s, &mut acc, &seen, weights, j, value(j), (d, n, vectors));
        }
        for (r, acc) in acc.iter().enumerate() {
            for (u, &acc) in acc.iter().enumerate().take(vectors) {
                let to = &mut parts[r * part + d + u * S::LANES..][..n];
                // SAFETY: the slice has n floats.
                unsafe { store_n(s, to.as_mut_ptr(), acc, n) };
            }
        }
        d += vectors * n;
    }
}

/// Adds value `j` to the sums of `vectors` vectors from element `d` on, the last of `n` elements; if `SOME`, only to those of the
/// rows that see it.
#[inline(always)]
fn add_value<S: Simd, const R: usize, const SOME: bool>(
    s: S,
    acc: &mut [[S::V; VECTORS]; R],
    seen: &[Range<usize>; R],
    weights: &[f32],
    j: usize,
    row: super::cache::Row<'_>,
    (d, n, vectors): (usize, usize, usize),
) {
    for u in 0..vectors {
        let v = row.load(s, d + u * S::LANES, n);
        for (r, acc) in acc.iter_mut().enumerate() {
            if !SOME || seen[r].contains(&j) {
                acc[u] = s.fma(s.splat(weights[r * KEYS + j]), v, acc[u]);
            }
        }
    }
}
