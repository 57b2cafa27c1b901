//! Sessions against the references of the ops: same graph, same inputs, same results.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{B, T, assert_close, block, cpu, noise, rows_of};
use conure_graph::{
    Device, GraphBuilder, GraphError, MemoryWeights, Observer, Partial, Passes, Program, Session, StepDone,
    TileTime, ValueId, Weights, run_reference,
};
use conure_ops::{
    Activation, Binary, BinaryKind, Conv2d, ConvLength, Linear, MaskTime, MatMul, Reshape, Scale, Softmax,
    Transpose, Unary, UnaryKind, ValueType,
};
use conure_tensor::{Axis, Bindings, DType, Dim, Shape, Tensor, TensorView};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[test]
fn a_planned_run_equals_the_reference() {
    let (program, captures) = block(12);
    for threads in [1, 2] {
        let mut session = Session::new(program.clone(), cpu(threads)).unwrap();
        // Longer, shorter and longer again: the arena is reused, plans are cached.
        for (b, t) in [(1, 7), (3, 33), (1, 1), (2, 5), (3, 33)] {
            let bindings = Bindings::new().with(B, b).with(T, t);
            let x = noise((b * 100 + t) as u64, &[b, t, 12]);
            let inputs = [("x", x.view())];
            let expected = run_reference(program.graph(), &bindings, &inputs, &captures).unwrap();
            let with = session.run_capturing(&bindings, &inputs, &captures).unwrap();
            for name in ["y", "normed", "relu"] {
                assert_close(name, &with.get(name).unwrap(), &expected[name]);
            }
            let without = session.run(&bindings, &inputs).unwrap();
            assert_close("y", &without.get("y").unwrap(), &expected["y"]);
            assert!(without.get("relu").is_err(), "not captured, so not kept");
        }
    }
}

fn conv_body(weights: &Arc<Weights>, d: usize) -> TileTime {
    let mut g = GraphBuilder::new(weights.clone());
    let x = g.input("x", rows_of(d));
    let lengths = ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))]));
    let lengths = g.input("lengths", lengths);
    let image = Shape::new([
        (Axis::B, Dim::from(B)),
        (Axis::T, Dim::from(T)),
        (Axis::F, Dim::from(d)),
        (Axis::C, Dim::from(1)),
    ]);
    let mut x = g.apply(Reshape { shape: image }, &[x]).unwrap();
    let mut valid = lengths;
    let mut groups = 1;
    for _ in 0..3 {
        x = g.apply(MaskTime, &[x, valid]).unwrap();
        let w = g.weight(if groups == 1 { "first.weight" } else { "depth.weight" }, &[4, 1, 3, 3]).unwrap();
        let conv = Conv2d {
            stride: [2, 2],
            pad: [1, 1, 1, 1],
            dilation: [1, 1],
            groups,
            activation: Activation::None,
            bias: false,
        };
        x = g.apply(conv, &[x, w]).unwrap();
        valid = g.apply(ConvLength { kernel: 3, stride: 2, pad: 2 }, &[valid]).unwrap();
        groups = 4;
    }
    g.output("y", x);
    TileTime {
        body: g.finish().unwrap(),
        time: T,
        batch: B,
        factor: 8,
        halo_before: 1,
        halo_after: 1,
        tile: 3,
    }
}

#[test]
fn tiling_in_time_changes_nothing() {
    let d = 16;
    let weights = Weights::new(Arc::new(
        MemoryWeights::new()
            .with("first.weight", noise(7, &[4, 1, 3, 3]))
            .with("depth.weight", noise(8, &[4, 1, 3, 3])),
    ));
    let tile = conv_body(&weights, d);
    let mut g = GraphBuilder::new(weights);
    let x = g.input("x", rows_of(d));
    let ty = ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))]));
    let lengths = g.input("lengths", ty);
    // The input of the tiles in the arena, too: a computed value.
    let doubled = g.apply(Scale { factor: 2.0 }, &[x]).unwrap();
    for (name, from) in [("of_input", x), ("of_computed", doubled)] {
        let y: ValueId = g.tile_time(tile.clone(), from, lengths).unwrap();
        g.output(name, y);
    }
    let program = Program::new(g.finish().unwrap());
    let mut session = Session::new(program.clone(), cpu(2)).unwrap();
    for t in [1, 2, 7, 8, 9, 23, 24, 25, 26, 47, 48, 49, 50, 100, 131] {
        for valid in [[t, t / 2], [t - 1, 0]] {
            let x = noise(t as u64, &[2, t, d]);
            let lengths = Tensor::from_slice(&[2], &valid.map(|v| v as i32)).unwrap();
            let bindings = Bindings::new().with(B, 2).with(T, t);
            let inputs = [("x", x.view()), ("lengths", lengths.view())];
            let whole = run_reference(program.graph(), &bindings, &inputs, &[]).unwrap();
            let tiled = session.run(&bindings, &inputs).unwrap();
            for name in ["of_input", "of_computed"] {
                assert_close(&format!("{name} T={t} {valid:?}"), &tiled.get(name).unwrap(), &whole[name]);
            }
        }
    }
}

#[test]
fn wrong_use_is_an_error_that_names_the_cause() {
    let (program, _) = block(4);
    let mut session = Session::new(program, cpu(1)).unwrap();
    let x = noise(1, &[1, 3, 4]);
    let run = |s: &mut Session, b: &Bindings, inputs: &[(&str, TensorView<'_>)], c: &[&str]| {
        s.run_capturing(b, inputs, c).map(|_| ()).unwrap_err().to_string()
    };
    let bound = Bindings::new().with(B, 1).with(T, 3);
    let cases: [(&str, String); 5] = [
        ("needs a value for T", run(&mut session, &Bindings::new().with(B, 1), &[("x", x.view())], &[])),
        ("input \"x\" was not given", run(&mut session, &bound, &[], &[])),
        ("no input named \"z\"", run(&mut session, &bound, &[("z", x.view())], &[])),
        ("expected f32 [1, 5, 4]", run(&mut session, &bound.clone().with(T, 5), &[("x", x.view())], &[])),
        ("no node named \"nope\"", run(&mut session, &bound, &[("x", x.view())], &["nope"])),
    ];
    for (expected, found) in cases {
        assert!(found.contains(expected), "{found:?} should say {expected:?}");
    }
    session.run(&bound, &[("x", x.view())]).unwrap();
}

#[test]
fn too_large_a_run_says_how_much_it_wanted() {
    let (program, _) = block(64);
    let mut session = Session::new(program, cpu(1)).unwrap();
    let bindings = Bindings::new().with(B, 1).with(T, 1 << 40);
    let error = session.run(&bindings, &[]).map(|_| ()).unwrap_err();
    assert!(matches!(error, GraphError::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("MiB for intermediates at B=1 T=1099511627776"), "{error}");
    // And what it says would fit can be had.
    let GraphError::OutOfMemory { fits: Some((symbol, length)), .. } = error else { panic!("{error}") };
    assert!(symbol == T && length < 1 << 40 && length > 1 << 10, "{length}");
    let x = noise(1, &[1, 1 << 10, 64]);
    session.run(&Bindings::new().with(B, 1).with(T, 1 << 10), &[("x", x.view())]).unwrap();
}

#[test]
fn a_cancelled_run_ends_and_the_next_one_works() {
    let (program, _) = block(4);
    let mut session = Session::new(program, cpu(1)).unwrap();
    let flag = Arc::new(AtomicBool::new(true));
    session.set_cancel(Some(flag.clone()));
    let x = noise(1, &[1, 3, 4]);
    let bound = Bindings::new().with(B, 1).with(T, 3);
    assert!(matches!(session.run(&bound, &[("x", x.view())]), Err(GraphError::Cancelled)));
    flag.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(session.run(&bound, &[("x", x.view())]).is_ok());
}

/// What an observer was told of a step: op, cost done, cost in all, nanoseconds.
type Told = (&'static str, f64, f64, Option<u64>);

#[derive(Debug, Default)]
struct Seen {
    timed: bool,
    steps: std::sync::Mutex<Vec<Told>>,
}

impl Observer for Seen {
    fn wants_time(&self) -> bool {
        self.timed
    }

    fn step(&self, step: &StepDone<'_>) {
        assert!(step.flops() >= 0.0 && step.bytes() > 0, "{}", step.node.path);
        self.steps.lock().unwrap().push((step.node.op_name(), step.done, step.total, step.nanos));
    }
}

#[test]
fn an_observer_is_told_of_every_step() {
    let weights = Weights::new(Arc::new(
        MemoryWeights::new()
            .with("first.weight", noise(7, &[4, 1, 3, 3]))
            .with("depth.weight", noise(8, &[4, 1, 3, 3])),
    ));
    let tile = conv_body(&weights, 16);
    let mut g = GraphBuilder::new(weights);
    let x = g.input("x", rows_of(16));
    let lengths = g.input("lengths", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])));
    let doubled = g.apply(Scale { factor: 2.0 }, &[x]).unwrap();
    let y = g.tile_time(tile, doubled, lengths).unwrap();
    g.output("y", y);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
    let (x, lengths) = (noise(3, &[2, 100, 16]), Tensor::from_slice(&[2], &[90i32, 100]).unwrap());
    let bindings = Bindings::new().with(B, 2).with(T, 100);
    let inputs = [("x", x.view()), ("lengths", lengths.view())];
    for timed in [false, true] {
        let seen = Arc::new(Seen { timed, ..Seen::default() });
        session.set_observer(Some(seen.clone()));
        session.run(&bindings, &inputs).unwrap();
        let steps = std::mem::take(&mut *seen.steps.lock().unwrap());
        // 100 frames are 13 of y and 5 tiles of 3, for each of two items; the body has three convolutions.
        let body = steps.iter().filter(|s| s.0 == "conv2d").count();
        assert_eq!((steps[0].0, body), ("scale", 2 * 5 * 3), "{steps:?}");
        assert!(steps.is_sorted_by(|a, b| a.1 < b.1), "the cost done grows: {steps:?}");
        let last = steps.last().unwrap();
        assert!((last.1 / last.2 - 1.0).abs() < 1e-9, "the end is reached: {last:?}");
        assert!(steps.iter().all(|s| s.2 == last.2 && s.3.is_some() == timed));
    }
    session.set_observer(None);
    session.run(&bindings, &inputs).unwrap();
}

/// Keeps the inputs of products with weights, by the weight.
#[derive(Debug, Default)]
struct Products(std::sync::Mutex<Vec<(String, Vec<f32>)>>);

impl Observer for Products {
    fn step(&self, step: &StepDone<'_>) {
        for (weight, _, at) in step.products() {
            let x = step.input(at).unwrap().as_slice::<f32>().unwrap().to_vec();
            self.0.lock().unwrap().push((weight.to_owned(), x));
            assert!(step.input(1).is_none() && step.input(9).is_none(), "a packed weight is no tensor");
        }
    }
}

#[test]
fn an_observer_sees_what_weights_are_multiplied_with() {
    let weights = MemoryWeights::new().with("a", noise(1, &[16, 16])).with("b", noise(2, &[16, 16]));
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    let x = g.input("x", rows_of(16));
    let linear = Linear { activation: Activation::None, bias: false, residual: None };
    let (a, b) = (g.weight("a", &[16, 16]).unwrap(), g.weight("b", &[16, 16]).unwrap());
    let hidden = g.apply(linear.clone(), &[x, a]).unwrap();
    let relu = g.apply(Unary { kind: UnaryKind::Relu }, &[hidden]).unwrap();
    let y = g.apply(linear, &[relu, b]).unwrap();
    g.name(relu, "relu");
    g.output("y", y);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(2)).unwrap();
    let (x, bindings) = (noise(3, &[2, 9, 16]), Bindings::new().with(B, 2).with(T, 9));
    let outputs = session.run_capturing(&bindings, &[("x", x.view())], &["relu"]).unwrap();
    let relu = outputs.get("relu").unwrap().as_slice::<f32>().unwrap().to_vec();
    let seen = Arc::new(Products::default());
    session.set_observer(Some(seen.clone()));
    // Without a capture the places of values are used again as soon as may be.
    session.run(&bindings, &[("x", x.view())]).unwrap();
    let of_x = x.view().as_slice::<f32>().unwrap().to_vec();
    assert_eq!(*seen.0.lock().unwrap(), [("a".to_owned(), of_x), ("b".to_owned(), relu)]);
}

#[test]
fn missing_and_misshapen_weights_are_named() {
    let weights = Weights::new(Arc::new(MemoryWeights::new().with("a.weight", noise(1, &[2, 3, 1]))));
    let mut g = GraphBuilder::new(weights);
    let (squeezed, again) = g
        .scoped("a", |g| Ok::<_, GraphError>((g.weight("weight", &[2, 3])?, g.weight("weight", &[2, 3])?)))
        .unwrap();
    assert_eq!(squeezed, again, "a weight is one value");
    let error = g.weight("a.weight", &[3, 2]).unwrap_err().to_string();
    assert_eq!(
        error,
        "memory: the tensor a.weight has shape [2, 3, 1], but the configuration asks for [3, 2]"
    );
    let error = g.weight("b.weight", &[3, 2]).unwrap_err().to_string();
    assert!(error.starts_with("memory: the tensor b.weight is missing"), "{error}");
    assert!(g.weight_opt("b.weight", &[1]).unwrap().is_none());
}

/// An observer that looks away.
#[derive(Debug)]
struct Idle;

impl Observer for Idle {
    fn wants_time(&self) -> bool {
        true
    }

    fn step(&self, _step: &StepDone<'_>) {}
}

/// Once lengths have been run, running them again allocates nothing, tiles and captures included.
#[test]
fn a_warmed_up_run_allocates_nothing() {
    let (program, captures) = block(12);
    let mut session = Session::new(program, cpu(1)).unwrap();
    let x = noise(1, &[2, 9, 12]);
    let bindings = Bindings::new().with(B, 2).with(T, 9);
    let inputs = [("x", x.view())];
    for names in [&[][..], captures.as_slice()] {
        session.run_capturing(&bindings, &inputs, names).unwrap();
        let counted = allocation_counter::measure(|| {
            for _ in 0..10 {
                session.run_capturing(&bindings, &inputs, names).unwrap();
            }
        });
        assert_eq!(counted.count_total, 0, "{names:?}: {counted:?}");
    }

    let weights = Weights::new(Arc::new(
        MemoryWeights::new()
            .with("first.weight", noise(7, &[4, 1, 3, 3]))
            .with("depth.weight", noise(8, &[4, 1, 3, 3])),
    ));
    let tile = conv_body(&weights, 16);
    let mut g = GraphBuilder::new(weights);
    let x = g.input("x", rows_of(16));
    let lengths = g.input("lengths", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])));
    let y = g.tile_time(tile, x, lengths).unwrap();
    g.output("y", y);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
    let (x, lengths) = (noise(3, &[1, 100, 16]), Tensor::from_slice(&[1], &[90i32]).unwrap());
    let bindings = Bindings::new().with(B, 1).with(T, 100);
    let inputs = [("x", x.view()), ("lengths", lengths.view())];
    session.run(&bindings, &inputs).unwrap();
    for watched in [false, true] {
        session.set_observer(watched.then(|| Arc::new(Idle) as Arc<dyn Observer>));
        let counted = allocation_counter::measure(|| {
            session.run(&bindings, &inputs).unwrap();
        });
        assert_eq!(counted.count_total, 0, "tiles, watched: {watched}: {counted:?}");
    }

    // States that swap need room for one of them.
    let mut g = builder();
    let states = ["a", "b"].map(|name| g.state(name, ValueType::f32(Shape::fixed(&[1, 16]))));
    let old = states.map(|s| g.read_state(s).unwrap());
    g.assign(states[0], old[1]).unwrap();
    g.assign(states[1], old[0]).unwrap();
    g.output("old", old[0]);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
    session.run(&Bindings::new(), &[]).unwrap();
    let counted = allocation_counter::measure(|| {
        session.run(&Bindings::new(), &[]).unwrap();
    });
    assert_eq!(counted.count_total, 0, "states: {counted:?}");
}

/// A graph may look at one weight in several shapes: each has a packed form of its own.
#[test]
fn a_weight_in_two_shapes_is_packed_for_each() {
    let weights = Weights::new(Arc::new(MemoryWeights::new().with("w", noise(3, &[6, 4]))));
    let mut g = GraphBuilder::new(weights);
    let wide = g.input("wide", ValueType::f32(Shape::fixed(&[2, 4])));
    let narrow = g.input("narrow", ValueType::f32(Shape::fixed(&[2, 3])));
    let w = g.weight("w", &[6, 4]).unwrap();
    let again = g.apply(Reshape { shape: Shape::fixed(&[8, 3]) }, &[w]).unwrap();
    let plain = Linear { activation: Activation::None, bias: false, residual: None };
    for (name, x, w) in [("a", wide, w), ("b", narrow, again), ("c", wide, w)] {
        let y = g.apply(plain.clone(), &[x, w]).unwrap();
        g.output(name, y);
    }
    let program = Program::new(g.finish().unwrap());
    let (wide, narrow) = (noise(1, &[2, 4]), noise(2, &[2, 3]));
    let inputs = [("wide", wide.view()), ("narrow", narrow.view())];
    let expected = run_reference(program.graph(), &Bindings::new(), &inputs, &[]).unwrap();
    let mut session = Session::new(program, cpu(1)).unwrap();
    let outputs = session.run(&Bindings::new(), &inputs).unwrap();
    for name in ["a", "b", "c"] {
        assert_close(name, &outputs.get(name).unwrap(), &expected[name]);
    }
}

/// Weights that are computed are not packed: a kernel that reads only packed ones of a type says so before it runs.
#[test]
fn a_computed_weight_of_a_type_that_no_kernel_reads_is_refused() {
    let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
    let x = g.input("x", ValueType::f32(Shape::fixed(&[2, 4])));
    let w = g.input("w", ValueType::new(DType::F16, Shape::fixed(&[3, 4])));
    let plain = Linear { activation: Activation::None, bias: false, residual: None };
    let y = g.apply(plain, &[x, w]).unwrap();
    g.output("y", y);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
    let (x, w) = (noise(1, &[2, 4]), Tensor::zeros(DType::F16, &[3, 4]).unwrap());
    let error = session.run(&Bindings::new(), &[("x", x.view()), ("w", w.view())]).unwrap_err();
    assert!(matches!(error, GraphError::Unsupported { op: "linear", .. }), "{error}");
    assert!(error.to_string().contains("input 1 is f16"), "{error}");
}

fn builder() -> GraphBuilder {
    GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())))
}

/// A value of several names, an input that has a name of its own, and a value that passes make the input again.
#[test]
fn a_capture_is_given_under_every_name_it_has() {
    let mut g = builder();
    let x = g.input("x", ValueType::f32(Shape::fixed(&[3, 2])));
    g.name(x, "same");
    let turned = g.apply(Transpose { perm: vec![1, 0] }, &[x]).unwrap();
    let back = g.apply(Transpose { perm: vec![1, 0] }, &[turned]).unwrap();
    g.name(back, "back");
    let y = g.apply(Scale { factor: 2.0 }, &[back]).unwrap();
    g.name(y, "first");
    g.name(y, "second");
    g.output("y", y);
    g.output("again", y);
    let graph = g.finish().unwrap();
    let x = noise(1, &[3, 2]);
    let inputs = [("x", x.view())];
    let names = ["same", "back", "first", "second", "y", "again"];
    let expected = run_reference(&graph, &Bindings::new(), &inputs, &names).unwrap();
    for passes in [Passes::none(), Passes::default()] {
        let program = Program::with_passes(graph.clone(), &passes).unwrap();
        for device in [Device::cpu(), Device::new(Arc::new(Partial::all()))] {
            let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
            let one_by_one = names.iter().map(std::slice::from_ref);
            for captured in one_by_one.chain([names.as_slice()]) {
                let outputs = session.run_capturing(&Bindings::new(), &inputs, captured).unwrap();
                for name in captured.iter().chain(&["y", "again"]) {
                    assert_close(name, &outputs.get(name).unwrap(), &expected[*name]);
                }
            }
        }
    }
}

fn lengths_ty() -> ValueType {
    ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))]))
}

/// `[B, T, 1]` to the same; many are kept at once.
fn sums(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let mut kept = vec![g.apply(Scale { factor: 1.0 }, &[x]).unwrap()];
    for _ in 0..8 {
        kept.push(g.apply(Unary { kind: UnaryKind::Tanh }, &[kept[kept.len() - 1]]).unwrap());
    }
    let add = |g: &mut GraphBuilder, a, b| g.apply(Binary { kind: BinaryKind::Add }, &[a, b]).unwrap();
    kept.iter().fold(x, |sum, &v| add(g, sum, v))
}

/// As wide as it is long, with scratch in proportion to both operands.
fn product(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let square = g.apply(MatMul { transpose_b: true }, &[x, x]).unwrap();
    let square = g.apply(Softmax, &[square]).unwrap();
    g.apply(MatMul { transpose_b: false }, &[square, x]).unwrap()
}

fn tiles(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let mut body = builder();
    let inner = body.input("x", rows_of(1));
    body.input("lengths", lengths_ty());
    let y = body.apply(Scale { factor: 2.0 }, &[inner]).unwrap();
    body.output("y", y);
    let body = body.finish().unwrap();
    let tile = TileTime { body, time: T, batch: B, factor: 1, halo_before: 1, halo_after: 1, tile: 3 };
    let lengths = g.input("lengths", lengths_ty());
    g.tile_time(tile, x, lengths).unwrap()
}

#[test]
fn lengths_that_no_memory_holds_are_an_error() {
    type Grow = fn(&mut GraphBuilder, ValueId) -> ValueId;
    for (what, grow, planned_up_to) in
        [("sums", sums as Grow, 1usize << 56), ("product", product, 0), ("tiles", tiles, 0)]
    {
        let mut g = builder();
        let x = g.input("x", rows_of(1));
        let y = grow(&mut g, x);
        g.output("y", y);
        let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
        let (x, lengths) = (noise(1, &[1, 2, 1]), Tensor::from_slice(&[1], &[2i32]).unwrap());
        let all = [("x", x.view()), ("lengths", lengths.view())];
        let inputs = if what == "tiles" { &all[..] } else { &all[..1] };
        let huge = (40..64).flat_map(|bits| [(1usize << bits) - 20, 1 << bits, (1 << bits) + 7]);
        for n in huge.chain([usize::MAX]) {
            for b in [0, 1, 3] {
                let bindings = Bindings::new().with(B, b).with(T, n);
                let error = match session.program().arena_bytes(&bindings, &[], &cpu(1)) {
                    Err(error) => error,
                    Ok(_) if n <= planned_up_to => continue,
                    Ok(bytes) => panic!("{what} B={b} T={n:x}: {bytes}"),
                };
                let large = matches!(error, GraphError::TooLarge { .. } | GraphError::Dim { .. });
                assert!(large, "{what} B={b} T={n:x}: {error}");
                let again = session.run(&bindings, inputs).map(|_| ()).unwrap_err();
                assert_eq!(again.to_string(), error.to_string(), "{what} B={b} T={n:x}");
            }
        }
        session.run(&Bindings::new().with(B, 1).with(T, 2), inputs).unwrap();
    }
}

#[test]
fn what_cannot_be_meant_is_refused_when_the_graph_is_built() {
    for (kind, expected) in
        ["input", "output", "state"].map(|kind| (kind, format!("two {kind}s named \"twin\"")))
    {
        let mut g = builder();
        let twice = |of: &str| if of == kind { ["twin", "twin"] } else { ["one", "two"] };
        let inputs = twice("input").map(|n| g.input(n, ValueType::f32(Shape::fixed(&[2]))));
        let states = twice("state").map(|n| g.state(n, ValueType::f32(Shape::fixed(&[2]))));
        for ((name, v), state) in twice("output").into_iter().zip(inputs).zip(states) {
            let y = g.apply(Scale { factor: 2.0 }, &[v]).unwrap();
            g.output(name, y);
            g.assign(state, y).unwrap();
        }
        let error = g.finish().unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
    // A tile's body has no run of its own whose end its states could wait for.
    let mut body = builder();
    let x = body.input("x", rows_of(2));
    body.input("lengths", lengths_ty());
    let inner = body.state("inner", ValueType::f32(Shape::fixed(&[1, 2])));
    let old = body.read_state(inner).unwrap();
    let new = body.apply(Scale { factor: 1.0 }, &[old]).unwrap();
    body.assign(inner, new).unwrap();
    let y = body.apply(Scale { factor: 2.0 }, &[x]).unwrap();
    body.output("y", y);
    let body = body.finish().unwrap();
    let mut g = builder();
    let (x, lengths) = (g.input("x", rows_of(2)), g.input("lengths", lengths_ty()));
    let tile = TileTime { body, time: T, batch: B, factor: 1, halo_before: 0, halo_after: 0, tile: 2 };
    let error = g.tile_time(tile, x, lengths).unwrap_err().to_string();
    assert!(error.contains("the body has a state, inner"), "{error}");
}
