//! What the tests of this crate share.

#![allow(clippy::unwrap_used, dead_code)]

use conure_graph::{GraphBuilder, MemoryWeights, Program, Weights};
use conure_kernels::Cpu;
use conure_ops::cases::{Fill, Input};
use conure_ops::{
    Activation, Binary, BinaryKind, LayerNorm, Linear, Reshape, Scale, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, Dim, Shape, Symbol, Tensor, TensorView};
use std::sync::Arc;

pub const T: Symbol = Symbol::new("T");
pub const B: Symbol = Symbol::new("B");
/// Width of the rows.
pub const D: usize = 12;

/// Numbers in -1 .. 1 that repeat on every run.
pub fn noise(seed: u64, shape: &[usize]) -> Tensor {
    Input::f32(shape).filled(Fill::Uniform(-1.0, 1.0)).tensor(seed).unwrap()
}

pub fn cpu(threads: usize) -> Arc<Cpu> {
    Arc::new(Cpu::detect(Some(threads)).unwrap())
}

/// `[B, T, D]`.
pub fn rows() -> ValueType {
    rows_of(D)
}

/// `[B, T, d]`.
pub fn rows_of(d: usize) -> ValueType {
    ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T)), (Axis::D, Dim::from(d))]))
}

/// Products of up to 24 numbers in f32.
pub fn assert_close(name: &str, found: &TensorView<'_>, expected: &Tensor) {
    assert_eq!(found.shape(), expected.shape(), "{name}");
    let (found, expected) = (found.as_slice::<f32>().unwrap(), expected.as_slice::<f32>().unwrap());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-4, "{name}: differs by {worst}");
}

/// A feed-forward block with a diamond, in-place candidates, a view and a captured middle; seven nodes.
pub fn block(d: usize) -> (Arc<Program>, Vec<&'static str>) {
    let weights = MemoryWeights::new()
        .with("up.weight", noise(1, &[2 * d, d]))
        .with("up.bias", noise(2, &[2 * d]))
        .with("down.weight", noise(3, &[d, 2 * d]))
        .with("norm.weight", noise(4, &[d]))
        .with("norm.bias", noise(5, &[d]));
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    let x = g.input("x", rows_of(d));
    let (gamma, beta) = (g.weight("norm.weight", &[d]).unwrap(), g.weight("norm.bias", &[d]).unwrap());
    let n = g.apply(LayerNorm { eps: 1e-5 }, &[x, gamma, beta]).unwrap();
    g.name(n, "normed");
    let (w, b) = (g.weight("up.weight", &[2 * d, d]).unwrap(), g.weight("up.bias", &[2 * d]).unwrap());
    let up =
        g.apply(Linear { activation: Activation::Silu, bias: true, residual: None }, &[n, w, b]).unwrap();
    let relu = g.apply(Unary { kind: UnaryKind::Relu }, &[up]).unwrap();
    g.name(relu, "relu");
    let both = g.apply(Binary { kind: BinaryKind::Add }, &[relu, up]).unwrap();
    let w = g.weight("down.weight", &[d, 2 * d]).unwrap();
    let down = g
        .apply(Linear { activation: Activation::None, bias: false, residual: Some(0.5) }, &[both, w, x])
        .unwrap();
    let flat = Shape::new([(Axis::T, &Dim::from(B) * &Dim::from(T)), (Axis::D, Dim::from(d))]);
    let view = g.apply(Reshape { shape: flat }, &[down]).unwrap();
    let y = g.apply(Scale { factor: 2.0 }, &[view]).unwrap();
    g.output("y", y);
    (Program::new(g.finish().unwrap()), vec!["normed", "relu"])
}
