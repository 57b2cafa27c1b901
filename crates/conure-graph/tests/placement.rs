//! Graphs cut for a device that takes only some ops: same results as whole, and as few pieces as can be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{B, D, T, assert_close, block, cpu, noise, rows};
use conure_graph::{
    Device, GraphBuilder, GraphError, MemoryWeights, Partial, Program, Session, Weights, run_reference,
};
use conure_ops::{Binary, BinaryKind, Reshape, Scale, Softmax, Unary, UnaryKind};
use conure_tensor::{Axis, Bindings, Dim, Shape, Tensor};
use std::sync::Arc;

fn device(partial: Partial) -> Device {
    Device::new(Arc::new(partial))
}

fn unary(g: &mut GraphBuilder, kind: UnaryKind, x: conure_graph::ValueId) -> conure_graph::ValueId {
    g.apply(Unary { kind }, &[x]).unwrap()
}

/// `pieces` pieces and equal results, with and without captures.
fn check(program: &Arc<Program>, captures: &[&str], partial: Partial, pieces: usize) {
    let device = device(partial);
    let placed = program.placed(&device, &[]).unwrap();
    assert_eq!(placed.placement().pieces.len(), pieces, "{}", placed.placement());
    let mut session = Session::on(program.clone(), &device, cpu(2)).unwrap();
    for t in [5, 1, 9] {
        let bindings = Bindings::new().with(B, 2).with(T, t);
        let x = noise(t as u64, &[2, t, D]);
        let inputs = [("x", x.view())];
        let expected = run_reference(program.graph(), &bindings, &inputs, captures).unwrap();
        for captures in [&[][..], captures] {
            let outputs = session.run_capturing(&bindings, &inputs, captures).unwrap();
            for name in ["y"].iter().chain(captures) {
                assert_close(name, &outputs.get(name).unwrap(), &expected[*name]);
            }
        }
    }
}

#[test]
fn a_graph_that_the_device_takes_whole_is_one_piece() {
    let (program, captures) = block(D);
    check(&program, &captures, Partial::all(), 1);
    let placed = program.placed(&device(Partial::all()), &[]).unwrap();
    assert!(placed.placement().is_whole(), "{}", placed.placement());
    assert!(
        placed.placement().to_string().contains("partial: 7 of 7 nodes in 1 piece"),
        "{}",
        placed.placement()
    );
}

#[test]
fn a_device_that_takes_nothing_leaves_all_to_the_cpu() {
    let (program, captures) = block(D);
    check(&program, &captures, Partial::ops(&[]).unwrap(), 0);
    let placed = program.placed(&device(Partial::ops(&[]).unwrap()), &[]).unwrap();
    let report = placed.placement();
    assert!(!report.is_whole() && report.refused.len() == report.nodes, "{report}");
    assert!(report.to_string().contains("linear: partial: was not asked to run it"), "{report}");
}

#[test]
fn chains_diamonds_and_every_single_op_cut_out() {
    let (program, captures) = block(D);
    // The two products of the block are apart; between them lie ops of other kinds.
    for (ops, pieces) in [
        (&["linear"][..], 2),
        (&["unary"], 1),
        (&["binary"], 1),
        (&["layer_norm", "linear"], 2),
        (&["linear", "binary"], 2),
        (&["unary", "binary"], 1),
        (&["scale"], 1),
        (&["linear", "reshape"], 2),
    ] {
        check(&program, &captures, Partial::ops(ops).unwrap(), pieces);
    }
}

#[test]
fn random_cuts_change_nothing() {
    let (program, captures) = block(D);
    for seed in 0..32 {
        let device = device(Partial::random(seed));
        let pieces = program.placed(&device, &[]).unwrap().placement().pieces.len();
        check(&program, &captures, Partial::random(seed), pieces);
    }
}

#[test]
fn branches_of_one_level_are_one_piece_though_nothing_joins_them() {
    let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
    let x = g.input("x", rows());
    let a = unary(&mut g, UnaryKind::Silu, x);
    let b = unary(&mut g, UnaryKind::Tanh, x);
    let (a, b) =
        (g.apply(Scale { factor: 2.0 }, &[a]).unwrap(), g.apply(Scale { factor: 3.0 }, &[b]).unwrap());
    let y = g.apply(Binary { kind: BinaryKind::Add }, &[a, b]).unwrap();
    g.output("y", y);
    let program = Program::new(g.finish().unwrap());
    check(&program, &[], Partial::ops(&["unary"]).unwrap(), 1);
    check(&program, &[], Partial::ops(&["scale"]).unwrap(), 1);
    check(&program, &[], Partial::ops(&["unary", "binary"]).unwrap(), 2);
}

#[test]
fn in_place_ops_and_views_keep_their_values_across_a_cut() {
    let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
    let x = g.input("x", rows());
    let a = unary(&mut g, UnaryKind::Silu, x);
    // Both take a's memory over where they may; here each is read by another side too.
    let b = unary(&mut g, UnaryKind::Relu, a);
    let flat = Shape::new([(Axis::N, &(&Dim::from(B) * &Dim::from(T)) * &Dim::from(D))]);
    let view = g.apply(Reshape { shape: flat.clone() }, &[a]).unwrap();
    let c = unary(&mut g, UnaryKind::Tanh, view);
    let d = g.apply(Reshape { shape: flat }, &[b]).unwrap();
    let y = g.apply(Binary { kind: BinaryKind::Mul }, &[c, d]).unwrap();
    g.name(view, "view");
    g.name(a, "a");
    g.output("y", y);
    let program = Program::new(g.finish().unwrap());
    for seed in 0..16 {
        let pieces = program.placed(&device(Partial::random(seed)), &[]).unwrap().placement().pieces.len();
        check(&program, &["view", "a"], Partial::random(seed), pieces);
    }
    check(&program, &["view", "a"], Partial::ops(&["reshape"]).unwrap(), 0);
}

#[test]
fn what_is_only_captured_is_not_run_without_the_capture() {
    let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
    let x = g.input("x", rows());
    let y = unary(&mut g, UnaryKind::Silu, x);
    let z = g.apply(Softmax, &[y]).unwrap();
    g.name(z, "z");
    g.output("y", y);
    let program = Program::new(g.finish().unwrap());
    let d = device(Partial::all());
    let z = program.graph().named("z").unwrap();
    assert_eq!(program.placed(&d, &[]).unwrap().placement().nodes, 1);
    assert_eq!(program.placed(&d, &[z]).unwrap().placement().nodes, 2);
    check(&program, &["z"], Partial::all(), 1);
}

#[test]
fn a_device_that_fails_mid_run_is_an_error_and_the_next_run_works() {
    let (program, _) = block(D);
    for ops in [Partial::all(), Partial::ops(&["linear"]).unwrap()] {
        let partial = Arc::new(ops);
        let mut session = Session::on(program.clone(), &Device::new(partial.clone()), cpu(1)).unwrap();
        let bindings = Bindings::new().with(B, 1).with(T, 3);
        let x = noise(3, &[1, 3, D]);
        let inputs = [("x", x.view())];
        let expected = run_reference(program.graph(), &bindings, &inputs, &[]).unwrap();
        for fail_in in [1, 2] {
            partial.fail_in(fail_in);
            // With one piece, the second run of it is in the second run of the graph.
            let failed = (0..2).find_map(|_| session.run(&bindings, &inputs).map(|_| ()).err()).unwrap();
            assert!(matches!(failed, GraphError::Device { .. }), "{failed}");
            assert!(failed.to_string().contains("it was told to fail"), "{failed}");
            let outputs = session.run(&bindings, &inputs).unwrap();
            assert_close("y", &outputs.get("y").unwrap(), &expected["y"]);
        }
    }
}

#[test]
fn an_output_that_is_not_computed_is_given_all_the_same() {
    let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
    let x = g.input("x", rows());
    let seven = g.constant(Tensor::from_slice(&[1], &[7.0f32]).unwrap());
    let flat = Shape::new([(Axis::N, &(&Dim::from(B) * &Dim::from(T)) * &Dim::from(D))]);
    let view = g.apply(Reshape { shape: flat }, &[x]).unwrap();
    let y = unary(&mut g, UnaryKind::Relu, x);
    for (name, v) in [("x again", x), ("seven", seven), ("view", view), ("y", y)] {
        g.output(name, v);
    }
    let program = Program::new(g.finish().unwrap());
    let bindings = Bindings::new().with(B, 1).with(T, 2);
    let x = noise(1, &[1, 2, D]);
    for device in [Device::cpu(), device(Partial::all())] {
        let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
        let outputs = session.run(&bindings, &[("x", x.view())]).unwrap();
        assert_eq!(outputs.get("seven").unwrap().as_slice::<f32>().unwrap(), [7.0]);
        let all = x.as_slice::<f32>().unwrap();
        assert_eq!(outputs.get("view").unwrap().as_slice::<f32>().unwrap(), all);
        assert_eq!(outputs.get("x again").unwrap().as_slice::<f32>().unwrap(), all);
    }
}

#[test]
fn a_session_on_the_cpu_places_nothing() {
    let (program, _) = block(D);
    let placed = program.placed(&Device::cpu(), &[]).unwrap();
    assert!(placed.placement().is_whole() && placed.placement().pieces.is_empty());
    assert_eq!(placed.placement().to_string(), "cpu: all 7 nodes\n");
}

#[test]
fn ops_that_there_are_not_are_refused() {
    for names in [&["LINEAR"][..], &["linear", "nosuchop"], &[""]] {
        let error = Partial::ops(names).unwrap_err();
        assert_eq!(error.name, names[names.len() - 1]);
        assert!(error.to_string().contains("there are: batch_norm, binary, "), "{error}");
    }
    Partial::ops(&["append", "tile_time", "linear"]).unwrap();
}
