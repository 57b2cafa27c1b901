//! What a block of any format holds, taken apart: for kernels that lay weights out anew.

use super::affine::{pack_scales_mins, scale_min};
use super::{BlockIQ4_NL, BlockMXFP4, five_bits, iq4_nl, mxfp4, pack_five_bits, q6_k};
use super::{BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0, BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0};
use crate::DType;
use bytemuck::Pod;

/// How the formats differ. A value is `scale * (q - offset)`, or with minima `scale * q + min`, or with a table
/// `scale * table[q]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bits of a quantum: 4, 5, 6 or 8. Those of 8 bits are signed.
    pub bits: u32,
    /// Elements of a block.
    pub block: usize,
    /// Elements of a group, which have one scale.
    pub group: usize,
    /// What is taken from a quantum.
    pub offset: u8,
    /// Whether groups have a minimum: [`Parts::m`], or `-m` times [`Parts::mins`] where there are integer scales.
    pub mins: bool,
    /// Whether a group's scale is [`Parts::d`] times one of [`Parts::scales`], and not `d` itself.
    pub integer_scales: bool,
    /// What quanta stand for, in formats where they are places in a table.
    pub table: Option<&'static [i8; 16]>,
    /// Whether the first byte of [`Parts::d`] is an exponent, the scale [`mxfp4::scale`] of it, and not an f16.
    pub exponents: bool,
}

impl Layout {
    /// The layout of a block format; `None` for other types.
    pub const fn of(dtype: DType) -> Option<Layout> {
        let (bits, block, group, offset, mins, integer_scales) = match dtype {
            DType::Q8_0 => (8, 32, 32, 0, false, false),
            DType::Q4_0 => (4, 32, 32, 8, false, false),
            DType::Q5_0 => (5, 32, 32, 16, false, false),
            DType::Q4_1 => (4, 32, 32, 0, true, false),
            DType::Q5_1 => (5, 32, 32, 0, true, false),
            DType::Q4_K => (4, 256, 32, 0, true, true),
            DType::Q5_K => (5, 256, 32, 0, true, true),
            DType::Q6_K => (6, 256, 16, 32, false, true),
            DType::IQ4_NL | DType::MXFP4 => (4, 32, 32, 0, false, false),
            _ => return None,
        };
        let table = match dtype {
            DType::IQ4_NL => Some(&iq4_nl::TABLE),
            DType::MXFP4 => Some(&mxfp4::TABLE),
            _ => None,
        };
        let exponents = matches!(dtype, DType::MXFP4);
        Some(Layout { bits, block, group, offset, mins, integer_scales, table, exponents })
    }

    /// Groups of a block.
    pub const fn groups(&self) -> usize {
        self.block / self.group
    }
}

/// A block taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The quanta in the order of the elements, as many as the block has.
    pub q: [u8; 256],
    /// The scale, or that of the scales: f16, or an exponent and nothing if [`Layout::exponents`].
    pub d: [u8; 2],
    /// The minimum, or the scale of the minima: f16.
    pub m: [u8; 2],
    /// The groups' scales: signed for Q6_K, else below 64.
    pub scales: [u8; 16],
    /// The groups' minima.
    pub mins: [u8; 8],
}

impl Parts {
    /// The parts of a block of `dtype`, which are that format's bytes; `None` for other types and lengths.
    pub fn of(dtype: DType, bytes: &[u8]) -> Option<Parts> {
        let mut parts = Parts { q: [0; 256], d: [0; 2], m: [0; 2], scales: [0; 16], mins: [0; 8] };
        let p = &mut parts;
        match dtype {
            DType::Q8_0 => {
                let b: BlockQ8_0 = read(bytes)?;
                p.d = b.d;
                p.q.iter_mut().zip(b.qs).for_each(|(q, stored)| *q = stored as u8);
            }
            DType::Q4_0 => {
                let b: BlockQ4_0 = read(bytes)?;
                p.d = b.d;
                nibbles(&mut p.q, &b.qs);
            }
            DType::Q4_1 => {
                let b: BlockQ4_1 = read(bytes)?;
                (p.d, p.m) = (b.d, b.m);
                nibbles(&mut p.q, &b.qs);
            }
            DType::Q5_0 => {
                let b: BlockQ5_0 = read(bytes)?;
                p.d = b.d;
                p.q[..32].copy_from_slice(&five_bits(&b.qs, b.qh));
            }
            DType::Q5_1 => {
                let b: BlockQ5_1 = read(bytes)?;
                (p.d, p.m) = (b.d, b.m);
                p.q[..32].copy_from_slice(&five_bits(&b.qs, b.qh));
            }
            DType::Q4_K => {
                let b: BlockQ4_K = read(bytes)?;
                (p.d, p.m) = (b.d, b.dmin);
                p.six_bit_scales(&b.scales);
                for (q, qs) in p.q.chunks_exact_mut(64).zip(b.qs.chunks_exact(32)) {
                    nibbles(q, qs);
                }
            }
            DType::Q5_K => {
                let b: BlockQ5_K = read(bytes)?;
                (p.d, p.m) = (b.d, b.dmin);
                p.six_bit_scales(&b.scales);
                for (q, qs) in p.q.chunks_exact_mut(64).zip(b.qs.chunks_exact(32)) {
                    nibbles(q, qs);
                }
                for (g, q) in p.q.chunks_exact_mut(32).enumerate() {
                    q.iter_mut().zip(&b.qh).for_each(|(q, high)| *q |= (high >> g & 1) << 4);
                }
            }
            DType::Q6_K => {
                let b: BlockQ6_K = read(bytes)?;
                p.d = b.d;
                p.scales = b.scales.map(|s| s as u8);
                six_bits(&mut p.q, &b);
            }
            DType::IQ4_NL => {
                let b: BlockIQ4_NL = read(bytes)?;
                p.d = b.d;
                nibbles(&mut p.q, &b.qs);
            }
            DType::MXFP4 => {
                let b: BlockMXFP4 = read(bytes)?;
                p.d[0] = b.e;
                nibbles(&mut p.q, &b.qs);
            }
            _ => return None,
        }
        Some(parts)
    }

    /// The block of `dtype` with these parts: the inverse of [`Parts::of`]; `None` for types that have none.
    pub fn block(&self, dtype: DType) -> Option<Vec<u8>> {
        let q = self.q.first_chunk()?;
        let mut scales = [0; 8];
        scales.copy_from_slice(&self.scales[..8]);
        let packed = pack_scales_mins(&scales, &self.mins);
        Some(match dtype {
            DType::Q8_0 => bytes(&BlockQ8_0 { d: self.d, qs: q.map(|q| q as i8) }),
            DType::Q4_0 => bytes(&BlockQ4_0 { d: self.d, qs: in_nibbles(q) }),
            DType::Q4_1 => bytes(&BlockQ4_1 { d: self.d, m: self.m, qs: in_nibbles(q) }),
            DType::Q5_0 => {
                let (qs, qh) = pack_five_bits(q);
                bytes(&BlockQ5_0 { d: self.d, qh, qs })
            }
            DType::Q5_1 => {
                let (qs, qh) = pack_five_bits(q);
                bytes(&BlockQ5_1 { d: self.d, m: self.m, qh, qs })
            }
            DType::Q4_K => bytes(&BlockQ4_K::of(self.d, self.m, packed, &self.q)),
            DType::Q5_K => bytes(&BlockQ5_K::of(self.d, self.m, packed, &self.q)),
            DType::Q6_K => bytes(&BlockQ6_K::of(self.d, self.scales.map(|s| s as i8), &self.q)),
            DType::IQ4_NL => bytes(&BlockIQ4_NL { d: self.d, qs: in_nibbles(q) }),
            DType::MXFP4 => bytes(&BlockMXFP4 { e: self.d[0], qs: in_nibbles(q) }),
            _ => return None,
        })
    }

    fn six_bit_scales(&mut self, packed: &[u8; 12]) {
        for j in 0..8 {
            (self.scales[j], self.mins[j]) = scale_min(packed, j);
        }
    }
}

fn read<B: Pod>(bytes: &[u8]) -> Option<B> {
    bytemuck::try_pod_read_unaligned(bytes).ok()
}

fn bytes<B: Pod>(block: &B) -> Vec<u8> {
    bytemuck::bytes_of(block).to_vec()
}

/// The inverse of [`nibbles`], of 32 elements.
fn in_nibbles(q: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4)
}

/// Byte j of `qs`: low nibble to element j, high nibble to element j + their number.
fn nibbles(q: &mut [u8], qs: &[u8]) {
    for (j, byte) in qs.iter().enumerate() {
        (q[j], q[j + qs.len()]) = (byte & 15, byte >> 4);
    }
}

fn six_bits(q: &mut [u8; 256], b: &BlockQ6_K) {
    let halves = b.ql.chunks_exact(64).zip(b.qh.chunks_exact(32)).zip(q.chunks_exact_mut(q6_k::LEN / 2));
    for ((ql, qh), q) in halves {
        for l in 0..32 {
            q[l] = ql[l] & 15 | (qh[l] & 3) << 4;
            q[l + 32] = ql[l + 32] & 15 | (qh[l] >> 2 & 3) << 4;
            q[l + 64] = ql[l] >> 4 | (qh[l] >> 4 & 3) << 4;
            q[l + 96] = ql[l + 32] >> 4 | (qh[l] >> 6) << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{decode, f16_value};

    #[test]
    fn parts_put_together_are_the_decoded_values() {
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for dtype in DType::ALL {
            let Some(layout) = Layout::of(dtype) else {
                assert!(Parts::of(dtype, &[0; 4]).is_none());
                continue;
            };
            assert_eq!(layout.block, dtype.block_len());
            for _ in 0..20 {
                let mut bytes: Vec<u8> = (0..dtype.block_bytes()).map(|_| byte()).collect();
                // Scales that are numbers: exponents of all ones are cleared, wherever they are.
                bytes.iter_mut().for_each(|b| *b &= 0xbf);
                let mut expected = vec![0.0f32; layout.block];
                decode(dtype, &bytes, &mut expected).unwrap();
                let parts = Parts::of(dtype, &bytes).unwrap();
                assert_eq!(parts.block(dtype).unwrap(), bytes, "{dtype}");
                let d = if layout.exponents { mxfp4::scale(parts.d[0]) } else { f16_value(parts.d) };
                let m = f16_value(parts.m);
                for (i, &expected) in expected.iter().enumerate() {
                    let g = i / layout.group;
                    let q = match (layout.table, layout.bits) {
                        (Some(table), _) => i32::from(table[usize::from(parts.q[i])]),
                        (_, 8) => i32::from(parts.q[i] as i8),
                        _ => i32::from(parts.q[i]),
                    };
                    let scale = match (layout.integer_scales, layout.mins) {
                        (false, _) => d,
                        (true, true) => d * f32::from(parts.scales[g]),
                        (true, false) => d * f32::from(parts.scales[g] as i8),
                    };
                    let mut value = scale * (q - i32::from(layout.offset)) as f32;
                    if layout.mins {
                        value += if layout.integer_scales { -m * f32::from(parts.mins[g]) } else { m };
                    }
                    assert_eq!(value, expected, "{dtype} {i}");
                }
            }
            assert!(Parts::of(dtype, &[0; 3]).is_none());
        }
    }
}
