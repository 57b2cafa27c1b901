//! Weights rounded to bytes with one scale for each output ("int8 per channel"), multiplied by activations that have one scale a row.
//!
//! Defined by: column `n` of the weights becomes `s_n * w` with `s_n` its largest magnitude / 127 and `w` the nearest integers, a
//! row of activations `a * q` in the same way, and an output is `(s_n * a) * sum of (w * q)` with the sum over all of K exact in
//! integers. It is less accurate than one scale for 32 along K, as block formats have, and has nothing to do between two
//! products: see [`crate::simd::Dot::tile`].

use conure_tensor::DType;
use conure_tensor::quant::{self, parts::Layout};

use super::Columns;
use super::blocks::{Blocks, PART};
use super::round::{magnitude, round_to, scale_of};
use crate::buffer::{Carve, SharedMut, with_scratch};
use crate::isa::{Kernel, dispatch, is_biased};
use crate::pages::Pages;
use crate::simd::Simd;
use crate::{Cpu, KernelError, Precision, Result};

/// K at most: sums of so many products of bytes, and of what is added for stored weights that are too large, fit 32 bits.
const MAX_K: usize = 1 << 15;

/// Bytes, a scale of their own beside them.
const LAYOUT: Layout = Layout {
    bits: 8,
    block: PART,
    group: PART,
    offset: 0,
    mins: false,
    integer_scales: false,
    table: None,
    exponents: false,
};

/// Whether products of `cpu` take weights of `dtype` with rows of `k` elements so: those that have eight bits or more; what is
/// smaller would take more memory than its file.
pub(super) fn wanted(cpu: &Cpu, dtype: DType, k: usize) -> bool {
    let wide = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0);
    cpu.precision() == Precision::Int8 && wide && k > 0 && k.is_multiple_of(PART) && k <= MAX_K
}

/// Rounds and rearranges `src`, rows of `k` elements of `dtype`, as [`wanted`] says.
pub(super) fn pack(cpu: &Cpu, dtype: DType, columns: Columns, k: usize, src: &[u8]) -> Result<Blocks> {
    let (panel, units) = (columns.panel, k / PART);
    let biased = is_biased(cpu.isa());
    let (of_panel, flip) = (k * panel, if biased { 0x8080_8080 } else { 0 });
    let mut data = Pages::zeroed(super::packed::KERNEL, columns.panels() * of_panel)?;
    let mut scales = vec![0f32; columns.panels() * panel];
    let row_bytes = k / dtype.block_len() * dtype.block_bytes();
    let (shared, shared_scales) = (SharedMut::new(data.as_mut_slice::<u32>()), SharedMut::new(&mut scales));
    let failed = std::sync::Mutex::new(None);
    cpu.threads().run_ranges(columns.panels(), 1, |from, to| {
        with_scratch(Carve::padded(k) + Carve::padded(k / 4), |scratch| {
            let (row, rounded) = scratch.split_at_mut(Carve::padded(k));
            let row = &mut row[..k];
            for p in from..to {
                // SAFETY: each panel has its own part.
                let (words, scales) = unsafe {
                    (shared.part(p * of_panel / 4, of_panel / 4), shared_scales.part(p * panel, panel))
                };
                let (start, width) = columns.of(p);
                for (c, scale) in scales.iter_mut().enumerate().take(width) {
                    if let Err(e) = quant::decode(dtype, &src[(start + c) * row_bytes..][..row_bytes], row) {
                        *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
                        return;
                    }
                    *scale = dispatch(cpu.isa(), Round { row, out: &mut *rounded });
                    for (chunk, word) in rounded.iter().enumerate().take(k / 4) {
                        words[chunk * panel + c] = word.to_bits() ^ flip;
                    }
                }
            }
        });
    })?;
    if let Some(e) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(KernelError::Invalid { kernel: super::packed::KERNEL, reason: e.to_string() });
    }
    Ok(Blocks::of_channels(LAYOUT, biased, panel, units, data, scales))
}

/// Rounds a row to bytes, four in a float's place; its scale, NaN if it has something that is not finite.
struct Round<'a> {
    row: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Round { row, out } = self;
        let (largest, poison) = magnitude(s, row);
        let (scale, inverse) = scale_of(largest);
        assert!(out.len() * 4 >= row.len());
        // SAFETY: there is a byte for each element, whose number is a multiple of PART and so of LANES.
        unsafe { round_to(s, row, inverse, out.as_mut_ptr().cast()) };
        if s.sum(poison).is_nan() { f32::NAN } else { scale }
    }
}
