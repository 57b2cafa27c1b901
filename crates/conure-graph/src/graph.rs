//! A graph: values, and the nodes that compute them.

use crate::backend::Piece;
use crate::error::GraphError;
use crate::weights::Weights;
use conure_ops::{Attr, Op, ValueType};
use conure_tensor::{Symbol, Tensor};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Def {
    /// Given to each run; the number of the input.
    Input(usize),
    /// A weight of the model; its number in the source.
    Weight(usize),
    /// Fixed when the graph was built.
    Constant(Arc<Tensor>),
    /// Computed: node and output number.
    Node(usize, usize),
    /// What a state holds when the run begins; the number of the state.
    State(usize),
    /// Computed inside a piece that a device runs, and not handed out by it.
    Inside,
}

/// A tensor that a session keeps from run to run: a cache, the state of an LSTM. All zeros at first.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDef {
    /// Its name.
    pub name: String,
    /// Its type; the lengths are fixed.
    pub ty: ValueType,
}

/// What becomes of a state when a run has ended well, all commits of a graph at once: what one of them reads of a state is what
/// the state held when the run began. A run that fails changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Commit {
    /// The state becomes the value, which has its type.
    Assign {
        /// The number of the state.
        state: usize,
        /// The value.
        value: ValueId,
    },
    /// Rows `[B, N, ...]` enter a state `[B, L, ...]` at its end, and as many leave at its start.
    Roll {
        /// The number of the state.
        state: usize,
        /// The rows.
        value: ValueId,
    },
}

impl Commit {
    /// The number of the state.
    pub fn state(&self) -> usize {
        match *self {
            Commit::Assign { state, .. } | Commit::Roll { state, .. } => state,
        }
    }

    /// The value that enters it.
    pub fn value(&self) -> ValueId {
        match *self {
            Commit::Assign { value, .. } | Commit::Roll { value, .. } => value,
        }
    }

    /// The same with another state and value.
    pub(crate) fn with(&self, state: usize, value: ValueId) -> Commit {
        match self {
            Commit::Assign { .. } => Commit::Assign { state, value },
            Commit::Roll { .. } => Commit::Roll { state, value },
        }
    }
}

/// A value: its type, and where it comes from.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type and shape.
    pub ty: ValueType,
    /// The name under which it can be captured, or the name of the input or weight.
    pub name: Option<String>,
    /// Where it comes from.
    pub def: Def,
}

/// What a node does.
#[derive(Clone, Debug)]
pub enum NodeOp {
    /// An op.
    Op(Arc<dyn Op>),
    /// A graph run tile by tile along time.
    TileTime(Arc<TileTime>),
    /// Rows `[B, N, ...]` are written into state `[B, C, ...]` of this number, item b's from row `at[b]` on; inputs are
    /// the rows and `at` `[B]` (i32). The output is the state's memory: a device keeps it where it computes, and nothing
    /// but the new rows is moved. Rows that do not fit are refused before any is written; a run that fails later may leave its
    /// rows in their places, and nothing else.
    Append(usize),
    /// A part of the graph that another device than the CPU runs; made by placing, never by a model.
    Piece(Arc<Piece>),
}

/// A body graph whose input is cut along time, so that its intermediates never cover the whole input.
///
/// ```text
///   x  [B, T, ...] ────────────────────────────────▶ body ▶ y [B, T', ...]
///
///   x  ░░├──── tile 0 ────┤░░                        each tile of y is made from `tile * factor` frames of x and
///      ░░░░░░░░░░░░░░├──── tile 1 ────┤░░            the halo around them; the rows that the halo made are dropped,
///                                                    so that the result equals that of the whole
/// ```
#[derive(Clone, Debug)]
pub struct TileTime {
    /// The body. Inputs: `x` `[B, T, ...]` and `lengths` `[B]` (i32, valid frames); one output, `y` `[B, T', ...]`.
    pub body: Graph,
    /// Symbol of the frames of `x`, in the body and around it.
    pub time: Symbol,
    /// Symbol of the batch; the body runs item by item.
    pub batch: Symbol,
    /// Frames of `x` per frame of `y`.
    pub factor: usize,
    /// Frames of `y` before a tile that the body needs to get its first frame right.
    pub halo_before: usize,
    /// Frames of `y` after a tile that the body needs to get its last frame right.
    pub halo_after: usize,
    /// Frames of `y` per tile.
    pub tile: usize,
}

/// A node: what it does, to which values.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: NodeOp,
    /// Inputs in the order of the op.
    pub inputs: SmallVec<[ValueId; 6]>,
    /// Outputs in the order of the op.
    pub outputs: SmallVec<[ValueId; 2]>,
    /// The scopes it was built in: `encoder.layers.3.feed_forward1`.
    pub path: String,
}

impl Node {
    /// The name of its op.
    pub fn op_name(&self) -> &'static str {
        match &self.op {
            NodeOp::Op(op) => op.name(),
            NodeOp::TileTime(_) => "tile_time",
            NodeOp::Append(_) => "append",
            NodeOp::Piece(_) => "piece",
        }
    }
}

/// A graph in topological order. Built once per model, then only read; made by [`crate::GraphBuilder`].
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) weights: Arc<Weights>,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<(String, ValueId)>,
    pub(crate) names: HashMap<String, ValueId>,
    pub(crate) states: Vec<StateDef>,
    pub(crate) commits: Vec<Commit>,
    /// Lengths that may be more than there is; see [`crate::GraphBuilder::may_pad`].
    pub(crate) pads: Vec<Symbol>,
}

impl Graph {
    /// A graph of nothing over `weights`.
    pub(crate) fn empty(weights: Arc<Weights>) -> Graph {
        Graph {
            weights,
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            names: HashMap::new(),
            states: Vec::new(),
            commits: Vec::new(),
            pads: Vec::new(),
        }
    }

    /// The states that a session of this graph keeps.
    pub fn states(&self) -> &[StateDef] {
        &self.states
    }

    /// Whether rows are appended to state `index`, rather than that it is read and becomes another.
    pub fn is_appended(&self, index: usize) -> bool {
        self.nodes.iter().any(|n| matches!(n.op, NodeOp::Append(s) if s == index))
    }

    /// What becomes of the states at the end of a run.
    pub fn commits(&self) -> &[Commit] {
        &self.commits
    }

    /// The values that a run must have at its end: outputs, what enters a state, and `captures`.
    pub(crate) fn wanted(&self, captures: &[ValueId]) -> Vec<ValueId> {
        let outputs = self.outputs.iter().map(|&(_, v)| v);
        let appended =
            self.nodes.iter().filter(|n| matches!(n.op, NodeOp::Append(_))).flat_map(|n| n.outputs.iter());
        outputs
            .chain(self.commits.iter().map(Commit::value))
            .chain(appended.copied())
            .chain(captures.iter().copied())
            .collect()
    }

    /// Whether a run changes any state.
    pub(crate) fn changes_states(&self) -> bool {
        !self.commits.is_empty() || self.nodes.iter().any(|n| matches!(n.op, NodeOp::Append(_)))
    }

    /// The nodes in the order in which they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get(id.index())
    }

    /// The products with weights that a node makes: the weight's name, and the value and number of the input that it is
    /// multiplied with.
    pub fn products<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (&'a str, ValueId, usize)> + 'a {
        let pairs = match &node.op {
            NodeOp::Op(op) => op.products(),
            _ => &[],
        };
        pairs.iter().filter_map(|&(x, w)| {
            let (x_id, w) = (*node.inputs.get(x)?, self.value(*node.inputs.get(w)?)?);
            let name = w.name.as_deref().filter(|_| matches!(w.def, Def::Weight(_)))?;
            Some((name, x_id, x))
        })
    }

    /// Inputs: name and type.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &ValueType)> + '_ {
        self.inputs.iter().map(|v| {
            let v = &self.values[v.index()];
            (v.name.as_deref().unwrap_or(""), &v.ty)
        })
    }

    /// Outputs: name and type.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &ValueType)> + '_ {
        self.outputs.iter().map(|(n, v)| (n.as_str(), &self.values[v.index()].ty))
    }

    /// The names that can be captured, in the order in which the nodes run.
    pub fn node_names(&self) -> Vec<&str> {
        let mut named: Vec<(ValueId, &str)> = self.names.iter().map(|(n, v)| (*v, n.as_str())).collect();
        // Of two names of one value the longer is the part, the shorter the whole that ends with it.
        named.sort_unstable_by_key(|&(v, name)| (v, std::cmp::Reverse(name.len()), name));
        named.into_iter().map(|(_, n)| n).collect()
    }

    /// The value of this capture name.
    ///
    /// # Errors
    /// [`GraphError::UnknownName`] with the names there are.
    pub fn named(&self, name: &str) -> Result<ValueId, GraphError> {
        self.names.get(name).copied().ok_or_else(|| GraphError::UnknownName {
            what: "node",
            name: name.to_owned(),
            known: self.node_names().join(", "),
        })
    }

    /// A number that is equal for graphs of equal structure: ops, attributes, types, wiring and weights.
    pub fn structural_hash(&self) -> u64 {
        let mut h = DefaultHasher::new();
        self.hash_into(&mut h);
        h.finish()
    }

    fn hash_into(&self, h: &mut DefaultHasher) {
        for value in &self.values {
            value.ty.to_string().hash(h);
            match &value.def {
                Def::Input(i) => (0usize, *i).hash(h),
                Def::Weight(i) => (1usize, *i).hash(h),
                Def::Constant(t) => (2usize, t.view().bytes()).hash(h),
                Def::Node(n, o) => (3usize, *n, *o).hash(h),
                Def::State(i) => (4usize, *i).hash(h),
                Def::Inside => 5usize.hash(h),
            }
        }
        for node in &self.nodes {
            node.op_name().hash(h);
            match &node.op {
                NodeOp::Op(op) => hash_attrs(&op.attrs(), h),
                NodeOp::TileTime(t) => {
                    (t.factor, t.halo_before, t.halo_after, t.tile).hash(h);
                    t.body.hash_into(h);
                }
                NodeOp::Append(state) => state.hash(h),
                NodeOp::Piece(piece) => {
                    piece.device.hash(h);
                    piece.graph.hash_into(h);
                }
            }
            for v in node.inputs.iter().chain(&node.outputs) {
                v.hash(h);
            }
        }
        for (name, v) in &self.outputs {
            (name, v).hash(h);
        }
        for state in &self.states {
            (&state.name, state.ty.to_string()).hash(h);
        }
        self.commits.hash(h);
    }
}

fn hash_attrs(attrs: &[(&'static str, Attr)], h: &mut DefaultHasher) {
    for (name, attr) in attrs {
        name.hash(h);
        match attr {
            Attr::Int(i) => i.hash(h),
            Attr::Float(x) => x.to_bits().hash(h),
            Attr::Text(t) => t.hash(h),
            Attr::Ints(list) => list.hash(h),
            Attr::Shape(s) => s.to_string().hash(h),
        }
    }
}
