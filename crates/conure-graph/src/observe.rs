//! Watching a run: who is told of each step, for progress and for profiles.

use crate::cpu::{InputRef, read};
use crate::graph::{Graph, Node, ValueId};
use crate::plan::{Operand, Plan, Source, Step, StepKind};
use crate::states::States;
use conure_device::arena::AlignedBytes;
use conure_tensor::{TensorView, tensor_bytes};
use smallvec::SmallVec;
use std::fmt;
use std::time::Instant;

/// Told of every kernel call of a run, also of those inside a node that is tiled in time. It is called on the thread
/// that runs the session, so that what it takes is added to the run.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Whether steps are to be timed. Two looks at the clock per step are the cost.
    fn wants_time(&self) -> bool {
        false
    }

    /// A step is done.
    fn step(&self, step: &StepDone<'_>);

    /// A device ran a kernel of a piece, if it was told to look; before the step of that piece.
    fn kernel(&self, _kernel: &KernelDone) {}
}

/// A kernel that a device ran as part of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDone {
    /// The device's name for the layer, which begins with the path of the node that it comes from.
    pub layer: String,
    /// What the layer does, in the device's words.
    pub kind: String,
    /// The kernel that was chosen.
    pub kernel: String,
    /// What it took.
    pub nanos: u64,
}

/// A step that is done.
#[derive(Debug)]
pub struct StepDone<'a> {
    /// The graph that the node is of: the session's, or the body of a tiled node.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Its number in [`Graph::nodes`].
    pub index: usize,
    /// The cost of the steps so far, this one included; see [`StepDone::total`].
    pub done: f64,
    /// The cost of all steps of the run: estimated work, so that `done / total` grows about as time does.
    pub total: f64,
    /// What the step took, if [`Observer::wants_time`].
    pub nanos: Option<u64>,
    step: &'a Step,
    memory: Memory<'a>,
}

/// Where the operands of a step are that is done.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub base: usize,
    pub inputs: &'a [InputRef<'a>],
    pub arena: &'a AlignedBytes,
    pub states: &'a States,
}

impl fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl StepDone<'_> {
    /// Nominal floating-point operations of the step; 0 for a piece that another device runs.
    pub fn flops(&self) -> f64 {
        flops(self.step)
    }

    /// Bytes that the step reads and writes at least: its inputs, weights as stored in the model, and its outputs; see
    /// [`Op::moves`](conure_ops::Op::moves).
    pub fn bytes(&self) -> u64 {
        bytes(self.step)
    }

    /// What the step read as input `at`; `None` where it wrote its output over that, or where it is a weight that is packed.
    pub fn input(&self, at: usize) -> Option<TensorView<'_>> {
        let operand = self.step.inputs.get(at)?;
        if matches!(operand.source, Source::Packed(_) | Source::InPlace) {
            return None;
        }
        let Memory { base, inputs, arena, states } = self.memory;
        read(self.graph, &self.node.path, operand, base, inputs, (arena, states)).ok()
    }

    /// The products with weights that the step made: the weight's name, and the value and number of the input that it was
    /// multiplied with.
    pub fn products(&self) -> impl Iterator<Item = (&str, ValueId, usize)> {
        self.graph.products(self.node)
    }
}

/// Operations that take about as long as a byte to or from memory: one core does 160 GFLOP/s in products and moves some
/// 10 GB/s, and half of what an encoder's step reads is in a cache.
const FLOPS_PER_BYTE: f64 = 8.0;

fn flops(step: &Step) -> f64 {
    let StepKind::Op(op) = &step.kind else { return 0.0 };
    let inputs: SmallVec<[&[usize]; 8]> = step.inputs.iter().map(|o| o.dims.as_slice()).collect();
    let outputs: SmallVec<[&[usize]; 2]> = step.outputs.iter().map(|o| o.dims.as_slice()).collect();
    op.flops(&inputs, &outputs)
}

fn bytes(step: &Step) -> u64 {
    let size = |dtype, dims: &[usize]| tensor_bytes(dtype, dims).unwrap_or(0) as u64;
    let input = |o: &Operand| if matches!(o.source, Source::InPlace) { 0 } else { size(o.dtype, &o.dims) };
    let inputs: SmallVec<[u64; 8]> = step.inputs.iter().map(input).collect();
    let outputs: SmallVec<[u64; 2]> = step.outputs.iter().map(|o| size(o.dtype, &o.dims)).collect();
    match &step.kind {
        StepKind::Op(op) => op.moves(&inputs, &outputs),
        _ => inputs.iter().chain(&outputs).sum(),
    }
}

fn step_cost(step: &Step) -> f64 {
    flops(step) + FLOPS_PER_BYTE * bytes(step) as f64
}

/// The sum over all steps of a plan, those of tiles among them, of what `of` says of one.
fn total(plan: &Plan, of: fn(&Step) -> f64) -> f64 {
    let step = |step: &Step| match &step.kind {
        StepKind::Tiles(tiles) => {
            let items = step.outputs.first().and_then(|y| y.dims.first()).copied().unwrap_or(0);
            items as f64 * tiles.tiles.iter().map(|t| total(&t.plan, of)).sum::<f64>()
        }
        _ => of(step),
    };
    plan.steps.iter().map(step).sum()
}

/// Nominal floating-point operations of all steps of a plan.
pub(crate) fn work(plan: &Plan) -> f64 {
    total(plan, flops)
}

/// The cost of all steps of a plan.
fn cost(plan: &Plan) -> f64 {
    total(plan, step_cost)
}

/// An observer at a run.
pub(crate) struct Watch<'a> {
    observer: &'a dyn Observer,
    timed: bool,
    done: f64,
    total: f64,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, plan: &Plan) -> Watch<'a> {
        Watch { observer, timed: observer.wants_time(), done: 0.0, total: cost(plan) }
    }

    /// Tells of kernels that a device ran.
    pub(crate) fn kernels(&self, kernels: &[KernelDone]) {
        kernels.iter().for_each(|k| self.observer.kernel(k));
    }

    /// When the next step begins, if that is wanted.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.timed.then(Instant::now)
    }

    /// Tells of the step that began at `begun` and whose operands are in `memory`.
    pub(crate) fn end(&mut self, graph: &Graph, step: &Step, begun: Option<Instant>, memory: Memory<'_>) {
        let nanos = begun.map(|b| u64::try_from(b.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.done += step_cost(step);
        let (done, total, index) = (self.done, self.total, step.node);
        if let Some(node) = graph.nodes.get(index) {
            self.observer.step(&StepDone { graph, node, index, done, total, nanos, step, memory });
        }
    }
}
