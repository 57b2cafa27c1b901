//! Random graphs of all ops, run in every way there is: by the references, planned as they are, with all passes, without one of
//! them, taken apart, taken apart and put together again, and cut at random for another device. All must agree, in what they give
//! and in the states that they keep, over several runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod growing;

use common::{B, T, cpu, noise};
use conure_graph::passes::{Decompose, LowerConv, apply};
use conure_graph::{Device, Graph, Partial, Passes, Program, Session, run_reference_from};
use conure_tensor::{Bindings, Tensor, TensorView};
use growing::{KINDS, WIDTHS, grow};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs of a graph, one after the other; its states have room for what they append.
const RUNS: usize = 3;

/// Sum of squared differences over that of squares; what is not finite must be the same.
fn nmse(what: &str, found: &TensorView<'_>, expected: &Tensor) -> f64 {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let (mut error, mut size) = (0.0f64, 1e-30f64);
    for (f, e) in found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap()) {
        if e.is_finite() {
            error += (f64::from(*f) - f64::from(*e)).powi(2);
            size += f64::from(*e).powi(2);
        } else {
            assert!(e.is_nan() && f.is_nan() || e == f, "{what}: {f} for {e}");
        }
    }
    error / size
}

/// The inputs of one run, what it is to give, and the states it is to leave.
struct Inputs {
    bindings: Bindings,
    tensors: Vec<(String, Tensor)>,
    expected: Vec<(String, Tensor)>,
    states: HashMap<String, Tensor>,
}

impl Inputs {
    /// All runs, by the reference.
    fn of(graph: &Graph, t: usize, seed: u64, nan: bool) -> Vec<Inputs> {
        let mut states = HashMap::new();
        let names: Vec<&str> = graph.node_names();
        let run = |i: usize| {
            let mut run = Inputs::new(t, seed + 1000 * i as u64, nan);
            run.tensors.push(("at".to_owned(), Tensor::from_slice(&[1], &[(i * t) as i32]).unwrap()));
            let made = run_reference_from(graph, &run.bindings, &run.views(), &names, &mut states);
            run.expected = made.unwrap().into_iter().collect();
            run.expected.sort_by(|a, b| a.0.cmp(&b.0));
            run.states = states.clone();
            run
        };
        (0..RUNS).map(run).collect()
    }

    fn new(t: usize, seed: u64, nan: bool) -> Inputs {
        let mut x = noise(seed, &[2, t, 8]);
        if nan {
            // In the second item only.
            let at = (2 * t - 1) * 8 + 3;
            x.view_mut().as_mut_slice::<f32>().unwrap()[at] = f32::NAN;
        }
        let lengths = [t as i32, (t / 2) as i32 + 1];
        let mut tensors =
            vec![("x".to_owned(), x), ("lengths".to_owned(), Tensor::from_slice(&[2], &lengths).unwrap())];
        for d in WIDTHS {
            tensors.push((format!("p{d}"), noise(seed + d as u64, &[2 * t - 1, d])));
        }
        let (expected, states) = (Vec::new(), HashMap::new());
        Inputs { bindings: Bindings::new().with(B, 2).with(T, t), tensors, expected, states }
    }

    fn views(&self) -> Vec<(&str, TensorView<'_>)> {
        self.tensors.iter().map(|(n, t)| (n.as_str(), t.view())).collect()
    }
}

/// Holds a graph, planned for a device, to what the original's reference gave in each run. The names are captured in the second
/// run only, which must not move a state.
fn check(what: &str, graph: Graph, device: &Device, runs: &[Inputs], limit: f64) {
    let outputs: Vec<String> = graph.outputs().map(|(n, _)| n.to_owned()).collect();
    let mut session = Session::on(Program::new(graph), device, cpu(2)).unwrap();
    for (i, run) in runs.iter().enumerate() {
        let names: Vec<&str> = run.expected.iter().map(|(n, _)| n.as_str()).filter(|_| i == 1).collect();
        let found = session.run_capturing(&run.bindings, &run.views(), &names).unwrap();
        for (name, expected) in &run.expected {
            if i == 1 || outputs.contains(name) {
                let error = nmse(what, &found.get(name).unwrap(), expected);
                assert!(error <= limit, "{what}: {name} of run {i} is off by {error:e}");
            }
        }
        for (name, expected) in &run.states {
            let error = nmse(what, &session.state(name).unwrap().view(), expected);
            assert!(error <= limit, "{what}: {name} after run {i} is off by {error:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_to_run_a_graph_agrees(
        steps in prop::collection::vec((0usize..KINDS, 0usize..128, 0usize..3), 1..13),
        t in 1usize..24,
        seed in 1u64..1000,
        nan in prop::bool::weighted(0.2),
    ) {
        let (graph, limit) = grow(&steps);
        // Attention that is spelt out multiplies the values of keys that a mask hides by 0, which makes NaN of NaN.
        let nan = nan && steps.iter().all(|&(kind, ..)| kind != 13);
        let runs = Inputs::of(&graph, t, seed, nan);
        let check = |what: &str, graph: Graph, device: &Device| check(what, graph, device, &runs, limit);

        let cpu = Device::cpu();
        let passed = Passes::default().run(graph.clone()).unwrap();
        check("as it is", graph.clone(), &cpu);
        check("with all passes", passed.clone(), &cpu);
        let skipped = Passes::names().nth(seed as usize % Passes::names().count()).unwrap();
        let without = Passes::without(&[skipped]).unwrap().run(graph.clone()).unwrap();
        check(&format!("without {skipped}"), without, &cpu);
        check("cut at random", passed.clone(), &Device::new(Arc::new(Partial::random(seed))));
        check("on a device, whole", passed, &Device::new(Arc::new(Partial::all())));
        // Sums of squares that overflow, 0 times NaN: what is taken apart meets them elsewhere.
        if !nan {
            let ops = ["rel_pos_attention", "sdpa", "glu", "layer_norm", "batch_norm", "linear"];
            let apart = apply(&Decompose::ops(&ops), graph.clone()).unwrap();
            let lowered = apply(&LowerConv, apart).unwrap();
            check("taken apart", lowered.clone(), &cpu);
            check("put together", Passes::default().run(lowered).unwrap(), &cpu);
            let device = Device::new(Arc::new(Partial::random(seed + 1)));
            let fitted = Passes::default().for_device(&device).run(graph).unwrap();
            check("fitted to a device", fitted, &device);
        }
    }
}
