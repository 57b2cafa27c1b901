//! Q4_K: 256 elements in 144 bytes; eight groups of 32, each with a 6-bit scale and minimum, 4-bit values.
//!
//! ```text
//! byte   0..2    d       f16, little endian: scale of the scales
//!        2..4    dmin    f16: scale of the minima
//!        4..16   scales  see affine::scale_min
//!       16..144  qs      byte 32 c + l: low nibble = element l of group 2 c, high nibble = of group 2 c + 1
//! value = d * scale(group) * q - dmin * min(group)
//! ```

use super::affine::{self, GROUP, GROUPS, Search};
use super::f16_value;
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = GROUP * GROUPS;

const SEARCH: Search = Search { max: 15.0, start: -1.0, tries: 21 };

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
    /// 6-bit scales and minima of the groups.
    pub scales: [u8; 12],
    /// Two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ4_K {
    /// The factor and the offset of group `j` (below 8): `value = factor * q - offset`.
    #[inline]
    pub fn scale_min(&self, j: usize) -> (f32, f32) {
        let (scale, min) = affine::scale_min(&self.scales, j);
        (f16_value(self.d) * f32::from(scale), f16_value(self.dmin) * f32::from(min))
    }

    /// The block with the smallest weighted squared error among the trials of the format's search.
    pub fn encode(x: &[f32; LEN]) -> BlockQ4_K {
        let affine::Affine { d, dmin, scales, q } = affine::quantise(x, &SEARCH);
        BlockQ4_K::of(d, dmin, scales, &q)
    }

    /// The block of these scales and quanta, which are below 16 and in the order of the elements.
    pub(super) fn of(d: [u8; 2], dmin: [u8; 2], scales: [u8; 12], q: &[u8; LEN]) -> BlockQ4_K {
        let mut qs = [0; LEN / 2];
        for (qs, q) in qs.chunks_exact_mut(GROUP).zip(q.chunks_exact(2 * GROUP)) {
            for (l, byte) in qs.iter_mut().enumerate() {
                *byte = q[l] | q[l + GROUP] << 4;
            }
        }
        BlockQ4_K { d, dmin, scales, qs }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        for (c, (out, qs)) in out.chunks_exact_mut(2 * GROUP).zip(self.qs.chunks_exact(GROUP)).enumerate() {
            let (low, high) = out.split_at_mut(GROUP);
            let (d, m) = self.scale_min(2 * c);
            for (out, &byte) in low.iter_mut().zip(qs) {
                *out = d * f32::from(byte & 15) - m;
            }
            let (d, m) = self.scale_min(2 * c + 1);
            for (out, &byte) in high.iter_mut().zip(qs) {
                *out = d * f32::from(byte >> 4) - m;
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
        let mut block = BlockQ4_K::zeroed();
        (block.d, block.dmin) = ([0x00, 0x3c], [0x00, 0x38]);
        block.scales[3] = 2;
        block.scales[7] = 1;
        block.scales[2] = 2 << 6;
        block.scales[6] = 1 << 6;
        block.scales[10] = 0x21;
        block.qs[32] = 0xf0;
        block.qs[96 + 31] = 0x07;
        let mut y = [9.0; LEN];
        block.decode(&mut y);
        assert_eq!((y[3 * 32], y[3 * 32 + 1]), (2.0 * 15.0 - 0.5, -0.5));
        assert_eq!((y[6 * 32], y[6 * 32 + 31]), (-9.0, 33.0 * 7.0 - 9.0));
        assert_eq!((y[0], y[255]), (0.0, 0.0));
    }
}
