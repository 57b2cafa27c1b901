//! A graph as a model of OpenVINO.

use super::caches::Caches;
use super::emit::{NodeEmit, as_port, output};
use super::options::OpenVinoOptions;
use super::weights::element;
use crate::error::GraphError;
use crate::graph::{Commit, Def, Graph, Node, NodeOp, ValueId};
use crate::weights::Weights;
use conure_device::openvino::ir::{Blob, ModelWriter, Output, Texts};
use conure_device::openvino::{Element, OpenVinoError};
use conure_ops::ValueType;
use conure_ops::openvino::{Cache, Ir, Perm, Port};
use conure_tensor::{Bindings, DType, Dim, Shape, Tensor, TensorView};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a run has to know of a model beside the compiled form.
#[derive(Debug)]
pub(super) struct Lowered {
    /// Lengths that come in as inputs `n0`, `n1`, ... `[1]` i64.
    pub lengths: Vec<Dim>,
    /// Results `r0`, `r1`, ... of the model.
    pub results: Vec<ResultOf>,
    /// Inputs `k0`, `k1`, ... of the model: what a model of its own makes of lengths.
    pub kept: Vec<ResultOf>,
    /// Where each output of the graph comes from, in order.
    pub outputs: Vec<From>,
    /// Where what enters a state comes from, in the order of the graph's commits.
    pub commits: Vec<From>,
    /// Rows and places that are appended to states, once a run has ended well.
    pub appends: Vec<AppendOf>,
    /// Lengths that may not be more, and why.
    pub limits: Vec<(Dim, usize, String)>,
    /// Inputs whose integers must lie in a range, and why.
    pub ranges: Vec<(usize, i32, i32, String)>,
    /// Values whose range every run tells, by name.
    pub watched: Vec<(String, From)>,
    /// The caches of which attention gets columns.
    pub caches: Option<Caches>,
    /// Whether the device keeps these columns.
    pub stateful: bool,
    /// Whether the model serves only runs of the lengths that it was made for.
    pub fixed: bool,
    /// Weights that it uses.
    pub weights: Vec<usize>,
    /// Of these, those that the device has copies of and reads no more.
    copied: Vec<usize>,
    /// Whether some were re-laid: the model holds them in memory of its own, beside the device's copies.
    pub relaid: bool,
}

impl Lowered {
    /// Gives back the pages of weights that the device has copied: a mapped file's are read again by whoever still needs
    /// them.
    pub(super) fn release(&self, weights: &Weights) {
        self.copied.iter().for_each(|&index| weights.release(index));
    }
}

/// What tells one model from another without the bytes of weights.
#[derive(Debug)]
pub(super) struct Outline {
    /// The layers.
    pub text: String,
    /// The bytes of constants that are no weights.
    pub constants: Vec<u8>,
}

/// Where a value that a run needs comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// A result of the model.
    Result(usize),
    /// An input of the graph, as it is: no model is needed for that.
    Input(usize),
    /// A state before the run.
    State(usize),
}

/// A result of a model.
#[derive(Debug)]
pub(super) struct ResultOf {
    pub ty: ValueType,
    pub element: Element,
}

/// An append: rows go to the state, from the places on.
#[derive(Debug)]
pub(super) struct AppendOf {
    pub state: usize,
    pub rows: From,
    pub at: From,
}

/// A model while it is written.
pub(super) struct Lowering<'a> {
    pub writer: ModelWriter,
    pub weights: &'a Arc<Weights>,
    pub options: &'a OpenVinoOptions,
    pub limits: Vec<(Dim, usize, String)>,
    pub ranges: Vec<(usize, i32, i32, String)>,
    pub transposed: HashMap<Port, (Port, Perm)>,
    /// Weights by number and shape.
    pub known_weights: HashMap<(usize, Vec<usize>), Port>,
    /// Weights that are read where their source has them.
    pub in_place: Vec<(usize, Output)>,
    /// The caches of which attention gets columns, as values of the graph that they are, and what is known of them.
    pub columns: HashMap<ValueId, Cache>,
    pub caches: Option<Caches>,
    /// Of the graph's inputs.
    pub input_types: Vec<ValueType>,
    /// The items of a run, `[B]` i32, where the device keeps the columns.
    pub items: Option<Port>,
    /// The lengths of the only runs that the model serves; `None`: it serves any.
    pub fixed: Option<&'a Bindings>,
    lengths: Vec<(Dim, Port)>,
    results: Vec<(Port, ResultOf)>,
    kept: Vec<(Port, ResultOf)>,
    appends: Vec<AppendOf>,
    pub(super) states: Vec<Port>,
    inputs: Vec<Port>,
}

/// Writes `graph`: what a run has to know, the model's texts and its constants.
pub(super) fn lower(
    graph: &Graph,
    options: &OpenVinoOptions,
    fixed: Option<&Bindings>,
) -> Result<(Lowered, Texts, Blob), GraphError> {
    let (lowered, writer) = write(graph, options, fixed, ModelWriter::new())?;
    let (texts, blob) = writer.finish();
    Ok((lowered, texts, blob))
}

/// Writes `graph` without its weights: what a run has to know, and what tells the model from others. A few milliseconds, where
/// re-laying weights takes as long as reading them.
pub(super) fn outline(
    graph: &Graph,
    options: &OpenVinoOptions,
    fixed: Option<&Bindings>,
) -> Result<(Lowered, Outline), GraphError> {
    let (lowered, writer) = write(graph, options, fixed, ModelWriter::outline())?;
    let (text, constants) = writer.finish_outline();
    Ok((lowered, Outline { text, constants }))
}

fn write(
    graph: &Graph,
    options: &OpenVinoOptions,
    fixed: Option<&Bindings>,
    writer: ModelWriter,
) -> Result<(Lowered, ModelWriter), GraphError> {
    let mut lowering = Lowering {
        writer,
        weights: &graph.weights,
        options,
        limits: Vec::new(),
        ranges: Vec::new(),
        transposed: HashMap::new(),
        known_weights: HashMap::new(),
        in_place: Vec::new(),
        columns: HashMap::new(),
        caches: Caches::of(graph),
        input_types: graph.inputs.iter().map(|id| graph.values[id.index()].ty.clone()).collect(),
        items: None,
        fixed,
        lengths: Vec::new(),
        results: Vec::new(),
        kept: Vec::new(),
        appends: Vec::new(),
        states: Vec::new(),
        inputs: Vec::new(),
    };
    let mut values = HashMap::new();
    for (i, &id) in graph.inputs.iter().enumerate() {
        let port = lowering.parameter(&format!("i{i}"), &graph.values[id.index()].ty)?;
        lowering.inputs.push(port);
        values.insert(id, port);
    }
    for (i, state) in graph.states.iter().enumerate() {
        let port = match lowering.caches.as_ref().is_some_and(|c| c.states.contains(&i)) {
            true => lowering.cache(&format!("s{i}"), &state.ty)?,
            false => lowering.parameter(&format!("s{i}"), &state.ty)?,
        };
        lowering.states.push(port);
    }
    for (i, value) in graph.values.iter().enumerate() {
        if let Def::State(state) = value.def {
            let id = ValueId(u32::try_from(i).unwrap_or(u32::MAX));
            values.insert(id, lowering.states[state]);
        }
    }
    lowering.nodes(graph, &mut values, true)?;
    let mut results = |ids: &mut dyn Iterator<Item = ValueId>| {
        ids.map(|id| lowering.result(graph, &values, id)).collect::<Result<Vec<_>, _>>()
    };
    let outputs = results(&mut graph.outputs.iter().map(|&(_, v)| v))?;
    let commits = results(&mut graph.commits.iter().map(Commit::value))?;
    let named = |name: &String| {
        let at = graph.values.iter().position(|v| v.name.as_ref() == Some(name))?;
        let id = ValueId(u32::try_from(at).ok()?);
        matches!(graph.values[at].def, Def::Node(..)).then(|| (name.clone(), id))
    };
    let watched: Vec<(String, ValueId)> = options.debug_nodes.iter().filter_map(named).collect();
    let values = results(&mut watched.iter().map(|(_, v)| *v))?;
    let watched = watched.into_iter().map(|(name, _)| name).zip(values).collect();
    Ok(lowering.finish(outputs, commits, watched))
}

impl Lowering<'_> {
    fn finish(
        mut self,
        outputs: Vec<From>,
        commits: Vec<From>,
        watched: Vec<(String, From)>,
    ) -> (Lowered, ModelWriter) {
        for (i, (port, _)) in self.results.iter().enumerate() {
            self.writer.result(&format!("r{i}"), output(*port));
        }
        let weights: BTreeSet<usize> = self.known_weights.keys().map(|&(index, _)| index).collect();
        let read: BTreeSet<usize> = self
            .in_place
            .iter()
            .filter(|(_, constant)| !self.writer.is_only_multiplied(*constant))
            .map(|&(index, _)| index)
            .collect();
        let in_place: BTreeSet<usize> = self.in_place.iter().map(|&(index, _)| index).collect();
        let lowered = Lowered {
            relaid: weights.difference(&in_place).next().is_some(),
            lengths: self.lengths.into_iter().map(|(d, _)| d).collect(),
            results: self.results.into_iter().map(|(_, r)| r).collect(),
            kept: self.kept.into_iter().map(|(_, k)| k).collect(),
            outputs,
            commits,
            stateful: self.items.is_some(),
            fixed: self.fixed.is_some(),
            caches: self.caches,
            appends: self.appends,
            limits: self.limits,
            ranges: self.ranges,
            watched,
            copied: weights.difference(&read).copied().collect(),
            weights: weights.into_iter().collect(),
        };
        (lowered, self.writer)
    }

    fn parameter(&mut self, name: &str, ty: &ValueType) -> Result<Port, GraphError> {
        let element = element(ty.dtype).ok_or_else(|| GraphError::Build {
            what: format!("{name} is {ty}, which OpenVINO does not take as an input"),
        })?;
        let dims: Vec<Option<usize>> = ty.shape.iter().map(|(_, d)| self.known(d)).collect();
        Ok(as_port(self.writer.parameter(name, element, &dims)))
    }

    /// A length, if all runs have it.
    pub(super) fn known(&self, length: &Dim) -> Option<usize> {
        match self.fixed {
            Some(bindings) => length.eval(bindings).ok(),
            None => length.as_constant(),
        }
    }

    /// A length that runs decide: an input of the model, once per expression.
    pub(super) fn length(&mut self, length: &Dim) -> Result<Port, OpenVinoError> {
        if let Some(n) = self.known(length) {
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            return self.writer.literal(Element::I64, &[1], &n.to_le_bytes()).map(as_port);
        }
        if let Some((_, port)) = self.lengths.iter().find(|(d, _)| d == length) {
            return Ok(*port);
        }
        let name = format!("n{}", self.lengths.len());
        let port = as_port(self.writer.parameter(&name, Element::I64, &[Some(1)]));
        self.lengths.push((length.clone(), port));
        Ok(port)
    }

    /// An f32 value that lengths alone decide, as an input that is computed when they change. A model of fixed lengths has it among its
    /// constants anyway.
    pub(super) fn keep(&mut self, value: Port, shape: &Shape) -> Port {
        let lengths: Vec<Output> = self.lengths.iter().map(|(_, port)| output(*port)).collect();
        if self.fixed.is_some() || !self.writer.is_decided_by(output(value), &lengths) {
            return value;
        }
        let dims: Vec<Option<usize>> = shape.iter().map(|(_, d)| self.known(d)).collect();
        let name = format!("k{}", self.kept.len());
        let input = as_port(self.writer.keep(&name, Element::F32, &dims, output(value)));
        if self.kept.iter().all(|(known, _)| *known != input) {
            let ty = ValueType::new(DType::F32, shape.clone());
            self.kept.push((input, ResultOf { ty, element: Element::F32 }));
        }
        input
    }

    pub(super) fn constant(&mut self, tensor: &Arc<Tensor>, shape: &[usize]) -> Result<Port, OpenVinoError> {
        let view = tensor.view();
        let refuse = || OpenVinoError::Call {
            call: "constant",
            message: format!("a constant of {} has no OpenVINO form", view.dtype()),
        };
        let element = element(view.dtype()).ok_or_else(refuse)?;
        self.writer.literal(element, shape, TensorView::bytes(&view)).map(as_port)
    }

    fn nodes(
        &mut self,
        graph: &Graph,
        values: &mut HashMap<ValueId, Port>,
        outermost: bool,
    ) -> Result<(), GraphError> {
        for node in &graph.nodes {
            self.writer.set_prefix(&node.path);
            let ports: Vec<Port> = match &node.op {
                NodeOp::Op(_) => self.op(graph, node, values, outermost)?,
                NodeOp::TileTime(tile) => {
                    // Run whole: the device plans its own memory.
                    let mut inner = HashMap::new();
                    for (&inside, outside) in tile.body.inputs.iter().zip(&node.inputs) {
                        inner.insert(inside, port_of(values, *outside, node)?);
                    }
                    self.nodes(&tile.body, &mut inner, false)?;
                    let y = tile.body.outputs.first().map(|&(_, v)| v);
                    let y =
                        y.ok_or_else(|| GraphError::Build { what: "a tiled body without output".into() })?;
                    vec![port_of(&inner, y, node)?]
                }
                NodeOp::Append(state) => vec![self.append(graph, node, *state, values)?],
                NodeOp::Piece(_) => {
                    return Err(GraphError::Build { what: "a piece in a piece".into() });
                }
            };
            values.extend(node.outputs.iter().copied().zip(ports));
        }
        Ok(())
    }

    fn op(
        &mut self,
        graph: &Graph,
        node: &Node,
        values: &mut HashMap<ValueId, Port>,
        outermost: bool,
    ) -> Result<Vec<Port>, GraphError> {
        let NodeOp::Op(op) = &node.op else { return Ok(Vec::new()) };
        let failed = |source| GraphError::Op { path: node.path.clone(), source };
        let types: Vec<&ValueType> = node.inputs.iter().map(|v| &graph.values[v.index()].ty).collect();
        let outputs: Vec<ValueType> =
            node.outputs.iter().map(|v| graph.values[v.index()].ty.clone()).collect();
        let lowering = op.openvino().ok_or_else(|| GraphError::Build {
            what: format!("{} at {} has no OpenVINO form", op.name(), node.path),
        })?;
        let mut emit = NodeEmit { lowering: self, graph, node, values, outermost };
        let ports = lowering.lower(&mut Ir::new(&mut emit, &types, &outputs)).map_err(failed)?;
        Ok(ports.into_vec())
    }

    /// Rows in their places, the state elsewhere. The state itself gets the rows when the run has ended.
    ///
    /// ```text
    ///   rows [B, N, ..] ─▶ gather(row - at[b], kept within) ─▶ [B, C, ..] ─┐
    ///   state [C0, C, ..] ─────────────────────────────────────────────────┴▶ select: is the row one of the new?
    /// ```
    fn append(
        &mut self,
        graph: &Graph,
        node: &Node,
        state: usize,
        values: &mut HashMap<ValueId, Port>,
    ) -> Result<Port, GraphError> {
        let (Some(&rows), Some(&at)) = (node.inputs.first(), node.inputs.get(1)) else {
            return Err(GraphError::Build { what: "append takes rows and places".into() });
        };
        let of =
            AppendOf { state, rows: self.result(graph, values, rows)?, at: self.result(graph, values, at)? };
        self.appends.push(of);
        if self.caches.is_some() {
            return self.columns(graph, node, state, values);
        }
        let outputs: Vec<ValueType> =
            node.outputs.iter().map(|v| graph.values[v.index()].ty.clone()).collect();
        let types: Vec<&ValueType> = node.inputs.iter().map(|v| &graph.values[v.index()].ty).collect();
        let state_port = self.states[state];
        let failed = |source| GraphError::Op { path: node.path.clone(), source };
        let mut emit = NodeEmit { lowering: self, graph, node, values, outermost: true };
        conure_ops::openvino::append(&mut Ir::new(&mut emit, &types, &outputs), state_port).map_err(failed)
    }

    /// What gives a value: a result of the model, made if there is none yet, unless it is there without the model.
    fn result(
        &mut self,
        graph: &Graph,
        values: &HashMap<ValueId, Port>,
        id: ValueId,
    ) -> Result<From, GraphError> {
        let value = &graph.values[id.index()];
        let missing =
            || GraphError::Build { what: format!("{:?} is asked for and not computed", value.name) };
        let port = match &value.def {
            Def::Constant(tensor) => {
                let shape: Option<Vec<usize>> = value.ty.shape.iter().map(|(_, d)| d.as_constant()).collect();
                let made = self.constant(tensor, &shape.unwrap_or_default());
                made.map_err(|e| GraphError::Build { what: e.to_string() })?
            }
            _ => values.get(&id).copied().ok_or_else(missing)?,
        };
        let at = |ports: &[Port]| ports.iter().position(|p| *p == port);
        if let Some(from) = at(&self.inputs).map(From::Input).or_else(|| at(&self.states).map(From::State)) {
            return Ok(from);
        }
        if let Some(at) = self.results.iter().position(|(p, _)| *p == port) {
            return Ok(From::Result(at));
        }
        let element = element(value.ty.dtype).ok_or_else(missing)?;
        self.results.push((port, ResultOf { ty: value.ty.clone(), element }));
        Ok(From::Result(self.results.len() - 1))
    }
}

pub(super) fn build(error: OpenVinoError) -> GraphError {
    GraphError::Build { what: error.to_string() }
}

pub(super) fn port_of(values: &HashMap<ValueId, Port>, id: ValueId, node: &Node) -> Result<Port, GraphError> {
    let missing = || GraphError::Build { what: format!("an input of {} has not been computed", node.path) };
    values.get(&id).copied().ok_or_else(missing)
}
