//! One row, as decoding has it: time goes into fetching weights, so each byte of a panel is read once, in its order in memory, and
//! multiplied in the register in which it is unpacked.

use super::blocks::{Blocks, MAX_GROUPS, quanta_of};
use crate::simd::{Bytes, Dot, Group, MAX_PANEL, Simd};
use conure_tensor::quant::parts::Layout;

/// K that the quanta are interleaved over.
const PART: usize = 32;

/// A row of activations in a block of `ROWS`, of which it is the first; as [`crate::simd::DotTile`] describes them.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) bytes: &'a [f32],
    pub(super) scales: &'a [f32],
    pub(super) sums: &'a [f32],
}

/// Adds the products of `x` with all of panel `p` to `sums` `[PANEL]`: bit for bit what the tile of more rows gives.
#[inline(always)]
pub(super) fn panel<D: Dot, G: Group>(d: D, blocks: &Blocks, p: usize, x: Row<'_>, sums: &mut [f32]) {
    match blocks.layout.bits {
        4 => panel_of::<D, G, 4>(d, blocks, p, x, sums),
        5 => panel_of::<D, G, 5>(d, blocks, p, x, sums),
        6 => panel_of::<D, G, 6>(d, blocks, p, x, sums),
        _ => panel_of::<D, G, 8>(d, blocks, p, x, sums),
    }
}

#[inline(always)]
fn panel_of<D: Dot, G: Group, const BITS: usize>(
    d: D,
    blocks: &Blocks,
    p: usize,
    x: Row<'_>,
    sums: &mut [f32],
) {
    let (s, np, lanes) = (d.simd(), D::S::PANEL, D::S::LANES);
    let (block, part_bytes) = (blocks.layout.block, BITS * 4 * np);
    let (mut scales, mut mins) = ([0f32; MAX_GROUPS * MAX_PANEL], [0f32; MAX_GROUPS * MAX_PANEL]);
    let (bytes, unit_bytes) = blocks.panel(p);
    let (parts, groups) = (block / PART, block / G::LEN);
    assert!(sums.len() >= np && groups <= MAX_GROUPS);
    for (u, unit) in bytes.chunks_exact(unit_bytes).enumerate() {
        let (quanta, stored) = unit.split_at(parts * part_bytes);
        blocks.scales_of(s, stored, &mut scales, &mut mins);
        let x_bytes = &x.bytes[u * block / 4 * D::ROWS..][..block / 4 * D::ROWS];
        let x_scales = &x.scales[u * groups * D::ROWS..][..groups * D::ROWS];
        let x_sums = &x.sums[u * groups * D::ROWS..][..groups * D::ROWS];
        for v in (0..np).step_by(lanes) {
            // SAFETY: v + LANES <= PANEL, and `sums` has PANEL floats.
            let mut sum = unsafe { s.load(sums.as_ptr().add(v)) };
            for part in 0..parts {
                // SAFETY: `part_bytes` bytes for each of the parts; of the activations, PART bytes for each row and part.
                let halves = unsafe {
                    let w = quanta.as_ptr().add(part * part_bytes + 4 * v);
                    let x = x_bytes.as_ptr().cast::<i8>().add(part * PART * D::ROWS);
                    multiply::<D, G, BITS>(d, blocks, w, x)
                };
                let g = part * PART / G::LEN;
                if G::LEN == PART {
                    let all = s.add_i32(halves[0], halves[1]);
                    sum = add_group::<D, G>(d, sum, all, (g, v), [&scales, &mins], [x_scales, x_sums]);
                } else {
                    for (i, half) in halves.into_iter().enumerate() {
                        sum =
                            add_group::<D, G>(d, sum, half, (g + i, v), [&scales, &mins], [x_scales, x_sums]);
                    }
                }
            }
            // SAFETY: as for the load.
            unsafe { s.store(sums.as_mut_ptr().add(v), sum) };
        }
    }
}

/// The products of a part's first and second half with one vector of columns.
///
/// # Safety
/// At `w` there is the first column of a part of a panel, at `x` the first row of a part of a block of activations.
#[inline(always)]
unsafe fn multiply<D: Dot, G: Group, const BITS: usize>(
    d: D,
    blocks: &Blocks,
    w: *const u8,
    x: *const i8,
) -> [crate::simd::Vector<D>; 2] {
    let s = d.simd();
    let mut halves = [s.splat_i32(0); 2];
    for c in 0..4 {
        // SAFETY: the contract: 4 or 8 rows of 4 PANEL bytes, and BITS - 4 more of them; 8 chunks of ROWS times 4 bytes.
        unsafe {
            let quanta = quanta_of::<D::S, BITS>(s, w, c, blocks.table());
            for (i, q) in quanta.into_iter().enumerate() {
                let x = s.repeat4(x.add((c + 4 * i) * 4 * D::ROWS));
                halves[i] =
                    if G::WIDE { d.dot::<true>(halves[i], q, x) } else { d.dot::<false>(halves[i], q, x) };
            }
        }
    }
    halves
}

/// Adds group `g` of the columns from `v` on to their sums, in the order and with the roundings of the tile.
#[inline(always)]
fn add_group<D: Dot, G: Group>(
    d: D,
    sum: <D::S as Simd>::V,
    products: crate::simd::Vector<D>,
    (g, v): (usize, usize),
    [scales, mins]: [&[f32; MAX_GROUPS * MAX_PANEL]; 2],
    [x_scales, x_sums]: [&[f32]; 2],
) -> <D::S as Simd>::V {
    let (s, at) = (d.simd(), g * D::S::PANEL + v);
    let (x_scale, x_sum) = (x_scales[g * D::ROWS], x_sums[g * D::ROWS]);
    // What stored quanta are too large by; minima have it in them.
    let products =
        if G::MINS { products } else { s.add_i32(products, s.splat_i32(x_sum.to_bits().cast_signed())) };
    // SAFETY: g < groups <= MAX_GROUPS and v + LANES <= PANEL <= MAX_PANEL.
    unsafe {
        let factor = s.mul(s.load(scales.as_ptr().add(at)), s.splat(x_scale));
        let sum = s.fma(s.to_f32(products), factor, sum);
        if G::MINS { s.fma(s.load(mins.as_ptr().add(at)), s.splat(x_sum), sum) } else { sum }
    }
}

/// The most vectors of a panel.
const MAX_VECTORS: usize = 4;

/// Adds the products of the activations `x` `[K]` as they are with all of panel `p`, decoded, to `sums` `[PANEL]`: bit for bit what
/// the widened panel gives, which takes longer to write and to read again than it takes to multiply.
#[inline(always)]
pub(super) fn exact_panel<S: Simd>(s: S, blocks: &Blocks, p: usize, x: &[f32], sums: &mut [f32]) {
    match blocks.layout.bits {
        4 => exact_panel_of::<S, 4>(s, blocks, p, x, sums),
        5 => exact_panel_of::<S, 5>(s, blocks, p, x, sums),
        6 => exact_panel_of::<S, 6>(s, blocks, p, x, sums),
        _ => exact_panel_of::<S, 8>(s, blocks, p, x, sums),
    }
}

#[inline(always)]
fn exact_panel_of<S: Simd, const BITS: usize>(s: S, blocks: &Blocks, p: usize, x: &[f32], sums: &mut [f32]) {
    let (np, Layout { block, group, .. }) = (S::PANEL, blocks.layout);
    let (parts, part_bytes) = (block / PART, BITS * 4 * np);
    let (mut scales, mut mins) = ([0f32; MAX_GROUPS * MAX_PANEL], [0f32; MAX_GROUPS * MAX_PANEL]);
    let (bytes, unit_bytes) = blocks.panel(p);
    assert!(sums.len() >= np && block / group <= MAX_GROUPS && np <= MAX_VECTORS * S::LANES);
    let mut chains = [s.splat(0.0); MAX_VECTORS];
    for (chain, sums) in chains.iter_mut().zip(sums.chunks_exact(S::LANES)) {
        // SAFETY: LANES floats.
        *chain = unsafe { s.load(sums.as_ptr()) };
    }
    for (unit, x) in bytes.chunks_exact(unit_bytes).zip(x.chunks_exact(block)) {
        let (quanta, stored) = unit.split_at(parts * part_bytes);
        blocks.scales_of(s, stored, &mut scales, &mut mins);
        for (part, x) in x.as_chunks::<PART>().0.iter().enumerate() {
            for (v, chain) in chains.iter_mut().enumerate().take(np / S::LANES) {
                let at = part * PART / group * np + v * S::LANES;
                // SAFETY: `quanta` has `part_bytes` for each part, with 4 PANEL bytes for each of BITS rows; `at` is in the row of
                // the part's first group, of which there are `block / group`, at most MAX_GROUPS.
                unsafe {
                    let w = quanta.as_ptr().add(part * part_bytes + v * 4 * S::LANES);
                    let scales = [scales.as_ptr().add(at), mins.as_ptr().add(at)];
                    *chain = exact_part::<S, BITS>(s, blocks, w, scales, x, *chain);
                }
            }
        }
    }
    for (chain, sums) in chains.iter().zip(sums[..np].chunks_exact_mut(S::LANES)) {
        // SAFETY: LANES floats.
        unsafe { s.store(sums.as_mut_ptr(), *chain) };
    }
}

/// Adds the products of a part's activations with one vector of columns, in order.
///
/// # Safety
/// At `w` there is the first column of a part of a panel; at `scales` there are scales and minima of its groups, PANEL apart.
#[inline(always)]
unsafe fn exact_part<S: Simd, const BITS: usize>(
    s: S,
    blocks: &Blocks,
    w: *const u8,
    [scales, mins]: [*const f32; 2],
    x: &[f32; PART],
    mut sum: S::V,
) -> S::V {
    let np = S::PANEL;
    let (offset, flip) = blocks.offset_and_flip();
    let offset = s.splat(offset);
    let mut chunks = [s.splat_i32(0); 8];
    for c in 0..4 {
        // SAFETY: the contract: 8 or 4 rows of 4 PANEL bytes, and BITS - 4 more of them.
        let pair = unsafe { quanta_of::<S, BITS>(s, w, c, blocks.table()) };
        [chunks[c], chunks[c + 4]] = pair.map(|q| s.xor(q, flip));
    }
    for (i, (q, x)) in chunks.into_iter().zip(x.as_chunks::<4>().0).enumerate() {
        let g = i * 4 / blocks.layout.group * np;
        // SAFETY: the contract.
        let scale = unsafe { s.load(scales.add(g)) };
        for (b, &x) in x.iter().enumerate() {
            let q = s.shr(s.shl(q, 24 - 8 * b as u32), 24);
            let mut value = s.mul(s.sub(s.to_f32(q), offset), scale);
            if blocks.layout.mins {
                // SAFETY: the contract.
                value = s.add(value, unsafe { s.load(mins.add(g)) });
            }
            sum = s.fma(s.splat(x), value, sum);
        }
    }
    sum
}
