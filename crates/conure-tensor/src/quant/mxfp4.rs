//! MXFP4: 32 elements in 17 bytes, a power of two as scale, 4-bit floats (1 sign, 2 exponent, 1 mantissa).
//!
//! OCP Microscaling Formats specification 1.0 (2023), in the order of GGUF.
//!
//! ```text
//! byte  0      e    exponent
//!       1..17  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = TABLE[q(i)] * 2^(e - 128); the table holds the floats times two
//! ```

use super::{pack_nibbles, unpack_nibbles};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// What a nibble stands for, times two.
pub const TABLE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMXFP4 {
    /// Exponent of the scale.
    pub e: u8,
    /// Two values a byte.
    pub qs: [u8; LEN / 2],
}

/// `2^(e - 128)`: half of what the exponent says, since [`TABLE`] is doubled.
#[inline(always)]
pub fn scale(e: u8) -> f32 {
    let e = u32::from(e);
    // The two smallest are below the smallest normal f32, 2^-126.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

/// The element of the table nearest to `x / scale`, the first where two are as near.
fn nearest(x: f32, scale: f32) -> u8 {
    let off = |q: u8| (f32::from(TABLE[usize::from(q)]) * scale - x).abs();
    (1..16).fold(0, |best, q| if off(q) < off(best) { q } else { best })
}

impl BlockMXFP4 {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        scale(self.e)
    }

    /// The block whose scale puts the largest magnitude between 4 and 8, the nearest float for each value.
    pub fn encode(x: &[f32; LEN]) -> BlockMXFP4 {
        let largest = x.iter().fold(0f32, |a, v| a.max(v.abs()));
        // The cast saturates: what is below all exponents has the smallest.
        let e = if largest > 0.0 { (largest.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
        let scale = scale(e);
        BlockMXFP4 { e, qs: pack_nibbles(x, |v| nearest(v, scale)) }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let scale = self.scale();
        unpack_nibbles(&self.qs, out, |q| f32::from(TABLE[usize::from(q)]) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        // 6 is the largest float: an exponent of 127 leaves it as it is.
        let mut x = [0.0; LEN];
        (x[0], x[1], x[2], x[16]) = (6.0, -1.5, 0.5, 2.9);
        let block = BlockMXFP4::encode(&x);
        assert_eq!((block.e, &block.qs[..3]), (127, &[0x57, 0x0b, 0x01][..]));
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!((y[0], y[1], y[2], y[16], y[31]), (6.0, -1.5, 0.5, 3.0, 0.0));
    }

    #[test]
    fn scales_are_powers_of_two_down_to_the_smallest() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(scale(e)), 2f64.powi(i32::from(e) - 128), "{e}");
        }
    }
}
