//! Q4_1: 32 elements in 20 bytes, a scale and a minimum, 4-bit values from the minimum up.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..4   m    f16
//!       4..20  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = q(i) * d + m
//! ```

use super::{f16_bytes, f16_value, inverse, pack_nibbles, range, unpack_nibbles};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// Two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ4_1 {
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

    /// The block whose 16 steps span from the smallest to the largest element; each element goes to the nearest.
    pub fn encode(x: &[f32; LEN]) -> BlockQ4_1 {
        let (min, max) = range(x);
        let d = (max - min) / 15.0;
        let id = inverse(d);
        let q = |v: f32| (((v - min) * id + 0.5) as u8).min(15);
        BlockQ4_1 { d: f16_bytes(d), m: f16_bytes(min), qs: pack_nibbles(x, q) }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let (d, m) = (self.scale(), self.min());
        unpack_nibbles(&self.qs, out, |q| f32::from(q) * d + m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let mut x = [-2.0; LEN];
        x[3] = 13.0;
        x[19] = 0.0;
        let block = BlockQ4_1::encode(&x);
        assert_eq!((block.d, block.m), ([0x00, 0x3c], [0x00, 0xc0]));
        assert_eq!(block.qs[2..5], [0x00, 0x2f, 0x00]);
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!(x, y);
    }

    #[test]
    fn a_constant_block_is_its_minimum() {
        let block = BlockQ4_1::encode(&[0.25; LEN]);
        assert_eq!((block.scale(), block.min(), block.qs), (0.0, 0.25, [0; 16]));
    }
}
