//! Q5_0: 32 elements in 22 bytes, one scale, 5-bit values around 16.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..6   qh   u32, little endian: bit i = fifth bit of element i
//!       6..22  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = (q(i) - 16) * d
//! ```

use super::{extreme, f16_bytes, f16_value, five_bits, inverse, pack_five_bits};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// The fifth bits.
    pub qh: [u8; 4],
    /// The four lower bits, two values a byte.
    pub qs: [u8; LEN / 2],
}

impl BlockQ5_0 {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        f16_value(self.d)
    }

    /// The nearest block. The element of largest magnitude becomes -16 exactly, so that the scale takes its sign;
    /// other values are rounded to the nearest, halves up.
    pub fn encode(x: &[f32; LEN]) -> BlockQ5_0 {
        let d = extreme(x) / -16.0;
        let id = inverse(d);
        let (qs, qh) = pack_five_bits(&x.map(|v| ((v * id + 16.5) as u8).min(31)));
        BlockQ5_0 { d: f16_bytes(d), qh, qs }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let d = self.scale();
        for (out, q) in out.iter_mut().zip(five_bits(&self.qs, self.qh)) {
            *out = (i32::from(q) - 16) as f32 * d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let mut x = [0.0; LEN];
        x[0] = -16.0;
        x[1] = 15.0;
        x[17] = -1.0;
        let block = BlockQ5_0::encode(&x);
        assert_eq!(block.d, [0x00, 0x3c]);
        assert_eq!(u32::from_le_bytes(block.qh), !(1 | 1 << 17));
        assert_eq!(block.qs[..3], [0x00, 0xff, 0x00]);
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!(x, y);
    }

    #[test]
    fn a_zero_block_has_the_scale_minus_zero() {
        let block = BlockQ5_0::encode(&[0.0; LEN]);
        assert_eq!((block.d, block.qh, block.qs), ([0x00, 0x80], [0xff; 4], [0; 16]));
    }
}
