//! Planning: for given lengths, which kernel runs when, and where in the arena its operands are.

use crate::backend::Piece;
use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, TileTime, ValueId};
use crate::liveness::{Liveness, Offsets};
use crate::weights::Form;
use conure_kernels::Cpu;
use conure_ops::{CpuOp, Op, Packed, ValueType};
use conure_tensor::{Bindings, DType, Dims, Tensor, TensorView, tensor_bytes};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of an operand are during a run.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In the arena.
    Arena(Range<usize>),
    /// An input of the run.
    Input(usize),
    /// A weight as stored.
    Weight(usize),
    /// A constant of the graph.
    Constant(Arc<Tensor>),
    /// A weight in the layout the kernel asked for.
    Packed(Packed),
    /// Output 0 of the same step.
    InPlace,
    /// A state.
    State(usize),
}

impl Source {
    /// Whether the bytes are the same in every run, so that a kernel's layout of them can be made once.
    fn is_stored(&self) -> bool {
        matches!(self, Source::Weight(_) | Source::Constant(_))
    }
}

/// An input of a step.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub source: Source,
    pub dtype: DType,
    pub dims: Dims,
}

/// An output of a step, in the arena.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub range: Range<usize>,
    pub dtype: DType,
    pub dims: Dims,
}

/// One kernel call.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub kind: StepKind,
    pub inputs: SmallVec<[Operand; 8]>,
    pub outputs: SmallVec<[Slot; 2]>,
    pub scratch: Range<usize>,
    pub node: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum StepKind {
    Op(Arc<dyn Op>),
    Tiles(Arc<TileSteps>),
    Append(usize),
    Piece(Arc<Piece>),
    /// Input 0 is copied to output 0: a value that is asked for and was not computed.
    Copy,
}

/// A [`TileTime`] node for given lengths.
#[derive(Debug)]
pub(crate) struct TileSteps {
    pub node: Arc<TileTime>,
    pub tiles: Vec<Tile>,
    /// Bytes before the body's arena in the scratch of the step: the tile's own `lengths`.
    pub header: usize,
}

/// One tile: which frames of x it reads and which rows of the body's y it keeps.
#[derive(Debug)]
pub(crate) struct Tile {
    pub plan: Arc<Plan>,
    pub x_frames: Range<usize>,
    pub y_skip: usize,
    pub y_rows: Range<usize>,
}

/// A graph planned for given lengths: made in microseconds, run any number of times.
#[derive(Debug)]
pub struct Plan {
    pub(crate) bindings: Bindings,
    pub(crate) steps: Vec<Step>,
    pub(crate) inputs: Vec<(DType, Dims)>,
    pub(crate) outputs: Vec<(String, Slot)>,
    /// What enters the states, in the order of the graph's commits.
    pub(crate) commits: Vec<Operand>,
    pub(crate) arena_len: usize,
}

impl Plan {
    /// Bytes of the arena that a run needs.
    pub fn arena_bytes(&self) -> usize {
        self.arena_len
    }

    /// Kernel calls per run; a tiled node counts as one.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The lengths it was made for.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }
}

/// Plans `graph` for `bindings`; `captures` are kept to the end of the run besides the outputs.
pub(crate) fn plan(
    graph: &Graph,
    bindings: &Bindings,
    captures: &[ValueId],
    cpu: &Cpu,
) -> Result<Plan, GraphError> {
    plan_with(graph, bindings, captures, cpu, Packing::Now)
}

/// Whether weights are packed for the kernels, or the plan is only to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Now,
    Never,
}

/// As [`plan`]; a plan without packed weights cannot be run.
pub(crate) fn plan_with(
    graph: &Graph,
    bindings: &Bindings,
    captures: &[ValueId],
    cpu: &Cpu,
    packing: Packing,
) -> Result<Plan, GraphError> {
    let wanted = graph.wanted(captures);
    let mut planner = Planner {
        graph,
        bindings,
        cpu,
        packing,
        live: Liveness::of(graph, &wanted),
        offsets: Offsets::default(),
        places: vec![None; graph.values.len()],
        steps: Vec::new(),
    };
    for index in 0..graph.nodes.len() {
        if planner.live.needed(index) {
            planner.node(index)?;
        }
    }
    let named = graph
        .outputs
        .iter()
        .map(|(n, v)| (n.clone(), *v))
        .chain(captures.iter().map(|&v| (graph.values[v.index()].name.clone().unwrap_or_default(), v)));
    let outputs = named.map(|(name, v)| planner.output(name, v)).collect::<Result<Vec<_>, _>>()?;
    let inputs = graph
        .inputs
        .iter()
        .map(|&v| {
            let ty = &graph.values[v.index()].ty;
            Ok((ty.dtype, planner.dims(ty, "input")?))
        })
        .collect::<Result<Vec<_>, GraphError>>()?;
    let commits = graph
        .commits
        .iter()
        .map(|c| {
            let ty = &graph.values[c.value().index()].ty;
            Ok(Operand {
                source: planner.source(c.value())?,
                dtype: ty.dtype,
                dims: planner.dims(ty, "state")?,
            })
        })
        .collect::<Result<Vec<_>, GraphError>>()?;
    Ok(Plan {
        bindings: bindings.clone(),
        steps: planner.steps,
        inputs,
        outputs,
        commits,
        arena_len: planner.offsets.high_water(),
    })
}

struct Planner<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    cpu: &'a Cpu,
    packing: Packing,
    live: Liveness,
    offsets: Offsets,
    /// Arena range of each root value that is computed so far.
    places: Vec<Option<Range<usize>>>,
    steps: Vec<Step>,
}

impl Planner<'_> {
    fn dims(&self, ty: &ValueType, path: &str) -> Result<Dims, GraphError> {
        ty.shape.eval(self.bindings).map_err(|source| GraphError::Dim { path: path.to_owned(), source })
    }

    fn bytes(&self, ty: &ValueType, path: &str) -> Result<(Dims, usize), GraphError> {
        let dims = self.dims(ty, path)?;
        match tensor_bytes(ty.dtype, &dims) {
            Some(n) if n < isize::MAX as usize => Ok((dims, n)),
            _ => Err(GraphError::TooLarge { path: path.to_owned(), shape: dims.to_vec(), dtype: ty.dtype }),
        }
    }

    fn source(&self, v: ValueId) -> Result<Source, GraphError> {
        let root = self.live.root(v);
        Ok(match &self.graph.values[root.index()].def {
            Def::Input(i) => Source::Input(*i),
            Def::Weight(i) => Source::Weight(*i),
            Def::Constant(t) => Source::Constant(t.clone()),
            Def::State(i) => Source::State(*i),
            Def::Inside => {
                return Err(GraphError::Build { what: "a value inside a piece is read outside".into() });
            }
            Def::Node(n, _) if let NodeOp::Append(state) = self.graph.nodes[*n].op => Source::State(state),
            Def::Node(n, _) => match &self.places[root.index()] {
                Some(range) => Source::Arena(range.clone()),
                None => {
                    let path = &self.graph.nodes[*n].path;
                    return Err(GraphError::Build {
                        what: format!("a value of {path} is read before it is made"),
                    });
                }
            },
        })
    }

    fn operand(&self, v: ValueId, node: &Node) -> Result<Operand, GraphError> {
        let ty = &self.graph.values[v.index()].ty;
        Ok(Operand { source: self.source(v)?, dtype: ty.dtype, dims: self.dims(ty, &node.path)? })
    }

    /// Where an output is at the end of the run. What lies outside the arena (an input, a weight, a state before it
    /// changes, or a view of one) is copied into it.
    fn output(&mut self, name: String, v: ValueId) -> Result<(String, Slot), GraphError> {
        let ty = &self.graph.values[v.index()].ty;
        let (dims, len) = self.bytes(ty, &name)?;
        let source = self.source(v)?;
        if let Source::Arena(range) = source {
            return Ok((name, Slot { range: range.start..range.start + len, dtype: ty.dtype, dims }));
        }
        let range = self.offsets.alloc(len);
        let slot = Slot { range: range.start..range.start + len, dtype: ty.dtype, dims: dims.clone() };
        self.steps.push(Step {
            kind: StepKind::Copy,
            inputs: SmallVec::from_iter([Operand { source, dtype: ty.dtype, dims }]),
            outputs: SmallVec::from_iter([slot.clone()]),
            scratch: 0..0,
            node: self.graph.nodes.len(),
        });
        Ok((name, slot))
    }

    fn node(&mut self, index: usize) -> Result<(), GraphError> {
        let node = &self.graph.nodes[index];
        match &node.op {
            NodeOp::Op(op) if op.is_view() => {}
            NodeOp::Op(op) => self.op_step(index, node, op)?,
            NodeOp::TileTime(tile) => self.tile_step(index, node, tile)?,
            NodeOp::Append(state) => self.steps.push(Step {
                kind: StepKind::Append(*state),
                inputs: self.operands(node)?,
                outputs: SmallVec::new(),
                scratch: 0..0,
                node: index,
            }),
            NodeOp::Piece(piece) => self.piece_step(index, node, piece)?,
        }
        for root in self.live.dead_after(index) {
            if let Some(range) = self.places[root.index()].take() {
                self.offsets.free(range);
            }
        }
        Ok(())
    }

    fn op_step(&mut self, index: usize, node: &Node, op: &Arc<dyn Op>) -> Result<(), GraphError> {
        let types: SmallVec<[&ValueType; 8]> =
            node.inputs.iter().map(|v| &self.graph.values[v.index()].ty).collect();
        let refuse = |why: String| GraphError::Unsupported { op: op.name(), path: node.path.clone(), why };
        let cpu = op.cpu().ok_or_else(|| refuse("it has no CPU kernel".into()))?;
        let mut inputs = self.operands(node)?;
        let stored: SmallVec<[bool; 8]> = inputs.iter().map(|o| o.source.is_stored()).collect();
        cpu.supports(&types, &stored).map_err(refuse)?;
        for (i, operand) in inputs.iter_mut().enumerate() {
            self.pack(cpu, i, types[i], operand)
                .map_err(|source| GraphError::Op { path: node.path.clone(), source })?;
        }
        let reused = self.in_place(index, node, cpu)?;
        let mut outputs = SmallVec::<[Slot; 2]>::new();
        for (i, &v) in node.outputs.iter().enumerate() {
            let ty = &self.graph.values[v.index()].ty;
            let (dims, len) = self.bytes(ty, &node.path)?;
            let range = match (&reused, i) {
                (Some((_, range)), 0) => range.clone(),
                _ => self.offsets.alloc(len),
            };
            self.places[v.index()] = Some(range.clone());
            outputs.push(Slot { range: range.start..range.start + len, dtype: ty.dtype, dims });
        }
        if let Some((input, _)) = reused {
            inputs[input].source = Source::InPlace;
            self.places[self.live.root(node.inputs[input]).index()] = None;
        }
        let scratch = {
            let in_dims: SmallVec<[&[usize]; 8]> = inputs.iter().map(|o| o.dims.as_slice()).collect();
            let out_dims: SmallVec<[&[usize]; 2]> = outputs.iter().map(|o| o.dims.as_slice()).collect();
            self.offsets.alloc(cpu.scratch(&in_dims, &out_dims, self.cpu.threads().count()))
        };
        self.offsets.free(scratch.clone());
        self.steps.push(Step { kind: StepKind::Op(op.clone()), inputs, outputs, scratch, node: index });
        Ok(())
    }

    /// Replaces a weight by its packed form where the kernel wants one.
    fn pack(
        &self,
        op: &dyn CpuOp,
        input: usize,
        ty: &ValueType,
        operand: &mut Operand,
    ) -> Result<(), conure_ops::OpError> {
        let key = match operand.source {
            ref source if source.is_stored() && self.packing == Packing::Now => op.pack_key(input, ty),
            _ => None,
        };
        let Some(key) = key else { return Ok(()) };
        let packed = match &operand.source {
            Source::Weight(index) => {
                let form = Form { key, dims: operand.dims.clone(), isa: self.cpu.isa() };
                self.graph.weights.packed(*index, form, |bytes| {
                    op.pack_on(self.cpu, input, &TensorView::new(operand.dtype, &operand.dims, bytes)?)
                })?
            }
            Source::Constant(t) => op.pack_on(self.cpu, input, &t.view())?,
            _ => return Ok(()),
        };
        operand.source = Source::Packed(packed);
        Ok(())
    }

    /// The input whose memory output 0 can take over: it dies here, is read once, and has the same size.
    fn in_place(
        &self,
        index: usize,
        node: &Node,
        cpu: &dyn CpuOp,
    ) -> Result<Option<(usize, Range<usize>)>, GraphError> {
        let Some(&out) = node.outputs.first() else { return Ok(None) };
        let (_, out_len) = self.bytes(&self.graph.values[out.index()].ty, &node.path)?;
        for &i in cpu.in_place() {
            let Some(&v) = node.inputs.get(i) else { continue };
            let root = self.live.root(v);
            let reads = node.inputs.iter().filter(|&&o| self.live.root(o) == root).count();
            let Some(range) = &self.places[root.index()] else { continue };
            let (_, len) = self.bytes(&self.graph.values[v.index()].ty, &node.path)?;
            if reads == 1 && len == out_len && self.live.dies_at(root, index) {
                return Ok(Some((i, range.clone())));
            }
        }
        Ok(None)
    }

    fn operands(&self, node: &Node) -> Result<SmallVec<[Operand; 8]>, GraphError> {
        node.inputs.iter().map(|&v| self.operand(v, node)).collect()
    }

    fn piece_step(&mut self, index: usize, node: &Node, piece: &Arc<Piece>) -> Result<(), GraphError> {
        let inputs = self.operands(node)?;
        let mut outputs = SmallVec::<[Slot; 2]>::new();
        for &v in &node.outputs {
            let ty = &self.graph.values[v.index()].ty;
            let (dims, len) = self.bytes(ty, &node.path)?;
            let range = self.offsets.alloc(len);
            self.places[v.index()] = Some(range.clone());
            outputs.push(Slot { range: range.start..range.start + len, dtype: ty.dtype, dims });
        }
        let kind = StepKind::Piece(piece.clone());
        self.steps.push(Step { kind, inputs, outputs, scratch: 0..0, node: index });
        Ok(())
    }

    fn tile_step(&mut self, index: usize, node: &Node, tile: &Arc<TileTime>) -> Result<(), GraphError> {
        let inputs = self.operands(node)?;
        let y = node.outputs[0];
        let (dims, len) = self.bytes(&self.graph.values[y.index()].ty, &node.path)?;
        let frames = inputs[0].dims.get(1).copied().unwrap_or(0);
        let rows = dims.get(1).copied().unwrap_or(0);
        let steps = tile_steps(tile, frames, rows, self.cpu, self.packing)?;
        let body = steps.tiles.iter().map(|t| t.plan.arena_len).max().unwrap_or(0);

        let range = self.offsets.alloc(len);
        self.places[y.index()] = Some(range.clone());
        let scratch = self.offsets.alloc(steps.header + body);
        self.offsets.free(scratch.clone());
        self.steps.push(Step {
            kind: StepKind::Tiles(Arc::new(steps)),
            inputs,
            outputs: SmallVec::from_iter([Slot {
                range: range.start..range.start + len,
                dtype: self.graph.values[y.index()].ty.dtype,
                dims,
            }]),
            scratch,
            node: index,
        });
        Ok(())
    }
}

/// Cuts `rows` rows of y into tiles; plans of equal tiles are shared.
fn tile_steps(
    node: &Arc<TileTime>,
    frames: usize,
    rows: usize,
    cpu: &Cpu,
    packing: Packing,
) -> Result<TileSteps, GraphError> {
    let mut plans: Vec<(usize, Arc<Plan>)> = Vec::new();
    let mut tiles = Vec::new();
    let mut start = 0;
    while start < rows {
        let end = (start + node.tile).min(rows);
        let first = start.saturating_sub(node.halo_before);
        let x_start = (first * node.factor).min(frames);
        let x_end = if end == rows { frames } else { ((end + node.halo_after) * node.factor).min(frames) };
        let length = x_end.saturating_sub(x_start);
        let plan = match plans.iter().find(|(l, _)| *l == length) {
            Some((_, p)) => p.clone(),
            None => {
                let bindings = Bindings::new().with(node.time, length).with(node.batch, 1);
                let p = Arc::new(plan_with(&node.body, &bindings, &[], cpu, packing)?);
                plans.push((length, p.clone()));
                p
            }
        };
        tiles.push(Tile { plan, x_frames: x_start..x_end, y_skip: start - first, y_rows: start..end });
        start = end;
    }
    Ok(TileSteps { node: node.clone(), tiles, header: conure_device::arena::ALIGNMENT })
}
