//! Softmax taken along block by block.
// Accumulators are indexed by constants once unrolled; an iterator over them is not.
#![allow(clippy::needless_range_loop)]

use crate::simd::Simd;
use crate::weighted::nothing_yet;

/// Columns of a row of scores: `from..to` were computed, `lo..hi` are visible.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lo: usize,
    pub(super) hi: usize,
}

/// Turns a row's scores into `2^(scale * (score - largest))` (0 where masked) and takes the running maximum, total and sums along.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub(super) fn softmax_step<S: Simd>(
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
    if max == f32::NEG_INFINITY {
        *total += nothing_yet(&mut scores[from..to]);
        return;
    }
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
