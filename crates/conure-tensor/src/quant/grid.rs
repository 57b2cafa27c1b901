//! The values that a group of a block can hold once its scale is chosen, for roundings that are not to the nearest.

use super::f16_value;
use super::mxfp4;
use super::parts::{Layout, Parts};

/// The values of one group: `scale * (q - offset) + min`, or `scale * table[q]`, exactly as decoding computes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    scale: f32,
    min: f32,
    /// `1 / scale`, 0 without a scale.
    inverse: f32,
    offset: i32,
    /// The least and the largest quantum.
    ends: (i32, i32),
    table: Option<&'static [i8; 16]>,
}

impl Grid {
    /// That of group `g` of a block with these parts, whose quanta do not count.
    pub fn of(layout: &Layout, parts: &Parts, g: usize) -> Grid {
        let d = if layout.exponents { mxfp4::scale(parts.d[0]) } else { f16_value(parts.d) };
        let m = f16_value(parts.m);
        let scale = match (layout.integer_scales, layout.mins) {
            (false, _) => d,
            (true, true) => d * f32::from(parts.scales[g]),
            (true, false) => d * f32::from(parts.scales[g] as i8),
        };
        let min = match (layout.integer_scales, layout.mins) {
            (_, false) => 0.0,
            (false, true) => m,
            (true, true) => -m * f32::from(parts.mins[g]),
        };
        // The lowest signed byte is never made: some machines multiply bytes by their magnitudes.
        let ends = if layout.bits == 8 { (-127, 127) } else { (0, (1 << layout.bits) - 1) };
        let inverse = super::inverse(scale);
        Grid { scale, min, inverse, offset: i32::from(layout.offset), ends, table: layout.table }
    }

    /// The quantum, as [`Parts::q`] holds it, whose value is nearest to `target`, and that value.
    pub fn nearest(&self, target: f32) -> (u8, f32) {
        if let Some(table) = self.table {
            let value = |q: u8| self.scale * f32::from(table[usize::from(q)]);
            let off = |q: u8| (value(q) - target).abs();
            let q = (1..16).fold(0, |best, q| if off(q) < off(best) { q } else { best });
            return (q, value(q));
        }
        let at = (target - self.min) * self.inverse;
        // What is far outside ends at an end also where the difference overflows.
        let q = (at.round() as i32).saturating_add(self.offset).clamp(self.ends.0, self.ends.1);
        (q as u8, self.scale * (q - self.offset) as f32 + self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::quant::{decode, encoded};

    #[test]
    fn quanta_that_a_grid_gives_are_blocks_that_decode_to_its_values() {
        let mut state = 3u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for dtype in DType::ALL {
            let Some(layout) = Layout::of(dtype) else { continue };
            let scaled_by: Vec<f32> = (0..layout.block).map(|_| next()).collect();
            let targets: Vec<f32> = (0..layout.block).map(|_| 1.3 * next()).collect();
            let mut parts = Parts::of(dtype, &encoded(dtype, &scaled_by).unwrap()).unwrap();
            let mut values = Vec::new();
            for (i, &target) in targets.iter().enumerate() {
                let (q, value) = Grid::of(&layout, &parts, i / layout.group).nearest(target);
                parts.q[i] = q;
                values.push(value);
            }
            let mut decoded = vec![0.0; layout.block];
            let bytes = parts.block(dtype).unwrap();
            assert_eq!(bytes.len(), dtype.block_bytes());
            decode(dtype, &bytes, &mut decoded).unwrap();
            assert_eq!(decoded, values, "{dtype}");
            // No other quantum is nearer.
            for (i, (&target, &value)) in targets.iter().zip(&values).enumerate() {
                for q in 0..1u16 << layout.bits {
                    if layout.bits == 8 && q == 128 {
                        continue;
                    }
                    let mut other = parts;
                    other.q[i] = q as u8;
                    decode(dtype, &other.block(dtype).unwrap(), &mut decoded).unwrap();
                    let (near, far) = ((value - target).abs(), (decoded[i] - target).abs());
                    assert!(near <= far * (1.0 + 1e-5) + 1e-6, "{dtype} {i}: {value} {target} {q}");
                }
            }
        }
    }

    #[test]
    fn without_a_scale_every_value_is_the_minimum() {
        for dtype in DType::ALL {
            let Some(layout) = Layout::of(dtype) else { continue };
            let parts = Parts::of(dtype, &vec![0; dtype.block_bytes()]).unwrap();
            let (_, value) = Grid::of(&layout, &parts, 0).nearest(1e30);
            assert!(value.abs() < 1e-30, "{dtype}: {value}");
        }
    }
}
