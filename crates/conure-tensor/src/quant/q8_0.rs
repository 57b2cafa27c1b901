//! Q8_0: 32 elements in 34 bytes, one scale, signed 8-bit values.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..34  qs   byte i = element i, signed
//! value(i) = q(i) * d
//! ```

use super::{extreme, f16_bytes, f16_value, inverse};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// The values.
    pub qs: [i8; LEN],
}

impl BlockQ8_0 {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        f16_value(self.d)
    }

    /// The nearest block. The largest magnitude becomes 127; other values are rounded to the nearest, halves away
    /// from zero.
    pub fn encode(x: &[f32; LEN]) -> BlockQ8_0 {
        let d = extreme(x).abs() / 127.0;
        let id = inverse(d);
        BlockQ8_0 { d: f16_bytes(d), qs: x.map(|v| (v * id).round() as i8) }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let d = self.scale();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = f32::from(q) * d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        let mut x = [0.0; LEN];
        x[0] = -127.0;
        x[1] = 2.5;
        x[31] = -2.5;
        let block = BlockQ8_0::encode(&x);
        assert_eq!(block.d, [0x00, 0x3c]);
        assert_eq!((block.qs[0], block.qs[1], block.qs[31]), (-127, 3, -3));
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!((y[0], y[1], y[2], y[31]), (-127.0, 3.0, 0.0, -3.0));
    }
}
