//! The block formats of quantised weights: one file each, with its layout, encoding and decoding.
//!
//! [`decode`] and [`encode`] take any floating-point or block type by its [`DType`]; the block types
//! ([`BlockQ8_0`] and so on) are the stored bytes, for kernels that compute with them. A row of a tensor is whole
//! blocks; blocks never span two rows.
//!
//! Decoding follows the formats' definition bit for bit, and so does encoding where no importance weights are given:
//! every operation is a rounded f32 operation in the order of the definition, never a fused multiply-add.
//!
//! Values that are not finite have no place in a block: one NaN or infinity would spoil the scale of its neighbours.
//! [`encode`] refuses them, and finite values whose scale or value does not fit an f16 (65504). The block types'
//! own `encode` functions check nothing: with such input they give some block, without panicking.
//! Decoding takes every byte as it is: a scale of infinity or NaN gives infinities and NaN.

pub mod affine;
pub mod grid;
pub mod iq4_nl;
pub mod mxfp4;
pub mod parts;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

pub use iq4_nl::BlockIQ4_NL;
pub use mxfp4::BlockMXFP4;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4_K;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5_K;
pub use q6_k::BlockQ6_K;
pub use q8_0::BlockQ8_0;

use crate::DType;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use thiserror::Error;

/// Why values could not be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum QuantError {
    /// The type holds integers.
    #[error("{dtype} does not hold floating-point values")]
    NotFloat {
        /// The type asked for.
        dtype: DType,
    },
    /// The elements do not fill whole blocks.
    #[error("{elements} elements are not a whole number of {dtype} blocks of {}", dtype.block_len())]
    PartialBlock {
        /// The block type.
        dtype: DType,
        /// Number of elements.
        elements: usize,
    },
    /// The bytes are not as many as the elements take.
    #[error("{elements} elements of {dtype} take {expected} bytes, got {found}")]
    Length {
        /// The type.
        dtype: DType,
        /// Number of elements.
        elements: usize,
        /// Bytes they take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A NaN or infinity among the values to store in blocks.
    #[error("element {index} is {value}, which {dtype} cannot hold; keep this tensor in f32")]
    NotFinite {
        /// The block type.
        dtype: DType,
        /// Position of the element.
        index: usize,
        /// The element.
        value: f32,
    },
    /// A finite value that is too large for an f16, or needs a scale that is.
    #[error(
        "elements {start}..{end} are too large for {dtype} (up to {largest:e}); \
         keep this tensor in f32 or bf16"
    )]
    TooLarge {
        /// The type.
        dtype: DType,
        /// First element of the block (or the element).
        start: usize,
        /// One past its last element.
        end: usize,
        /// Largest magnitude in it.
        largest: f32,
    },
    /// No memory for the encoded bytes.
    #[error("could not allocate {wanted} bytes for {dtype} data")]
    OutOfMemory {
        /// The type.
        dtype: DType,
        /// Bytes asked for.
        wanted: usize,
    },
}

/// Decodes elements of any floating-point or block type to f32. `bytes` need no alignment.
///
/// # Errors
/// An integer type, elements that do not fill whole blocks, or a wrong number of bytes.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => {
            for (out, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(b);
            }
        }
        DType::F16 => {
            decode_halves(bytes, out, f16::from_le_bytes, |half, out| half.convert_to_f32_slice(out))
        }
        DType::BF16 => {
            decode_halves(bytes, out, bf16::from_le_bytes, |half, out| half.convert_to_f32_slice(out))
        }
        DType::Q4_0 => decode_blocks(bytes, out, BlockQ4_0::decode),
        DType::Q4_1 => decode_blocks(bytes, out, BlockQ4_1::decode),
        DType::Q5_0 => decode_blocks(bytes, out, BlockQ5_0::decode),
        DType::Q5_1 => decode_blocks(bytes, out, BlockQ5_1::decode),
        DType::Q8_0 => decode_blocks(bytes, out, BlockQ8_0::decode),
        DType::Q4_K => decode_blocks(bytes, out, BlockQ4_K::decode),
        DType::Q5_K => decode_blocks(bytes, out, BlockQ5_K::decode),
        DType::Q6_K => decode_blocks(bytes, out, BlockQ6_K::decode),
        DType::IQ4_NL => decode_blocks(bytes, out, BlockIQ4_NL::decode),
        DType::MXFP4 => decode_blocks(bytes, out, BlockMXFP4::decode),
        DType::I32 | DType::I64 => return Err(QuantError::NotFloat { dtype }),
    }
    Ok(())
}

/// Encodes f32 values to any floating-point or block type: plain types round to nearest even; block types choose
/// scales as their files say. F32, F16 and BF16 keep NaN and infinities.
///
/// # Errors
/// An integer type, elements that do not fill whole blocks, an `out` of the wrong length, or values the type cannot
/// hold ([`QuantError::NotFinite`], [`QuantError::TooLarge`]); `out` then holds some of the result.
pub fn encode(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    check_length(dtype, values.len(), out.len())?;
    if dtype.is_quantised()
        && let Some(index) = values.iter().position(|v| !v.is_finite())
    {
        return Err(QuantError::NotFinite { dtype, index, value: values[index] });
    }
    let bad_block = match dtype {
        DType::F32 => {
            for (&v, out) in values.iter().zip(out.as_chunks_mut().0) {
                *out = v.to_le_bytes();
            }
            None
        }
        DType::F16 => encode_halves(
            values,
            out,
            |v, halves: &mut [f16]| halves.convert_from_f32_slice(v),
            |h| (h.to_le_bytes(), h.is_finite()),
        ),
        DType::BF16 => encode_halves(
            values,
            out,
            |v, halves: &mut [bf16]| halves.convert_from_f32_slice(v),
            |h| (h.to_le_bytes(), h.is_finite()),
        ),
        DType::Q4_0 => encode_blocks(values, out, BlockQ4_0::encode, |b| is_finite(b.d)),
        DType::Q4_1 => encode_blocks(values, out, BlockQ4_1::encode, |b| is_finite(b.d) && is_finite(b.m)),
        DType::Q5_0 => encode_blocks(values, out, BlockQ5_0::encode, |b| is_finite(b.d)),
        DType::Q5_1 => encode_blocks(values, out, BlockQ5_1::encode, |b| is_finite(b.d) && is_finite(b.m)),
        DType::Q8_0 => encode_blocks(values, out, BlockQ8_0::encode, |b| is_finite(b.d)),
        DType::Q4_K => encode_blocks(values, out, BlockQ4_K::encode, |b| is_finite(b.d) && is_finite(b.dmin)),
        DType::Q5_K => encode_blocks(values, out, BlockQ5_K::encode, |b| is_finite(b.d) && is_finite(b.dmin)),
        DType::Q6_K => encode_blocks(values, out, BlockQ6_K::encode, |b| is_finite(b.d)),
        DType::IQ4_NL => encode_blocks(values, out, BlockIQ4_NL::encode, |b| is_finite(b.d)),
        DType::MXFP4 => encode_blocks(values, out, BlockMXFP4::encode, |_| true),
        DType::I32 | DType::I64 => return Err(QuantError::NotFloat { dtype }),
    };
    match bad_block {
        None => Ok(()),
        Some(block) => {
            let start = block * dtype.block_len();
            let end = start + dtype.block_len();
            let largest = extreme(&values[start..end]).abs();
            Err(QuantError::TooLarge { dtype, start, end, largest })
        }
    }
}

/// As [`encode`], into a new vector.
///
/// # Errors
/// As [`encode`], and when memory is short.
pub fn encoded(dtype: DType, values: &[f32]) -> Result<Vec<u8>, QuantError> {
    let wanted = bytes_for(dtype, values.len())?;
    let mut out = Vec::new();
    out.try_reserve_exact(wanted).map_err(|_| QuantError::OutOfMemory { dtype, wanted })?;
    out.resize(wanted, 0);
    encode(dtype, values, &mut out)?;
    Ok(out)
}

fn bytes_for(dtype: DType, elements: usize) -> Result<usize, QuantError> {
    dtype.bytes_for(elements).ok_or(QuantError::PartialBlock { dtype, elements })
}

fn check_length(dtype: DType, elements: usize, found: usize) -> Result<(), QuantError> {
    let expected = bytes_for(dtype, elements)?;
    if expected == found { Ok(()) } else { Err(QuantError::Length { dtype, elements, expected, found }) }
}

/// No block format with an f16 scale holds a larger value (Q6_K goes furthest: 65504 * 128 * 32), and up to here no
/// encoder's sums of third powers overflow.
const LARGEST: f32 = 1e9;

/// Halves are taken over in pieces of this size, because the bytes may lie on odd addresses.
const PIECE: usize = 64;

fn decode_halves<H: Copy + Default>(
    bytes: &[u8],
    out: &mut [f32],
    half: impl Fn([u8; 2]) -> H,
    convert: impl Fn(&[H], &mut [f32]),
) {
    let mut piece = [H::default(); PIECE];
    for (bytes, out) in bytes.as_chunks().0.chunks(PIECE).zip(out.chunks_mut(PIECE)) {
        for (h, &b) in piece.iter_mut().zip(bytes) {
            *h = half(b);
        }
        convert(&piece[..out.len()], out);
    }
}

/// Returns the position of the first finite value that became an infinity. Converts pieces at a time, with the machine's
/// instructions where it has them: a prompt's keys and values are converted as they are kept.
fn encode_halves<H: Copy + Default>(
    values: &[f32],
    out: &mut [u8],
    convert: impl Fn(&[f32], &mut [H]),
    bytes: impl Fn(H) -> ([u8; 2], bool),
) -> Option<usize> {
    let (mut piece, mut overflow) = ([H::default(); PIECE], None);
    for (n, (values, out)) in values.chunks(PIECE).zip(out.as_chunks_mut().0.chunks_mut(PIECE)).enumerate() {
        convert(values, &mut piece[..values.len()]);
        let mut finite = true;
        for (&h, out) in piece.iter().zip(out) {
            let (bytes, is_finite) = bytes(h);
            *out = bytes;
            finite &= is_finite;
        }
        if !finite && overflow.is_none() {
            let lost = |(&v, &h): (&f32, &H)| v.is_finite() && !bytes(h).1;
            overflow = values.iter().zip(&piece).position(lost).map(|i| n * PIECE + i);
        }
    }
    overflow
}

fn decode_blocks<const N: usize, B: Pod>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&B, &mut [f32; N])) {
    for (bytes, out) in bytes.chunks_exact(size_of::<B>()).zip(out.as_chunks_mut().0) {
        decode(&bytemuck::pod_read_unaligned(bytes), out);
    }
}

/// Returns the position of the first block with values too large for it: they overflow its scale, or the sums of its
/// search.
fn encode_blocks<const N: usize, B: Pod>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N]) -> B,
    finite: impl Fn(&B) -> bool,
) -> Option<usize> {
    let mut bad = None;
    for (i, (x, out)) in values.as_chunks().0.iter().zip(out.chunks_exact_mut(size_of::<B>())).enumerate() {
        let block = encode(x);
        if bad.is_none() && !(finite(&block) && x.iter().all(|v| v.abs() <= LARGEST)) {
            bad = Some(i);
        }
        out.copy_from_slice(bytemuck::bytes_of(&block));
    }
    bad
}

/// The f16 nearest to a value, as stored.
#[inline]
fn f16_bytes(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

/// The value of a stored f16.
#[inline]
fn f16_value(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn is_finite(half: [u8; 2]) -> bool {
    f16::from_le_bytes(half).is_finite()
}

/// `1 / d`, or 0 for no scale at all.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The first element of largest magnitude, with its sign; 0 if all are 0.
fn extreme(x: &[f32]) -> f32 {
    let (mut magnitude, mut extreme) = (0.0, 0.0);
    for &v in x {
        if v.abs() > magnitude {
            (magnitude, extreme) = (v.abs(), v);
        }
    }
    extreme
}

/// The smallest and the largest element.
fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(min, max), &v| {
        (if v < min { v } else { min }, if v > max { v } else { max })
    })
}

/// The nearest integer, halves to even, of a value up to 2^22 in magnitude (anything for others).
///
/// Adding 1.5 * 2^23 leaves an f32 whose last bit counts ones, so the sum itself rounds; the integer is read from
/// the mantissa. The library's rounding would be a function call per value on a plain x86-64.
#[inline]
fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// The nibbles that `q` gives for 32 values: byte j holds that of element j, and above it that of element j + 16.
fn pack_nibbles(x: &[f32; 32], q: impl Fn(f32) -> u8) -> [u8; 16] {
    std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4)
}

/// Writes what each nibble stands for, in the order of [`pack_nibbles`].
#[inline]
fn unpack_nibbles(qs: &[u8; 16], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((&byte, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (value(byte & 15), value(byte >> 4));
    }
}

/// Splits 32 values of 5 bits into nibbles (byte j: elements j and j + 16) and a word of fifth bits.
fn pack_five_bits(q: &[u8; 32]) -> ([u8; 16], [u8; 4]) {
    let qs = std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4);
    let qh = q.iter().enumerate().fold(0u32, |bits, (i, &q)| bits | u32::from(q >> 4 & 1) << i);
    (qs, qh.to_le_bytes())
}

/// The inverse of [`pack_five_bits`].
#[inline]
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let qh = u32::from_le_bytes(qh);
    std::array::from_fn(|i| {
        let nibble = if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 };
        nibble | ((qh >> i & 1) as u8) << 4
    })
}

#[cfg(test)]
mod tests;
