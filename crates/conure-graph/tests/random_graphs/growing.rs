//! Graphs that grow by random choices.

use crate::common::{B, T, noise};
use conure_graph::{Graph, GraphBuilder, MemoryWeights, StateId, ValueId, Weights};
use conure_ops::{
    Activation, AttentionMask, BatchNorm, Binary, BinaryKind, Cast, Concat, Conv2d, DepthwiseConv1d, Glu,
    Im2col, LayerNorm, Linear, MaskScores, MaskTime, MatMul, RelPosAttention, Reshape, Scale, Sdpa, SdpaKeys,
    Slice, Softmax, Transpose, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, DType, Dim, Shape, Tensor, quant};
use std::sync::Arc;

/// Widths of rows.
pub const WIDTHS: [usize; 3] = [4, 8, 12];

/// Weights of every shape that a random graph may ask for.
fn weights() -> Arc<Weights> {
    let mut all = MemoryWeights::new();
    let mut seed = 0;
    let mut next = |shape: &[usize], size: f32, half: bool| {
        seed += 1;
        let mut t = noise(seed, shape);
        let values: Vec<f32> = t.as_slice::<f32>().unwrap().iter().map(|v| v * size).collect();
        if half {
            t = Tensor::zeros(DType::F16, shape).unwrap();
            quant::encode(DType::F16, &values, t.view_mut().bytes_mut()).unwrap();
            return t;
        }
        Tensor::from_slice(shape, &values).unwrap()
    };
    for d in WIDTHS {
        for n in WIDTHS.into_iter().chain(WIDTHS.map(|w| 2 * w)) {
            all = all.with(&format!("linear.{n}.{d}"), next(&[n, d], 1.5 / (d as f32).sqrt(), n == 8));
        }
        for taps in [1, 3, 5] {
            all = all.with(&format!("depthwise.{d}.{taps}"), next(&[d, 1, taps], 0.6, taps == 5));
        }
        for o in WIDTHS {
            all = all.with(&format!("conv.{o}.{d}"), next(&[o, d, 3, 1], 0.5, o == 4));
        }
        let blocks = next(&[d, 8 * d], 0.5, false);
        let mut packed = Tensor::zeros(DType::Q8_0, &[d, 8 * d]).unwrap();
        quant::encode(DType::Q8_0, blocks.as_slice::<f32>().unwrap(), packed.view_mut().bytes_mut()).unwrap();
        all = all.with(&format!("blocks.{d}"), packed);
        all = all.with(&format!("grouped.{d}"), next(&[d, d / 2, 3, 1], 0.5, false));
        let positive: Vec<f32> = (0..d).map(|i| 0.5 + i as f32 / 9.0).collect();
        all = all.with(&format!("var.{d}"), Tensor::from_slice(&[d], &positive).unwrap());
        for i in 0..4 {
            all = all.with(&format!("vector.{d}.{i}"), next(&[d], 0.9, i == 3));
        }
        for heads in [1, 2, 4] {
            all = all.with(&format!("bias.{heads}.{d}"), next(&[heads, d / heads], 0.9, heads == 2));
        }
    }
    for n in WIDTHS.map(|w| 2 * w) {
        all = all.with(&format!("vector.{n}.0"), next(&[n], 0.9, false));
    }
    Weights::new(Arc::new(all))
}

/// A graph that grows by random choices.
struct Growing {
    g: GraphBuilder,
    /// Values `[B, T, D]` with their width.
    rows: Vec<(ValueId, usize)>,
    lengths: ValueId,
    positions: [ValueId; 3],
    /// Where rows are appended in this run.
    at: ValueId,
    /// What states `[1, 1, D]` held, and their width.
    old: Vec<(ValueId, usize)>,
    states: usize,
    /// Whether a product rounds its activations to bytes.
    rough: bool,
}

/// Rows of a state that is appended to: enough for all runs.
const ROOM: usize = 80;

fn shape(d: usize) -> Shape {
    Shape::new([(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T)), (Axis::D, Dim::from(d))])
}

const FUNCTIONS: [UnaryKind; 5] =
    [UnaryKind::Relu, UnaryKind::Silu, UnaryKind::Sigmoid, UnaryKind::Tanh, UnaryKind::Neg];

impl Growing {
    fn new() -> Growing {
        let mut g = GraphBuilder::new(weights());
        let x = g.input("x", ValueType::f32(shape(8)));
        let lengths = g.input("lengths", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])));
        let rows = (&Dim::from(T) * &Dim::from(2)).plus(-1);
        let positions = WIDTHS.map(|d| {
            let p = Shape::new([(Axis::P, rows.clone()), (Axis::D, Dim::from(d))]);
            g.input(&format!("p{d}"), ValueType::f32(p))
        });
        let at = g.input("at", ValueType::new(DType::I32, Shape::fixed(&[1])));
        let (old, states, rough) = (Vec::new(), 0, false);
        Growing { g, rows: vec![(x, 8)], lengths, positions, at, old, states, rough }
    }

    fn apply(&mut self, op: impl conure_ops::Op, inputs: &[ValueId]) -> ValueId {
        self.g.apply(op, inputs).unwrap()
    }

    fn weight(&mut self, name: String, shape: &[usize]) -> ValueId {
        self.g.weight(&name, shape).unwrap()
    }

    fn vector(&mut self, d: usize, i: usize) -> ValueId {
        self.weight(format!("vector.{d}.{i}"), &[d])
    }

    fn function(&mut self, x: ValueId, how: usize) -> ValueId {
        self.apply(Unary { kind: FUNCTIONS[how % FUNCTIONS.len()] }, &[x])
    }

    /// One more step: `kind` says which, `how` its details, `from` what it reads.
    fn step(&mut self, kind: usize, how: usize, from: usize) {
        let (x, d) = self.rows[self.rows.len() - 1 - from % self.rows.len().min(3)];
        let made = match kind % KINDS {
            0 => self.linear(x, d, how),
            1 => {
                let w = self.weight(format!("linear.{}.{d}", 2 * d), &[2 * d, d]);
                let b = self.vector(2 * d, 0);
                let op = Linear { activation: Activation::None, bias: true, residual: None };
                let y = self.apply(op, &[x, w, b]);
                (self.apply(Glu, &[y]), d)
            }
            2 => {
                let (gamma, beta) = (self.vector(d, 0), self.vector(d, 1));
                (self.apply(LayerNorm { eps: 1e-5 }, &[x, gamma, beta]), d)
            }
            3 => (self.depthwise(x, d, how), d),
            4 => (self.function(x, how), d),
            5 => {
                let same: Vec<ValueId> = self.rows.iter().filter(|r| r.1 == d).map(|r| r.0).collect();
                let other = same[how % same.len()];
                let kind = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul][how % 3];
                (self.apply(Binary { kind }, &[x, other]), d)
            }
            6 => {
                let b = self.vector(d, 2);
                let kind = [BinaryKind::Add, BinaryKind::Mul][how % 2];
                (self.apply(Binary { kind }, &[x, b]), d)
            }
            7 => (self.apply(MaskTime, &[x, self.lengths]), d),
            8 => (self.apply(Softmax, &[x]), d),
            9 => (self.apply(Scale { factor: 0.7 }, &[x]), d),
            10 => (self.conv(x, d, how), if how % 3 == 2 { d } else { WIDTHS[how % 3] }),
            11 => (self.im2col(x, d, how), d),
            12 => (self.attention(x, d, how), d),
            13 => (self.plain_attention(x, d, how), d),
            14 => (self.assigned(x, d, how), d),
            15 => (self.rolled(x, d, how), d),
            16 => (self.appended(x, d, how), d),
            17 => (self.im2col_of_blocks(x, d), d),
            _ => self.moved(x, d, how),
        };
        self.rows.push(made);
    }

    fn new_state(&mut self, rows: usize, d: usize) -> StateId {
        self.states += 1;
        self.g.state(&format!("state{}", self.states), ValueType::f32(Shape::fixed(&[1, rows, d])))
    }

    fn part(&mut self, x: ValueId, axis: usize, end: usize) -> ValueId {
        self.apply(Slice { axis, start: 0, end: Dim::from(end) }, &[x])
    }

    /// Adds a row `[1, 1, D]` to all rows.
    fn add_row(&mut self, x: ValueId, row: ValueId, d: usize) -> ValueId {
        let row = self.apply(Reshape { shape: Shape::fixed(&[d]) }, &[row]);
        self.apply(Binary { kind: BinaryKind::Add }, &[x, row])
    }

    /// What a state held may be an output or have a name, or nobody may read it.
    fn seen(&mut self, old: ValueId, how: usize) {
        match how % 3 {
            0 => self.g.output(&format!("old{}", self.states), old),
            1 => {
                self.g.name(old, &format!("was{}", self.states));
            }
            _ => {}
        }
    }

    /// A state of one row that becomes the first row, a function of what it held, or what another held.
    fn assigned(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let state = self.new_state(1, d);
        let old = self.g.read_state(state).unwrap();
        let same: Vec<ValueId> = self.old.iter().filter(|s| s.1 == d).map(|s| s.0).collect();
        let next = match how % 4 {
            0 if !same.is_empty() => same[how / 4 % same.len()],
            1 => {
                let more = self.part(x, 0, 1);
                let more = self.part(more, 1, 1);
                let sum = self.apply(Binary { kind: BinaryKind::Add }, &[old, more]);
                self.apply(Unary { kind: UnaryKind::Tanh }, &[sum])
            }
            _ => {
                let row = self.part(x, 0, 1);
                self.part(row, 1, 1)
            }
        };
        self.g.assign(state, next).unwrap();
        self.seen(old, how / 4);
        self.old.push((old, d));
        if how & 16 != 0 { self.add_row(x, old, d) } else { self.function(x, how) }
    }

    /// A state of four rows that all rows are rolled into.
    fn rolled(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let state = self.new_state(4, d);
        let old = self.g.read_state(state).unwrap();
        let rows = self.part(x, 0, 1);
        self.g.roll(state, rows).unwrap();
        self.seen(old, how);
        if how & 16 == 0 {
            return self.function(x, how);
        }
        let row = self.part(old, 1, 1);
        self.add_row(x, row, d)
    }

    /// A cache; its first row is read.
    fn appended(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let state = self.new_state(ROOM, d);
        let rows = self.part(x, 0, 1);
        let rows = if how & 1 != 0 { self.function(rows, how / 2) } else { rows };
        let all = self.g.append(state, rows, self.at).unwrap();
        let row = self.part(all, 1, 1);
        self.add_row(x, row, d)
    }

    /// A convolution as graphs from elsewhere have it, with a kernel in blocks, which stays what it is.
    fn im2col_of_blocks(&mut self, x: ValueId, d: usize) -> ValueId {
        self.rough = true;
        let x = self.apply(Transpose { perm: vec![0, 2, 1] }, &[x]); // [B, D, T]
        let dtype = DType::F32;
        let op = Im2col { kernel: [8, 1], stride: [1, 1], pad: [4, 3, 0, 0], dilation: [1, 1], dtype };
        let patches = self.apply(op, &[x]); // [B, T, 8 D]
        let w = self.weight(format!("blocks.{d}"), &[d, 8 * d]);
        self.apply(Linear { activation: Activation::None, bias: false, residual: None }, &[patches, w])
    }

    fn linear(&mut self, x: ValueId, d: usize, how: usize) -> (ValueId, usize) {
        let n = WIDTHS[how % 3];
        let w = self.weight(format!("linear.{n}.{d}"), &[n, d]);
        let mut operands = vec![x, w];
        let bias = how & 4 != 0;
        if bias {
            operands.push(self.vector(n, 0));
        }
        let residual = (n == d && how & 8 != 0).then_some(0.5);
        operands.extend(residual.map(|_| x));
        let y = self.apply(Linear { activation: Activation::None, bias, residual }, &operands);
        let y = if how & 16 != 0 {
            let b = self.vector(n, 1);
            self.apply(Binary { kind: BinaryKind::Add }, &[y, b])
        } else {
            y
        };
        (if how & 32 != 0 { self.function(y, how / 64) } else { y }, n)
    }

    fn depthwise(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let taps = [1, 3, 5][how % 3];
        let w = self.weight(format!("depthwise.{d}.{taps}"), &[d, 1, taps]);
        let pad_before = if how & 4 != 0 { taps - 1 } else { taps / 2 };
        let activation = Activation::None;
        let bias = how & 8 != 0;
        let op = DepthwiseConv1d {
            pad_before,
            pad_after: taps - 1 - pad_before,
            bias,
            scale_shift: false,
            activation,
        };
        let mut operands = vec![x, w];
        if bias {
            operands.push(self.vector(d, 1));
        }
        let mut y = self.apply(op, &operands);
        if how & 16 != 0 {
            let mut stats: Vec<ValueId> = vec![y];
            stats.extend((0..3).map(|i| self.vector(d, i)));
            stats.push(self.weight(format!("var.{d}"), &[d]));
            y = self.apply(BatchNorm { eps: 1e-5 }, &stats);
        }
        if how & 32 != 0 { self.function(y, 1) } else { y }
    }

    fn image(&self, d: usize) -> Shape {
        let rows = shape(d);
        let axes = rows.iter().map(|(a, n)| (a, n.clone())).collect::<Vec<_>>();
        Shape::new([axes[0].clone(), axes[1].clone(), (Axis::F, Dim::from(1)), axes[2].clone()])
    }

    fn conv(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let shape_in = self.image(d);
        let x = self.apply(Reshape { shape: shape_in }, &[x]);
        let (o, groups, w) = if how % 3 == 2 {
            (d, 2, self.weight(format!("grouped.{d}"), &[d, d / 2, 3, 1]))
        } else {
            let o = WIDTHS[how % 3];
            (o, 1, self.weight(format!("conv.{o}.{d}"), &[o, d, 3, 1]))
        };
        let dilation = 1 + how / 4 % 2;
        let op = Conv2d {
            stride: [1, 1],
            pad: [dilation, dilation, 0, 0],
            dilation: [dilation, 1],
            groups,
            activation: Activation::None,
            bias: false,
        };
        let y = self.apply(op, &[x, w]);
        let y = if how & 8 != 0 { self.function(y, how / 16) } else { y };
        self.apply(Reshape { shape: shape(o) }, &[y])
    }

    /// A convolution as graphs from elsewhere have it.
    fn im2col(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let x = self.apply(Transpose { perm: vec![0, 2, 1] }, &[x]); // [B, D, T]
        let dtype = DType::F32;
        let op = Im2col { kernel: [3, 1], stride: [1, 1], pad: [1, 1, 0, 0], dilation: [1, 1], dtype };
        let patches = self.apply(op, &[x]); // [B, T, 3 D]
        let w = self.weight(format!("conv.{d}.{d}"), &[d, d, 3, 1]);
        let w = self.apply(Reshape { shape: Shape::fixed(&[d, 3 * d]) }, &[w]);
        if how.is_multiple_of(2) {
            let w = if self.g.ty(w).unwrap().dtype == DType::F16 { self.apply(Cast, &[w]) } else { w };
            return self.apply(MatMul { transpose_b: true }, &[patches, w]);
        }
        let y = self.apply(MatMul { transpose_b: true }, &[w, patches]); // [B, D, T]
        let y = if how & 2 != 0 { self.function(y, how / 4) } else { y };
        self.apply(Transpose { perm: vec![0, 2, 1] }, &[y])
    }

    fn attention(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let heads = [1, 2, 4][how % 3];
        let mask = match how / 3 % 3 {
            0 => AttentionMask::Full,
            1 => AttentionMask::ChunkedLimited { left: Some(4), right: 1 },
            _ => AttentionMask::ChunkedLimited { left: None, right: 2 },
        };
        let w = self.weight(format!("linear.{d}.{d}"), &[d, d]);
        let plain = Linear { activation: Activation::None, bias: false, residual: None };
        let q = self.apply(plain, &[x, w]);
        let p = self.positions[WIDTHS.iter().position(|&w| w == d).unwrap()];
        let u = self.weight(format!("bias.{heads}.{d}"), &[heads, d / heads]);
        self.apply(RelPosAttention { heads, mask, context: 0 }, &[q, x, x, p, u, u, self.lengths])
    }

    /// Attention without positions: the op, or what graphs from elsewhere have in its place.
    fn plain_attention(&mut self, x: ValueId, d: usize, how: usize) -> ValueId {
        let heads = [1, 2, 4][how % 3];
        let mask = match how / 3 % 3 {
            0 => None,
            1 => Some(AttentionMask::Full),
            _ => Some(AttentionMask::ChunkedLimited { left: None, right: 0 }),
        };
        let axes = [(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T))];
        let apart = Shape::new(
            axes.into_iter().chain([(Axis::H, Dim::from(heads)), (Axis::K, Dim::from(d / heads))]),
        );
        let w = self.weight(format!("linear.{d}.{d}"), &[d, d]);
        let plain = Linear { activation: Activation::None, bias: false, residual: None };
        let q = self.apply(plain, &[x, w]);
        let [q, x] = [q, x].map(|x| self.apply(Reshape { shape: apart.clone() }, &[x])); // [B, T, H, K]
        let (scale, lengths) = (0.6, self.lengths);
        let y = if how & 64 != 0 {
            let keys = mask.map_or(SdpaKeys::All, SdpaKeys::Frames);
            let op = Sdpa { scale, keys, window: None, cap: None, sinks: false };
            let inputs: Vec<ValueId> = [q, x, x].into_iter().chain(mask.map(|_| lengths)).collect();
            self.apply(op, &inputs)
        } else {
            let [q, x] = [q, x].map(|x| self.apply(Transpose { perm: vec![0, 2, 1, 3] }, &[x]));
            let scores = self.apply(MatMul { transpose_b: true }, &[q, x]);
            let mut scores = self.apply(Scale { factor: scale }, &[scores]);
            if let Some(mask) = mask {
                scores = self.apply(MaskScores { mask }, &[scores, lengths]);
            }
            let weights = self.apply(Softmax, &[scores]);
            let y = self.apply(MatMul { transpose_b: false }, &[weights, x]);
            self.apply(Transpose { perm: vec![0, 2, 1, 3] }, &[y])
        };
        let y = self.apply(Reshape { shape: shape(d) }, &[y]);
        if mask.is_some() { self.apply(MaskTime, &[y, lengths]) } else { y }
    }

    fn moved(&mut self, x: ValueId, d: usize, how: usize) -> (ValueId, usize) {
        match how % 4 {
            0 => {
                let y = self.apply(Transpose { perm: vec![1, 2, 0] }, &[x]);
                let y = if how & 4 != 0 { self.function(y, 0) } else { y };
                (self.apply(Transpose { perm: vec![2, 0, 1] }, &[y]), d)
            }
            1 if d < 12 => {
                let y = self.apply(Concat { axis: 2 }, &[x, x]);
                let y = self.apply(Slice { axis: 2, start: d - 4, end: Dim::from(d + 4) }, &[y]);
                (y, 8)
            }
            2 => {
                let flat = Shape::new([(Axis::N, &Dim::from(B) * &Dim::from(T)), (Axis::D, Dim::from(d))]);
                let y = self.apply(Reshape { shape: flat }, &[x]);
                let y = self.function(y, 1);
                (self.apply(Reshape { shape: shape(d) }, &[y]), d)
            }
            _ => {
                let y = self.apply(Slice { axis: 2, start: d - 4, end: Dim::from(d) }, &[x]);
                (y, 4)
            }
        }
    }
}

/// Grows a graph; some values get names, the last is the output. And how far off results may be.
pub fn grow(steps: &[(usize, usize, usize)]) -> (Graph, f64) {
    let mut growing = Growing::new();
    for (i, &(kind, how, from)) in steps.iter().enumerate() {
        growing.step(kind, how, from);
        if how % 7 == 3 {
            let (v, _) = growing.rows[growing.rows.len() - 1];
            growing.g.name(v, &format!("named{i}"));
        }
    }
    let (last, _) = *growing.rows.last().unwrap();
    let y = growing.apply(Scale { factor: 1.0 }, &[last]);
    growing.g.output("y", y);
    let limit = if growing.rough { ROUGH } else { LIMIT };
    (growing.g.finish().unwrap(), limit)
}

/// A dozen steps of f32, each off by 1e-7 or so, some of which (norms of nearly equal numbers) make a few times more of it.
const LIMIT: f64 = 1e-8;
/// Activations of 8 bits: 1e-5 for a product, more of it after norms and over the runs.
const ROUGH: f64 = 1e-2;
/// Kinds of steps.
pub const KINDS: usize = 19;
