//! Placing: which nodes a device runs, cut into the fewest pieces.
//!
//! ```text
//!   nodes      a   b   c   d   e       a, b, d, e: the device takes them; c: the CPU
//!   levels     1   1   2   3   3       a level is all CPU (even) or all device (odd), and never below that of an input
//!   pieces    [a   b]  c  [d   e]      what shares an odd level is one piece, connected or not
//! ```
//!
//! A path through the graph changes sides as often as it must, and every node lies as early as it can, so there are no
//! more pieces than the worst path has. The whole graph on the device is one piece, and a run is one call.

use crate::backend::Piece;
use crate::cut::cut;
use crate::device::Device;
use crate::error::GraphError;
use crate::graph::{Def, Graph, NodeOp, ValueId};
use std::fmt;
use std::sync::Arc;

/// A graph whose nodes have a place: pieces for a device, the rest for the CPU.
#[derive(Debug)]
pub struct Placed {
    /// What the CPU runs, with a node for each piece. Values keep their numbers.
    pub(crate) graph: Graph,
    pub(crate) pieces: Vec<Arc<Piece>>,
    pub(crate) report: Placement,
}

impl Placed {
    /// Everything on the CPU.
    pub(crate) fn on_cpu(graph: Graph) -> Placed {
        let nodes = graph.nodes.len();
        let report = Placement { device: "cpu".into(), nodes, pieces: Vec::new(), refused: Vec::new() };
        Placed { graph, pieces: Vec::new(), report }
    }

    /// Which nodes went where.
    pub fn placement(&self) -> &Placement {
        &self.report
    }
}

/// Where the nodes of a graph are run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The device that was asked for.
    pub device: String,
    /// Nodes of the graph.
    pub nodes: usize,
    /// The pieces that the device runs, in order.
    pub pieces: Vec<PlacedPiece>,
    /// Nodes that the device does not run.
    pub refused: Vec<Refusal>,
}

/// A piece in a [`Placement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// Path and op of its nodes, as `encoder.layers.0.conv: glu`.
    pub nodes: Vec<String>,
    /// The types of what comes in from outside.
    pub inputs: Vec<String>,
    /// The types of what is handed out.
    pub outputs: Vec<String>,
}

/// A node that the device asked for does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Path of the node.
    pub path: String,
    /// Its op.
    pub op: &'static str,
    /// Why not.
    pub why: String,
}

impl Placement {
    /// Whether nothing falls back: all nodes are on the device asked for, as one.
    pub fn is_whole(&self) -> bool {
        self.refused.is_empty() && self.pieces.len() <= 1
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placed: usize = self.pieces.iter().map(|p| p.nodes.len()).sum();
        let on_cpu = self.nodes - placed;
        if self.device == "cpu" {
            return writeln!(f, "cpu: all {} nodes", self.nodes);
        }
        let pieces = self.pieces.len();
        let plural = if pieces == 1 { "" } else { "s" };
        writeln!(f, "{}: {placed} of {} nodes in {pieces} piece{plural}", self.device, self.nodes)?;
        for (i, piece) in self.pieces.iter().enumerate() {
            let (first, last) = (piece.nodes.first(), piece.nodes.last());
            let (first, last) = (first.map_or("", |n| n), last.map_or("", |n| n));
            writeln!(f, "  piece {i}: {} nodes, {first} .. {last}", piece.nodes.len())?;
            writeln!(f, "    in  {}", piece.inputs.join(", "))?;
            writeln!(f, "    out {}", piece.outputs.join(", "))?;
        }
        if on_cpu > 0 {
            writeln!(f, "cpu: {on_cpu} nodes")?;
        }
        for r in &self.refused {
            writeln!(f, "  {}: {}: {}", r.path, r.op, r.why)?;
        }
        Ok(())
    }
}

/// Places `graph` on `device`, so that it gives its outputs, its states and `captures`.
///
/// # Errors
/// What the device says when it compiles a piece.
pub(crate) fn place(graph: &Graph, device: &Device, captures: &[ValueId]) -> Result<Placed, GraphError> {
    let Some(backend) = device.backend() else { return Ok(Placed::on_cpu(graph.clone())) };
    // Every node gets its place, also those that only other captures need: a state must not move, or be lost, because of what
    // a run captures.
    let mut refused: Vec<Option<String>> =
        graph.nodes.iter().map(|node| backend.supports(graph, node).err()).collect();
    let mut on_device: Vec<bool> = refused.iter().map(Option::is_none).collect();
    views_follow(graph, &mut on_device);
    let always = needed(graph, &graph.wanted(&[]));
    let levels = loop {
        let levels = levels(graph, &on_device);
        if !states_together(graph, &levels, &always, &mut on_device, &mut refused) {
            break levels;
        }
    };
    let needed = needed(graph, &graph.wanted(captures));
    let refusals = graph.nodes.iter().zip(refused).zip(&needed).filter(|(_, needed)| **needed);
    let refusals = refusals.filter_map(|((node, why), _)| {
        Some(Refusal { path: node.path.clone(), op: node.op_name(), why: why? })
    });
    let refusals = refusals.collect();
    cut(graph, backend, &Assigned { levels, on_device, needed }, captures, refusals)
}

/// For each node, whether it is run, whether by the device, and on which level.
pub(crate) struct Assigned {
    pub levels: Vec<usize>,
    pub on_device: Vec<bool>,
    pub needed: Vec<bool>,
}

fn needed(graph: &Graph, wanted: &[ValueId]) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack = wanted.to_vec();
    while let Some(v) = stack.pop() {
        if let Def::Node(n, _) = graph.values[v.index()].def
            && !std::mem::replace(&mut needed[n], true)
        {
            stack.extend_from_slice(&graph.nodes[n].inputs);
        }
    }
    needed
}

/// A view costs nothing where its input is, and would cost a copy elsewhere: it stays with the node that made the input.
fn views_follow(graph: &Graph, on_device: &mut [bool]) {
    for (i, node) in graph.nodes.iter().enumerate() {
        if let NodeOp::Op(op) = &node.op
            && op.is_view()
            && let Some(&from) = node.inputs.first()
        {
            on_device[i] &= match graph.values[from.index()].def {
                Def::Node(n, _) => on_device[n],
                _ => true,
            };
        }
    }
}

/// The level of each node: even on the CPU, odd on the device, as low as its inputs let it be.
fn levels(graph: &Graph, on_device: &[bool]) -> Vec<usize> {
    let mut levels = vec![0; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let below = node.inputs.iter().filter_map(|v| match graph.values[v.index()].def {
            Def::Node(n, _) => Some(levels[n]),
            _ => None,
        });
        let lowest: usize = below.max().unwrap_or(0);
        levels[i] = lowest + usize::from((lowest % 2 == 1) != on_device[i]);
    }
    levels
}

/// A state lives in one place, so whatever touches it must be in one piece, and one that is there in every run; states for which
/// that fails go to the CPU. Whether anything moved. `always`: the nodes that every run needs.
fn states_together(
    graph: &Graph,
    levels: &[usize],
    always: &[bool],
    on_device: &mut [bool],
    refused: &mut [Option<String>],
) -> bool {
    let mut moved = false;
    for state in 0..graph.states.len() {
        let touching = touching(graph, state);
        let split = touching.nodes.iter().any(|&n| !on_device[n])
            || touching.nodes.iter().any(|&n| levels[n] != levels[touching.nodes[0]])
            || !touching.nodes.iter().any(|&n| always[n])
            || touching.from_outside;
        for &n in touching.nodes.iter().filter(|_| split) {
            if std::mem::replace(&mut on_device[n], false) {
                moved = true;
                let name = &graph.states[state].name;
                refused[n] = Some(format!("the state {name} is also used outside the piece"));
            }
        }
    }
    if moved {
        views_follow(graph, on_device);
    }
    moved
}

pub(crate) struct Touching {
    pub nodes: Vec<usize>,
    /// Whether an input, weight or constant enters the state directly.
    pub from_outside: bool,
}

/// The nodes that read, append to or make what enters `state`.
pub(crate) fn touching(graph: &Graph, state: usize) -> Touching {
    let reads = |v: &ValueId| matches!(graph.values[v.index()].def, Def::State(s) if s == state);
    let mut nodes: Vec<usize> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let appends = matches!(node.op, NodeOp::Append(s) if s == state);
        let after = node.inputs.iter().any(|v| match graph.values[v.index()].def {
            Def::Node(n, _) => matches!(graph.nodes[n].op, NodeOp::Append(s) if s == state),
            _ => false,
        });
        if appends || after || node.inputs.iter().any(reads) {
            nodes.push(i);
        }
    }
    let mut from_outside = false;
    for commit in graph.commits.iter().filter(|c| c.state() == state) {
        match graph.values[commit.value().index()].def {
            Def::Node(n, _) => nodes.push(n),
            _ => from_outside = true,
        }
    }
    Touching { nodes, from_outside }
}
