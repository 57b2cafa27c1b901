//! What passes are made of: looking at a graph from a node backwards, and building the graph anew with other nodes in it.

use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, Value, ValueId};
use conure_ops::{Op, ValueType};
use conure_tensor::{Bindings, DType, Shape, Tensor, TensorView, quant, tensor_bytes};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// A graph that is being built from another, node by node in the order in which they run.
///
/// A pass looks at the old graph ([`Rewriter::op`], [`Rewriter::only_use`]) and either lets a node be copied or builds
/// something in its place. A pattern is replaced where its *last* node stands: what it read is there by then, and the nodes
/// before the last are dropped at the end, as nobody reads them any more.
///
/// ```text
///   a ── Linear ── Glu ── y          Linear is copied; at Glu, Linear{glu} is built from a, and y becomes its output;
///   a ── Linear{glu} ── y            the copied Linear has no reader left and goes
/// ```
#[derive(Debug)]
pub struct Rewriter<'g> {
    old: &'g Graph,
    /// How often each old value is read, and once more for every name and output it carries.
    reads: Vec<usize>,
    new: Graph,
    /// The new value of each old one.
    map: Vec<Option<ValueId>>,
}

impl<'g> Rewriter<'g> {
    /// Rebuilds `graph`: `build` is called for every node, with its number, and returns whether it replaced the node (then it
    /// has called [`Rewriter::replace`] for each output that is needed) or wants it copied.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn run(
        graph: &'g Graph,
        mut build: impl FnMut(&mut Rewriter<'g>, usize) -> Result<bool, GraphError>,
    ) -> Result<Graph, GraphError> {
        let mut reads = vec![0; graph.values.len()];
        let read = graph.nodes.iter().flat_map(|n| &n.inputs).copied();
        let kept = graph.names.values().copied().chain(graph.wanted(&[]));
        read.chain(kept).for_each(|v| reads[v.index()] += 1);
        let mut new = Graph::empty(graph.weights.clone());
        new.states = graph.states.clone();
        new.pads = graph.pads.clone();
        let map = vec![None; graph.values.len()];
        let mut r = Rewriter { old: graph, reads, new, map };
        for (i, value) in graph.values.iter().enumerate() {
            if !matches!(value.def, Def::Node(..)) {
                let id = r.push(value.clone());
                r.map[i] = Some(id);
                if matches!(value.def, Def::Input(_)) {
                    r.new.inputs.push(id);
                }
            }
        }
        for index in 0..graph.nodes.len() {
            if !build(&mut r, index)? {
                r.copy(index)?;
            }
        }
        r.finish()
    }

    fn push(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.new.values.len()).unwrap_or(u32::MAX));
        self.new.values.push(value);
        id
    }

    fn fault(&self, what: impl Into<String>) -> GraphError {
        GraphError::Build { what: format!("a rewrite: {}", what.into()) }
    }

    fn copy(&mut self, index: usize) -> Result<(), GraphError> {
        let node = &self.old.nodes[index];
        let inputs = node.inputs.iter().map(|&v| self.new_of(v)).collect::<Result<SmallVec<_>, _>>()?;
        let types: Vec<ValueType> =
            node.outputs.iter().map(|v| self.old.values[v.index()].ty.clone()).collect();
        let outputs = self.node(node.op.clone(), inputs, types, &node.path);
        for (&old, new) in node.outputs.iter().zip(outputs) {
            self.map[old.index()] = Some(new);
        }
        Ok(())
    }

    fn node(
        &mut self,
        op: NodeOp,
        inputs: SmallVec<[ValueId; 6]>,
        types: impl IntoIterator<Item = ValueType>,
        path: &str,
    ) -> SmallVec<[ValueId; 2]> {
        let node = self.new.nodes.len();
        let outputs: SmallVec<[ValueId; 2]> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.push(Value { ty, name: None, def: Def::Node(node, i) }))
            .collect();
        self.new.nodes.push(Node { op, inputs, outputs: outputs.clone(), path: path.to_owned() });
        outputs
    }

    // ---- looking at the old graph

    /// The graph that is rewritten.
    pub fn old(&self) -> &'g Graph {
        self.old
    }

    /// Node `index`.
    pub fn old_node(&self, index: usize) -> &'g Node {
        &self.old.nodes[index]
    }

    /// The op of node `index` if it is of this type.
    pub fn op<T: Op>(&self, index: usize) -> Option<&'g T> {
        match &self.old.nodes[index].op {
            NodeOp::Op(op) => op.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// The node that makes an old value.
    pub fn producer(&self, v: ValueId) -> Option<usize> {
        match self.old.values[v.index()].def {
            Def::Node(n, _) => Some(n),
            _ => None,
        }
    }

    /// The node that makes `v`, if its op is of this type.
    pub fn made_by<T: Op>(&self, v: ValueId) -> Option<(usize, &'g T)> {
        let n = self.producer(v)?;
        Some((n, self.op::<T>(n)?))
    }

    /// As [`Rewriter::made_by`], if nothing else reads `v` and it carries no name: a pattern may swallow it.
    pub fn inner<T: Op>(&self, v: ValueId) -> Option<(usize, &'g T)> {
        if self.only_use(v) { self.made_by(v) } else { None }
    }

    /// Whether an old value is read exactly once, has no name and is no output.
    pub fn only_use(&self, v: ValueId) -> bool {
        self.reads[v.index()] == 1 && self.unnamed(v)
    }

    /// Whether an old value has no name and is no output, however often it is read.
    pub fn unnamed(&self, v: ValueId) -> bool {
        !self.old.names.values().any(|&n| n == v) && !self.old.wanted(&[]).contains(&v)
    }

    /// Whether an old value, or a view of it, has a name or is an output.
    pub fn seen_outside(&self, v: ValueId) -> bool {
        let views = self.old.nodes.iter().filter(|n| n.inputs.first() == Some(&v));
        let mut views = views.filter(|n| matches!(&n.op, NodeOp::Op(op) if op.is_view()));
        !self.unnamed(v) || views.any(|n| n.outputs.iter().any(|&o| self.seen_outside(o)))
    }

    /// The one node that reads an old value that [`Rewriter::only_use`] holds for.
    pub fn reader(&self, v: ValueId) -> Option<usize> {
        self.old.nodes.iter().position(|n| n.inputs.contains(&v))
    }

    /// Whether an old value is the same in every run: a weight or a constant.
    pub fn is_static(&self, v: ValueId) -> bool {
        matches!(self.old.values[v.index()].def, Def::Weight(_) | Def::Constant(_))
    }

    /// The numbers of an old weight or constant; `None` of a computed value.
    ///
    /// # Errors
    /// Bytes that are not what the type says.
    pub fn stored_values(&self, v: ValueId) -> Result<Option<Vec<f32>>, GraphError> {
        let Some(view) = stored(self.old, v)? else { return Ok(None) };
        let mut out = vec![0.0; view.elements()];
        quant::decode(view.dtype(), view.bytes(), &mut out)
            .map_err(|e| self.fault(format!("a weight of {}: {e}", self.old_ty(v))))?;
        Ok(Some(out))
    }

    /// Type of an old value.
    pub fn old_ty(&self, v: ValueId) -> &'g ValueType {
        &self.old.values[v.index()].ty
    }

    // ---- building the new one

    /// The new value of an old one that was made already.
    ///
    /// # Errors
    /// [`GraphError::Build`] if it was not: a fault of the pass.
    pub fn new_of(&self, old: ValueId) -> Result<ValueId, GraphError> {
        self.map
            .get(old.index())
            .copied()
            .flatten()
            .ok_or_else(|| self.fault(format!("value {} is read before it is made", old.0)))
    }

    /// Type of a new value.
    pub fn new_ty(&self, v: ValueId) -> &ValueType {
        &self.new.values[v.index()].ty
    }

    /// Whether a new value is a weight or a constant.
    pub fn is_new_static(&self, v: ValueId) -> bool {
        matches!(self.new.values[v.index()].def, Def::Weight(_) | Def::Constant(_))
    }

    /// The bytes of a new weight or constant; `None` of a computed value.
    ///
    /// # Errors
    /// Bytes that are not what the type says.
    pub fn new_stored(&self, v: ValueId) -> Result<Option<TensorView<'_>>, GraphError> {
        stored(&self.new, v)
    }

    /// A fixed tensor.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let ty = ValueType::new(tensor.dtype(), Shape::fixed(tensor.shape()));
        self.push(Value { ty, name: None, def: Def::Constant(Arc::new(tensor)) })
    }

    /// An old weight or constant under another shape: the same bytes, with no node in between.
    ///
    /// # Errors
    /// [`GraphError::Build`] if `old` is neither, has another number of elements, or its blocks do not fill the new rows.
    pub fn reshaped_weight(&mut self, old: ValueId, shape: &[usize]) -> Result<ValueId, GraphError> {
        self.reshaped(self.new_of(old)?, shape)
    }

    /// As [`Rewriter::reshaped_weight`], of a new weight or constant.
    ///
    /// # Errors
    /// As [`Rewriter::reshaped_weight`].
    pub fn reshaped(&mut self, v: ValueId, shape: &[usize]) -> Result<ValueId, GraphError> {
        let value = &self.new.values[v.index()];
        let lengths = Shape::fixed(shape);
        if value.ty.shape.elements() != lengths.elements() || !fills_rows(value.ty.dtype, shape) {
            return Err(self.fault(format!("{} does not become {lengths}", value.ty)));
        }
        let ty = ValueType::new(value.ty.dtype, lengths);
        let def = match &value.def {
            Def::Weight(index) => Def::Weight(*index),
            Def::Constant(t) => {
                let view = t.view();
                let view = view
                    .reshape(shape)
                    .map_err(|source| GraphError::Tensor { path: "a rewrite".into(), source })?;
                Def::Constant(Arc::new(Tensor::from_view(&view)))
            }
            _ => return Err(self.fault("a weight was expected, found a computed value")),
        };
        let name = value.name.clone();
        Ok(self.push(Value { ty, name, def }))
    }

    /// Applies an op of one output to new values.
    ///
    /// # Errors
    /// What does not fit, with `path`.
    pub fn apply(&mut self, op: impl Op, inputs: &[ValueId], path: &str) -> Result<ValueId, GraphError> {
        let outputs = self.apply_all(Arc::new(op), inputs, path)?;
        match outputs.as_slice() {
            [one] => Ok(*one),
            many => Err(self.fault(format!("an op with {} outputs at {path}", many.len()))),
        }
    }

    /// Applies an op of one output to the inputs of old node `index`, under its path.
    ///
    /// # Errors
    /// What does not fit.
    pub fn apply_like(&mut self, index: usize, op: impl Op) -> Result<ValueId, GraphError> {
        let node = &self.old.nodes[index];
        let inputs = node.inputs.iter().map(|&v| self.new_of(v)).collect::<Result<Vec<_>, _>>()?;
        self.apply(op, &inputs, &node.path)
    }

    /// Applies an op to new values.
    ///
    /// # Errors
    /// What does not fit, with `path`.
    pub fn apply_all(
        &mut self,
        op: Arc<dyn Op>,
        inputs: &[ValueId],
        path: &str,
    ) -> Result<SmallVec<[ValueId; 2]>, GraphError> {
        let inferred = {
            let types: SmallVec<[&ValueType; 8]> = inputs.iter().map(|&v| self.new_ty(v)).collect();
            op.infer(&types).map_err(|source| GraphError::Op { path: path.to_owned(), source })?
        };
        Ok(self.node(NodeOp::Op(op), SmallVec::from_slice(inputs), inferred, path))
    }

    /// Says that `new` is what `old` was.
    ///
    /// # Errors
    /// [`GraphError::Build`] if it is of another type or shape.
    pub fn replace(&mut self, old: ValueId, new: ValueId) -> Result<(), GraphError> {
        let (was, is) = (&self.old.values[old.index()].ty, self.new_ty(new));
        if was.dtype != is.dtype || !was.shape.same_lengths(&is.shape) {
            return Err(self.fault(format!("{was} became {is}")));
        }
        self.map[old.index()] = Some(new);
        Ok(())
    }

    /// The new graph, without nodes that nobody needs, its values numbered in the order in which they are made.
    fn finish(mut self) -> Result<Graph, GraphError> {
        let mut named: Vec<(&String, ValueId)> = Vec::new();
        for (name, &old) in &self.old.names {
            named.push((name, self.new_of(old)?));
        }
        let names: HashMap<String, ValueId> = named.into_iter().map(|(n, v)| (n.clone(), v)).collect();
        for (i, value) in self.old.values.iter().enumerate() {
            if let (Some(name), Some(new), Def::Node(..)) = (&value.name, self.map[i], &value.def) {
                self.new.values[new.index()].name.get_or_insert_with(|| name.clone());
            }
        }
        for (name, old) in &self.old.outputs {
            let new = self.new_of(*old)?;
            self.new.outputs.push((name.clone(), new));
        }
        for commit in &self.old.commits {
            let value = self.new_of(commit.value())?;
            self.new.commits.push(commit.with(commit.state(), value));
        }
        self.new.names = names;
        Ok(compact(self.new))
    }
}

/// Whether numbers of this type can lie in rows of this shape: those of a block format come in whole blocks.
pub(super) fn fills_rows(dtype: DType, shape: &[usize]) -> bool {
    tensor_bytes(dtype, shape).is_some()
}

/// The bytes of a weight or constant of fixed lengths.
fn stored(graph: &Graph, v: ValueId) -> Result<Option<TensorView<'_>>, GraphError> {
    let value = &graph.values[v.index()];
    match &value.def {
        Def::Constant(t) => Ok(Some(t.view())),
        Def::Weight(index) => {
            let Ok(dims) = value.ty.shape.eval(&Bindings::new()) else { return Ok(None) };
            let path = value.name.clone().unwrap_or_default();
            TensorView::new(value.ty.dtype, &dims, graph.weights.bytes(*index))
                .map(Some)
                .map_err(|source| GraphError::Tensor { path, source })
        }
        _ => Ok(None),
    }
}

/// Drops nodes and values that nothing wanted needs, and numbers the rest anew.
fn compact(graph: Graph) -> Graph {
    let mut needed = vec![false; graph.nodes.len()];
    let mut used = vec![false; graph.values.len()];
    let mut stack: Vec<ValueId> = graph.wanted(&[]);
    stack.extend(graph.names.values().copied());
    stack.extend(graph.inputs.iter().copied());
    while let Some(v) = stack.pop() {
        used[v.index()] = true;
        if let Def::Node(n, _) = graph.values[v.index()].def
            && !std::mem::replace(&mut needed[n], true)
        {
            stack.extend(graph.nodes[n].inputs.iter().chain(&graph.nodes[n].outputs).copied());
        }
    }
    let mut ids: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut numbers: Vec<usize> = vec![0; graph.nodes.len()];
    let mut out = Graph { pads: graph.pads, ..Graph::empty(graph.weights) };
    let mut count = 0;
    for (i, n) in needed.iter().enumerate() {
        numbers[i] = count;
        count += usize::from(*n);
    }
    for (i, value) in graph.values.into_iter().enumerate().filter(|(i, _)| used[*i]) {
        ids[i] = Some(ValueId(u32::try_from(out.values.len()).unwrap_or(u32::MAX)));
        let def = match value.def {
            Def::Node(n, o) => Def::Node(numbers[n], o),
            other => other,
        };
        out.values.push(Value { def, ..value });
    }
    // Everything that is read was marked as used above.
    let id = |v: ValueId| ids[v.index()].unwrap_or(v);
    for (node, _) in graph.nodes.into_iter().zip(&needed).filter(|(_, n)| **n) {
        out.nodes.push(Node {
            inputs: node.inputs.iter().map(|&v| id(v)).collect(),
            outputs: node.outputs.iter().map(|&v| id(v)).collect(),
            ..node
        });
    }
    out.inputs = graph.inputs.into_iter().map(id).collect();
    out.outputs = graph.outputs.into_iter().map(|(n, v)| (n, id(v))).collect();
    out.states = graph.states;
    out.commits = graph.commits.iter().map(|c| c.with(c.state(), id(c.value()))).collect();
    out.names = graph.names.into_iter().map(|(n, v)| (n, id(v))).collect();
    out
}
