//! Cutting: the pieces of a placed graph as graphs of their own, and what is left around them.

use crate::backend::{Backend, Piece};
use crate::error::GraphError;
use crate::graph::{Commit, Def, Graph, Node, NodeOp, Value, ValueId};
use crate::place::{Assigned, Placed, PlacedPiece, Placement, Refusal, touching};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Cuts `graph` as `assigned` says and compiles the pieces.
pub(crate) fn cut(
    graph: &Graph,
    backend: &Arc<dyn Backend>,
    assigned: &Assigned,
    captures: &[ValueId],
    refused: Vec<Refusal>,
) -> Result<Placed, GraphError> {
    let state_levels: Vec<Option<usize>> =
        (0..graph.states.len()).map(|s| state_level(graph, assigned, s)).collect();
    let outer_commits: Vec<Commit> =
        graph.commits.iter().filter(|c| state_levels[c.state()].is_none()).copied().collect();
    let wanted = graph
        .outputs
        .iter()
        .map(|&(_, v)| v)
        .chain(outer_commits.iter().map(Commit::value))
        .chain(captures.iter().copied())
        .collect();

    let mut outer = Graph { nodes: Vec::new(), commits: outer_commits, ..graph.clone() };
    for value in outer.values.iter_mut().filter(|v| matches!(v.def, Def::Node(..))) {
        value.def = Def::Inside;
    }
    let mut order: Vec<usize> = (0..graph.nodes.len()).filter(|&n| assigned.needed[n]).collect();
    order.sort_by_key(|&n| (assigned.levels[n], n));
    let nodes = order.len();
    let (mut pieces, mut described) = (Vec::new(), Vec::new());
    for group in order.chunk_by(|&a, &b| assigned.levels[a] == assigned.levels[b]) {
        if !group.iter().any(|&n| assigned.on_device[n]) {
            group.iter().for_each(|&n| push(&mut outer, graph.nodes[n].clone()));
            continue;
        }
        let mut part = Part::new(graph, group);
        let level = assigned.levels[group[0]];
        part.states(&state_levels, level);
        part.outputs(&used_after(graph, assigned, group, &wanted));
        part.outputs(&read_outside(graph, &state_levels, level, &wanted));
        described.push(part.describe());
        let Part { inner, inputs, outputs, .. } = part;
        let piece = Piece::new(inner, backend.as_ref())?;
        let path = piece.device.clone();
        push(&mut outer, Node { op: NodeOp::Piece(piece.clone()), inputs, outputs, path });
        pieces.push(piece);
    }
    let report = Placement { device: backend.info().name, nodes, pieces: described, refused };
    Ok(Placed { graph: outer, pieces, report })
}

/// The level whose piece keeps a state; `None` if the CPU does.
fn state_level(graph: &Graph, assigned: &Assigned, state: usize) -> Option<usize> {
    let first = *touching(graph, state).nodes.first()?;
    assigned.on_device[first].then(|| assigned.levels[first])
}

fn push(outer: &mut Graph, node: Node) {
    for (i, v) in node.outputs.iter().enumerate() {
        outer.values[v.index()].def = Def::Node(outer.nodes.len(), i);
    }
    outer.nodes.push(node);
}

/// What a group makes that others read or that is asked for, in order.
fn used_after(
    graph: &Graph,
    assigned: &Assigned,
    group: &[usize],
    wanted: &HashSet<ValueId>,
) -> Vec<ValueId> {
    let others = graph.nodes.iter().enumerate().filter(|(n, _)| assigned.needed[*n]);
    let others = others.filter(|(n, _)| group.binary_search(n).is_err());
    let read: HashSet<ValueId> = others.flat_map(|(_, node)| node.inputs.iter().copied()).collect();
    let made = group.iter().flat_map(|&n| graph.nodes[n].outputs.iter().copied());
    made.filter(|v| read.contains(v) || wanted.contains(v)).collect()
}

/// What is asked for of the states that a level keeps, as they are when the run begins.
fn read_outside(
    graph: &Graph,
    state_levels: &[Option<usize>],
    level: usize,
    wanted: &HashSet<ValueId>,
) -> Vec<ValueId> {
    let values = (0..graph.values.len()).map(|i| ValueId(i as u32));
    let here = |v: &ValueId| match graph.values[v.index()].def {
        Def::State(state) => state_levels[state] == Some(level) && wanted.contains(v),
        _ => false,
    };
    values.filter(here).collect()
}

/// A group of nodes on its way to be a graph.
struct Part<'a> {
    from: &'a Graph,
    group: &'a [usize],
    inner: Graph,
    /// What comes in and is handed out, by the numbers of the whole graph.
    inputs: SmallVec<[ValueId; 6]>,
    outputs: SmallVec<[ValueId; 2]>,
    known: HashMap<ValueId, ValueId>,
    known_states: HashMap<usize, usize>,
}

impl<'a> Part<'a> {
    /// `group` is in the order of the graph, which is an order to run in.
    fn new(from: &'a Graph, group: &'a [usize]) -> Part<'a> {
        let mut part = Part {
            from,
            group,
            inner: Graph { pads: from.pads.clone(), ..Graph::empty(from.weights.clone()) },
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
            known: HashMap::new(),
            known_states: HashMap::new(),
        };
        for &n in group {
            let node = &from.nodes[n];
            let inputs = node.inputs.iter().map(|&v| part.value(v)).collect();
            let op = match node.op {
                NodeOp::Append(state) => NodeOp::Append(part.state(state)),
                ref other => other.clone(),
            };
            let at = part.inner.nodes.len();
            let made = |(i, &v): (usize, &ValueId)| part.push(v, Def::Node(at, i));
            let outputs = node.outputs.iter().enumerate().map(made).collect();
            part.inner.nodes.push(Node { op, inputs, outputs, path: node.path.clone() });
        }
        part
    }

    fn push(&mut self, v: ValueId, def: Def) -> ValueId {
        let id = ValueId(u32::try_from(self.inner.values.len()).unwrap_or(u32::MAX));
        self.inner.values.push(Value { def, ..self.from.values[v.index()].clone() });
        self.known.insert(v, id);
        id
    }

    /// A value that a node of the group reads: made by an earlier one, fixed, a state, or from outside.
    fn value(&mut self, v: ValueId) -> ValueId {
        if let Some(&id) = self.known.get(&v) {
            return id;
        }
        match &self.from.values[v.index()].def {
            Def::Weight(_) | Def::Constant(_) => self.push(v, self.from.values[v.index()].def.clone()),
            Def::State(state) => {
                let state = self.state(*state);
                self.push(v, Def::State(state))
            }
            Def::Input(_) | Def::Node(..) | Def::Inside => {
                let id = self.push(v, Def::Input(self.inputs.len()));
                self.inner.values[id.index()].name = Some(format!("in.{}", self.inputs.len()));
                self.inner.inputs.push(id);
                self.inputs.push(v);
                id
            }
        }
    }

    fn state(&mut self, state: usize) -> usize {
        let next = self.inner.states.len();
        let inner = *self.known_states.entry(state).or_insert(next);
        if inner == next {
            self.inner.states.push(self.from.states[state].clone());
        }
        inner
    }

    /// The states that live on this level enter their next values here.
    fn states(&mut self, levels: &[Option<usize>], level: usize) {
        let from = self.from;
        for commit in from.commits.iter().filter(|c| levels[c.state()] == Some(level)) {
            let (state, value) = (self.state(commit.state()), self.value(commit.value()));
            self.inner.commits.push(commit.with(state, value));
        }
    }

    fn outputs(&mut self, values: &[ValueId]) {
        for &v in values {
            let name = format!("out.{}", self.outputs.len());
            let id = self.value(v);
            self.inner.names.insert(name.clone(), id);
            self.inner.outputs.push((name, id));
            self.outputs.push(v);
        }
    }

    fn describe(&self) -> PlacedPiece {
        let ty = |v: &ValueId| self.from.values[v.index()].ty.to_string();
        let node = |n: &usize| {
            let node = &self.from.nodes[*n];
            format!("{}: {}", node.path, node.op_name())
        };
        PlacedPiece {
            nodes: self.group.iter().map(node).collect(),
            inputs: self.inputs.iter().map(ty).collect(),
            outputs: self.outputs.iter().map(ty).collect(),
        }
    }
}
