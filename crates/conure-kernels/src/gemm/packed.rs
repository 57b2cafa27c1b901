//! Weights rearranged once, at load, into the order in which a product reads them.

use bytemuck::Pod;
use conure_tensor::DType;

use super::blocks::Blocks;
use super::channels;
use crate::buffer::SharedMut;
use crate::isa::{Isa, Kernel, dispatch, tile_size};
use crate::pages::Pages;
use crate::simd::{
    BF16Panel, F16Panel, F32Panel, Simd, TILE_K, Weights, Widening, pack_columns, panels_at_once,
};
use crate::{Cpu, KernelError, Result, check};

/// How the elements of a [`PackedMatrix`] are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    F16,
    BF16,
    /// A block format, or bytes with one scale a column, as [`Blocks`] arranges it.
    Blocks,
}

/// A weight matrix `[N, K]` (outputs, inputs), packed for one instruction set.
///
/// Columns of the product (rows of the matrix) are grouped into panels of as many as a tile has; K is cut into blocks of
/// 512. Order: K block, panel, k, column: a product reads it from front to back. f16, bf16 and block formats stay in their
/// own type; the latter rearranged block by block.
pub struct PackedMatrix {
    pub(super) isa: Isa,
    pub(super) format: Format,
    dtype: DType,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) columns: Columns,
    pub(super) data: Pages,
    /// There if [`Format::Blocks`]; `data` is empty then.
    pub(super) blocks: Option<Blocks>,
}

/// How the columns of a product are grouped into panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// All columns.
    pub(crate) n: usize,
    /// Columns of a panel.
    pub(crate) panel: usize,
    /// Whether even panels hold the first half of the columns and odd ones the second, as a gated unit wants them.
    pub(crate) halves: bool,
}

impl Columns {
    /// The number of panels.
    pub(crate) fn panels(&self) -> usize {
        if self.halves { 2 * (self.n / 2).div_ceil(self.panel) } else { self.n.div_ceil(self.panel) }
    }

    /// Panels that stay together: one, or the two of a gated unit.
    #[inline(always)]
    pub(crate) fn unit(&self) -> usize {
        if self.halves { 2 } else { 1 }
    }

    /// The first column of panel `p` and how many it has.
    #[inline(always)]
    pub(crate) fn of(&self, p: usize) -> (usize, usize) {
        if self.halves {
            let half = self.n / 2;
            let start = (p / 2) * self.panel;
            ((p % 2) * half + start, self.panel.min(half - start))
        } else {
            let start = p * self.panel;
            (start, self.panel.min(self.n - start))
        }
    }
}

impl PackedMatrix {
    /// Packs `data`: `n` rows of `k` elements of `dtype` in the layout of GGUF (little endian, blocks along K).
    ///
    /// # Errors
    /// [`KernelError::Length`] or [`KernelError::Invalid`] if `data` is not `n * k` elements (in whole blocks a row),
    /// [`KernelError::DType`] for integer types.
    pub fn new(cpu: &Cpu, dtype: DType, data: &[u8], n: usize, k: usize) -> Result<PackedMatrix> {
        Self::pack(cpu, dtype, data, n, k, false, false)
    }

    /// As [`PackedMatrix::new`], for products that end in [`super::Activation::Glu`]: N is even.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`], and [`KernelError::Invalid`] if `n` is odd.
    pub fn new_glu(cpu: &Cpu, dtype: DType, data: &[u8], n: usize, k: usize) -> Result<PackedMatrix> {
        check::valid(KERNEL, n.is_multiple_of(2), || format!("a gated unit needs an even N, not {n}"))?;
        Self::pack(cpu, dtype, data, n, k, true, false)
    }

    /// As [`PackedMatrix::new`], or with `glu` as [`PackedMatrix::new_glu`], for products in the precision of `cpu`: in
    /// [`Precision::Int8`](crate::Precision::Int8) weights of eight bits and more become bytes with one scale for each output, and
    /// are multiplied so whatever the precision of a later product.
    ///
    /// # Errors
    /// As those.
    pub fn for_products(
        cpu: &Cpu,
        dtype: DType,
        data: &[u8],
        n: usize,
        k: usize,
        glu: bool,
    ) -> Result<PackedMatrix> {
        check::valid(KERNEL, !glu || n.is_multiple_of(2), || {
            format!("a gated unit needs an even N, not {n}")
        })?;
        Self::pack(cpu, dtype, data, n, k, glu, channels::wanted(cpu, dtype, k))
    }

    /// Packs f32 weights `[N, K]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `weights` does not have `n * k` elements.
    pub fn from_f32(cpu: &Cpu, weights: &[f32], n: usize, k: usize) -> Result<PackedMatrix> {
        check::length(KERNEL, "weights", "[N, K]", &[n, k], weights.len())?;
        Self::new(cpu, DType::F32, bytemuck::cast_slice(weights), n, k)
    }

    fn pack(
        cpu: &Cpu,
        dtype: DType,
        data: &[u8],
        n: usize,
        k: usize,
        halves: bool,
        channels: bool,
    ) -> Result<PackedMatrix> {
        let elements = check::size(KERNEL, "weights", &[n, k])?;
        check::valid(KERNEL, k.is_multiple_of(dtype.block_len()), || {
            format!("K is {k}, but {dtype} comes in blocks of {}", dtype.block_len())
        })?;
        let expected = dtype.bytes_for(elements).unwrap_or(0);
        if expected != data.len() {
            let found = data.len();
            return Err(KernelError::Length {
                kernel: KERNEL,
                operand: "weights (bytes)",
                shape: "[N, K]",
                expected,
                found,
            });
        }
        let format = match dtype {
            _ if channels => Format::Blocks,
            DType::F32 => Format::F32,
            DType::F16 => Format::F16,
            DType::BF16 => Format::BF16,
            _ if dtype.is_quantised() => Format::Blocks,
            _ => return Err(KernelError::DType { kernel: KERNEL, dtype }),
        };
        let columns = Columns { n, panel: tile_size(cpu.isa()).panel, halves };
        let mut packed = PackedMatrix {
            isa: cpu.isa(),
            format,
            dtype,
            n,
            k,
            columns,
            data: Pages::default(),
            blocks: None,
        };
        let padded = check::size(KERNEL, "packed weights", &[columns.panels(), columns.panel, k])?;
        match format {
            Format::F32 => {
                packed.data = Pages::zeroed(KERNEL, check::size(KERNEL, "packed weights", &[padded, 4])?)?;
                match bytemuck::try_cast_slice::<u8, f32>(data) {
                    Ok(data) if cfg!(target_endian = "little") => {
                        pack_f32(cpu, columns, k, data, packed.data.as_mut_slice())?;
                    }
                    _ => pack_plain::<u32>(cpu, columns, k, data, packed.data.as_mut_slice())?,
                }
            }
            Format::F16 | Format::BF16 => {
                packed.data = Pages::zeroed(KERNEL, check::size(KERNEL, "packed weights", &[padded, 2])?)?;
                pack_plain::<u16>(cpu, columns, k, data, packed.data.as_mut_slice())?;
            }
            Format::Blocks if channels => packed.blocks = Some(channels::pack(cpu, dtype, columns, k, data)?),
            Format::Blocks => packed.blocks = Blocks::pack(cpu, dtype, columns, k, data)?,
        }
        Ok(packed)
    }

    /// Outputs: rows of the matrix, columns of the product.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs: the summed dimension.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The type of the weights as they were given.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.blocks.as_ref().map_or(0, Blocks::bytes)
    }

    /// The offset in elements of panel `p` in the K block at `k0` of `kc`.
    #[inline(always)]
    pub(super) fn offset(&self, k0: usize, kc: usize, p: usize) -> usize {
        (k0 * self.columns.panels() + p * kc) * self.columns.panel
    }

    /// `count` panels from `p` on of the K block at `k0` of `kc`: all their weights exist.
    #[inline(always)]
    pub(super) fn panels(&self, k0: usize, kc: usize, p: usize, count: usize) -> Panels {
        let (at, len) = (self.offset(k0, kc, p), count * kc * self.columns.panel);
        match self.format {
            // Blocks are widened first: there is nothing to point at, and the slice says so.
            Format::F32 | Format::Blocks => {
                Panels::F32(F32Panel::new(self.data.as_slice::<f32>()[at..at + len].as_ptr()))
            }
            Format::F16 => Panels::F16(F16Panel::new(self.data.as_slice::<u16>()[at..at + len].as_ptr())),
            Format::BF16 => Panels::BF16(BF16Panel::new(self.data.as_slice::<u16>()[at..at + len].as_ptr())),
        }
    }
}

impl PackedMatrix {
    /// Panel `p` of the K block at `k0` of `kc` as it is stored, for a worker that will widen it soon.
    #[inline(always)]
    pub(super) fn stored(&self, k0: usize, kc: usize, p: usize) -> &[u8] {
        if let Some(blocks) = &self.blocks {
            return blocks.stored(k0, kc, p);
        }
        let size = if self.format == Format::F32 { 4 } else { 2 };
        let at = self.offset(k0, kc, p) * size;
        &self.data.as_slice::<u8>()[at..at + kc * self.columns.panel * size]
    }
}

/// Where packed panels lie, in their own type.
#[derive(Clone, Copy)]
pub(super) enum Panels {
    F32(F32Panel),
    F16(F16Panel),
    BF16(BF16Panel),
    F16Widening(Widening<F16Panel>),
    BF16Widening(Widening<BF16Panel>),
}

impl Panels {
    /// The same, which what multiplies with them also writes to `to`, as f32.
    ///
    /// # Safety
    /// As [`Widening::new`].
    #[inline(always)]
    pub(super) unsafe fn widening(self, to: *mut f32) -> Panels {
        // SAFETY: the contract.
        unsafe {
            match self {
                Panels::F16(b) => Panels::F16Widening(Widening::new(b, to)),
                Panels::BF16(b) => Panels::BF16Widening(Widening::new(b, to)),
                wide => wide,
            }
        }
    }

    /// The same, where tile `t` over `kc` fetches its part of the `ahead` weights that follow these.
    #[inline(always)]
    pub(super) fn then(self, ahead: usize, t: usize, kc: usize) -> Panels {
        match self {
            Panels::F32(b) => Panels::F32(b.then(ahead, t, kc)),
            Panels::F16(b) => Panels::F16(b.then(ahead, t, kc)),
            Panels::BF16(b) => Panels::BF16(b.then(ahead, t, kc)),
            widening => widening,
        }
    }

    /// `rows` rows of `a` times these `count` panels of `k`: `sums[r][0..count * PANEL]`, or added to them if `more`.
    ///
    /// # Safety
    /// As [`Simd::tile`] for `a` and the panels; `sums` has `rows * count * PANEL` floats.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(
        self,
        s: S,
        rows: usize,
        count: usize,
        a: *const f32,
        k: usize,
        sums: &mut [f32],
        more: bool,
    ) {
        // SAFETY: passed on; rows and panels are those of the contract.
        unsafe {
            match self {
                Panels::F32(b) => multiply(s, rows, count, a, b, k, sums, more),
                Panels::F16(b) => multiply(s, rows, count, a, b, k, sums, more),
                Panels::BF16(b) => multiply(s, rows, count, a, b, k, sums, more),
                Panels::F16Widening(b) => multiply(s, rows, count, a, b, k, sums, more),
                Panels::BF16Widening(b) => multiply(s, rows, count, a, b, k, sums, more),
            }
        }
    }
}

/// As [`Panels::multiply`].
///
/// # Safety
/// As there.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn multiply<S: Simd, W: Weights>(
    s: S,
    rows: usize,
    count: usize,
    a: *const f32,
    b: W,
    k: usize,
    sums: &mut [f32],
    more: bool,
) {
    let ldc = count * S::PANEL;
    let c = sums[..rows * ldc].as_mut_ptr();
    // SAFETY: the contract; panel i of `count` begins i * k * PANEL weights on and fills columns i * PANEL of each row.
    unsafe {
        if count == panels_at_once(rows) {
            s.tile(rows, count, a, b, k, c, ldc, more);
        } else {
            for i in 0..count {
                s.tile(rows, 1, a, b.offset(i * k * S::PANEL), k, c.add(i * S::PANEL), ldc, more);
            }
        }
    }
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedMatrix({} [{}, {}] for {})", self.dtype, self.n, self.k, self.isa)
    }
}

pub(super) const KERNEL: &str = "pack weights";

/// Calls `fill(panel, k0, kc)` for every panel of every K block, on all threads.
fn for_panels(
    cpu: &Cpu,
    columns: Columns,
    k: usize,
    fill: impl Fn(usize, usize, usize) + Sync,
) -> Result<()> {
    let blocks = k.div_ceil(TILE_K);
    cpu.threads().run_ranges(columns.panels() * blocks, 8, |from, to| {
        for task in from..to {
            let (block, p) = (task / columns.panels(), task % columns.panels());
            let k0 = block * TILE_K;
            fill(p, k0, TILE_K.min(k - k0));
        }
    })
}

/// Packs aligned f32 weights, by transposing in registers.
fn pack_f32(cpu: &Cpu, columns: Columns, k: usize, src: &[f32], dst: &mut [f32]) -> Result<()> {
    struct Panel<'a> {
        rows: &'a [f32],
        width: usize,
        k: usize,
        kc: usize,
        dst: &'a mut [f32],
    }
    impl Kernel for Panel<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Panel { rows, width, k, kc, dst } = self;
            // SAFETY: `rows` starts at a row's K block and goes to the end of the matrix, `dst` has kc * PANEL floats.
            unsafe { pack_columns(s, width, kc, rows.as_ptr(), k, dst.as_mut_ptr()) }
        }
    }
    let dst = SharedMut::new(dst);
    for_panels(cpu, columns, k, |p, k0, kc| {
        // SAFETY: each (block, panel) has its own part.
        let dst = unsafe { dst.part((k0 * columns.panels() + p * kc) * columns.panel, kc * columns.panel) };
        let (start, width) = columns.of(p);
        dispatch(cpu.isa(), Panel { rows: &src[start * k + k0..], width, k, kc, dst });
    })
}

fn pack_plain<T: Pod + Send>(cpu: &Cpu, columns: Columns, k: usize, src: &[u8], dst: &mut [T]) -> Result<()> {
    let size = std::mem::size_of::<T>();
    let dst = SharedMut::new(dst);
    let np = columns.panel;
    for_panels(cpu, columns, k, |p, k0, kc| {
        // SAFETY: each (block, panel) has its own part.
        let dst = unsafe { dst.part((k0 * columns.panels() + p * kc) * np, kc * np) };
        let (start, width) = columns.of(p);
        for c in 0..width {
            let row = &src[((start + c) * k + k0) * size..][..kc * size];
            for (i, value) in row.chunks_exact(size).enumerate() {
                dst[i * np + c] = bytemuck::pod_read_unaligned(value);
            }
        }
    })
}
