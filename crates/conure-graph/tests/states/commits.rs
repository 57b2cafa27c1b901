//! What enters states: all at once, at the end of a run that worked, whatever else reads them.

use super::{ROOM, builder, cached, devices};
use crate::common::{B, D, T, assert_close, cpu, noise};
use conure_graph::{
    Device, Graph, GraphBuilder, GraphError, Partial, Program, Session, StateId, ValueId, run_reference_from,
};
use conure_ops::{Binary, BinaryKind, Reshape, Scale, Unary, UnaryKind, ValueType};
use conure_tensor::{Axis, Bindings, DType, Dim, Shape, Tensor, TensorView};
use std::collections::HashMap;
use std::sync::Arc;

fn scaled(g: &mut GraphBuilder, x: ValueId, factor: f32) -> ValueId {
    g.apply(Scale { factor }, &[x]).unwrap()
}

fn sum(g: &mut GraphBuilder, a: ValueId, b: ValueId) -> ValueId {
    g.apply(Binary { kind: BinaryKind::Add }, &[a, b]).unwrap()
}

/// A graph of an input `x` `[1, 2]`, states of its shape, and an output `y`; `build` is given `x` and what each state holds.
fn of_states(count: usize, build: impl FnOnce(&mut GraphBuilder, ValueId, &[(StateId, ValueId)])) -> Graph {
    let mut g = builder();
    let x = g.input("x", pair());
    let states: Vec<(StateId, ValueId)> = (0..count)
        .map(|i| {
            let state = g.state(&format!("s{i}"), pair());
            (state, g.read_state(state).unwrap())
        })
        .collect();
    build(&mut g, x, &states);
    let y = scaled(&mut g, x, 2.0);
    g.output("y", y);
    g.finish().unwrap()
}

fn pair() -> ValueType {
    ValueType::f32(Shape::fixed(&[1, 2]))
}

fn flat(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let flat = g.apply(Reshape { shape: Shape::fixed(&[2]) }, &[x]).unwrap();
    g.apply(Reshape { shape: Shape::fixed(&[1, 2]) }, &[flat]).unwrap()
}

/// States that read each other, that nothing but an output or a capture reads, and that nobody reads.
fn entangled() -> Vec<(&'static str, Graph)> {
    vec![
        (
            "two swap",
            of_states(2, |g, x, s| {
                let first = sum(g, s[0].1, x);
                g.assign(s[0].0, s[1].1).unwrap();
                g.assign(s[1].0, first).unwrap();
            }),
        ),
        (
            "three go round, as they are",
            of_states(3, |g, x, s| {
                g.assign(s[0].0, s[1].1).unwrap();
                g.assign(s[1].0, s[2].1).unwrap();
                g.assign(s[2].0, s[0].1).unwrap();
                let y = sum(g, s[0].1, x);
                g.output("sum", y);
            }),
        ),
        (
            "a line of delays, written from its start",
            of_states(3, |g, x, s| {
                let now = scaled(g, x, 1.0);
                g.assign(s[0].0, now).unwrap();
                g.assign(s[1].0, s[0].1).unwrap();
                g.assign(s[2].0, s[1].1).unwrap();
            }),
        ),
        (
            "a line of delays, written from its end, of the input itself",
            of_states(2, |g, x, s| {
                g.assign(s[1].0, s[0].1).unwrap();
                g.assign(s[0].0, x).unwrap();
                let y = sum(g, s[1].1, x);
                g.output("sum", y);
            }),
        ),
        (
            "views of each other and of the input",
            of_states(3, |g, x, s| {
                let views = [flat(g, s[1].1), flat(g, s[0].1), flat(g, x)];
                for (state, view) in s.iter().zip(views) {
                    g.assign(state.0, view).unwrap();
                }
                let y = sum(g, s[0].1, s[2].1);
                g.output("sum", y);
            }),
        ),
        (
            "an output and a name of what was",
            of_states(2, |g, x, s| {
                for (i, &(state, old)) in s.iter().enumerate() {
                    let new = sum(g, old, x);
                    g.assign(state, new).unwrap();
                    if i == 0 {
                        g.output("old", old);
                    }
                    g.name(old, &format!("name{i}"));
                }
            }),
        ),
        (
            "only outputs read them",
            of_states(2, |g, x, s| {
                let new = scaled(g, x, 3.0);
                g.assign(s[0].0, new).unwrap();
                g.output("old", s[0].1);
                g.output("never written", s[1].1);
            }),
        ),
        (
            "only captures read them",
            of_states(2, |g, x, s| {
                let new = scaled(g, x, 3.0);
                g.assign(s[0].0, new).unwrap();
                for (i, s) in s.iter().enumerate() {
                    let z = scaled(g, s.1, 10.0);
                    g.name(z, &format!("z{i}"));
                }
            }),
        ),
        (
            "a capture reads what runs read too",
            of_states(1, |g, x, s| {
                let new = sum(g, s[0].1, x);
                g.assign(s[0].0, new).unwrap();
                let z = g.apply(Unary { kind: UnaryKind::Tanh }, &[s[0].1]).unwrap();
                g.name(z, "z");
            }),
        ),
        ("rows roll in, and a neighbour gets what was", {
            let mut g = builder();
            let x = g.input("x", pair());
            let (a, b) = (g.state("a", fixed_rows(3)), g.state("b", ValueType::f32(Shape::fixed(&[1, 6]))));
            let old = g.read_state(a).unwrap();
            let rows = g.apply(Reshape { shape: Shape::fixed(&[1, 1, 2]) }, &[x]).unwrap();
            g.roll(a, rows).unwrap();
            let old = g.apply(Reshape { shape: Shape::fixed(&[1, 6]) }, &[old]).unwrap();
            g.assign(b, old).unwrap();
            let y = scaled(&mut g, x, 2.0);
            g.output("y", y);
            g.finish().unwrap()
        }),
    ]
}

fn fixed_rows(rows: usize) -> ValueType {
    ValueType::f32(Shape::fixed(&[1, rows, 2]))
}

#[test]
fn commits_see_the_states_as_they_were_whatever_else_reads_them_and_whatever_is_captured() {
    for (what, graph) in entangled() {
        let names: Vec<String> = graph.states().iter().map(|s| s.name.clone()).collect();
        let program = Program::new(graph);
        let captures = program.graph().node_names();
        for device in devices() {
            let what = format!("{what} on {}", device.name());
            let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
            let mut states = HashMap::new();
            for (i, name) in names.iter().enumerate() {
                let of = program.graph().states()[i].dims();
                let start = noise(50 + i as u64, &of);
                session.set_state(name, &start.view()).unwrap();
                states.insert(name.clone(), start);
            }
            for run in 0..6u64 {
                let x = noise(run, &[1, 2]);
                let inputs = [("x", x.view())];
                let captures = if run % 3 == 1 { captures.as_slice() } else { &[] };
                let none = Bindings::new();
                let expected =
                    run_reference_from(program.graph(), &none, &inputs, captures, &mut states).unwrap();
                let found = session.run_capturing(&none, &inputs, captures).unwrap();
                for (name, expected) in &expected {
                    assert_close(&format!("{what}: {name}"), &found.get(name).unwrap(), expected);
                }
                for name in &names {
                    let found = session.state(name).unwrap();
                    assert_close(&format!("{what}: {name} after {run}"), &found.view(), &states[name]);
                }
            }
        }
    }
    // The reference itself.
    let mut states = HashMap::new();
    for (name, value) in [("s0", 1.0f32), ("s1", 2.0), ("s2", 3.0)] {
        states.insert(name.to_owned(), Tensor::from_slice(&[1, 2], &[value; 2]).unwrap());
    }
    let (_, graph) = entangled().swap_remove(1);
    let x = noise(1, &[1, 2]);
    run_reference_from(&graph, &Bindings::new(), &[("x", x.view())], &[], &mut states).unwrap();
    let of = |name: &str| states[name].as_slice::<f32>().unwrap()[0];
    assert_eq!([of("s0"), of("s1"), of("s2")], [2.0, 3.0, 1.0]);
}

/// A sum that grows by x, a function of it that only the CPU has in some cuts, and another sum after that.
fn two_sums() -> Graph {
    of_states(2, |g, x, s| {
        let first = sum(g, s[0].1, x);
        g.assign(s[0].0, first).unwrap();
        let between = g.apply(Unary { kind: UnaryKind::Tanh }, &[first]).unwrap();
        let second = sum(g, s[1].1, between);
        g.assign(s[1].0, second).unwrap();
        g.output("second", second);
    })
}

fn values(session: &mut Session) -> [Vec<f32>; 2] {
    ["s0", "s1"].map(|name| session.state(name).unwrap().as_slice::<f32>().unwrap().to_vec())
}

#[test]
fn a_run_that_fails_changes_no_state_and_the_next_goes_on_from_it() {
    let x = Tensor::from_slice(&[1, 2], &[0.5f32, 0.25]).unwrap();
    let inputs = [("x", x.view())];
    let none = Bindings::new();
    let mut expected = Vec::new();
    let mut states = HashMap::new();
    for _ in 0..3 {
        run_reference_from(&two_sums(), &none, &inputs, &[], &mut states).unwrap();
        expected.push(["s0", "s1"].map(|name| states[name].clone()));
    }
    let check = |session: &mut Session, runs: usize, what: &str| {
        for (name, expected) in ["s0", "s1"].into_iter().zip(&expected[runs - 1]) {
            assert_close(&format!("{what}: {name}"), &session.state(name).unwrap().view(), expected);
        }
    };
    // Whole, and two pieces with the CPU between.
    for (ops, pieces) in [(&["binary", "unary", "scale"][..], 1), (&["binary"], 2)] {
        for fail_in in 1..=pieces {
            for how in ["fails", "forgets", "fails to commit"] {
                let what = format!("{ops:?}: run {fail_in} {how}");
                let partial = Arc::new(Partial::ops(ops).unwrap());
                let device = Device::new(partial.clone());
                let mut session = Session::on(Program::new(two_sums()), &device, cpu(1)).unwrap();
                session.run(&none, &inputs).unwrap();
                check(&mut session, 1, &what);
                let saved = session.save_states().unwrap();
                match how {
                    "fails" => partial.fail_in(fail_in),
                    "forgets" => partial.forget_in(fail_in),
                    _ => partial.fail_commit_in(fail_in),
                }
                let error = session.run(&none, &inputs).map(|_| ()).unwrap_err();
                assert!(matches!(error, GraphError::Device { .. }), "{what}: {error}");
                assert!(session.outputs().is_err(), "{what}");
                if how == "fails" {
                    check(&mut session, 1, &what);
                } else {
                    // Gone: no run begins from zeros, and none from half of a run.
                    for _ in 0..2 {
                        let error = session.run(&none, &inputs).map(|_| ()).unwrap_err();
                        assert!(matches!(error, GraphError::StatesLost { .. }), "{what}: {error}");
                        let advice = "reset or restore them";
                        assert!(error.to_string().contains(advice), "{what}: {error}");
                    }
                    assert!(["s0", "s1"].iter().any(|n| session.state(n).is_err()), "{what}");
                    session.restore_states(&saved).unwrap();
                }
                session.run(&none, &inputs).unwrap();
                check(&mut session, 2, &what);
                partial.forget_in(1);
                session.run(&none, &inputs).map(|_| ()).unwrap_err();
                session.reset_states();
                session.run(&none, &inputs).unwrap();
                check(&mut session, 1, &what);
            }
        }
    }
}

#[test]
fn what_is_refused_changes_no_state() {
    // The second commit does not fit at these lengths.
    let mut g = builder();
    let (a, b) = (g.state("s0", pair()), g.state("s1", pair()));
    let old = g.read_state(a).unwrap();
    let x = g.input("x", pair());
    let z = g.input("z", ValueType::f32(Shape::new([(Axis::B, Dim::from(B)), (Axis::D, Dim::from(2))])));
    let (new, rows) = (sum(&mut g, old, x), scaled(&mut g, z, 1.0));
    g.assign(a, new).unwrap();
    g.assign(b, rows).unwrap();
    g.output("y", new);
    let program = Program::new(g.finish().unwrap());
    for device in devices() {
        let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
        let (x, z) = (noise(1, &[1, 2]), noise(2, &[2, 2]));
        let inputs = [("x", x.view()), ("z", x.view())];
        session.run(&Bindings::new().with(B, 1), &inputs).unwrap();
        let before = values(&mut session);
        let inputs = [("x", x.view()), ("z", z.view())];
        let error = session.run(&Bindings::new().with(B, 2), &inputs).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("state s1: it is"), "{error}");
        assert_eq!(values(&mut session), before, "{}", device.name());
    }

    // The rows of the second item do not fit.
    for device in devices() {
        let mut session = Session::on(Program::new(cached(DType::F32, 2)), &device, cpu(1)).unwrap();
        let x = noise(1, &[2, 1, D]);
        let at = TensorView::of(&[2], &[0, ROOM as i32]).unwrap();
        let bindings = Bindings::new().with(B, 2).with(T, 1);
        let error = session.run(&bindings, &[("x", x.view()), ("at", at)]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("rows from row 16 on do not fit"), "{error}");
        let cache = session.state("cache").unwrap();
        assert!(cache.as_slice::<f32>().unwrap().iter().all(|v| *v == 0.0), "{}", device.name());
    }

    // One of the states has too few items, or another shape.
    let graph = |items: usize| {
        let mut g = builder();
        let (a, b) = (
            g.state("s0", ValueType::f32(Shape::fixed(&[2, 2]))),
            g.state("s1", ValueType::f32(Shape::fixed(&[items, 2]))),
        );
        let x = g.input("x", ValueType::f32(Shape::fixed(&[2, 2])));
        let y = g.input("y", ValueType::f32(Shape::fixed(&[items, 2])));
        for (state, v) in [(a, x), (b, y)] {
            let v = scaled(&mut g, v, 1.0);
            g.assign(state, v).unwrap();
            g.output(&format!("{v:?}"), v);
        }
        Program::new(g.finish().unwrap())
    };
    for device in [Device::cpu(), Device::new(Arc::new(Partial::all()))] {
        let run = |items: usize, seed: u64| {
            let mut session = Session::on(graph(items), &device, cpu(1)).unwrap();
            let (x, y) = (noise(seed, &[2, 2]), noise(seed + 1, &[items, 2]));
            session.run(&Bindings::new(), &[("x", x.view()), ("y", y.view())]).unwrap();
            session
        };
        let (mut session, mut other) = (run(1, 1), run(3, 5));
        let before = values(&mut session);
        let error = session.reorder_states(&[1, 0]).unwrap_err().to_string();
        assert!(error.contains("state s1: it has 1 items; item 0 cannot become item 1"), "{error}");
        assert_eq!(values(&mut session), before);
        let error = session.restore_states(&other.save_states().unwrap()).unwrap_err().to_string();
        assert!(error.contains("state s1: it is"), "{error}");
        assert_eq!(values(&mut session), before);
    }
}
