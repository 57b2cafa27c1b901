//! Building graphs: values in, ops applied, names given.

use crate::error::GraphError;
use crate::graph::{Commit, Def, Graph, Node, NodeOp, StateDef, TileTime, Value, ValueId};
use crate::weights::Weights;
use conure_ops::{Op, ValueType};
use conure_tensor::{Bindings, DType, Shape, Symbol, Tensor};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A state of the graph that is being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(usize);

/// Builds a [`Graph`]: every method appends, nothing is changed later, so the order of building is an order to run in.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    scope: Vec<String>,
    weight_values: HashMap<(usize, Vec<usize>), ValueId>,
}

impl GraphBuilder {
    /// An empty graph over `weights`.
    pub fn new(weights: Arc<Weights>) -> GraphBuilder {
        GraphBuilder { graph: Graph::empty(weights), scope: Vec::new(), weight_values: HashMap::new() }
    }

    /// The weights the graph is built over.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.graph.weights
    }

    /// The current path: the scopes joined by dots.
    pub fn path(&self) -> String {
        self.scope.join(".")
    }

    /// Builds within a scope: paths and weight names inside start with `name`.
    ///
    /// # Errors
    /// What `build` returns.
    pub fn scoped<R, E>(
        &mut self,
        name: &str,
        build: impl FnOnce(&mut GraphBuilder) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope.push(name.to_owned());
        let result = build(self);
        self.scope.pop();
        result
    }

    /// `name` within the current scope, as weights are called: `encoder.layers.3.` + `norm_out.weight`.
    pub fn qualified(&self, name: &str) -> String {
        if self.scope.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path()) }
    }

    fn push(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).unwrap_or(u32::MAX));
        self.graph.values.push(value);
        id
    }

    /// Declares an input of the graph.
    pub fn input(&mut self, name: &str, ty: ValueType) -> ValueId {
        let def = Def::Input(self.graph.inputs.len());
        let id = self.push(Value { ty, name: Some(name.to_owned()), def });
        self.graph.inputs.push(id);
        id
    }

    /// Whether the model has a weight of this name in the current scope.
    pub fn has_weight(&self, name: &str) -> bool {
        self.graph.weights.find(&self.qualified(name)).is_some()
    }

    /// The weight `name` of the current scope, of this shape (slowest axis first). Axes of length 1 in the file are
    /// ignored: the weight of a pointwise convolution, `[N, K, 1]`, can be asked for as `[N, K]`.
    ///
    /// # Errors
    /// [`GraphError::MissingWeight`], [`GraphError::WeightShape`].
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId, GraphError> {
        let name = self.qualified(name);
        let info = self.graph.weights.get(&name)?;
        let squeezed = |s: &[usize]| s.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
        if squeezed(&info.shape) != squeezed(shape) {
            return Err(GraphError::WeightShape {
                origin: self.graph.weights.origin().to_owned(),
                name,
                found: info.shape,
                expected: shape.to_vec(),
            });
        }
        let key = (info.index, shape.to_vec());
        if let Some(&id) = self.weight_values.get(&key) {
            return Ok(id);
        }
        let ty = ValueType::new(info.dtype, Shape::fixed(shape));
        let id = self.push(Value { ty, name: Some(name), def: Def::Weight(info.index) });
        self.weight_values.insert(key, id);
        Ok(id)
    }

    /// As [`GraphBuilder::weight`], or `None` if the model has no such weight.
    ///
    /// # Errors
    /// [`GraphError::WeightShape`].
    pub fn weight_opt(&mut self, name: &str, shape: &[usize]) -> Result<Option<ValueId>, GraphError> {
        if self.has_weight(name) { self.weight(name, shape).map(Some) } else { Ok(None) }
    }

    /// A fixed tensor.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let ty = ValueType::new(tensor.dtype(), Shape::fixed(tensor.shape()));
        self.push(Value { ty, name: None, def: Def::Constant(Arc::new(tensor)) })
    }

    /// The type of a value.
    ///
    /// # Errors
    /// [`GraphError::Build`] if the value is not of this graph.
    pub fn ty(&self, value: ValueId) -> Result<&ValueType, GraphError> {
        self.graph.value(value).map(|v| &v.ty).ok_or_else(|| GraphError::Build {
            what: format!("value {} is not of this graph, at {}", value.0, self.path()),
        })
    }

    /// Applies an op of one output.
    ///
    /// # Errors
    /// What does not fit, with the path.
    pub fn apply(&mut self, op: impl Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let outputs = self.apply_all(op, inputs)?;
        match outputs.as_slice() {
            [one] => Ok(*one),
            many => Err(GraphError::Build {
                what: format!(
                    "an op with {} outputs was applied as if it had one, at {}",
                    many.len(),
                    self.path()
                ),
            }),
        }
    }

    /// Applies an op of any number of outputs.
    ///
    /// # Errors
    /// What does not fit, with the path.
    pub fn apply_all(
        &mut self,
        op: impl Op,
        inputs: &[ValueId],
    ) -> Result<SmallVec<[ValueId; 2]>, GraphError> {
        let inferred = {
            let types =
                inputs.iter().map(|&v| self.ty(v)).collect::<Result<SmallVec<[&ValueType; 8]>, _>>()?;
            op.infer(&types).map_err(|source| GraphError::Op { path: self.path(), source })?
        };
        Ok(self.push_node(NodeOp::Op(Arc::new(op)), inputs, inferred))
    }

    fn push_node(
        &mut self,
        op: NodeOp,
        inputs: &[ValueId],
        types: impl IntoIterator<Item = ValueType>,
    ) -> SmallVec<[ValueId; 2]> {
        let node = self.graph.nodes.len();
        let outputs: SmallVec<[ValueId; 2]> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.push(Value { ty, name: None, def: Def::Node(node, i) }))
            .collect();
        let path = self.path();
        self.graph.nodes.push(Node {
            op,
            inputs: SmallVec::from_slice(inputs),
            outputs: outputs.clone(),
            path,
        });
        outputs
    }

    /// Runs `tile.body` over `x` `[B, T, ...]` tile by tile; `lengths` `[B]` are the valid frames.
    ///
    /// # Errors
    /// [`GraphError::Build`] if the body is not of the form that [`TileTime`] describes.
    pub fn tile_time(&mut self, tile: TileTime, x: ValueId, lengths: ValueId) -> Result<ValueId, GraphError> {
        let wrong = |what: &str| GraphError::Build { what: format!("tile_time at {}: {what}", self.path()) };
        let inputs: Vec<&ValueType> = tile.body.inputs().map(|(_, ty)| ty).collect();
        if inputs != [self.ty(x)?, self.ty(lengths)?] {
            return Err(wrong("the body's inputs are not of the types of x and lengths"));
        }
        let outputs: Vec<ValueType> = tile.body.outputs().map(|(_, ty)| ty.clone()).collect();
        if outputs.len() != 1 || tile.factor == 0 || tile.tile == 0 {
            return Err(wrong("the body has one output, and factor and tile are at least 1"));
        }
        if let Some(state) = tile.body.states.first() {
            return Err(wrong(&format!(
                "the body has a state, {}, which would change from tile to tile; keep it outside",
                state.name
            )));
        }
        let out = self.push_node(NodeOp::TileTime(Arc::new(tile)), &[x, lengths], outputs);
        Ok(out[0])
    }

    /// Declares a state of fixed lengths, all zeros before the first run; its number.
    ///
    /// A state is used in one of three ways: read and assigned, read and rolled, or appended to.
    pub fn state(&mut self, name: &str, ty: ValueType) -> StateId {
        let name = self.qualified(name);
        self.graph.states.push(StateDef { name, ty });
        StateId(self.graph.states.len() - 1)
    }

    fn state_def(&self, state: StateId) -> Result<&StateDef, GraphError> {
        self.graph
            .states
            .get(state.0)
            .ok_or_else(|| self.state_error(state, "it is not of this graph", &self.path()))
    }

    fn state_error(&self, state: StateId, what: &str, name: &str) -> GraphError {
        GraphError::Build { what: format!("state {} ({name}): {what}", state.0) }
    }

    /// What a state holds when the run begins.
    ///
    /// # Errors
    /// [`GraphError::Build`] if the state is not of this graph, or is appended to.
    pub fn read_state(&mut self, state: StateId) -> Result<ValueId, GraphError> {
        let def = self.state_def(state)?.clone();
        if self.graph.nodes.iter().any(|n| matches!(n.op, NodeOp::Append(s) if s == state.0)) {
            return Err(self.state_error(state, "it is appended to: use what append gave", &def.name));
        }
        let known = self.graph.values.iter().position(|v| matches!(v.def, Def::State(s) if s == state.0));
        if let Some(at) = known {
            return Ok(ValueId(u32::try_from(at).unwrap_or(u32::MAX)));
        }
        Ok(self.push(Value { ty: def.ty, name: None, def: Def::State(state.0) }))
    }

    /// Writes `rows` `[B, N, ...]` into the state `[C0, C, ...]`, those of item b from row `at[b]` on (`at` is `[B]`
    /// i32, and B at most C0), and gives the whole state. What lies past the rows is what earlier runs left there. f32 rows may enter a
    /// state of a narrower type.
    ///
    /// # Errors
    /// [`GraphError::Build`] if the types do not fit or the state is used in another way too.
    pub fn append(&mut self, state: StateId, rows: ValueId, at: ValueId) -> Result<ValueId, GraphError> {
        let def = self.state_def(state)?.clone();
        let used = self.graph.values.iter().any(|v| matches!(v.def, Def::State(s) if s == state.0))
            || self.graph.nodes.iter().any(|n| matches!(n.op, NodeOp::Append(s) if s == state.0))
            || self.graph.commits.iter().any(|c| c.state() == state.0);
        if used {
            return Err(self.state_error(state, "it is used already; append is its only use", &def.name));
        }
        let (rows_ty, at_ty) = (self.ty(rows)?.clone(), self.ty(at)?.clone());
        let narrower = rows_ty.dtype == DType::F32 && def.ty.dtype != DType::I32;
        let fits = same_but_rows(&rows_ty, &def.ty) && (rows_ty.dtype == def.ty.dtype || narrower);
        let at_fits = at_ty.dtype == DType::I32
            && at_ty.shape.rank() == 1
            && at_ty.shape.get(0) == rows_ty.shape.get(0);
        if !fits || !at_fits {
            let what = format!("rows {rows_ty} at {at_ty} cannot be appended to {}", def.ty);
            return Err(self.state_error(state, &what, &def.name));
        }
        Ok(self.push_node(NodeOp::Append(state.0), &[rows, at], [def.ty])[0])
    }

    /// The state becomes `value` when the run has ended well.
    ///
    /// # Errors
    /// [`GraphError::Build`] if the types differ, or the state has its next value already.
    pub fn assign(&mut self, state: StateId, value: ValueId) -> Result<(), GraphError> {
        let def = self.state_def(state)?.clone();
        let ty = self.ty(value)?.clone();
        if ty.dtype != def.ty.dtype || ty.shape.rank() != def.ty.shape.rank() {
            let what = format!("it is {} and cannot become {ty}", def.ty);
            return Err(self.state_error(state, &what, &def.name));
        }
        self.commit(state, &def, Commit::Assign { state: state.0, value })
    }

    /// Rows `[B, N, ...]` enter the state `[B, L, ...]` at its end when the run has ended well, and as many leave at its
    /// start.
    ///
    /// # Errors
    /// As [`GraphBuilder::assign`].
    pub fn roll(&mut self, state: StateId, rows: ValueId) -> Result<(), GraphError> {
        let def = self.state_def(state)?.clone();
        let ty = self.ty(rows)?.clone();
        if ty.dtype != def.ty.dtype || !same_but_rows(&ty, &def.ty) {
            let what = format!("rows {ty} cannot be rolled into {}", def.ty);
            return Err(self.state_error(state, &what, &def.name));
        }
        self.commit(state, &def, Commit::Roll { state: state.0, value: rows })
    }

    fn commit(&mut self, state: StateId, def: &StateDef, commit: Commit) -> Result<(), GraphError> {
        let appended = self.graph.nodes.iter().any(|n| matches!(n.op, NodeOp::Append(s) if s == state.0));
        if appended || self.graph.commits.iter().any(|c| c.state() == state.0) {
            return Err(self.state_error(state, "it has its next value already", &def.name));
        }
        self.graph.commits.push(commit);
        Ok(())
    }

    /// Gives a value the name under which it can be captured.
    pub fn name(&mut self, value: ValueId, name: &str) -> ValueId {
        self.graph.names.insert(name.to_owned(), value);
        if let Some(v) = self.graph.values.get_mut(value.index()) {
            v.name.get_or_insert_with(|| name.to_owned());
        }
        value
    }

    /// Declares an output of the graph; it can be captured under its name too.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.name(value, name);
        self.graph.outputs.push((name.to_owned(), value));
    }

    /// Declares that runs may bind `symbol` to more than there is, with zeros in the inputs past that: what is there comes out as it
    /// would alone, because other inputs (lengths, places) say where it ends. For devices whose models have fixed lengths.
    pub fn may_pad(&mut self, symbol: Symbol) {
        if !self.graph.pads.contains(&symbol) {
            self.graph.pads.push(symbol);
        }
    }

    /// The graph.
    ///
    /// # Errors
    /// [`GraphError::Build`] if it has no output, or two inputs, outputs or states of one name.
    pub fn finish(self) -> Result<Graph, GraphError> {
        if self.graph.outputs.is_empty() && self.graph.commits.is_empty() {
            return Err(GraphError::Build { what: "the graph has no output".into() });
        }
        unique("input", self.graph.inputs().map(|(name, _)| name))?;
        unique("output", self.graph.outputs().map(|(name, _)| name))?;
        unique("state", self.graph.states.iter().map(|state| state.name.as_str()))?;
        for state in &self.graph.states {
            if state.ty.shape.eval(&Bindings::new()).is_err() {
                let what = format!("state {}: {} has lengths that are not fixed", state.name, state.ty);
                return Err(GraphError::Build { what });
            }
        }
        Ok(self.graph)
    }
}

/// Refuses names that occur twice: whoever asks for one would get the first.
fn unique<'n>(what: &str, names: impl Iterator<Item = &'n str>) -> Result<(), GraphError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(GraphError::Build { what: format!("the graph has two {what}s named {name:?}") });
        }
    }
    Ok(())
}

/// Whether `[B, N, ...]` and `[B, L, ...]` agree in all axes but these two; a run may have fewer items than a state.
fn same_but_rows(rows: &ValueType, state: &ValueType) -> bool {
    let (a, b) = (&rows.shape, &state.shape);
    a.rank() == b.rank() && a.rank() >= 2 && (2..a.rank()).all(|i| a.get(i) == b.get(i))
}
