//! The end of every attention: values summed with the weights that softmax gave their keys.

use crate::buffer::Carve;
use crate::simd::{F32Panel, MAX_PANEL, MAX_TILE_ROWS, Simd, TILE_STRIDE};

/// Width of the value panels and of a row of sums.
pub(crate) const fn padded(columns: usize) -> usize {
    columns.next_multiple_of(MAX_PANEL)
}

/// Rows of values, wherever they lie.
pub(crate) trait ValueRows {
    /// Elements `d .. d + out.len()` of row `j`.
    fn copy<S: Simd>(&self, s: S, j: usize, d: usize, out: &mut [f32]);
}

/// The keys `lo..hi` that a row of a tile sees, relative to the block.
pub(crate) type Seen = (usize, usize);

/// The values of one block of keys, packed for the tiles.
pub(crate) struct Values<'b> {
    /// `[panel of columns][key][PANEL]`.
    panels: &'b mut [f32],
    width: usize,
    /// Keys of the block in whole panels.
    count: usize,
    finite: bool,
}

impl<'b> Values<'b> {
    /// Floats of room for `keys` values of `width` elements.
    pub(crate) const fn room(keys: usize, width: usize) -> usize {
        Carve::padded(keys * padded(width))
    }

    pub(crate) fn carve(carve: &mut Carve<'b>, keys: usize, width: usize) -> Values<'b> {
        Values { panels: carve.take(keys * padded(width)), width, count: 0, finite: true }
    }

    /// Packs `count` rows.
    #[inline(always)]
    pub(crate) fn pack<S: Simd, R: ValueRows>(&mut self, s: S, count: usize, rows: R) {
        self.count = count.next_multiple_of(S::PANEL);
        for j in 0..self.count {
            for (p, d) in (0..self.width).step_by(S::PANEL).enumerate() {
                let width = S::PANEL.min(self.width - d);
                let to = &mut self.panels[(p * self.count + j) * S::PANEL..][..S::PANEL];
                if j < count {
                    rows.copy(s, j, d, &mut to[..width]);
                } else {
                    to[..width].fill(0.0);
                }
                to[width..].fill(0.0);
            }
        }
        self.finite = all_finite(&self.panels[..self.width.next_multiple_of(S::PANEL) * self.count]);
    }

    /// Adds `sum over j in from..to of scores[r][j] * value j` to the first `seen.len()` rows of `sums`, which are
    /// [`padded`]; the scores are [`TILE_STRIDE`] apart. Keys that a row does not see have a score of 0.
    #[inline(always)]
    pub(crate) fn add<S: Simd>(
        &self,
        s: S,
        scores: &[f32],
        (from, to): (usize, usize),
        seen: &[Seen],
        sums: &mut [f32],
    ) {
        let rows = seen.len();
        if self.finite {
            return self.add_rows(s, scores, rows, (from, to), sums);
        }
        // 0 times NaN or infinity is NaN: what a row does not see must not meet its score.
        for (r, &(lo, hi)) in seen.iter().enumerate() {
            let seen = (lo.clamp(from, to), hi.clamp(from, to));
            self.add_rows(s, &scores[r * TILE_STRIDE..], 1, seen, &mut sums[r * padded(self.width)..]);
        }
    }

    #[inline(always)]
    fn add_rows<S: Simd>(
        &self,
        s: S,
        scores: &[f32],
        rows: usize,
        (from, to): (usize, usize),
        sums: &mut [f32],
    ) {
        if from >= to {
            return;
        }
        let stride = padded(self.width);
        assert!(rows <= MAX_TILE_ROWS && scores.len() >= (rows - 1) * TILE_STRIDE + to);
        assert!(sums.len() >= rows * stride);
        for (p, d) in (0..self.width).step_by(S::PANEL).enumerate() {
            let b = &self.panels[(p * self.count + from) * S::PANEL..][..(to - from) * S::PANEL];
            let (a, b) = (scores[from..].as_ptr(), F32Panel::new(b.as_ptr()));
            let c = sums[d..].as_mut_ptr();
            // SAFETY: the scores have `rows` rows of `to - from` from column `from` on, the panel as many rows, and each row
            // of sums has PANEL floats from column d on because it is padded; both lengths were just checked.
            unsafe { s.tile(rows, 1, a, b, to - from, c, stride, true) };
        }
    }
}

/// Turns the scores of a row that has seen nothing but -infinity so far (and NaN, which no maximum counts) into weights: 0,
/// and NaN where there is one. Their sum.
pub(crate) fn nothing_yet(scores: &mut [f32]) -> f32 {
    scores.iter_mut().for_each(|score| *score = if score.is_nan() { *score } else { 0.0 });
    scores.iter().sum()
}

/// Whether none of `values` is NaN or infinite.
#[inline(always)]
fn all_finite(values: &[f32]) -> bool {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    values.iter().fold(0, |most: u32, v| most.max(v.to_bits() & !(1 << 31))) < INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_found() {
        assert!(all_finite(&[]) && all_finite(&[f32::MAX, f32::MIN, -0.0, 1e-40]));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, 32] {
                let mut values = [1.0; 33];
                values[at] = bad;
                assert!(!all_finite(&values), "{bad} at {at}");
            }
        }
    }
}
