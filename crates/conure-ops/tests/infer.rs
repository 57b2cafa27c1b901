//! Shape rules: what comes out for symbolic lengths, and the errors for what does not fit.
#![allow(clippy::cloned_ref_to_slice_refs)] // a table reads better when all rows look alike

use conure_ops::*;
use conure_tensor::{Axis, DType, Dim, Shape, Symbol};

const B: Symbol = Symbol::new("B");
const T: Symbol = Symbol::new("T");

fn frames() -> Dim {
    Dim::from(T)
}

/// `[B, T, ...]` of f32.
fn x(rest: &[(Axis, usize)]) -> ValueType {
    let start = [(Axis::B, Dim::from(B)), (Axis::T, frames())];
    ValueType::f32(Shape::new(start.into_iter().chain(rest.iter().map(|&(a, n)| (a, Dim::from(n))))))
}

fn w(shape: &[usize]) -> ValueType {
    ValueType::new(DType::F16, Shape::fixed(shape))
}

fn lengths() -> ValueType {
    ValueType::new(DType::I32, Shape::new([(Axis::B, B)]))
}

fn p(rows: Dim, d: usize) -> ValueType {
    ValueType::f32(Shape::new([(Axis::P, rows), (Axis::D, Dim::from(d))]))
}

/// What the op says: its outputs, or its error.
fn says(op: &dyn Op, inputs: &[ValueType]) -> String {
    let refs: Vec<&ValueType> = inputs.iter().collect();
    match op.infer(&refs) {
        Ok(outputs) => outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        Err(e) => e.to_string(),
    }
}

#[track_caller]
fn check(op: impl Op, inputs: &[ValueType], expected: &str) {
    assert_eq!(says(&op, inputs), expected);
}

const LINEAR: Linear = Linear { activation: Activation::None, bias: false, residual: None };

#[test]
fn linear() {
    let d = x(&[(Axis::D, 512)]);
    check(LINEAR, &[d.clone(), w(&[1024, 512])], "f32 [B, T, N 1024]");
    check(LINEAR, &[d.clone(), w(&[1024, 512, 1])], "f32 [B, T, N 1024]");
    check(LINEAR, &[d.clone(), w(&[1024, 1024])], "linear: K differs (512 vs 1024)");
    check(
        LINEAR,
        &[d.clone(), w(&[1024, 512, 3])],
        "linear: input 1 is f16 [1024, 512, 3], expected [N, K], with nothing but 1 after that",
    );
    let gated = Linear { activation: Activation::Glu, bias: true, residual: Some(1.0) };
    check(gated.clone(), &[d.clone(), w(&[1024, 512]), w(&[1024]), d.clone()], "f32 [B, T, D 512]");
    check(
        Linear { bias: false, residual: None, ..gated },
        &[d.clone(), w(&[1023, 512])],
        "linear: input 1 is f16 [1023, 512], expected [N, K] with an even N, for a gated linear unit",
    );
    check(LINEAR, &[d.clone()], "linear: takes 2 inputs, got 1");
    check(LINEAR, &[lengths(), w(&[4, 4])], "linear: input 0 is i32 [B], expected f32 [..., K]");
    let full = Linear { bias: true, residual: Some(0.5), ..LINEAR };
    check(full.clone(), &[d.clone(), w(&[512, 512]), w(&[512]), d.clone()], "f32 [B, T, D 512]");
    check(full.clone(), &[d.clone(), w(&[512, 512]), w(&[511]), d.clone()], "linear: N differs (512 vs 511)");
    check(full, &[d.clone(), w(&[256, 512]), w(&[256]), d], "linear: N differs (256 vs 512)");
}

#[test]
fn convolutions_and_lengths() {
    let subsampling = Conv2d {
        stride: [2, 2],
        pad: [1, 1, 1, 1],
        dilation: [1, 1],
        groups: 1,
        activation: Activation::Relu,
        bias: true,
    };
    let mel = x(&[(Axis::F, 80), (Axis::C, 1)]);
    let out = "f32 [B, T floor((T+1)/2), F 40, C 256]";
    check(subsampling.clone(), &[mel.clone(), w(&[256, 1, 3, 3]), w(&[256])], out);
    let causal = Conv2d { pad: [2, 1, 2, 1], ..subsampling.clone() };
    let out = "f32 [B, T floor((T)/2)+1, F 41, C 256]";
    check(causal, &[mel.clone(), w(&[256, 1, 3, 3]), w(&[256])], out);
    let grouped = Conv2d { groups: 2, ..subsampling.clone() };
    let error = "conv2d: groups 2 must divide C 1 and the output channels 256";
    check(grouped, &[mel.clone(), w(&[256, 1, 3, 3]), w(&[256])], error);
    let error = "conv2d: C/groups differs (1 vs 2)";
    check(subsampling.clone(), &[mel.clone(), w(&[256, 2, 3, 3]), w(&[256])], error);
    let still = Conv2d { stride: [0, 1], ..subsampling };
    check(still, &[mel, w(&[4, 1, 3, 3]), w(&[4])], "conv2d: stride, dilation and groups must be at least 1");

    let activation = Activation::None;
    let depthwise =
        DepthwiseConv1d { pad_before: 4, pad_after: 4, bias: true, scale_shift: false, activation };
    let c = x(&[(Axis::D, 512)]);
    check(depthwise.clone(), &[c.clone(), w(&[512, 1, 9]), w(&[512])], "f32 [B, T, D 512]");
    let full = DepthwiseConv1d { scale_shift: true, activation: Activation::Silu, ..depthwise.clone() };
    let vector = || w(&[512]);
    check(full.clone(), &[c.clone(), w(&[512, 1, 9]), vector(), vector(), vector()], "f32 [B, T, D 512]");
    let inputs = [c.clone(), w(&[512, 1, 9]), vector(), vector(), w(&[511])];
    check(full.clone(), &inputs, "depthwise_conv1d: C differs (512 vs 511)");
    check(full, &[c.clone(), w(&[512, 1, 9]), vector()], "depthwise_conv1d: takes 5 inputs, got 3");
    let gated = DepthwiseConv1d { activation: Activation::Glu, ..depthwise.clone() };
    let error = "depthwise_conv1d: a convolution does not end in a gated linear unit";
    check(gated, &[c.clone(), w(&[512, 1, 9]), vector()], error);
    check(depthwise, &[c, w(&[256, 1, 9]), w(&[512])], "depthwise_conv1d: C differs (512 vs 256)");
    check(ConvLength { kernel: 3, stride: 2, pad: 2 }, &[lengths()], "i32 [B]");
    let error = "conv_length: stride is 0, must be at least 1";
    check(ConvLength { kernel: 3, stride: 0, pad: 2 }, &[lengths()], error);
}

#[test]
fn attention() {
    let d = x(&[(Axis::D, 512)]);
    check(RelPosEncoding { d_model: 512, window: None, context: 0 }, &[d.clone()], "f32 [P 2*T-1, D 512]");
    check(RelPosEncoding { d_model: 512, window: Some(128), context: 0 }, &[d.clone()], "f32 [P 257, D 512]");
    let error = "rel_pos_encoding: d_model is 5, must be even";
    check(RelPosEncoding { d_model: 5, window: None, context: 0 }, &[d.clone()], error);

    let run = |mask, rows: Dim, heads: usize, bias: &[usize], expected: &str| {
        let inputs = [d.clone(), d.clone(), d.clone(), p(rows, 512), w(bias), w(bias), lengths()];
        check(RelPosAttention { heads, mask, context: 0 }, &inputs, expected);
    };
    let all = (&frames() * &Dim::from(2)).plus(-1);
    let band = AttentionMask::Banded { left: 128, right: 128 };
    run(AttentionMask::Full, all.clone(), 8, &[8, 64], "f32 [B, T, D 512]");
    run(band, Dim::from(257), 8, &[8, 64], "f32 [B, T, D 512]");
    run(band, all.clone(), 8, &[8, 64], "rel_pos_attention: P differs (257 vs 2*T-1)");
    run(
        AttentionMask::Full,
        all.clone(),
        7,
        &[8, 64],
        "rel_pos_attention: D 512 does not divide into 7 heads",
    );
    run(AttentionMask::Full, all.clone(), 8, &[4, 64], "rel_pos_attention: H differs (8 vs 4)");
    run(AttentionMask::Full, all, 0, &[8, 64], "rel_pos_attention: D 512 does not divide into 0 heads");
}

#[test]
fn elements_and_rows() {
    let d = x(&[(Axis::D, 512)]);
    check(LayerNorm { eps: 1e-5 }, &[d.clone(), w(&[512]), w(&[512])], "f32 [B, T, D 512]");
    check(LayerNorm { eps: 1e-5 }, &[d.clone(), w(&[512]), w(&[80])], "layer_norm: D differs (512 vs 80)");
    let stats = [d.clone(), w(&[512]), w(&[512]), w(&[512]), w(&[1])];
    check(BatchNorm { eps: 1e-5 }, &stats, "batch_norm: C differs (512 vs 1)");
    check(Glu, &[d.clone()], "f32 [B, T, D 256]");
    let odd = "glu: input 0 is f32 [B, T, D 7], expected f32 [..., 2D]: an even last axis";
    check(Glu, &[x(&[(Axis::D, 7)])], odd);
    check(Binary { kind: BinaryKind::Add }, &[d.clone(), w(&[512])], "f32 [B, T, D 512]");
    check(Binary { kind: BinaryKind::Add }, &[d.clone(), w(&[3])], "binary: D differs (512 vs 3)");
    check(MaskTime, &[d.clone(), lengths()], "f32 [B, T, D 512]");
    check(Softmax, &[d.clone()], "f32 [B, T, D 512]");
    check(LogSoftmax, &[w(&[3])], "log_softmax: input 0 is f16 [3], expected f32 [..., V]");
    check(Cast, &[w(&[3])], "f32 [3]");
    check(Embedding, &[lengths(), w(&[1025, 640])], "f32 [B, D 640]");
    check(Embedding, &[d, w(&[1025, 640])], "embedding: input 0 is f32 [B, T, D 512], expected i32 [...]");
}

#[test]
fn lstm() {
    let state = |n: usize| ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(n))]));
    let inputs = |hidden: &[usize], bias: usize| {
        [state(320), state(640), state(640), w(&[2560, 320]), w(hidden), w(&[bias]), w(&[2560])]
    };
    let cell = LstmCell::default();
    check(cell.clone(), &inputs(&[2560, 640], 2560), "f32 [B, D 640] and f32 [B, D 640]");
    check(cell.clone(), &inputs(&[2560, 320], 2560), "lstm_cell: H differs (640 vs 320)");
    check(cell.clone(), &inputs(&[640, 640], 2560), "lstm_cell: 4H differs (2560 vs 640)");
    check(cell, &inputs(&[2560, 640], 640), "lstm_cell: 4H differs (2560 vs 640)");
    let projected = |gates: usize| [state(gates), state(640), state(640), w(&[2560, 640]), w(&[2560])];
    let cell = LstmCell { projected: true };
    check(cell.clone(), &projected(2560), "f32 [B, D 640] and f32 [B, D 640]");
    check(cell, &projected(640), "lstm_cell: 4H differs (2560 vs 640)");
}

#[test]
fn movements() {
    let maps = x(&[(Axis::C, 256), (Axis::F, 10)]);
    let flat = Shape::new([(Axis::B, Dim::from(B)), (Axis::T, frames()), (Axis::D, Dim::from(2560))]);
    check(Reshape { shape: flat.clone() }, &[maps.clone()], "f32 [B, T, D 2560]");
    let short = x(&[(Axis::C, 256), (Axis::F, 9)]);
    let error = says(&Reshape { shape: flat }, &[short]);
    assert!(error.contains("[B, T, C 256, F 9]") && error.contains("2560"), "{error}");
    check(Transpose { perm: vec![0, 1, 3, 2] }, &[maps.clone()], "f32 [B, T, F 10, C 256]");
    let error = "transpose: perm [0, 1, 1, 2] must name each of the 4 axes once";
    check(Transpose { perm: vec![0, 1, 1, 2] }, &[maps.clone()], error);
    let d = x(&[(Axis::D, 512)]);
    check(Concat { axis: 2 }, &[d.clone(), x(&[(Axis::D, 128)])], "f32 [B, T, D 640]");
    check(Concat { axis: 1 }, &[d.clone(), x(&[(Axis::D, 128)])], "concat: D differs (512 vs 128)");
    check(Concat { axis: 3 }, &[d.clone()], "concat: axis 3 of a tensor with 3 axes");
    check(Slice { axis: 1, start: 2, end: frames() }, &[d.clone()], "f32 [B, T T-2, D 512]");
    let past = Slice { axis: 1, start: 0, end: frames().plus(1) };
    check(past, &[d.clone()], "slice: 0..T+1 of an axis of length T");
    let row = ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::N, Dim::from(128))]));
    check(Broadcast, &[row, d], "f32 [B, T, N 128]");
}

#[test]
fn ops_that_differ_in_an_attribute_do_not_look_alike() {
    let mut seen: std::collections::HashMap<String, String> = std::collections::HashMap::new();
    for case in all().iter().flat_map(|entry| (entry.cases)()) {
        let shown = format!("{:?}", case.op);
        let other = seen.entry(format!("{} {:?}", case.op.name(), case.op.attrs())).or_insert(shown.clone());
        assert_eq!(*other, shown);
    }
    assert!(seen.len() > all().len());
}

#[test]
fn mixtures_of_experts() {
    let logits = x(&[(Axis("E"), 8)]);
    let route = |used| Route { routing: Routing::SoftmaxOfAll, used };
    check(route(2), &[logits.clone()], "i32 [B, T, U 2] and f32 [B, T, U 2]");
    check(route(9), &[logits.clone()], "route: 9 experts of 8 cannot be used");
    check(route(0), &[logits.clone()], "route: 0 experts of 8 cannot be used");
    check(route(1), &[lengths()], "route: input 0 is i32 [B], expected f32 [..., E]");

    let ids = ValueType::new(DType::I32, x(&[(Axis::U, 2)]).shape);
    let (shared, own) = (x(&[(Axis::D, 64)]), x(&[(Axis::U, 2), (Axis::F, 64)]));
    let op = ExpertLinear { experts: 8, bias: false };
    for x in [shared.clone(), own] {
        check(op.clone(), &[x, w(&[8, 24, 64]), ids.clone()], "f32 [B, T, U 2, N 24]");
    }
    let out = "f32 [B, T, U 2, N 24]";
    let biased = ExpertLinear { bias: true, ..op.clone() };
    check(biased.clone(), &[shared.clone(), w(&[8, 24, 64]), ids.clone(), w(&[8, 24])], out);
    let wrong = "expert_linear: N differs (24 vs 25)";
    check(biased, &[shared.clone(), w(&[8, 24, 64]), ids.clone(), w(&[8, 25])], wrong);
    let wrong = "expert_linear: E differs (8 vs 7)";
    check(op.clone(), &[shared.clone(), w(&[7, 24, 64]), ids.clone()], wrong);
    let wrong = "expert_linear: K differs (64 vs 63)";
    check(op.clone(), &[shared, w(&[8, 24, 63]), ids.clone()], wrong);
    let three = x(&[(Axis::U, 3), (Axis::F, 64)]);
    check(op.clone(), &[three, w(&[8, 24, 64]), ids.clone()], "expert_linear: U differs (2 vs 3)");
    let flat = ValueType::f32(Shape::fixed(&[64]));
    let wrong = "expert_linear: input 2 is i32 [B, T, U 2], expected i32 [..., U], one axis for each of x, [64], but K";
    check(op, &[flat, w(&[8, 24, 64]), ids], wrong);
}
