//! The softmax that runs along blocks of keys.

use crate::simd::{Simd, for_lanes, load_n, store_n, tanh};
use crate::weighted::nothing_yet;

/// From products to scores.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
}

/// Where a row's softmax stands: the largest score so far, in powers of two, and the sum of exponentials.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) largest: f32,
    pub(super) total: f32,
}

impl Running {
    pub(super) const START: Running = Running { largest: f32::NEG_INFINITY, total: 0.0 };

    /// What the sums so far are to be multiplied by when `largest` becomes `new`.
    pub(super) fn raise(&mut self, new: f32) -> f32 {
        if self.largest == new {
            return 1.0;
        }
        let factor = (self.largest - new).exp2();
        self.largest = new;
        self.total *= factor;
        factor
    }

    /// What the sums are to be multiplied by at the end, with the logit of a sink in powers of two.
    pub(super) fn finish(mut self, sink: Option<f32>) -> f32 {
        let mut factor = 1.0;
        if let Some(z) = sink {
            factor = self.raise(self.largest.max(z));
            self.total += (z - self.largest).exp2();
        }
        // Of a query that sees a row: a total of 0 means scores of -infinity only, and no number comes of those.
        factor / self.total
    }
}

/// Turns the products of one row with a block of keys into exponentials, and returns what the sums so far are to be
/// multiplied by. Only `lo..hi` of the block are seen; the others become 0.
#[inline(always)]
pub(super) fn step<S: Simd>(
    s: S,
    rule: Rule,
    (lo, hi): (usize, usize),
    scores: &mut [f32],
    running: &mut Running,
) -> f32 {
    if lo >= hi {
        scores.fill(0.0);
        return 1.0;
    }
    scores[..lo].fill(0.0);
    scores[hi..].fill(0.0);
    let seen = &mut scores[lo..hi];
    let at = seen.as_mut_ptr();
    let mut largest = s.splat(f32::NEG_INFINITY);
    let (scale, log2_e) = (s.splat(rule.scale), s.splat(std::f32::consts::LOG2_E));
    for_lanes!(S, seen.len(), |i, n| {
        // SAFETY: i + n <= seen.len().
        unsafe {
            let mut v = s.mul(load_n(s, at.add(i), n), scale);
            if let Some(cap) = rule.cap {
                v = s.mul(s.splat(cap), tanh(s, s.mul(v, s.splat(1.0 / cap))));
            }
            let v = s.mul(v, log2_e);
            store_n(s, at.add(i), v, n);
            if n == S::LANES {
                largest = s.max(v, largest);
            }
        }
    });
    let whole = seen.len() - seen.len() % S::LANES;
    let tail = seen[whole..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = s.max_lane(largest).max(tail).max(running.largest);
    if largest == f32::NEG_INFINITY {
        running.total += nothing_yet(seen);
        return 1.0;
    }
    let factor = running.raise(largest);
    let shift = s.splat(largest);
    let mut total = s.splat(0.0);
    for_lanes!(S, seen.len(), |i, n| {
        // SAFETY: as above.
        unsafe {
            let e = s.exp2_nonpositive(s.sub(load_n(s, at.add(i), n), shift));
            store_n(s, at.add(i), e, n);
            if n == S::LANES {
                total = s.add(total, e);
            }
        }
    });
    running.total += s.sum(total) + seen[whole..].iter().sum::<f32>();
    factor
}
