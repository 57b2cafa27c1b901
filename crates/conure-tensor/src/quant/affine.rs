//! What Q4_K and Q5_K share: the 6-bit scales and minima of eight groups of 32, and the search for them.

use super::nearest;

/// Elements in a group that shares a scale and a minimum.
pub const GROUP: usize = 32;
/// Groups in a block.
pub const GROUPS: usize = 8;

/// The scale and minimum of group `j` (below 8), unpacked from the 12 bytes that hold all eight:
///
/// ```text
/// bytes 0..4   low six bits: scale of group j; upper two: bits 4 and 5 of scale j + 4
///       4..8   low six bits: minimum of group j; upper two: bits 4 and 5 of minimum j + 4
///       8..12  low nibble: bits 0..4 of scale j + 4; high nibble: of minimum j + 4
/// ```
#[inline]
pub fn scale_min(b: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (b[j] & 63, b[j + 4] & 63)
    } else {
        ((b[j + 4] & 15) | (b[j - 4] >> 6) << 4, (b[j + 4] >> 4) | (b[j] >> 6) << 4)
    }
}

/// The 12 bytes that hold eight 6-bit scales and minima: the inverse of [`scale_min`].
pub(super) fn pack_scales_mins(scales: &[u8; GROUPS], mins: &[u8; GROUPS]) -> [u8; 12] {
    let mut b = [0; 12];
    for j in 0..4 {
        b[j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        b[j + 4] = mins[j] & 63 | mins[j + 4] >> 4 << 6;
        b[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    b
}

/// How a format searches for the scale and minimum of a group.
pub(super) struct Search {
    /// Largest value a quantum can take.
    pub max: f32,
    /// The first trial divides the span into `max + start` steps, every further one into 0.1 more.
    pub start: f32,
    /// Number of trials.
    pub tries: usize,
}

/// A block before its quanta are packed.
pub(super) struct Affine {
    /// Scale of the scales.
    pub d: [u8; 2],
    /// Scale of the minima.
    pub dmin: [u8; 2],
    /// Packed 6-bit scales and minima.
    pub scales: [u8; 12],
    /// The quanta, 0 to `max`, in element order.
    pub q: [u8; GROUP * GROUPS],
}

/// Quantises 256 elements in groups of 32: finds each group's best scale and minimum, rounds these to 6 bits of the
/// block's largest, and quantises anew with what they became.
pub(super) fn quantise(x: &[f32; GROUP * GROUPS], search: &Search) -> Affine {
    let mut q = [0; GROUP * GROUPS];
    let (mut scales, mut mins) = ([0.0f32; GROUPS], [0.0f32; GROUPS]);
    let (groups, _) = x.as_chunks::<GROUP>();
    let (group_qs, _) = q.as_chunks_mut::<GROUP>();
    for (j, (x, q)) in groups.iter().zip(group_qs.iter_mut()).enumerate() {
        (scales[j], mins[j]) = search_group(x, search, q);
    }
    let largest = |v: &[f32]| v.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    let six_bits = |values: &[f32; GROUPS], largest: f32| {
        let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
        values.map(|v| nearest(inverse * v).clamp(0, 63) as u8)
    };
    let (ls, lm) = (six_bits(&scales, max_scale), six_bits(&mins, max_min));
    let (d, dmin) = (super::f16_bytes(max_scale / 63.0), super::f16_bytes(max_min / 63.0));
    let (d_value, dmin_value) = (super::f16_value(d), super::f16_value(dmin));
    for (j, (x, q)) in groups.iter().zip(group_qs).enumerate() {
        let scale = d_value * f32::from(ls[j]);
        if scale == 0.0 {
            continue;
        }
        let min = dmin_value * f32::from(lm[j]);
        for (q, &x) in q.iter_mut().zip(x) {
            *q = nearest((x + min) / scale).clamp(0, search.max as i32) as u8;
        }
    }
    Affine { d, dmin, scales: pack_scales_mins(&ls, &lm), q }
}

/// The scale and the negated minimum of one group, and its quanta with them.
///
/// Elements count by `rms + |x|` in the squared error. From each trial rounding the best scale and minimum follow by
/// least squares; the trial with the smallest error stays. A minimum above zero is taken as zero.
fn search_group(x: &[f32; GROUP], search: &Search, q: &mut [u8; GROUP]) -> (f32, f32) {
    let rms = (x.iter().fold(0.0, |sum, v| sum + v * v) / GROUP as f32).sqrt();
    let weights = x.map(|v| rms + v.abs());
    let (low, high) = super::range(x);
    let mut min = low.min(0.0);
    if high == min {
        q.fill(0);
        return (0.0, -min);
    }
    let (mut sum_w, mut sum_x) = (0.0f32, 0.0f32);
    for (&x, &w) in x.iter().zip(&weights) {
        sum_w += w;
        sum_x += w * x;
    }
    let quantise =
        |inverse: f32, min: f32| x.map(|v| nearest(inverse * (v - min)).clamp(0, search.max as i32) as u8);
    let error = |scale: f32, min: f32, q: &[u8; GROUP]| {
        let mut sum = 0.0f32;
        for ((&x, &w), &q) in x.iter().zip(&weights).zip(q) {
            let diff = scale * f32::from(q) + min - x;
            sum += w * (diff * diff);
        }
        sum
    };
    let inverse = search.max / (high - min);
    let mut scale = 1.0 / inverse;
    *q = quantise(inverse, min);
    let mut best = error(scale, min, q);
    for step in 0..search.tries {
        let trial = quantise((search.start + 0.1 * step as f32 + search.max) / (high - min), min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for ((&x, &w), &l) in x.iter().zip(&weights).zip(&trial) {
            let l = f32::from(l);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let det = sum_w * sum_l2 - sum_l * sum_l;
        if det <= 0.0 || det.is_nan() {
            continue;
        }
        let mut trial_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
        let mut trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
        if trial_min > 0.0 {
            trial_min = 0.0;
            trial_scale = sum_xl / sum_l2;
        }
        let trial_error = error(trial_scale, trial_min, &trial);
        if trial_error < best {
            (*q, best, scale, min) = (trial, trial_error, trial_scale, trial_min);
        }
    }
    (scale, -min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_survive_packing() {
        let scales = [0, 1, 2, 63, 15, 16, 48, 62];
        let mins = [63, 5, 0, 31, 32, 33, 47, 17];
        let packed = pack_scales_mins(&scales, &mins);
        for j in 0..GROUPS {
            assert_eq!(scale_min(&packed, j), (scales[j], mins[j]), "group {j}");
        }
    }
}
