//! Q5_K: 256 elements in 176 bytes; eight groups of 32, each with a 6-bit scale and minimum, 5-bit values.
//!
//! ```text
//! byte   0..2    d       f16, little endian: scale of the scales
//!        2..4    dmin    f16: scale of the minima
//!        4..16   scales  see affine::scale_min
//!       16..48   qh      bit g of byte l = fifth bit of element l of group g
//!       48..176  qs      byte 32 c + l: low nibble = element l of group 2 c, high nibble = of group 2 c + 1
//! value = d * scale(group) * q - dmin * min(group)
//! ```

use super::affine::{self, GROUP, GROUPS, Search};
use super::f16_value;
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = GROUP * GROUPS;

const SEARCH: Search = Search { max: 31.0, start: -0.5, tries: 16 };

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
    /// 6-bit scales and minima of the groups.
    pub scales: [u8; 12],
    /// The fifth bits, one bit a group.
    pub qh: [u8; GROUP],
    /// The four lower bits, two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ5_K {
    /// The factor and the offset of group `j` (below 8): `value = factor * q - offset`.
    #[inline]
    pub fn scale_min(&self, j: usize) -> (f32, f32) {
        let (scale, min) = affine::scale_min(&self.scales, j);
        (f16_value(self.d) * f32::from(scale), f16_value(self.dmin) * f32::from(min))
    }

    /// The block with the smallest weighted squared error among the trials of the format's search.
    pub fn encode(x: &[f32; LEN]) -> BlockQ5_K {
        let affine::Affine { d, dmin, scales, q } = affine::quantise(x, &SEARCH);
        BlockQ5_K::of(d, dmin, scales, &q)
    }

    /// The block of these scales and quanta, which are below 32 and in the order of the elements.
    pub(super) fn of(d: [u8; 2], dmin: [u8; 2], scales: [u8; 12], q: &[u8; LEN]) -> BlockQ5_K {
        let (mut qh, mut qs) = ([0; GROUP], [0; LEN / 2]);
        for (g, q) in q.chunks_exact(GROUP).enumerate() {
            let chunk = &mut qs[g / 2 * GROUP..][..GROUP];
            for ((&q, low), high) in q.iter().zip(chunk).zip(&mut qh) {
                *low |= (q & 15) << (g % 2 * 4);
                *high |= (q >> 4) << g;
            }
        }
        BlockQ5_K { d, dmin, scales, qh, qs }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        for (g, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (d, m) = self.scale_min(g);
            let chunk = &self.qs[g / 2 * GROUP..][..GROUP];
            for ((out, &low), &high) in out.iter_mut().zip(chunk).zip(&self.qh) {
                let q = low >> (g % 2 * 4) & 15 | (high >> g & 1) << 4;
                *out = d * f32::from(q) - m;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        // Group 3 (scale 2, minimum 1) and group 6 (scale 33, minimum 18), d = 1, dmin = 0.5.
        let mut block = BlockQ5_K::zeroed();
        (block.d, block.dmin) = ([0x00, 0x3c], [0x00, 0x38]);
        block.scales[3] = 2;
        block.scales[7] = 1;
        block.scales[2] = 2 << 6;
        block.scales[6] = 1 << 6;
        block.scales[10] = 0x21;
        block.qs[32] = 0xf0;
        block.qs[96 + 31] = 0x07;
        block.qh[31] = 1 << 6;
        let mut y = [9.0; LEN];
        block.decode(&mut y);
        assert_eq!((y[3 * 32], y[3 * 32 + 1]), (2.0 * 15.0 - 0.5, -0.5));
        assert_eq!((y[6 * 32], y[6 * 32 + 31]), (-9.0, 33.0 * 23.0 - 9.0));
        assert_eq!((y[0], y[255]), (0.0, 0.0));
    }
}
