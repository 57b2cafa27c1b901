//! Block formats rearranged for products, in about their stored size.
//!
//! A panel is the columns of a tile; a unit is one block of each of its columns, and a panel's units lie one after the
//! other along K. A unit holds for each 32 weights along K, in chunks of four:
//!
//! ```text
//! 8 bits   [8 chunks][column][4]  as stored, or with 128 added
//! else     [4 chunks][column][4]  low nibble: chunk c, high nibble: chunk c + 4
//! 5 bits   [column][4]            bit c: the fifth bit of chunk c
//! 6 bits   [2][column][4]         bits 2 c and 2 c + 1: the upper bits of chunk c, in the second of chunk c + 4
//! ```
//!
//! and then the scales: `d` and, with minima, `m`, both f16 `[column]`, or an exponent of one byte `[column]`; where groups
//! have integer scales, `[group][column]` of them and as many minima.
//!
//! Nibbles that are places in a table are looked up when they are unpacked: as signed bytes like those of eight bits, or,
//! where the table's values are few, made positive, so that products may take them for small ones.

use conure_tensor::DType;
use conure_tensor::quant::mxfp4;
use conure_tensor::quant::parts::{Layout, Parts};

use super::Columns;
use crate::buffer::SharedMut;
use crate::isa::is_biased;
use crate::pages::Pages;
use crate::simd::{Bytes, MAX_PANEL, Simd};
use crate::{Cpu, Precision, Result};

/// Weights in a unit's column at most: the largest block.
pub(super) const MAX_UNIT: usize = 256;
/// Groups in a block at most.
pub(super) const MAX_GROUPS: usize = 16;
/// K that the quanta are interleaved over.
pub(super) const PART: usize = 32;

/// Values of a table reach from minus this to this at most where they are multiplied as small ones, up to 63.
const SMALL_TABLE: i8 = 31;

/// A weight matrix in a block format, rearranged.
pub(super) struct Blocks {
    pub(super) layout: Layout,
    /// Whether unpacked quanta use all eight bits; else they are in 0..=63.
    pub(super) wide: bool,
    /// Whether quanta of eight bits have 128 added.
    pub(super) biased: bool,
    /// What unpacked quanta are too large by, leaving out the 128.
    pub(super) offset: u8,
    /// What nibbles become when they are unpacked, in formats with a table.
    table: Option<[u8; 16]>,
    /// Columns of a panel.
    panel: usize,
    /// Units of a panel: K / block.
    units: usize,
    data: Pages,
    /// Where each column has one scale (`channels.rs`), those: `[panels][panel]`. Units are quanta only then.
    channels: Option<Vec<f32>>,
}

impl Blocks {
    /// Rearranges `src`, rows of `k` elements of `dtype`. `None` if that is no block format.
    pub(super) fn pack(
        cpu: &Cpu,
        dtype: DType,
        columns: Columns,
        k: usize,
        src: &[u8],
    ) -> Result<Option<Blocks>> {
        let Some(layout) = Layout::of(dtype) else { return Ok(None) };
        let lowest = layout.table.map_or(0, |t| t.iter().copied().fold(0, i8::min));
        let wide = layout.bits == 8 || lowest < -SMALL_TABLE;
        let biased = wide && is_biased(cpu.isa());
        // Small values from 0 on, or signed bytes as they are or with 128 added.
        let offset = if wide { 0 } else { layout.offset + lowest.unsigned_abs() };
        let bias = if biased { 0x80 } else { offset };
        let table = layout.table.map(|t| t.map(|v| v.cast_unsigned().wrapping_add(bias)));
        let (units, panel) = (k / layout.block, columns.panel);
        let data = Pages::default();
        let mut blocks = Blocks { layout, wide, biased, offset, table, panel, units, data, channels: None };
        let unit = blocks.unit_bytes();
        let mut data = Pages::zeroed(super::packed::KERNEL, columns.panels() * units * unit)?;
        let shared = SharedMut::new(data.as_mut_slice::<u8>());
        let row_bytes = units * dtype.block_bytes();
        // Eight units are a few kilobytes to some tens.
        cpu.threads().run_ranges(columns.panels() * units, 8, |from, to| {
            for at in from..to {
                let (p, u) = (at / units, at % units);
                // SAFETY: each unit has its own part.
                let dst = unsafe { shared.part(at * unit, unit) };
                let (start, width) = columns.of(p);
                for c in 0..width {
                    let block = &src[(start + c) * row_bytes + u * dtype.block_bytes()..];
                    if let Some(parts) = Parts::of(dtype, &block[..dtype.block_bytes()]) {
                        blocks.put(&parts, c, dst);
                    }
                }
            }
        })?;
        blocks.data = data;
        Ok(Some(blocks))
    }

    /// Bytes in units of `layout`, with 128 added if `biased`, and a scale for each column, `[panels][panel]`.
    pub(super) fn of_channels(
        layout: Layout,
        biased: bool,
        panel: usize,
        units: usize,
        data: Pages,
        scales: Vec<f32>,
    ) -> Blocks {
        let channels = Some(scales);
        Blocks { layout, wide: true, biased, offset: 0, table: None, panel, units, data, channels }
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.len() + self.channels.as_ref().map_or(0, |scales| size_of_val(scales.as_slice()))
    }

    /// Bytes of the quanta of [`PART`] weights along K, of all columns.
    fn part_bytes(&self) -> usize {
        PART * self.panel * self.layout.bits as usize / 8
    }

    /// Bytes of a unit's quanta.
    fn quanta_bytes(&self) -> usize {
        self.layout.block / PART * self.part_bytes()
    }

    /// Bytes of a column's `d` and `m`.
    fn scale_bytes(&self) -> usize {
        match (self.layout.exponents, self.layout.mins) {
            _ if self.channels.is_some() => 0,
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 4,
        }
    }

    /// Whether products of `cpu` with these are products of bytes: weights that were rounded for that always are.
    pub(super) fn as_bytes(&self, cpu: &Cpu) -> bool {
        self.channels.is_some() || cpu.precision() != Precision::Exact
    }

    /// Activations along K that share a scale, of `k`.
    pub(super) fn group(&self, k: usize) -> usize {
        if self.channels.is_some() { k } else { self.layout.group }
    }

    /// The scales of panel `p`, if each column has one.
    pub(super) fn channels(&self, p: usize) -> Option<&[f32]> {
        self.channels.as_ref().map(|scales| &scales[p * self.panel..][..self.panel])
    }

    fn unit_bytes(&self) -> usize {
        let integers = match (self.layout.integer_scales, self.layout.mins) {
            (false, _) => 0,
            (true, false) => self.layout.groups(),
            (true, true) => 2 * self.layout.groups(),
        };
        self.quanta_bytes() + self.panel * (self.scale_bytes() + integers)
    }

    /// Writes a block as column `c` of a unit.
    fn put(&self, parts: &Parts, c: usize, unit: &mut [u8]) {
        let np = self.panel;
        let bias = if self.biased { 0x80 } else { 0 };
        let (quanta, scales) = unit.split_at_mut(self.quanta_bytes());
        for (q, dst) in
            parts.q[..self.layout.block].chunks_exact(PART).zip(quanta.chunks_exact_mut(self.part_bytes()))
        {
            for (i, &q) in q.iter().enumerate() {
                let (chunk, byte) = (i / 4, c * 4 + i % 4);
                if self.layout.bits == 8 {
                    dst[chunk * 4 * np + byte] = q ^ bias;
                    continue;
                }
                dst[chunk % 4 * 4 * np + byte] |= (q & 15) << (chunk / 4 * 4);
                match self.layout.bits {
                    5 => dst[16 * np + byte] |= (q >> 4) << chunk,
                    6 => dst[(16 + chunk / 4 * 4) * np + byte] |= (q >> 4) << (chunk % 4 * 2),
                    _ => {}
                }
            }
        }
        if self.layout.exponents {
            scales[c] = parts.d[0];
            return;
        }
        let (halves, integers) = scales.split_at_mut(np * self.scale_bytes());
        halves[2 * c..2 * c + 2].copy_from_slice(&parts.d);
        if self.layout.mins {
            halves[2 * (np + c)..][..2].copy_from_slice(&parts.m);
        }
        if self.layout.integer_scales {
            let groups = self.layout.groups();
            for g in 0..groups {
                integers[g * np + c] = parts.scales[g];
                if self.layout.mins {
                    integers[(groups + g) * np + c] = parts.mins[g];
                }
            }
        }
    }

    /// Panel `p`, and the bytes of its units.
    pub(super) fn panel(&self, p: usize) -> (&[u8], usize) {
        let bytes = self.unit_bytes();
        (&self.data.as_slice::<u8>()[p * self.units * bytes..][..self.units * bytes], bytes)
    }

    /// What is added to a product for each of the activations in it: minus what stored quanta are too large by.
    pub(super) fn excess(&self) -> i32 {
        if self.biased { -128 } else { -i32::from(self.offset) }
    }

    /// What makes a number of a quantum: bits to flip, and what is subtracted then.
    #[inline(always)]
    pub(super) fn offset_and_flip(&self) -> (f32, u8) {
        match (self.wide, self.biased) {
            (true, true) => (128.0, 0),
            (true, false) => (128.0, 0x80),
            _ => (f32::from(self.offset), 0),
        }
    }

    /// What nibbles become when they are unpacked, in formats with a table.
    #[inline(always)]
    pub(super) fn table(&self) -> Option<&[u8; 16]> {
        self.table.as_ref()
    }

    /// Unit `u` of panel `p`.
    fn unit(&self, p: usize, u: usize) -> &[u8] {
        let bytes = self.unit_bytes();
        &self.data.as_slice::<u8>()[(p * self.units + u) * bytes..][..bytes]
    }

    /// Panel `p` of the K block at `k0` of `kc` (whole units) as it is stored.
    pub(super) fn stored(&self, k0: usize, kc: usize, p: usize) -> &[u8] {
        let bytes = self.unit_bytes();
        let at = (p * self.units + k0 / self.layout.block) * bytes;
        &self.data.as_slice::<u8>()[at..at + kc / self.layout.block * bytes]
    }

    /// The quanta of units `from..` of panel `p`, for formats whose products read them as they are, and the bytes
    /// from one group to the next.
    pub(super) fn in_place(&self, p: usize, from: usize) -> Option<(&[u8], usize)> {
        let (panel, bytes) = self.panel(p);
        (self.layout.bits == 8).then(|| (&panel[from * bytes..], bytes))
    }

    /// Unpacks the quanta of unit `u` of panel `p` to bytes `[block / 4][column][4]`.
    #[inline(always)]
    pub(super) fn quanta<S: Simd>(&self, s: S, p: usize, u: usize, dst: &mut [u8]) {
        let unit = self.unit(p, u);
        let dst = &mut dst[..self.layout.block * S::PANEL];
        let parts = unit[..self.quanta_bytes()].chunks_exact(self.part_bytes());
        for (src, dst) in parts.zip(dst.chunks_exact_mut(PART * S::PANEL)) {
            match self.layout.bits {
                4 => unpack::<S, 4>(s, src, self.table.as_ref(), dst),
                5 => unpack::<S, 5>(s, src, None, dst),
                6 => unpack::<S, 6>(s, src, None, dst),
                _ => dst.copy_from_slice(src),
            }
        }
    }

    /// Writes the scales of unit `u` of panel `p`, `[group][column]`, and the minima, what is added to a value.
    #[inline(always)]
    pub(super) fn scales<S: Simd>(&self, s: S, p: usize, u: usize, scales: &mut [f32], mins: &mut [f32]) {
        match self.channels(p) {
            Some(channels) => scales[..channels.len()].copy_from_slice(channels),
            None => self.scales_of(s, &self.unit(p, u)[self.quanta_bytes()..], scales, mins),
        }
    }

    /// As [`Blocks::scales`], of what is `stored` in a unit after its quanta.
    #[inline(always)]
    pub(super) fn scales_of<S: Simd>(&self, s: S, stored: &[u8], scales: &mut [f32], mins: &mut [f32]) {
        let groups = self.layout.groups();
        let np = S::PANEL;
        let scales = &mut scales[..groups * np];
        if self.layout.exponents {
            scales.iter_mut().zip(stored).for_each(|(scale, &e)| *scale = mxfp4::scale(e));
            return;
        }
        let mins = if self.layout.mins { &mut mins[..groups * np] } else { &mut [] };
        let (d, rest) = stored.split_at(2 * np);
        let (m, integers) = rest.split_at(if self.layout.mins { 2 * np } else { 0 });
        for v in (0..np).step_by(S::LANES) {
            // SAFETY: `d` has PANEL halves, `m` too if there are minima; with integer scales there are `groups` rows of PANEL
            // bytes, and as many minima; `scales` and `mins` have `groups` rows of PANEL floats.
            unsafe {
                let d = s.load_f16(d.as_ptr().cast::<u16>().add(v));
                if !self.layout.integer_scales {
                    s.store(scales.as_mut_ptr().add(v), d);
                    if self.layout.mins {
                        s.store(mins.as_mut_ptr().add(v), s.load_f16(m.as_ptr().cast::<u16>().add(v)));
                    }
                    continue;
                }
                let integers = integers.as_ptr().cast::<i8>().add(v);
                for g in 0..groups {
                    let scale = s.mul(d, s.load_i8(integers.add(g * np)));
                    s.store(scales.as_mut_ptr().add(g * np + v), scale);
                }
                if self.layout.mins {
                    let m = s.sub(s.splat(0.0), s.load_f16(m.as_ptr().cast::<u16>().add(v)));
                    for g in 0..groups {
                        let min = s.mul(m, s.load_i8(integers.add((groups + g) * np)));
                        s.store(mins.as_mut_ptr().add(g * np + v), min);
                    }
                }
            }
        }
    }

    /// Writes panel `p` of the K block at `k0` of `kc` (whole units) to `dst` as f32 `[kc][PANEL]`: bit for bit the decoded
    /// values.
    #[inline(always)]
    pub(super) fn widen<S: Simd>(&self, s: S, k0: usize, kc: usize, p: usize, dst: &mut [f32]) {
        let Layout { block, group, mins: has_mins, .. } = self.layout;
        let mut quanta = [0u8; MAX_UNIT * MAX_PANEL];
        let (mut scales, mut mins) = ([0f32; MAX_GROUPS * MAX_PANEL], [0f32; MAX_GROUPS * MAX_PANEL]);
        let (offset, flip) = self.offset_and_flip();
        for (u, dst) in (k0 / block..).zip(dst[..kc * S::PANEL].chunks_exact_mut(block * S::PANEL)) {
            self.quanta(s, p, u, &mut quanta);
            self.scales(s, p, u, &mut scales, &mut mins);
            for chunk in 0..block / 4 {
                let g = chunk * 4 / group * S::PANEL;
                for v in (0..S::PANEL).step_by(S::LANES) {
                    // SAFETY: chunk < block / 4 and v + LANES <= PANEL: within `quanta`, `scales`, `mins` and `dst`, whose
                    // extents are block or groups times PANEL.
                    unsafe {
                        let q = s.xor(s.load_bytes(quanta.as_ptr().add((chunk * S::PANEL + v) * 4)), flip);
                        let scale = s.load(scales.as_ptr().add(g + v));
                        for b in 0..4 {
                            let q = s.shr(s.shl(q, 24 - 8 * b), 24);
                            let mut value = s.mul(s.sub(s.to_f32(q), s.splat(offset)), scale);
                            if has_mins {
                                value = s.add(value, s.load(mins.as_ptr().add(g + v)));
                            }
                            let at = (chunk * 4 + b as usize) * S::PANEL + v;
                            s.store(dst.as_mut_ptr().add(at), value);
                        }
                    }
                }
            }
        }
    }
}

/// A vector of quanta.
type Quanta<S> = <S as Bytes<<S as Simd>::V>>::B;

/// Unpacks 32 weights along K of a panel.
#[inline(always)]
fn unpack<S: Simd, const BITS: usize>(s: S, src: &[u8], table: Option<&[u8; 16]>, dst: &mut [u8]) {
    let np = S::PANEL;
    assert!(src.len() == BITS * 4 * np && dst.len() == PART * np);
    let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
    for v in (0..4 * np).step_by(4 * S::LANES) {
        for c in 0..4 {
            // SAFETY: v + 4 LANES <= 4 PANEL; `src` has BITS rows of 4 PANEL bytes, `dst` has eight.
            unsafe {
                let [first, second] = quanta_of::<S, BITS>(s, src.add(v), c, table);
                s.store_bytes(dst.add(c * 4 * np + v), first);
                s.store_bytes(dst.add((c + 4) * 4 * np + v), second);
            }
        }
    }
}

/// One vector of columns of rows `c` and `c + 4` of the eight rows, of four along K each, that 32 weights along K are: whole
/// bytes, or of their nibbles the low ones and the high ones, and the bits that 5 and 6 have above.
///
/// # Safety
/// At `src` there is the first of those columns in BITS (4, 5, 6 or 8) rows of 4 PANEL bytes; `c` is under 4.
#[inline(always)]
pub(super) unsafe fn quanta_of<S: Simd, const BITS: usize>(
    s: S,
    src: *const u8,
    c: usize,
    table: Option<&[u8; 16]>,
) -> [Quanta<S>; 2] {
    let np = S::PANEL;
    // SAFETY: the contract: 8 rows of bytes, or 4 of nibbles and BITS - 4 rows of what is above them.
    unsafe {
        let stored = s.load_bytes(src.add(c * 4 * np));
        if BITS == 8 {
            return [stored, s.load_bytes(src.add((c + 4) * 4 * np))];
        }
        let mut q = [s.and(stored, 15), s.and(s.shr(stored, 4), 15)];
        let c = c as u32;
        if BITS == 5 {
            let high = s.load_bytes(src.add(16 * np));
            q = [s.or(q[0], s.and(s.shl(high, 4 - c), 0x10)), s.or(q[1], s.and(s.shr(high, c), 0x10))];
        }
        if BITS == 6 {
            for (i, q) in q.iter_mut().enumerate() {
                let high = s.load_bytes(src.add((16 + i * 4) * np));
                let bit = 2 * c;
                let high = if bit < 4 { s.shl(high, 4 - bit) } else { s.shr(high, bit - 4) };
                *q = s.or(*q, s.and(high, 0x30));
            }
        }
        match table {
            Some(table) if BITS == 4 => q.map(|q| s.look_up(table, q)),
            _ => q,
        }
    }
}
