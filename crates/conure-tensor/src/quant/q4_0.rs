//! Q4_0: 32 elements in 18 bytes, one scale, 4-bit values around 8.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..18  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = (q(i) - 8) * d
//! ```

use super::{extreme, f16_bytes, f16_value, inverse, pack_nibbles, unpack_nibbles};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ4_0 {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        f16_value(self.d)
    }

    /// The nearest block. The element of largest magnitude becomes -8 exactly, so that the scale takes its sign;
    /// other values are rounded to the nearest, halves up.
    pub fn encode(x: &[f32; LEN]) -> BlockQ4_0 {
        let d = extreme(x) / -8.0;
        let id = inverse(d);
        // The cast drops the fraction, and saturates: NaN becomes 0.
        let q = |v: f32| ((v * id + 8.5) as u8).min(15);
        BlockQ4_0 { d: f16_bytes(d), qs: pack_nibbles(x, q) }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let d = self.scale();
        unpack_nibbles(&self.qs, out, |q| (i32::from(q) - 8) as f32 * d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        // -8 is the element of largest magnitude: the scale is 1 and integers survive.
        let mut x = [0.0; LEN];
        x[0] = -8.0;
        x[1] = 7.0;
        x[16] = 3.0;
        let block = BlockQ4_0::encode(&x);
        assert_eq!(block.d, [0x00, 0x3c]);
        assert_eq!(block.qs[..3], [0xb0, 0x8f, 0x88]);
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!(x, y);
    }

    #[test]
    fn a_zero_block_has_the_scale_minus_zero() {
        let block = BlockQ4_0::encode(&[0.0; LEN]);
        assert_eq!((block.d, block.qs), ([0x00, 0x80], [0x88; 16]));
    }
}
