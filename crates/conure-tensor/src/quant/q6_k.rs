//! Q6_K: 256 elements in 210 bytes; sixteen groups of 16, each with a signed 8-bit scale, 6-bit values around 32.
//!
//! ```text
//! byte    0..128  ql      four lower bits
//!       128..192  qh      two upper bits
//!       192..208  scales  signed, one a group of 16 elements
//!       208..210  d       f16, little endian: scale of the scales
//! half n of 128 elements (64 bytes of ql, 32 of qh), l below 32:
//!   element l       low nibble of ql[l],       bits 0, 1 of qh[l]
//!   element l + 32  low nibble of ql[l + 32],  bits 2, 3
//!   element l + 64  high nibble of ql[l],      bits 4, 5
//!   element l + 96  high nibble of ql[l + 32], bits 6, 7
//! value = d * scale(group) * (q - 32)
//! ```

use super::{extreme, f16_bytes, f16_value, nearest};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 256;
/// Elements in a group that shares a scale.
pub const GROUP: usize = 16;

/// Groups whose values, and blocks whose scales, are all below this are stored as zero.
const TINY: f32 = 1e-15;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6_K {
    /// The four lower bits.
    pub ql: [u8; LEN / 2],
    /// The two upper bits.
    pub qh: [u8; LEN / 4],
    /// Scales of the groups.
    pub scales: [i8; LEN / GROUP],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

impl BlockQ6_K {
    /// The factor of group `j` (below 16): `value = factor * (q - 32)`.
    #[inline]
    pub fn scale(&self, j: usize) -> f32 {
        f16_value(self.d) * f32::from(self.scales[j])
    }

    /// The block with the smallest weighted squared error among the trials of the format's search.
    pub fn encode(x: &[f32; LEN]) -> BlockQ6_K {
        let mut q = [0u8; LEN];
        let mut scales = [0.0f32; LEN / GROUP];
        let (groups, _) = x.as_chunks::<GROUP>();
        let (group_qs, _) = q.as_chunks_mut::<GROUP>();
        for ((x, q), scale) in groups.iter().zip(group_qs.iter_mut()).zip(&mut scales) {
            *scale = search_group(x, q);
        }
        let mut block = BlockQ6_K::zeroed();
        let max = extreme(&scales);
        if max.abs() < TINY {
            return block;
        }
        let inverse = -128.0 / max;
        block.d = f16_bytes(1.0 / inverse);
        block.scales = scales.map(|s| nearest(inverse * s).clamp(-128, 127) as i8);
        for (j, (x, q)) in groups.iter().zip(group_qs).enumerate() {
            let scale = block.scale(j);
            if scale == 0.0 {
                continue;
            }
            for (q, &x) in q.iter_mut().zip(x) {
                *q = (nearest(x / scale).clamp(-32, 31) + 32) as u8;
            }
        }
        block.pack(&q);
        block
    }

    /// The block of these scales and quanta, which are below 64 and in the order of the elements.
    pub(super) fn of(d: [u8; 2], scales: [i8; LEN / GROUP], q: &[u8; LEN]) -> BlockQ6_K {
        let mut block = BlockQ6_K { d, scales, ..BlockQ6_K::zeroed() };
        block.pack(q);
        block
    }

    fn pack(&mut self, q: &[u8; LEN]) {
        let halves = self.ql.chunks_exact_mut(64).zip(self.qh.chunks_exact_mut(32)).zip(q.chunks_exact(128));
        for ((ql, qh), q) in halves {
            for l in 0..32 {
                let (a, b, c, d) = (q[l], q[l + 32], q[l + 64], q[l + 96]);
                ql[l] = a & 15 | (c & 15) << 4;
                ql[l + 32] = b & 15 | (d & 15) << 4;
                qh[l] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
            }
        }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let halves = self.ql.chunks_exact(64).zip(self.qh.chunks_exact(32)).zip(out.chunks_exact_mut(128));
        for (n, ((ql, qh), out)) in halves.enumerate() {
            for (part, out) in out.chunks_exact_mut(32).enumerate() {
                let ql = &ql[part % 2 * 32..][..32];
                let (low_shift, high_shift) = (part / 2 * 4, part * 2);
                let scales = [self.scale(8 * n + 2 * part), self.scale(8 * n + 2 * part + 1)];
                for (l, ((out, &low), &high)) in out.iter_mut().zip(ql).zip(qh).enumerate() {
                    let q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
                    *out = scales[l / GROUP] * (i32::from(q) - 32) as f32;
                }
            }
        }
    }
}

/// The scale of one group and its quanta (offset by 32) with it. Elements count by their square in the squared
/// error; the trials divide the largest by 32 and by 31.1 to 32.9 in steps of 0.1.
fn search_group(x: &[f32; GROUP], q: &mut [u8; GROUP]) -> f32 {
    let max = extreme(x);
    if max.abs() < TINY {
        q.fill(0);
        return 0.0;
    }
    let quantise = |inverse: f32| x.map(|v| nearest(inverse * v).clamp(-32, 31));
    let sums = |l: &[i32; GROUP]| {
        let (mut sum_xl, mut sum_l2) = (0.0f32, 0.0f32);
        for (&x, &l) in x.iter().zip(l) {
            let (w, l) = (x * x, l as f32);
            sum_xl += w * x * l;
            sum_l2 += w * l * l;
        }
        (sum_xl, sum_l2)
    };
    let offset = |l: [i32; GROUP]| l.map(|l| (l + 32) as u8);
    let first = quantise(-32.0 / max);
    let (sum_xl, sum_l2) = sums(&first);
    let mut scale = if sum_l2 != 0.0 { sum_xl / sum_l2 } else { 0.0 };
    let mut best = scale * sum_xl;
    *q = offset(first);
    for step in (-9..=9).filter(|&step| step != 0) {
        let trial = quantise(-(32.0 + 0.1 * step as f32) / max);
        let (sum_xl, sum_l2) = sums(&trial);
        if sum_l2 > 0.0 && sum_xl * sum_xl > best * sum_l2 {
            scale = sum_xl / sum_l2;
            best = scale * sum_xl;
            *q = offset(trial);
        }
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let mut block = BlockQ6_K::zeroed();
        block.d = [0x00, 0x38];
        block.scales = std::array::from_fn(|j| j as i8 - 8);
        // Second half, l = 20: the four elements 148, 180, 212 and 244 get 63, 0, 33 and 31.
        block.ql[64 + 20] = 0x1f;
        block.ql[96 + 20] = 0xf0;
        block.qh[32 + 20] = 0b01_10_00_11;
        let mut y = [0.0; LEN];
        block.decode(&mut y);
        let want = [(148, 31.0), (180, -32.0), (212, 1.0), (244, -1.0)];
        for (i, q) in want {
            assert_eq!(y[i], 0.5 * (i as f32 / 16.0 - 8.0).floor() * q, "{i}");
        }
        assert_eq!(y[0], 0.5 * -8.0 * -32.0);
    }

    #[test]
    fn tiny_values_are_a_zero_block() {
        assert_eq!(BlockQ6_K::encode(&[9e-16; LEN]), BlockQ6_K::zeroed());
        assert_eq!(BlockQ6_K::encode(&[0.0; LEN]), BlockQ6_K::zeroed());
    }
}
