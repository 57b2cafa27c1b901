//! Weights as OpenVINO's constants: plain types where they lie, block formats re-laid into integers, scales and zero points.
//!
//! ```text
//!   q [rows, K/g, g] ─▶ f32 ─▶ - zero [rows, K/g, 1] ─▶ * scale [rows, K/g, 1] ─▶ reshape
//! ```
//!
//! That chain is what OpenVINO keeps compressed in memory and unpacks inside its products. Blocks are re-laid one after the
//! other straight into the constants: the values of a tensor never exist as f32.

use super::emit::as_port;
use super::lower::Lowering;
use crate::weights::Weights;
use conure_device::arena::AlignedBytes;
use conure_device::openvino::ir::Output;
use conure_device::openvino::{Element, OpenVinoError};
use conure_ops::openvino::Port;
use conure_tensor::DType;
use conure_tensor::quant::mxfp4;
use conure_tensor::quant::parts::{Layout, Parts};
use half::f16;
use std::sync::Arc;

/// Changes whenever this file makes something else of a weight: what was compiled before is then of no use.
pub(super) const FORM: u32 = 2;

/// The element type of a plain type.
pub(super) fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        DType::I32 => Some(Element::I32),
        DType::I64 => Some(Element::I64),
        _ => None,
    }
}

/// Bytes of a weight where its source has them.
struct WeightBytes {
    weights: Arc<Weights>,
    index: usize,
}

impl AsRef<[u8]> for WeightBytes {
    fn as_ref(&self) -> &[u8] {
        self.weights.bytes(self.index)
    }
}

impl Lowering<'_> {
    /// Weight `index`, stored as `dtype` in the shape `stored`, as f32 values in `shape`.
    pub(super) fn weight(
        &mut self,
        index: usize,
        dtype: DType,
        stored: &[usize],
        shape: &[usize],
    ) -> Result<Port, OpenVinoError> {
        let key = (index, shape.to_vec());
        if let Some(&known) = self.known_weights.get(&key) {
            return Ok(known);
        }
        let port = match element(dtype) {
            _ if self.writer.is_outline() => self.named(index, dtype, stored, shape),
            Some(element) => {
                let bytes = Arc::new(WeightBytes { weights: self.weights.clone(), index });
                let constant = self.writer.constant(element, shape, bytes)?;
                self.in_place.push((index, constant));
                match element {
                    Element::F16 | Element::Bf16 => self.converted(constant),
                    _ => constant,
                }
            }
            None => self.blocks(index, dtype, stored, shape)?,
        };
        self.known_weights.insert(key, as_port(port));
        Ok(as_port(port))
    }

    /// What stands for a weight in an outline: all that decides how it is written, but its bytes.
    fn named(&mut self, index: usize, dtype: DType, stored: &[usize], shape: &[usize]) -> Output {
        let attrs = [
            ("index", index.to_string()),
            ("dtype", dtype.to_string()),
            ("stored", format!("{stored:?}")),
            ("shape", format!("{shape:?}")),
        ];
        let attrs = attrs.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.writer.layer("Weight", "outline", &attrs, &[], 1)
    }

    fn converted(&mut self, x: Output) -> Output {
        self.writer.layer("Convert", "opset1", &[("destination_type", "f32")], &[x], 1)
    }

    /// A weight in a block format.
    fn blocks(
        &mut self,
        index: usize,
        dtype: DType,
        stored: &[usize],
        shape: &[usize],
    ) -> Result<Output, OpenVinoError> {
        let k = stored.last().copied().unwrap_or(1);
        let relaid = relay(dtype, k, self.weights.bytes(index), self.options.precision.exact_weights())?;
        if self.options.reduces_compile_mem() {
            self.weights.release(index);
        }
        let (rows, groups) = (stored.iter().rev().skip(1).product::<usize>(), k / relaid.group);
        // One scale for a row: OpenVINO's fast kernels want no axis of groups then.
        let plain = groups == 1 && shape == [rows, k];
        let [by_group, per_group] = [relaid.group, 1].map(|last| match plain {
            true => vec![rows, last],
            false => vec![rows, groups, last],
        });
        let q = self.writer.owned_constant(relaid.element, &by_group, relaid.q)?;
        let mut x = self.converted(q);
        let eltwise = [("auto_broadcast", "numpy")];
        if let Some((element, zeros)) = relaid.zeros {
            let zeros = self.writer.owned_constant(element, &per_group, zeros)?;
            let zeros = if element == Element::F32 { zeros } else { self.converted(zeros) };
            x = self.writer.layer("Subtract", "opset1", &eltwise, &[x, zeros], 1);
        }
        let scales = self.writer.owned_constant(Element::F32, &per_group, relaid.scales)?;
        x = self.writer.layer("Multiply", "opset1", &eltwise, &[x, scales], 1);
        if plain {
            return Ok(x);
        }
        let to: Vec<u8> = shape.iter().flat_map(|&d| i64::try_from(d).unwrap_or(0).to_le_bytes()).collect();
        let to = self.writer.literal(Element::I64, &[shape.len()], &to)?;
        Ok(self.writer.layer("Reshape", "opset1", &[("special_zero", "false")], &[x, to], 1))
    }
}

/// A tensor of blocks as integers with a scale, and perhaps a zero point, for each group: `value = (q - zero) * scale`.
pub(super) struct Relaid {
    /// Type of the integers.
    pub element: Element,
    /// Values that share a scale.
    pub group: usize,
    /// The integers in order; two to a byte where they have four bits.
    pub q: AlignedBytes,
    /// f32.
    pub scales: AlignedBytes,
    /// Zero points, as f32 or as integers of the type of `q`.
    pub zeros: Option<(Element, AlignedBytes)>,
}

/// One group, unpacked.
struct Group<'a> {
    q: &'a [u8],
    scale: f32,
    /// What is taken from `scale * q`.
    offset: f32,
}

/// Re-lays blocks, `k` values to a row; in `exact` values are kept to the last bit or two.
pub(super) fn relay(dtype: DType, k: usize, bytes: &[u8], exact: bool) -> Result<Relaid, OpenVinoError> {
    let refuse = || OpenVinoError::Call { call: "weight", message: format!("{dtype} has no OpenVINO form") };
    let layout = Layout::of(dtype).ok_or_else(refuse)?;
    let blocks = Blocks { dtype, layout, bytes };
    if !exact
        && layout.bits > 4
        && let Some(rows) = by_row(&blocks, k)?
    {
        return Ok(rows);
    }
    if layout.mins { affine(&blocks, exact) } else { signed(&blocks) }
}

fn room(len: usize) -> Result<AlignedBytes, OpenVinoError> {
    AlignedBytes::zeroed(len).map_err(|e| OpenVinoError::Call { call: "weight", message: e.to_string() })
}

/// The blocks of a tensor.
struct Blocks<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a [u8],
}

impl Blocks<'_> {
    fn groups(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes() * self.layout.groups()
    }

    /// What a quantum of a group stands for.
    fn value(&self, g: &Group<'_>, q: u8) -> f32 {
        let Layout { table, offset, mins, .. } = self.layout;
        match table {
            Some(table) => g.scale * f32::from(table[usize::from(q & 15)]),
            None if mins => g.scale * f32::from(q) - g.offset,
            None => g.scale * f32::from(q.wrapping_sub(offset).cast_signed()),
        }
    }

    fn each(&self, mut f: impl FnMut(usize, &Group<'_>)) {
        let half = |h: [u8; 2]| f16::from_le_bytes(h).to_f32();
        let mut at = 0;
        for block in self.bytes.chunks_exact(self.dtype.block_bytes()) {
            let Some(parts) = Parts::of(self.dtype, block) else { return };
            let d = if self.layout.exponents { mxfp4::scale(parts.d[0]) } else { half(parts.d) };
            let m = half(parts.m);
            for (g, q) in parts.q[..self.layout.block].chunks_exact(self.layout.group).enumerate() {
                let (scale, offset) = match (self.layout.integer_scales, self.layout.mins) {
                    (true, true) => (d * f32::from(parts.scales[g]), m * f32::from(parts.mins[g])),
                    (true, false) => (d * f32::from(parts.scales[g] as i8), 0.0),
                    (false, _) => (d, -m),
                };
                f(at, &Group { q, scale, offset });
                at += 1;
            }
        }
    }
}

/// The normalised squared error that one scale for a row may add to values of more than 4 bits. Rows that are about normal cost
/// 8e-5; the formats themselves 3e-5 (q8_0) to 1e-3 (5 bits).
const ROW: f64 = 1.5e-4;

/// Signed 8 bits with one scale for each row of `k`, if that costs little. OpenVINO multiplies such weights with activations in 8
/// bits: a product of 4096 x 4096 with one row takes 0.42 ms, with groups of 32 it takes 0.89 ms, with 128 rows 28 ms and 88 ms.
fn by_row(blocks: &Blocks<'_>, k: usize) -> Result<Option<Relaid>, OpenVinoError> {
    let group = blocks.layout.group;
    let (groups, per_row) = (blocks.groups(), k / group.max(1));
    if per_row == 0 || !k.is_multiple_of(group) || !groups.is_multiple_of(per_row) {
        return Ok(None);
    }
    let (mut q, mut scales) = (room(groups * group)?, room(groups / per_row * 4)?);
    let mut row: Vec<f32> = Vec::with_capacity(k);
    let (mut error, mut size) = (0f64, 0f64);
    blocks.each(|at, g| {
        row.extend(g.q.iter().map(|&q| blocks.value(g, q)));
        if row.len() < k {
            return;
        }
        let index = at / per_row;
        let most = row.iter().fold(0f32, |most, v| most.max(v.abs()));
        let (scale, inverse) = if most > 0.0 { (most / 127.0, 127.0 / most) } else { (0.0, 0.0) };
        scales.as_mut_slice()[index * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        for (to, &v) in q.as_mut_slice()[index * k..][..k].iter_mut().zip(&row) {
            let step = (v * inverse).round().clamp(-127.0, 127.0);
            error += f64::from(step * scale - v).powi(2);
            size += f64::from(v).powi(2);
            *to = (step as i8).cast_unsigned();
        }
        row.clear();
    });
    let good = error <= ROW * size && error.is_finite();
    Ok(good.then_some(Relaid { element: Element::I8, group: k, q, scales, zeros: None }))
}

/// A format without minima: signed integers, without zero points. Places in a table become what they stand for.
fn signed(blocks: &Blocks<'_>) -> Result<Relaid, OpenVinoError> {
    let Layout { bits, group, offset, table, .. } = blocks.layout;
    let (groups, narrow) = (blocks.groups(), bits == 4 && table.is_none());
    let value = |q: u8| match table {
        Some(table) => table[usize::from(q & 15)].cast_unsigned(),
        None => q.wrapping_sub(offset),
    };
    let (mut q, mut scales) = (room(groups * group / if narrow { 2 } else { 1 })?, room(groups * 4)?);
    let width = q.len() / groups.max(1);
    blocks.each(|at, g| {
        scales.as_mut_slice()[at * 4..][..4].copy_from_slice(&g.scale.to_le_bytes());
        let to = q.as_mut_slice()[at * width..][..width].iter_mut();
        if narrow {
            // The quanta of 8 bits are signed already; those of fewer count from 0.
            let low = |q: u8| q.wrapping_sub(offset) & 15;
            to.zip(g.q.as_chunks::<2>().0).for_each(|(to, pair)| *to = low(pair[0]) | low(pair[1]) << 4);
        } else {
            to.zip(g.q).for_each(|(to, &q)| *to = value(q));
        }
    });
    Ok(Relaid { element: if narrow { Element::I4 } else { Element::I8 }, group, q, scales, zeros: None })
}

/// How far rounded zero points may put the values off, as normalised squared error, before eight bits are taken: what
/// rounding activations to eight bits costs anyway (8.6e-6 measured).
const ROUNDING: f64 = 1e-5;

/// A format with minima: `value = scale * q - offset`, 32 to a group.
fn affine(blocks: &Blocks<'_>, exact: bool) -> Result<Relaid, OpenVinoError> {
    let most = if blocks.layout.bits == 4 { 15.0 } else { 31.0 };
    let nearest = |zero: f32| zero.round().clamp(0.0, most);
    let (mut integral, mut error, mut size) = (true, 0f64, 0f64);
    blocks.each(|_, g| {
        let (_, zero, scale) = centred(g);
        integral &= zero == nearest(zero);
        error += 32.0 * f64::from((zero - nearest(zero)) * scale).powi(2);
        size += g.q.iter().map(|&q| f64::from(g.scale * f32::from(q) - g.offset).powi(2)).sum::<f64>();
    });
    let form = match (integral || (!exact && error <= ROUNDING * size), exact) {
        (true, _) => Form::Rounded,
        (false, true) => Form::Exact,
        (false, false) => Form::Bytes,
    };
    let narrow = blocks.layout.bits == 4 && form != Form::Bytes;
    let element = if narrow { Element::U4 } else { Element::U8 };
    let mut out = Writer::new(blocks.groups(), narrow, form == Form::Exact)?;
    blocks.each(|at, g| {
        let (q, zero, scale) = if form == Form::Bytes { wider(g) } else { centred(g) };
        out.write(at, &q, if form == Form::Rounded { nearest(zero) } else { zero }, scale);
    });
    let zeros = (if form == Form::Exact { Element::F32 } else { element }, out.zeros);
    Ok(Relaid { element, group: 32, q: out.q, scales: out.scales, zeros: Some(zeros) })
}

/// How zero points are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As f32: any value.
    Exact,
    /// As integers that they are, or are near enough.
    Rounded,
    /// As integers, with the values quantised anew to the 256 steps of a byte.
    Bytes,
}

/// Integers, zero point and scale of a group with its own values. A group without a scale holds one value throughout.
fn centred(g: &Group<'_>) -> ([u8; 32], f32, f32) {
    if g.scale == 0.0 {
        // (0 - 1) * offset
        return ([0; 32], if g.offset == 0.0 { 0.0 } else { 1.0 }, g.offset);
    }
    (quanta(g), g.offset / g.scale, g.scale)
}

fn quanta(g: &Group<'_>) -> [u8; 32] {
    std::array::from_fn(|i| g.q.get(i).copied().unwrap_or(0))
}

/// Integers, zero point and scale of a group in 256 steps from its least value, or 0, to its greatest.
fn wider(g: &Group<'_>) -> ([u8; 32], f32, f32) {
    let values = quanta(g).map(|q| g.scale * f32::from(q) - g.offset);
    let low = values.iter().copied().fold(0f32, f32::min);
    let high = values.iter().copied().fold(0f32, f32::max);
    let scale = (high - low) / 255.0;
    if scale == 0.0 {
        return ([0; 32], 0.0, 0.0);
    }
    let zero = (-low / scale).round().clamp(0.0, 255.0);
    (values.map(|v| (v / scale + zero).round().clamp(0.0, 255.0) as u8), zero, scale)
}

/// Where groups go.
struct Writer {
    q: AlignedBytes,
    zeros: AlignedBytes,
    scales: AlignedBytes,
    narrow: bool,
    real_zeros: bool,
}

impl Writer {
    fn new(groups: usize, narrow: bool, real_zeros: bool) -> Result<Writer, OpenVinoError> {
        let zero_bits = if real_zeros {
            32
        } else if narrow {
            4
        } else {
            8
        };
        Ok(Writer {
            q: room(groups * if narrow { 16 } else { 32 })?,
            zeros: room((groups * zero_bits).div_ceil(8))?,
            scales: room(groups * 4)?,
            narrow,
            real_zeros,
        })
    }

    fn write(&mut self, at: usize, q: &[u8; 32], zero: f32, scale: f32) {
        if self.narrow {
            let to = self.q.as_mut_slice()[at * 16..(at + 1) * 16].iter_mut();
            to.zip(q.as_chunks::<2>().0).for_each(|(to, pair)| *to = pair[0] & 15 | pair[1] << 4);
        } else {
            self.q.as_mut_slice()[at * 32..(at + 1) * 32].copy_from_slice(q);
        }
        self.scales.as_mut_slice()[at * 4..(at + 1) * 4].copy_from_slice(&scale.to_le_bytes());
        let zeros = self.zeros.as_mut_slice();
        if self.real_zeros {
            zeros[at * 4..(at + 1) * 4].copy_from_slice(&zero.to_le_bytes());
        } else if self.narrow {
            zeros[at / 2] |= (zero as u8 & 15) << (at % 2 * 4);
        } else {
            zeros[at] = zero as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No copy of a tensor's values as f32 is made on the way: what is held at most is less than half of that.
    #[test]
    fn re_laying_holds_no_values_as_f32() {
        let values = 1 << 18;
        let mut formats = 0;
        for dtype in DType::ALL.into_iter().filter(|d| Layout::of(*d).is_some()) {
            let blocks = values / dtype.block_len();
            let bytes: Vec<u8> = (0..blocks * dtype.block_bytes()).map(|i| (i * 37 % 59) as u8).collect();
            for exact in [true, false] {
                let held = allocation_counter::measure(|| drop(relay(dtype, 4096, &bytes, exact).unwrap()));
                assert!(held.bytes_max < 2 * values as u64, "{dtype} exact {exact}: {held:?}");
                assert!(held.bytes_max > values as u64 / 2, "{dtype}: nothing was made");
            }
            formats += 1;
        }
        assert!(formats >= 8, "{formats} formats");
    }

    /// Rows of about normal values get one scale each, within what is allowed; rows with outliers keep their groups.
    #[test]
    fn rows_get_one_scale_where_that_costs_little() {
        let (rows, k) = (6, 512);
        let normal =
            |i: usize| ((i * 7919 % 1009) as f32 / 1009.0 + (i * 104_729 % 997) as f32 / 997.0) - 1.0;
        for (outlier, group) in [(None, k), (Some(20.0), 32)] {
            let values: Vec<f32> =
                (0..rows * k).map(|i| outlier.filter(|_| i % k == 17).unwrap_or(normal(i))).collect();
            let bytes = conure_tensor::quant::encoded(DType::Q8_0, &values).unwrap();
            let relaid = relay(DType::Q8_0, k, &bytes, false).unwrap();
            assert_eq!((relaid.group, relaid.element), (group, Element::I8), "outlier {outlier:?}");
            assert_eq!(relay(DType::Q8_0, k, &bytes, true).unwrap().group, 32);
            let scale =
                |i: usize| f32::from_le_bytes(relaid.scales.as_slice()[i * 4..][..4].try_into().unwrap());
            let (mut error, mut size) = (0f64, 0f64);
            for (i, &v) in values.iter().enumerate() {
                let found = f32::from(relaid.q.as_slice()[i].cast_signed()) * scale(i / group);
                error += f64::from(found - v).powi(2);
                size += f64::from(v).powi(2);
            }
            // The format's own error comes first.
            assert!(error < 2.0 * ROW * size, "{}", error / size);
        }
    }
}
