//! Q5_1: 32 elements in 24 bytes, a scale and a minimum, 5-bit values from the minimum up.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..4   m    f16
//!       4..8   qh   u32, little endian: bit i = fifth bit of element i
//!       8..24  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = q(i) * d + m
//! ```

use super::{f16_bytes, f16_value, five_bits, inverse, pack_five_bits, range};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// The fifth bits.
    pub qh: [u8; 4],
    /// The four lower bits, two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ5_1 {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        f16_value(self.d)
    }

    /// The value of q = 0.
    #[inline]
    pub fn min(&self) -> f32 {
        f16_value(self.m)
    }

    /// The block whose 32 steps span from the smallest to the largest element; each element goes to the nearest.
    pub fn encode(x: &[f32; LEN]) -> BlockQ5_1 {
        let (min, max) = range(x);
        let d = (max - min) / 31.0;
        let id = inverse(d);
        let (qs, qh) = pack_five_bits(&x.map(|v| ((v - min) * id + 0.5) as u8));
        BlockQ5_1 { d: f16_bytes(d), m: f16_bytes(min), qh, qs }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let (d, m) = (self.scale(), self.min());
        for (out, q) in out.iter_mut().zip(five_bits(&self.qs, self.qh)) {
            *out = f32::from(q) * d + m;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let mut x = [-2.0; LEN];
        x[3] = 29.0;
        x[19] = 15.0;
        let block = BlockQ5_1::encode(&x);
        assert_eq!((block.d, block.m), ([0x00, 0x3c], [0x00, 0xc0]));
        assert_eq!(u32::from_le_bytes(block.qh), 1 << 3 | 1 << 19);
        assert_eq!(block.qs[2..5], [0x00, 0x1f, 0x00]);
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!(x, y);
    }
}
