//! IQ4_NL: 32 elements in 18 bytes, one scale, 4-bit places in a table whose steps grow outwards.
//!
//! ```text
//! byte  0..2   d    f16, little endian
//!       2..18  qs   byte j: low nibble = element j, high nibble = element j + 16
//! value(i) = TABLE[q(i)] * d
//! ```

use super::{extreme, f16_bytes, f16_value, inverse, pack_nibbles, unpack_nibbles};
use bytemuck::{Pod, Zeroable};

/// Elements in a block.
pub const LEN: usize = 32;

/// What a nibble stands for.
pub const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Below this everything is zero.
const TINY: f32 = 1e-15;

/// Scales tried around that which makes the largest magnitude the table's end, to each side.
const TRIES: i8 = 7;

/// One block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4_NL {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Two places a byte.
    pub qs: [u8; LEN / 2],
}

/// The place nearest to `x`, the upper where two are as near.
fn nearest(x: f32) -> usize {
    // As many entries as are at most x, the first of them in any case.
    let above = TABLE.iter().skip(1).take_while(|&&v| x >= f32::from(v)).count() + 1;
    match TABLE.get(above) {
        Some(&high) if x >= f32::from(TABLE[0]) => {
            let low = f32::from(TABLE[above - 1]);
            if x - low < f32::from(high) - x { above - 1 } else { above }
        }
        Some(_) => 0,
        None => TABLE.len() - 1,
    }
}

/// The best scale for the places that `inverse` gives, and the size of what it explains, weighted by squares: the sums
/// `w q x` and `w q q`.
fn sums(x: &[f32; LEN], inverse: f32) -> (f32, f32) {
    x.iter().fold((0.0, 0.0), |(qx, qq), &v| {
        let (q, w) = (f32::from(TABLE[nearest(inverse * v)]), v * v);
        (qx + w * q * v, qq + w * q * q)
    })
}

impl BlockIQ4_NL {
    /// The scale.
    #[inline]
    pub fn scale(&self) -> f32 {
        f16_value(self.d)
    }

    /// The block of the scale, of some that are tried, under which the squared error weighted by the values' squares is
    /// least.
    pub fn encode(x: &[f32; LEN]) -> BlockIQ4_NL {
        let largest = extreme(x);
        let d = if largest.abs() < TINY { 0.0 } else { best_scale(x, largest) };
        let id = inverse(d);
        let q = |v: f32| nearest(id * v) as u8;
        BlockIQ4_NL { d: f16_bytes(d), qs: pack_nibbles(x, q) }
    }

    /// The values of the block.
    #[inline]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let d = self.scale();
        unpack_nibbles(&self.qs, out, |q| d * f32::from(TABLE[usize::from(q)]));
    }
}

fn best_scale(x: &[f32; LEN], largest: f32) -> f32 {
    let end = f32::from(TABLE[0]);
    let (qx, qq) = sums(x, 1.0 / (-largest / end));
    let mut d = qx / qq;
    let mut best = d * qx;
    for step in -TRIES..=TRIES {
        let (qx, qq) = sums(x, (f32::from(step) + end) / largest);
        if qq > 0.0 && qx * qx > best * qq {
            d = qx / qq;
            best = d * qx;
        }
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_hand() {
        // Values of the table times a scale come back.
        let x: [f32; LEN] = std::array::from_fn(|i| f32::from(TABLE[i % 16]) * 0.5);
        let block = BlockIQ4_NL::encode(&x);
        assert_eq!((block.scale(), block.qs[0], block.qs[15]), (0.5, 0x00, 0xff));
        let mut y = [1.0; LEN];
        block.decode(&mut y);
        assert_eq!(x, y);
    }

    #[test]
    fn the_nearest_place_is_found() {
        let off = |i: usize, x: f32| (f32::from(TABLE[i]) - x).abs();
        for x in (-300..300).map(|i| i as f32 * 0.5) {
            let place = nearest(x);
            let least = (0..16).map(|i| off(i, x)).fold(f32::MAX, f32::min);
            assert_eq!(off(place, x), least, "{x}");
            // The upper of two, except at the ends.
            assert!(place == 15 || off(place + 1, x) > least, "{x}");
        }
        assert_eq!((nearest(f32::NAN), nearest(f32::INFINITY), nearest(f32::NEG_INFINITY)), (0, 15, 0));
    }

    #[test]
    fn a_zero_block_has_no_scale() {
        let block = BlockIQ4_NL::encode(&[0.0; LEN]);
        assert_eq!((block.d, block.qs), ([0; 2], [0x88; 16]));
    }
}
