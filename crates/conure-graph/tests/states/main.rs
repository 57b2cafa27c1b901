//! States: read and assigned, rolled, appended to; on the CPU, inside a piece, and across a cut.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commits;
#[path = "../common/mod.rs"]
mod common;

use common::{B, D, T, assert_close, cpu, noise, rows};
use conure_graph::{
    Device, Graph, GraphBuilder, GraphError, MemoryWeights, Partial, Program, Session, Weights,
    run_reference_from,
};
use conure_ops::{Binary, BinaryKind, Concat, Scale, Slice, Unary, UnaryKind, ValueType};
use conure_tensor::{Axis, Bindings, DType, Dim, Shape, Tensor, TensorView};
use std::collections::HashMap;
use std::sync::Arc;

const LEFT: usize = 4;
const ROOM: usize = 16;

fn builder() -> GraphBuilder {
    GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())))
}

fn fixed(items: usize, rows: usize) -> ValueType {
    ValueType::f32(Shape::new([(Axis::B, items), (Axis::T, rows), (Axis::D, D)]))
}

fn one_item() -> ValueType {
    ValueType::f32(Shape::new([(Axis::B, Dim::from(1)), (Axis::T, Dim::from(T)), (Axis::D, Dim::from(D))]))
}

/// A cache of the last rows before a chunk, as streaming layers have it, and a running sum, as a recurrent one does.
///
/// ```text
///   x ─▶ silu ─┬────────────▶ concat(left, ·) ─▶ y
///              ├─ roll ─▶ left [1, 4, D]
///              └─ last row + sum ─▶ sum [1, 1, D] ─▶ total
/// ```
fn streaming() -> Graph {
    let mut g = builder();
    let x = g.input("x", one_item());
    let left = g.state("left", fixed(1, LEFT));
    let sum = g.state("sum", fixed(1, 1));
    let a = g.apply(Unary { kind: UnaryKind::Silu }, &[x]).unwrap();
    let before = g.read_state(left).unwrap();
    let y = g.apply(Concat { axis: 1 }, &[before, a]).unwrap();
    g.roll(left, a).unwrap();
    let last = g.apply(Slice { axis: 1, start: 0, end: Dim::from(1) }, &[a]).unwrap();
    let so_far = g.read_state(sum).unwrap();
    let total = g.apply(Binary { kind: BinaryKind::Add }, &[so_far, last]).unwrap();
    g.assign(sum, total).unwrap();
    let shown = g.apply(Scale { factor: 1.0 }, &[total]).unwrap();
    g.output("y", y);
    g.output("total", shown);
    g.finish().unwrap()
}

/// A cache that rows are appended to, and what reads it.
fn cached(dtype: DType, items: usize) -> Graph {
    let mut g = builder();
    let rows = if items == 1 { one_item() } else { rows() };
    let at_shape = Shape::new([(Axis::B, if items == 1 { Dim::from(1) } else { Dim::from(B) })]);
    let x = g.input("x", rows);
    let at = g.input("at", ValueType::new(DType::I32, at_shape));
    let cache = g.state("cache", ValueType::new(dtype, fixed(items, ROOM).shape));
    let a = g.apply(Scale { factor: 2.0 }, &[x]).unwrap();
    let all = g.append(cache, a, at).unwrap();
    g.output("all", all);
    g.finish().unwrap()
}

fn devices() -> Vec<Device> {
    let mut partials = vec![
        Partial::all(),
        Partial::ops(&["unary"]).unwrap(),
        Partial::ops(&["concat", "slice"]).unwrap(),
        Partial::ops(&["binary", "slice", "unary"]).unwrap(),
        Partial::ops(&["append"]).unwrap(),
        Partial::ops(&["append", "scale"]).unwrap(),
    ];
    partials.extend((0..12).map(Partial::random));
    [Device::cpu()].into_iter().chain(partials.into_iter().map(|p| Device::new(Arc::new(p)))).collect()
}

#[test]
fn rolled_and_assigned_states_go_from_run_to_run_however_the_graph_is_cut() {
    let program = Program::new(streaming());
    for device in devices() {
        let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
        let mut states = HashMap::new();
        // Longer and shorter than the cache.
        for (run, t) in [3, 1, 7, 4, 2].into_iter().enumerate() {
            let bindings = Bindings::new().with(T, t);
            let x = noise(run as u64, &[1, t, D]);
            let inputs = [("x", x.view())];
            let expected = run_reference_from(program.graph(), &bindings, &inputs, &[], &mut states).unwrap();
            let outputs = session.run(&bindings, &inputs).unwrap();
            for name in ["y", "total"] {
                assert_close(name, &outputs.get(name).unwrap(), &expected[name]);
            }
            for name in ["left", "sum"] {
                assert_close(name, &session.state(name).unwrap().view(), &states[name]);
            }
        }
        session.reset_states();
        let zeros = Tensor::zeros(DType::F32, &[1, LEFT, D]).unwrap();
        assert_close("left", &session.state("left").unwrap().view(), &zeros);
    }
}

#[test]
fn a_state_lives_in_one_place() {
    let program = Program::new(streaming());
    let whole = program.placed(&Device::new(Arc::new(Partial::all())), &[]).unwrap();
    assert!(whole.placement().is_whole(), "{}", whole.placement());
    // The concat reads the state whose next value is made elsewhere: it stays with the state.
    let cut = program.placed(&Device::new(Arc::new(Partial::ops(&["concat"]).unwrap())), &[]).unwrap();
    assert!(cut.placement().pieces.is_empty(), "{}", cut.placement());
    let why = &cut.placement().refused.iter().find(|r| r.op == "concat").unwrap().why;
    assert!(why.contains("the state left is also used outside"), "{why}");
}

#[test]
fn states_are_saved_restored_and_survive_captures_and_shrinking() {
    let program = Program::new(streaming());
    for device in [Device::cpu(), Device::new(Arc::new(Partial::all()))] {
        let mut session = Session::on(program.clone(), &device, cpu(1)).unwrap();
        let bindings = Bindings::new().with(T, 2);
        let run = |session: &mut Session, seed: u64, captures: &[&str]| {
            let x = noise(seed, &[1, 2, D]);
            let outputs = session.run_capturing(&bindings, &[("x", x.view())], captures).unwrap();
            Tensor::from_view(&outputs.get("y").unwrap())
        };
        run(&mut session, 1, &[]);
        let saved = session.save_states().unwrap();
        let second = run(&mut session, 2, &[]);
        let third = run(&mut session, 3, &["total"]); // another piece on a device: its states move over
        session.restore_states(&saved).unwrap();
        session.shrink();
        assert_close("again", &run(&mut session, 2, &[]).view(), &second);
        assert_close("again", &run(&mut session, 3, &[]).view(), &third);

        let mut other = Session::on(program.clone(), &device, cpu(1)).unwrap();
        other.restore_states(&saved).unwrap();
        assert_close("elsewhere", &run(&mut other, 2, &[]).view(), &second);
    }
}

#[test]
fn rows_are_appended_where_they_belong_and_in_the_type_of_the_state() {
    for (dtype, tolerance) in [(DType::F32, 0.0), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for device in devices() {
            let program = Program::new(cached(dtype, 3));
            let mut session = Session::on(program, &device, cpu(1)).unwrap();
            let mut expected = vec![0.0f32; 3 * ROOM * D];
            // Two items of three, ragged; the second run goes on, the third overwrites a retracted tail.
            for (run, (starts, n)) in [([0, 5], 3), ([3, 8], 2), ([4, 9], 1)].into_iter().enumerate() {
                let x = noise(run as u64, &[2, n, D]);
                let bindings = Bindings::new().with(B, 2).with(T, n);
                let at = TensorView::of(&[2], &starts).unwrap();
                session.run(&bindings, &[("x", x.view()), ("at", at)]).unwrap();
                for (item, start) in starts.iter().enumerate() {
                    let to = (item * ROOM + *start as usize) * D;
                    let from = &x.as_slice::<f32>().unwrap()[item * n * D..(item + 1) * n * D];
                    expected[to..to + n * D].iter_mut().zip(from).for_each(|(e, v)| *e = 2.0 * v);
                }
            }
            let state = session.state("cache").unwrap();
            let mut found = vec![0.0; expected.len()];
            conure_tensor::quant::decode(dtype, TensorView::bytes(&state.view()), &mut found).unwrap();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= tolerance, "{dtype}: {worst}");
        }
    }
}

#[test]
fn a_full_cache_is_an_error_that_says_what_fits_and_changes_nothing() {
    let program = Program::new(cached(DType::F32, 1));
    let mut session = Session::new(program, cpu(1)).unwrap();
    let mut run = |start: i32, n: usize| {
        let x = noise(1, &[1, n, D]);
        let at = [start];
        let at = TensorView::of(&[1], &at).unwrap();
        let result = session.run(&Bindings::new().with(T, n), &[("x", x.view()), ("at", at)]);
        result.map(|_| ()).map_err(|e| e.to_string())
    };
    run(0, ROOM).unwrap();
    for (start, n) in [(1, ROOM), (ROOM as i32, 1), (-1, 1), (i32::MAX, 2)] {
        let error = run(start, n).unwrap_err();
        assert!(error.contains(&format!("state cache: {n} rows from row {start} on do not fit")), "{error}");
        assert!(error.contains("room for 16"), "{error}");
    }
    run(ROOM as i32 - 1, 1).unwrap();
}

#[test]
fn items_of_states_are_reordered() {
    let program = Program::new(cached(DType::F32, 3));
    let mut session = Session::new(program, cpu(1)).unwrap();
    let x = noise(1, &[3, 1, D]);
    let at = TensorView::of(&[3], &[0i32, 0, 0]).unwrap();
    session.run(&Bindings::new().with(B, 3).with(T, 1), &[("x", x.view()), ("at", at)]).unwrap();
    let before = session.state("cache").unwrap();
    session.reorder_states(&[2, 2, 0]).unwrap();
    let after = session.state("cache").unwrap();
    let item = |t: &Tensor, i: usize| t.as_slice::<f32>().unwrap()[i * ROOM * D..(i + 1) * ROOM * D].to_vec();
    for (to, from) in [(0, 2), (1, 2), (2, 0)] {
        assert_eq!(item(&after, to), item(&before, from));
    }
    let error = session.reorder_states(&[0, 3]).unwrap_err().to_string();
    assert!(error.contains("item 1 cannot become item 3"), "{error}");
}

#[test]
fn misused_states_are_refused_when_the_graph_is_built() {
    let mut g = builder();
    let x = g.input("x", one_item());
    let at = g.input("at", ValueType::new(DType::I32, Shape::new([(Axis::B, 1)])));
    let left = g.state("left", fixed(1, LEFT));
    let wide = g.state("wide", ValueType::f32(Shape::new([(Axis::B, 1), (Axis::T, 4), (Axis::D, D + 1)])));
    let cache = g.state("cache", fixed(1, ROOM));
    assert!(g.roll(wide, x).unwrap_err().to_string().contains("wide"), "another width");
    g.roll(left, x).unwrap();
    assert!(g.roll(left, x).unwrap_err().to_string().contains("next value already"));
    assert!(g.append(left, x, at).unwrap_err().to_string().contains("used already"));
    let all = g.append(cache, x, at).unwrap();
    assert!(g.append(cache, x, at).is_err() && g.read_state(cache).is_err() && g.roll(cache, x).is_err());
    g.output("all", all);
    g.finish().unwrap();

    let mut session = Session::new(Program::new(cached(DType::F32, 1)), cpu(1)).unwrap();
    let error = session.state("kv").unwrap_err();
    assert!(
        matches!(error, GraphError::UnknownName { .. }) && error.to_string().contains("cache"),
        "{error}"
    );
    let error = session.set_state("cache", &noise(1, &[1, 2, D]).view()).unwrap_err().to_string();
    assert!(error.contains("cannot become f32 [1, 2, 12]"), "{error}");
}

#[test]
fn a_state_costs_no_memory_before_it_is_written() {
    let mut g = builder();
    let x = g.input("x", one_item());
    let at = g.input("at", ValueType::new(DType::I32, Shape::new([(Axis::B, 1)])));
    // 12 GiB of room: more than a test machine would hand out and keep.
    let room = ValueType::f32(Shape::new([(Axis::B, 1), (Axis::T, 1 << 28), (Axis::D, D)]));
    let cache = g.state("cache", room);
    g.append(cache, x, at).unwrap();
    let y = g.apply(Scale { factor: 2.0 }, &[x]).unwrap();
    g.output("y", y);
    let mut session = Session::new(Program::new(g.finish().unwrap()), cpu(1)).unwrap();
    let x = noise(1, &[1, 1, D]);
    let at = TensorView::of(&[1], &[7i32]).unwrap();
    match session.run(&Bindings::new().with(T, 1), &[("x", x.view()), ("at", at)]) {
        Ok(_) => assert_eq!(session.state_bytes(), (1 << 28) * D * 4),
        // A machine that promises no more than it has.
        Err(e) => assert!(matches!(e, GraphError::StateMemory { .. }), "{e}"),
    }
}
