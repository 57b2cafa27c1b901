//! Planning: for given lengths, which kernel runs when, and where in the arena its operands are.

use crate::backend::Piece;
use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, TileTime, ValueId};
use crate::liveness::{Liveness, Offsets};
use crate::states::check_commit;
use crate::tiles::{self, TileSteps, tile_steps};
use crate::weights::Form;
use conure_kernels::{Cpu, Precision};
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

/// A graph planned for given lengths: made in microseconds, run any number of times.
#[derive(Debug)]
pub struct Plan {
    pub(crate) bindings: Bindings,
    pub(crate) steps: Vec<Step>,
    pub(crate) inputs: Vec<(DType, Dims)>,
    pub(crate) outputs: Vec<(String, Slot)>,
    /// What enters the states, in the order of the graph's commits: in the arena, fixed, or a state that no commit before it
    /// changes.
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
    let outputs = planner.outputs(captures)?;
    let inputs = graph
        .inputs
        .iter()
        .map(|&v| {
            let ty = &graph.values[v.index()].ty;
            Ok((ty.dtype, planner.dims(ty, "input")?))
        })
        .collect::<Result<Vec<_>, GraphError>>()?;
    let commits = (0..graph.commits.len()).map(|i| planner.commit(i)).collect::<Result<Vec<_>, _>>()?;
    Ok(Plan {
        bindings: bindings.clone(),
        steps: planner.steps,
        inputs,
        outputs,
        commits,
        arena_len: planner.offsets.high_water(),
    })
}

/// Elements and bytes of one tensor at most: more than any machine addresses, and little enough that a kernel can count in
/// multiples of it what it needs besides.
const MOST: usize = 1 << 56;

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
        // An axis of length 0 does not make up for the others.
        let lengths = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        match (tensor_bytes(ty.dtype, &dims), lengths) {
            (Some(n), Some(lengths)) if n <= MOST && lengths <= MOST => Ok((dims, n)),
            _ => Err(too_large(path, &dims, ty.dtype)),
        }
    }

    /// A part of the arena for what belongs to the tensor at `path`.
    fn room(
        &mut self,
        len: usize,
        path: &str,
        dims: &[usize],
        dtype: DType,
    ) -> Result<Range<usize>, GraphError> {
        self.offsets.alloc(len).ok_or_else(|| too_large(path, dims, dtype))
    }

    /// A slot for output `v` of a node, whose place is then known; `reused`: the part of the arena that it takes over.
    fn slot(&mut self, v: ValueId, path: &str, reused: Option<Range<usize>>) -> Result<Slot, GraphError> {
        let ty = &self.graph.values[v.index()].ty;
        let (dims, len) = self.bytes(ty, path)?;
        let range = match reused {
            Some(range) => range,
            None => self.room(len, path, &dims, ty.dtype)?,
        };
        self.places[v.index()] = Some(range.clone());
        Ok(Slot { range: range.start..range.start + len, dtype: ty.dtype, dims })
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
        Ok(Operand { source: self.source(v)?, dtype: ty.dtype, dims: self.bytes(ty, &node.path)?.0 })
    }

    /// The outputs and, under each of its names, what is captured.
    fn outputs(&mut self, captures: &[ValueId]) -> Result<Vec<(String, Slot)>, GraphError> {
        let graph = self.graph;
        let mut named: Vec<(&str, ValueId)> = graph.outputs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        if !captures.is_empty() {
            let captured = graph.names.iter().filter(|(_, v)| captures.contains(v));
            let others = captured.map(|(n, v)| (n.as_str(), *v)).filter(|n| !named.contains(n));
            let mut others: Vec<(&str, ValueId)> = others.collect();
            others.sort_unstable();
            named.extend(others);
        }
        let mut slots: Vec<(ValueId, Slot)> = Vec::new();
        let mut outputs = Vec::with_capacity(named.len());
        for (name, v) in named {
            let slot = match slots.iter().find(|(of, _)| *of == v) {
                Some((_, slot)) => slot.clone(),
                None => self.output(name, v)?,
            };
            slots.push((v, slot.clone()));
            outputs.push((name.to_owned(), slot));
        }
        Ok(outputs)
    }

    /// What enters a state by commit `index`. All commits see the states as they were: what lies in a state that an earlier
    /// commit changes is copied, as are inputs, which are there no more when another piece has yet to run.
    fn commit(&mut self, index: usize) -> Result<Operand, GraphError> {
        let graph = self.graph;
        let commit = &graph.commits[index];
        let def = &graph.states[commit.state()];
        let ty = &graph.values[commit.value().index()].ty;
        let (dims, _) = self.bytes(ty, &def.name)?;
        check_commit(def, commit, ty.dtype, &dims)?;
        let source = self.source(commit.value())?;
        let moves = match source {
            Source::Input(_) => true,
            Source::State(read) => graph.commits[..index].iter().any(|c| c.state() == read),
            _ => false,
        };
        if !moves {
            return Ok(Operand { source, dtype: ty.dtype, dims });
        }
        let Slot { range, dtype, dims } = self.copy(&def.name, commit.value(), source)?;
        Ok(Operand { source: Source::Arena(range), dtype, dims })
    }

    /// Where an output is at the end of the run. What lies outside the arena (an input, a weight, a state before it
    /// changes, or a view of one) is copied into it.
    fn output(&mut self, name: &str, v: ValueId) -> Result<Slot, GraphError> {
        let ty = &self.graph.values[v.index()].ty;
        let (dims, len) = self.bytes(ty, name)?;
        match self.source(v)? {
            Source::Arena(range) => Ok(Slot { range: range.start..range.start + len, dtype: ty.dtype, dims }),
            source => self.copy(name, v, source),
        }
    }

    /// A copy of a value in the arena, made when all nodes have run.
    fn copy(&mut self, name: &str, v: ValueId, source: Source) -> Result<Slot, GraphError> {
        let ty = &self.graph.values[v.index()].ty;
        let (dims, len) = self.bytes(ty, name)?;
        let range = self.room(len, name, &dims, ty.dtype)?;
        let slot = Slot { range: range.start..range.start + len, dtype: ty.dtype, dims: dims.clone() };
        self.steps.push(Step {
            kind: StepKind::Copy,
            inputs: SmallVec::from_iter([Operand { source, dtype: ty.dtype, dims }]),
            outputs: SmallVec::from_iter([slot.clone()]),
            scratch: 0..0,
            node: self.graph.nodes.len(),
        });
        Ok(slot)
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
            let range = reused.as_ref().filter(|_| i == 0).map(|(_, range)| range.clone());
            outputs.push(self.slot(v, &node.path, range)?);
        }
        if let Some((input, _)) = reused {
            inputs[input].source = Source::InPlace;
            self.places[self.live.root(node.inputs[input]).index()] = None;
        }
        let scratch = {
            let in_dims: SmallVec<[&[usize]; 8]> = inputs.iter().map(|o| o.dims.as_slice()).collect();
            let out_dims: SmallVec<[&[usize]; 2]> = outputs.iter().map(|o| o.dims.as_slice()).collect();
            let len = cpu.scratch(&in_dims, &out_dims, self.cpu.threads().count());
            let (dims, dtype) =
                inputs.first().map_or((&[][..], DType::F32), |o| (o.dims.as_slice(), o.dtype));
            self.room(len, &node.path, dims, dtype)?
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
                let (isa, int8) = (self.cpu.isa(), self.cpu.precision() == Precision::Int8);
                let form = Form { key, dims: operand.dims.clone(), isa, int8 };
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
            outputs.push(self.slot(v, &node.path, None)?);
        }
        let kind = StepKind::Piece(piece.clone());
        self.steps.push(Step { kind, inputs, outputs, scratch: 0..0, node: index });
        Ok(())
    }

    fn tile_step(&mut self, index: usize, node: &Node, tile: &Arc<TileTime>) -> Result<(), GraphError> {
        let inputs = self.operands(node)?;
        let y = self.slot(node.outputs[0], &node.path, None)?;
        let frames = inputs[0].dims.get(1).copied().unwrap_or(0);
        let rows = y.dims.get(1).copied().unwrap_or(0);
        if rows / tile.tile > tiles::MOST {
            return Err(too_large(&node.path, &y.dims, y.dtype));
        }
        let steps = tile_steps(tile, frames, rows, self.cpu, self.packing)?;
        let body = steps.tiles.iter().map(|t| t.plan.arena_len).max().unwrap_or(0);
        let scratch = self.room(steps.header.saturating_add(body), &node.path, &y.dims, y.dtype)?;
        self.offsets.free(scratch.clone());
        self.steps.push(Step {
            kind: StepKind::Tiles(Arc::new(steps)),
            inputs,
            outputs: SmallVec::from_iter([y]),
            scratch,
            node: index,
        });
        Ok(())
    }
}

fn too_large(path: &str, dims: &[usize], dtype: DType) -> GraphError {
    GraphError::TooLarge { path: path.to_owned(), shape: dims.to_vec(), dtype }
}
