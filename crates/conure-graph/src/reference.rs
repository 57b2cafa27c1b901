//! Running a graph by the references of its ops: slow, obvious, and what every plan is held to.

use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, TileTime};
use crate::states::{append, check_commit, commit};
use conure_ops::Op;
use conure_tensor::{Bindings, Tensor, TensorMut, TensorView};
use std::collections::HashMap;

/// Computes the outputs of `graph` and the nodes named in `captures` by the ops' references, each value in memory of its
/// own. A tiled node runs its body on the whole input: that is what tiling must not change.
///
/// # Errors
/// As a session's run.
pub fn run_reference(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[(&str, TensorView<'_>)],
    captures: &[&str],
) -> Result<HashMap<String, Tensor>, GraphError> {
    run_reference_from(graph, bindings, inputs, captures, &mut HashMap::new())
}

/// As [`run_reference`], from these states on; one that is not in `states` is zeros. They are left as the run leaves them.
///
/// # Errors
/// As a session's run.
pub fn run_reference_from(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[(&str, TensorView<'_>)],
    captures: &[&str],
    states: &mut HashMap<String, Tensor>,
) -> Result<HashMap<String, Tensor>, GraphError> {
    for def in &graph.states {
        if !states.contains_key(&def.name) {
            let zeros = Tensor::zeros(def.ty.dtype, &def.dims());
            states.insert(def.name.clone(), zeros.map_err(|source| at(&Some(def.name.clone()), source))?);
        }
    }
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (i, value) in graph.values.iter().enumerate() {
        values[i] = match &value.def {
            Def::Input(_) => {
                let name = value.name.clone().unwrap_or_default();
                let found = inputs.iter().find(|(n, _)| *n == name);
                Some(Tensor::from_view(&found.ok_or(GraphError::MissingInput { name })?.1))
            }
            Def::Weight(index) => {
                let dims = eval(graph, i, bindings)?;
                let view = TensorView::new(value.ty.dtype, &dims, graph.weights.bytes(*index));
                Some(Tensor::from_view(&view.map_err(|source| at(&value.name, source))?))
            }
            Def::Constant(t) => Some(t.as_ref().clone()),
            Def::State(index) => states.get(&graph.states[*index].name).cloned(),
            Def::Node(..) | Def::Inside => None,
        };
    }
    for node in &graph.nodes {
        run_node(graph, node, bindings, &mut values, states)?;
    }
    for change in &graph.commits {
        if let Some(value) = &values[change.value().index()] {
            check_commit(&graph.states[change.state()], change, value.dtype(), value.shape())?;
        }
    }
    for change in &graph.commits {
        let def = &graph.states[change.state()];
        if let (Some(state), Some(value)) = (states.get_mut(&def.name), &values[change.value().index()]) {
            commit(state.view_mut().bytes_mut(), def, change, &value.view())?;
        }
    }
    let mut wanted: Vec<(String, usize)> =
        graph.outputs.iter().map(|(n, v)| (n.clone(), v.index())).collect();
    for name in captures {
        wanted.push(((*name).to_owned(), graph.named(name)?.index()));
    }
    Ok(wanted.into_iter().filter_map(|(n, v)| Some((n, values[v].clone()?))).collect())
}

fn at(name: &Option<String>, source: conure_tensor::TensorError) -> GraphError {
    GraphError::Tensor { path: name.clone().unwrap_or_default(), source }
}

fn eval(graph: &Graph, value: usize, bindings: &Bindings) -> Result<Vec<usize>, GraphError> {
    let value = &graph.values[value];
    let dims = value
        .ty
        .shape
        .eval(bindings)
        .map_err(|source| GraphError::Dim { path: value.name.clone().unwrap_or_default(), source })?;
    Ok(dims.to_vec())
}

fn run_node(
    graph: &Graph,
    node: &Node,
    bindings: &Bindings,
    values: &mut [Option<Tensor>],
    states: &mut HashMap<String, Tensor>,
) -> Result<(), GraphError> {
    let mut outputs = Vec::new();
    for v in &node.outputs {
        let dims = eval(graph, v.index(), bindings)?;
        let dtype = graph.values[v.index()].ty.dtype;
        outputs.push(Tensor::zeros(dtype, &dims).map_err(|source| at(&Some(node.path.clone()), source))?);
    }
    let inputs: Vec<&Tensor> = node.inputs.iter().filter_map(|v| values[v.index()].as_ref()).collect();
    match &node.op {
        NodeOp::Op(op) => run_op(op.as_ref(), node, &inputs, &mut outputs)?,
        NodeOp::TileTime(tile) => outputs[0] = run_whole(tile, bindings, &inputs)?,
        NodeOp::Append(index) => {
            let def = &graph.states[*index];
            if let (Some(state), [rows, at]) = (states.get_mut(&def.name), inputs.as_slice()) {
                append(state.view_mut().bytes_mut(), def, &rows.view(), &at.view())?;
                outputs[0] = state.clone();
            }
        }
        NodeOp::Piece(piece) => {
            let names: Vec<String> = piece.graph.inputs().map(|(n, _)| n.to_owned()).collect();
            let given: Vec<(&str, TensorView<'_>)> =
                names.iter().map(String::as_str).zip(inputs.iter().map(|t| t.view())).collect();
            let mut made = run_reference_from(&piece.graph, bindings, &given, &[], states)?;
            for (i, (name, _)) in piece.graph.outputs().enumerate() {
                if let Some(tensor) = made.remove(name) {
                    outputs[i] = tensor;
                }
            }
        }
    }
    for (v, tensor) in node.outputs.iter().zip(outputs) {
        values[v.index()] = Some(tensor);
    }
    Ok(())
}

fn run_op(op: &dyn Op, node: &Node, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<(), GraphError> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(|t| t.view()).collect();
    let mut views_mut: Vec<TensorMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
    op.reference(&views, &mut views_mut).map_err(|source| GraphError::Op { path: node.path.clone(), source })
}

fn run_whole(tile: &TileTime, bindings: &Bindings, inputs: &[&Tensor]) -> Result<Tensor, GraphError> {
    let [x, lengths] = inputs else {
        return Err(GraphError::Build { what: "tile_time takes x and lengths".into() });
    };
    let inputs = [("x", x.view()), ("lengths", lengths.view())];
    let mut outputs = run_reference(&tile.body, bindings, &inputs, &[])?;
    outputs.remove("y").ok_or_else(|| GraphError::Build { what: "the body of tile_time has no y".into() })
}
