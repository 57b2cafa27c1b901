//! One row, as decoding has it: time goes into fetching weights, so each byte of a panel is read once, in its order in memory, and
//! multiplied in the register in which it is unpacked. What comes [`AHEAD`] bytes later is fetched meanwhile: without that a core
//! computes and waits in turn, 9.5 GB/s in q5_0 where it can read 13. All matrices of a model of 270M, 248 MB, then take two
//! threads 10.3 ms where they took 14.5 (medians of 4 turns, `examples/decode.rs`); 9.0 ms, 27.5 GB/s, with both vectors of a panel at
//! once, even shares (`share.rs`) and large pages (`pages.rs`).

use super::Product;
use super::blocks::{Blocks, MAX_GROUPS, PART, quanta_of};
use super::quantised::{ByGroup, by_group};
use super::round::round_group;
use super::share::{Share, Taken};
use crate::buffer::{Carve, LINE, SharedMut, with_operand};
use crate::isa::{DotKernel, Isa, Kernel, dispatch, dispatch_dot};
use crate::simd::{Bytes, Channels32, Dot, Group, MAX_PANEL, Simd};
use crate::{Cpu, Result};
use conure_tensor::quant::parts::Layout;

/// Bytes from what is multiplied to what is fetched meanwhile: 0.7 us of reading, several times what memory takes to answer.
const AHEAD: usize = 8192;

/// `out` as [`super::linear`] says, of `x` `[K]` and weights in a block format: in [`crate::Precision::Fast`] as `quantised.rs` defines it.
pub(super) fn run(
    product: &Product<'_>,
    x: &[f32],
    blocks: &Blocks,
    cpu: &Cpu,
    isa: Isa,
    out: SharedMut<'_, f32>,
) -> Result<()> {
    let columns = product.columns;
    let share = Share::new(columns.panels(), columns.unit(), blocks.panel(0).0.len(), cpu.threads().count());
    let taken = Taken::default();
    let work = |worker| Work { product, blocks, share, taken: &taken, worker, out };
    if !blocks.as_bytes(cpu) {
        return cpu.threads().run(share.workers(), |worker, _| {
            dispatch(isa, Exact { work: work(worker), x });
        });
    }
    let groups = product.k / blocks.group(product.k);
    let (bytes_len, groups_len) = (Carve::padded(product.k / 4), Carve::padded(groups));
    with_operand(bytes_len + 2 * groups_len, |operand| {
        let (bytes, rest) = operand.split_at_mut(bytes_len);
        let (scales, sums) = rest.split_at_mut(groups_len);
        let bytes: &mut [i8] = bytemuck::cast_slice_mut(bytes);
        dispatch_dot(isa, Round { x, blocks, bytes: &mut *bytes, scales: &mut *scales, sums: &mut *sums });
        let x = Row { bytes, scales, sums };
        cpu.threads().run(share.workers(), |worker, _| {
            dispatch_dot(isa, Fast { work: work(worker), x });
        })
    })
}

/// A worker's part of a product.
#[derive(Clone, Copy)]
struct Work<'a> {
    product: &'a Product<'a>,
    blocks: &'a Blocks,
    share: Share,
    taken: &'a Taken,
    worker: usize,
    out: SharedMut<'a, f32>,
}

impl Work<'_> {
    /// Panels that stay together.
    fn unit(&self) -> usize {
        self.product.columns.unit()
    }

    /// Stores the finished sums of the unit at `p`.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, p: usize, sums: &[f32; 2 * MAX_PANEL]) {
        // SAFETY: steps have disjoint columns, and a panel's columns belong to one.
        unsafe { self.product.finish(s, self.out, 0, 1, p, self.unit(), sums, self.unit() * S::PANEL) };
    }
}

/// Products of activations as they are with decoded weights. A predictor's step in q8_0 (640 units, two threads) takes 126 us so, and
/// took 206 us when panels were widened first; 158 us in f32.
struct Exact<'a> {
    work: Work<'a>,
    x: &'a [f32],
}

impl Kernel for Exact<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Exact { work, x } = self;
        for (from, to, end) in work.share.steps(work.taken, work.worker) {
            for p in (from..to).step_by(work.unit()) {
                let mut sums = [0f32; 2 * MAX_PANEL];
                for (i, sums) in sums.chunks_exact_mut(S::PANEL).enumerate().take(work.unit()) {
                    exact_panel(s, work.blocks, (p + i, end), x, sums);
                }
                work.finish(s, p, &sums);
            }
        }
    }
}

/// Products of rounded activations with weights as they are.
struct Fast<'a> {
    work: Work<'a>,
    x: Row<'a>,
}

impl DotKernel for Fast<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        by_group(d, self.work.blocks, self);
    }
}

impl ByGroup for Fast<'_> {
    #[inline(always)]
    fn run<D: Dot, G: Group>(self, d: D) {
        let Fast { work, x } = self;
        for (from, to, end) in work.share.steps(work.taken, work.worker) {
            for p in (from..to).step_by(work.unit()) {
                let mut sums = [0f32; 2 * MAX_PANEL];
                for (i, sums) in sums.chunks_exact_mut(D::S::PANEL).enumerate().take(work.unit()) {
                    panel::<D, G>(d, work.blocks, (p + i, end), x, sums);
                }
                work.finish(d.simd(), p, &sums);
            }
        }
    }
}

/// A rounded row of activations: what a block of several has, for one.
#[derive(Clone, Copy)]
struct Row<'a> {
    /// `[K]`
    bytes: &'a [i8],
    /// `[groups]`
    scales: &'a [f32],
    /// `[groups]`, as [`crate::simd::DotTile::x_sums`].
    sums: &'a [f32],
}

/// Rounds `x` as a block of rows is rounded.
struct Round<'a> {
    x: &'a [f32],
    blocks: &'a Blocks,
    bytes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl DotKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let (s, layout, excess) = (d.simd(), self.blocks.layout, self.blocks.excess());
        let (mut poison, group) = (s.splat(0.0), self.blocks.group(self.x.len()));
        let groups = self.x.chunks_exact(group).zip(self.bytes.chunks_exact_mut(group));
        for ((x, bytes), (scale, sum)) in groups.zip(self.scales.iter_mut().zip(self.sums.iter_mut())) {
            // SAFETY: `bytes` has as many elements as `x`, a multiple of LANES.
            let (of_group, poison_of_group) = unsafe { round_group(s, x, bytes.as_mut_ptr()) };
            poison = s.add(poison, poison_of_group);
            *scale = of_group;
            let total: i32 = bytes.iter().map(|&q| i32::from(q)).sum();
            *sum = if layout.mins {
                of_group * total as f32
            } else {
                f32::from_bits(excess.wrapping_mul(total).cast_unsigned())
            };
        }
        if s.sum(poison).is_nan() {
            self.scales.fill(f32::NAN);
        }
    }
}

/// Writes the products of `x` with all of panel `p`, of a stretch to `end`, to `sums` `[PANEL]`: bit for bit what the tile of more
/// rows gives.
#[inline(always)]
fn panel<D: Dot, G: Group>(d: D, blocks: &Blocks, (p, end): (usize, usize), x: Row<'_>, sums: &mut [f32]) {
    match blocks.layout.bits {
        _ if G::CHANNELS => channel_panel(d, blocks, (p, end), x, sums),
        4 => panel_of::<D, G, 4>(d, blocks, (p, end), x, sums),
        5 => panel_of::<D, G, 5>(d, blocks, (p, end), x, sums),
        6 => panel_of::<D, G, 6>(d, blocks, (p, end), x, sums),
        _ => panel_of::<D, G, 8>(d, blocks, (p, end), x, sums),
    }
}

#[inline(always)]
fn panel_of<D: Dot, G: Group, const BITS: usize>(
    d: D,
    blocks: &Blocks,
    (p, end): (usize, usize),
    x: Row<'_>,
    sums: &mut [f32],
) {
    let (s, np, lanes) = (d.simd(), D::S::PANEL, D::S::LANES);
    let (block, part_bytes) = (blocks.layout.block, BITS * 4 * np);
    let (mut scales, mut mins) = ([0f32; MAX_GROUPS * MAX_PANEL], [0f32; MAX_GROUPS * MAX_PANEL]);
    let (bytes, unit_bytes) = blocks.panel(p);
    let (parts, groups) = (block / PART, block / G::LEN);
    assert!(sums.len() >= np && groups <= MAX_GROUPS && np <= MAX_VECTORS * lanes);
    let last = bytes.as_ptr().wrapping_add((end - p) * bytes.len());
    let mut totals = [s.splat(0.0); MAX_VECTORS];
    for (u, unit) in bytes.chunks_exact(unit_bytes).enumerate() {
        fetch(s, unit, last);
        let (quanta, stored) = unit.split_at(parts * part_bytes);
        blocks.scales_of(s, stored, &mut scales, &mut mins);
        let x_bytes = &x.bytes[u * block..][..block];
        let [x_scales, x_sums] = [x.scales, x.sums].map(|x| &x[u * groups..][..groups]);
        for part in 0..parts {
            let g = part * PART / G::LEN;
            // SAFETY: `part_bytes` bytes for each of the parts; of the activations, PART bytes.
            let products = unsafe {
                let w = quanta.as_ptr().add(part * part_bytes);
                let x = x_bytes.as_ptr().add(part * PART);
                multiply::<D, G, BITS>(d, blocks, w, x)
            };
            let factors = [&scales, &mins];
            let of_x = [x_scales, x_sums];
            for (v, total) in totals.iter_mut().enumerate().take(np / lanes) {
                let ([first, second], v) = (products[v], v * lanes);
                *total = if G::LEN == PART {
                    add_group::<D, G>(d, *total, s.add_i32(first, second), (g, v), factors, of_x)
                } else {
                    let sum = add_group::<D, G>(d, *total, first, (g, v), factors, of_x);
                    add_group::<D, G>(d, sum, second, (g + 1, v), factors, of_x)
                };
            }
        }
    }
    for (total, sums) in totals.iter().zip(sums[..np].chunks_exact_mut(lanes)) {
        // SAFETY: LANES floats.
        unsafe { s.store(sums.as_mut_ptr(), *total) };
    }
}

/// As [`panel_of`] of bytes with one scale a column.
#[inline(always)]
fn channel_panel<D: Dot>(d: D, blocks: &Blocks, (p, end): (usize, usize), x: Row<'_>, sums: &mut [f32]) {
    let (s, lanes) = (d.simd(), D::S::LANES);
    let (bytes, unit_bytes) = blocks.panel(p);
    let scales = blocks.channels(p).unwrap_or_default();
    let last = bytes.as_ptr().wrapping_add((end - p) * bytes.len());
    assert!(x.bytes.len() >= bytes.len() / unit_bytes * PART && D::S::PANEL <= MAX_VECTORS * lanes);
    let mut totals = [s.splat_i32(x.sums[0].to_bits().cast_signed()); MAX_VECTORS];
    for (unit, x) in bytes.chunks_exact(unit_bytes).zip(x.bytes.chunks_exact(PART)) {
        fetch(s, unit, last);
        // SAFETY: a unit is a part of a panel, in bytes; `x` has PART.
        let products = unsafe { multiply::<D, Channels32, 8>(d, blocks, unit.as_ptr(), x.as_ptr()) };
        for (total, [first, second]) in totals.iter_mut().zip(products) {
            *total = s.add_i32(*total, s.add_i32(first, second));
        }
    }
    for ((total, sums), scales) in
        totals.iter().zip(sums.chunks_exact_mut(lanes)).zip(scales.chunks_exact(lanes))
    {
        // SAFETY: LANES floats each.
        unsafe {
            let factor = s.mul(s.load(scales.as_ptr()), s.splat(x.scales[0]));
            s.store(sums.as_mut_ptr(), s.mul(s.to_f32(*total), factor));
        }
    }
}

/// Fetches what lies [`AHEAD`] bytes behind `unit`, if that is before `end`: what follows is another worker's.
#[inline(always)]
fn fetch<S: Simd>(s: S, unit: &[u8], end: *const u8) {
    if unit.as_ptr().wrapping_add(AHEAD) >= end {
        return;
    }
    for line in (0..unit.len()).step_by(LINE) {
        s.prefetch_far(unit.as_ptr().wrapping_add(AHEAD + line).cast());
    }
}

/// The products of a part's first and second half with all vectors of columns.
///
/// # Safety
/// At `w` there is a part of a panel, at `x` PART bytes.
#[inline(always)]
unsafe fn multiply<D: Dot, G: Group, const BITS: usize>(
    d: D,
    blocks: &Blocks,
    w: *const u8,
    x: *const i8,
) -> [[crate::simd::Vector<D>; 2]; MAX_VECTORS] {
    let s = d.simd();
    let mut products = [[s.splat_i32(0); 2]; MAX_VECTORS];
    for c in 0..4 {
        // SAFETY: the contract: 8 chunks of 4 bytes.
        let x = [0, 4].map(|half| unsafe { s.repeat4(x.add((c + half) * 4)) });
        for (v, products) in products.iter_mut().enumerate().take(D::S::PANEL / D::S::LANES) {
            // SAFETY: the contract: 4 or 8 rows of 4 PANEL bytes, and BITS - 4 more of them.
            let quanta = unsafe { quanta_of::<D::S, BITS>(s, w.add(v * 4 * D::S::LANES), c, blocks.table()) };
            for (i, q) in quanta.into_iter().enumerate() {
                products[i] = if G::WIDE {
                    d.dot::<true>(products[i], q, x[i])
                } else {
                    d.dot::<false>(products[i], q, x[i])
                };
            }
        }
    }
    products
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
    let (x_scale, x_sum) = (x_scales[g], x_sums[g]);
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

/// Writes the products of the activations `x` `[K]` as they are with all of panel `p`, decoded, to `sums` `[PANEL]`: bit for bit what
/// the widened panel gives, which takes longer to write and to read again than it takes to multiply.
#[inline(always)]
fn exact_panel<S: Simd>(s: S, blocks: &Blocks, p: (usize, usize), x: &[f32], sums: &mut [f32]) {
    match blocks.layout.bits {
        4 => exact_panel_of::<S, 4>(s, blocks, p, x, sums),
        5 => exact_panel_of::<S, 5>(s, blocks, p, x, sums),
        6 => exact_panel_of::<S, 6>(s, blocks, p, x, sums),
        _ => exact_panel_of::<S, 8>(s, blocks, p, x, sums),
    }
}

#[inline(always)]
fn exact_panel_of<S: Simd, const BITS: usize>(
    s: S,
    blocks: &Blocks,
    (p, end): (usize, usize),
    x: &[f32],
    sums: &mut [f32],
) {
    let (np, Layout { block, group, .. }) = (S::PANEL, blocks.layout);
    let (parts, part_bytes) = (block / PART, BITS * 4 * np);
    let (mut scales, mut mins) = ([0f32; MAX_GROUPS * MAX_PANEL], [0f32; MAX_GROUPS * MAX_PANEL]);
    let (bytes, unit_bytes) = blocks.panel(p);
    assert!(sums.len() >= np && block / group <= MAX_GROUPS && np <= MAX_VECTORS * S::LANES);
    let last = bytes.as_ptr().wrapping_add((end - p) * bytes.len());
    let mut chains = [s.splat(0.0); MAX_VECTORS];
    for (unit, x) in bytes.chunks_exact(unit_bytes).zip(x.chunks_exact(block)) {
        fetch(s, unit, last);
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
