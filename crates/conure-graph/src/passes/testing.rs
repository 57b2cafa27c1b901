//! What the tests of passes share.

use crate::graph::{Graph, NodeOp};
use crate::reference::run_reference;
use crate::session::{Program, Session};
use conure_kernels::Cpu;
use conure_ops::cases::{Fill, Input};
use conure_tensor::{Bindings, DType, Tensor, TensorView};
use std::sync::Arc;

/// Numbers in -1 .. 1 that repeat on every run.
pub(crate) fn noise(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    Input::f32(shape).typed(dtype).filled(Fill::Uniform(-1.0, 1.0)).tensor(seed).unwrap()
}

/// Nodes of this op, those in tiled bodies included.
pub(crate) fn count(graph: &Graph, op: &str) -> usize {
    let of = |n: &crate::graph::Node| match &n.op {
        NodeOp::TileTime(tile) => count(&tile.body, op),
        _ => usize::from(n.op_name() == op),
    };
    graph.nodes().iter().map(of).sum()
}

/// Sum of squared differences over the sum of squares; NaN and infinity must stand in the same places.
pub(crate) fn nmse(what: &str, found: &TensorView<'_>, expected: &TensorView<'_>) -> f64 {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    if expected.dtype() != DType::F32 {
        assert_eq!(found.bytes(), expected.bytes(), "{what}");
        return 0.0;
    }
    let (mut error, mut size) = (0.0f64, 0.0f64);
    for (f, e) in found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap()) {
        if !e.is_finite() {
            assert!(e.is_nan() && f.is_nan() || e == f, "{what}: {f} for {e}");
            continue;
        }
        error += (f64::from(*f) - f64::from(*e)).powi(2);
        size += f64::from(*e).powi(2);
    }
    if error == 0.0 { 0.0 } else { error / size }
}

/// Holds a rewritten graph to the reference of the original, every output and every name: by its own reference, and planned
/// and run.
pub(crate) fn check(
    what: &str,
    original: &Graph,
    rewritten: &Graph,
    bindings: &Bindings,
    inputs: &[(&str, Tensor)],
    limit: f64,
) {
    assert_eq!(original.node_names().len(), rewritten.node_names().len(), "{what}: names");
    let inputs: Vec<(&str, TensorView<'_>)> = inputs.iter().map(|(n, t)| (*n, t.view())).collect();
    let names = original.node_names();
    let expected = run_reference(original, bindings, &inputs, &names).unwrap();
    let by_reference = run_reference(rewritten, bindings, &inputs, &names).unwrap();
    let program = Program::new(rewritten.clone());
    let mut session = Session::new(program, Arc::new(Cpu::detect(Some(2)).unwrap())).unwrap();
    let outputs = session.run_capturing(bindings, &inputs, &names).unwrap();
    for name in names {
        let expected = expected[name].view();
        let error = nmse(what, &by_reference[name].view(), &expected);
        assert!(error <= limit, "{what}: {name} by reference is off by {error:e}");
        let error = nmse(what, &outputs.get(name).unwrap(), &expected);
        assert!(error <= limit, "{what}: {name} is off by {error:e}");
    }
}
