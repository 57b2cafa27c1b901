//! Running a plan on the CPU: a list of kernel calls over one arena.

use crate::backend::{Executions, Piece, PieceCall};
use crate::error::GraphError;
use crate::graph::Graph;
use crate::observe::{Memory, Watch};
use crate::plan::{Operand, Plan, Source, Step, StepKind};
use crate::states::{States, append, commit};
use crate::tiles::{Tile, TileSteps};
use conure_device::arena::AlignedBytes;
use conure_kernels::Cpu;
use conure_ops::{CpuCall, CpuInput, Op};
use conure_tensor::{TensorMut, TensorView, tensor_bytes};
use smallvec::SmallVec;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where an input of a run is: the caller's memory, the arena when a tile's body reads what its graph computed, or a
/// part of a state.
#[derive(Clone, Debug)]
pub(crate) enum InputRef<'a> {
    Slice(&'a [u8]),
    Arena(Range<usize>),
    State(usize, Range<usize>),
}

/// What a run needs besides plan and inputs.
pub(crate) struct Run<'a> {
    pub arena: &'a mut AlignedBytes,
    pub states: &'a mut States,
    pub executions: &'a mut Executions,
    pub cpu: &'a Arc<Cpu>,
    pub cancel: Option<&'a AtomicBool>,
    pub watch: Option<Watch<'a>>,
}

type Ranges = SmallVec<[Range<usize>; 16]>;

/// Runs `plan`; its arena starts at byte `base` of the run's. No state changes but those that are appended to: that is what
/// [`commit_states`] does when all is done.
pub(crate) fn execute(
    graph: &Graph,
    plan: &Plan,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    for step in &plan.steps {
        if run.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(GraphError::Cancelled);
        }
        if let StepKind::Tiles(tiles) = &step.kind {
            tile_step(graph, step, tiles, base, inputs, run)?;
            continue;
        }
        let begun = run.watch.as_ref().and_then(Watch::begin);
        match &step.kind {
            StepKind::Op(op) => op_step(graph, step, op, base, inputs, run)?,
            StepKind::Append(state) => append_step(graph, step, *state, base, inputs, run)?,
            StepKind::Piece(piece) => piece_step(graph, plan, step, piece, base, inputs, run)?,
            StepKind::Copy => copy_step(graph, step, base, inputs, run)?,
            StepKind::Tiles(_) => {}
        }
        if let Some(watch) = &mut run.watch {
            let memory = Memory { base, inputs, arena: run.arena, states: run.states };
            watch.end(graph, step, begun, memory);
        }
    }
    Ok(())
}

/// Lets what a run of `plan` left in `arena` enter the states.
pub(crate) fn commit_states(
    graph: &Graph,
    plan: &Plan,
    arena: &AlignedBytes,
    states: &mut States,
) -> Result<(), GraphError> {
    for (change, operand) in graph.commits.iter().zip(&plan.commits) {
        let Some(def) = graph.states.get(change.state()) else {
            return Err(GraphError::Build { what: format!("there is no state {}", change.state()) });
        };
        if matches!(operand.source, Source::State(i) if i == change.state()) {
            continue; // it stays as it is
        }
        let mut buffer = states.take(change.state());
        let result = read(graph, &def.name, operand, 0, &[], (arena, states))
            .and_then(|value| commit(buffer.as_mut_slice(), def, change, &value));
        states.put(change.state(), buffer);
        result?;
    }
    Ok(())
}

fn shifted(range: &Range<usize>, base: usize) -> Range<usize> {
    range.start + base..range.end + base
}

fn path(graph: &Graph, step: &Step) -> String {
    graph.nodes.get(step.node).map(|n| n.path.clone()).unwrap_or_default()
}

/// Where the bytes of an operand are: in the arena, or outside of it.
fn locate<'a>(
    graph: &'a Graph,
    operand: &'a Operand,
    base: usize,
    inputs: &[InputRef<'a>],
) -> Option<InputRef<'a>> {
    match &operand.source {
        Source::Arena(range) => {
            // A view may be shorter than the value it is a view of, never longer.
            let len = tensor_bytes(operand.dtype, &operand.dims).unwrap_or(range.len());
            Some(InputRef::Arena(shifted(&(range.start..range.start + len.min(range.len())), base)))
        }
        Source::Input(i) => inputs.get(*i).cloned(),
        Source::Weight(i) => Some(InputRef::Slice(graph.weights.bytes(*i))),
        Source::Constant(t) => Some(InputRef::Slice(TensorView::bytes(&t.view()))),
        Source::State(i) => {
            Some(InputRef::State(*i, 0..tensor_bytes(operand.dtype, &operand.dims).unwrap_or(0)))
        }
        Source::Packed(_) | Source::InPlace => None,
    }
}

type Located<'a> = SmallVec<[Option<InputRef<'a>>; 8]>;

/// Where the inputs of a step are, and which parts of the arena that makes it read. Both lists are the caller's: to return them
/// would move hundreds of bytes at every step (a whole step of a small decoder: 3.2 us, and 2.6 us so).
fn locate_all<'a>(
    graph: &'a Graph,
    step: &'a Step,
    base: usize,
    inputs: &[InputRef<'a>],
    located: &mut Located<'a>,
    reads: &mut Ranges,
) {
    for operand in &step.inputs {
        let at = locate(graph, operand, base, inputs);
        if let Some(InputRef::Arena(range)) = &at {
            reads.push(range.clone());
        }
        located.push(at);
    }
}

/// The tensor of an operand that is not packed or in place, wherever it is; `arena` gives its part of the arena, and `of` says
/// in an error whose operand it is.
fn tensor<'a>(
    of: impl Fn() -> String,
    operand: &'a Operand,
    at: &InputRef<'a>,
    arena: impl FnOnce(&Range<usize>) -> Option<&'a [u8]>,
    states: &'a States,
) -> Result<TensorView<'a>, GraphError> {
    let bytes = match at {
        InputRef::Slice(bytes) => Some(*bytes),
        InputRef::Arena(range) => arena(range),
        InputRef::State(index, range) => states.bytes(*index).get(range.clone()),
    };
    TensorView::new(operand.dtype, &operand.dims, bytes.unwrap_or(&[]))
        .map_err(|source| GraphError::Tensor { path: of(), source })
}

/// Appends the outputs of a step in their parts of the arena.
fn outputs<'a>(
    graph: &Graph,
    step: &'a Step,
    parts: impl IntoIterator<Item = &'a mut [u8]>,
    outputs: &mut SmallVec<[TensorMut<'a>; 2]>,
) -> Result<(), GraphError> {
    for (slot, bytes) in step.outputs.iter().zip(parts) {
        let output = TensorMut::new(slot.dtype, &slot.dims, bytes);
        outputs.push(output.map_err(|source| GraphError::Tensor { path: path(graph, step), source })?);
    }
    Ok(())
}

fn op_step(
    graph: &Graph,
    step: &Step,
    op: &Arc<dyn Op>,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    if step.outputs.iter().all(|s| s.range.is_empty()) {
        return Ok(());
    }
    let (mut located, mut reads) = (Located::new(), Ranges::new());
    locate_all(graph, step, base, inputs, &mut located, &mut reads);
    let mut writes: Ranges = step.outputs.iter().map(|s| shifted(&s.range, base)).collect();
    writes.push(shifted(&step.scratch, base));
    let mut split = run
        .arena
        .split(&reads, &writes)
        .map_err(|source| GraphError::Plan { path: path(graph, step), source })?;
    let (read_parts, write_parts) = split.parts();
    let mut next_read = read_parts.iter();
    let mut call_inputs = SmallVec::<[CpuInput<'_>; 8]>::new();
    for (operand, at) in step.inputs.iter().zip(&located) {
        call_inputs.push(match (at, &operand.source) {
            (Some(at), _) => {
                let part = |_: &Range<usize>| next_read.next().copied();
                CpuInput::Tensor(tensor(|| path(graph, step), operand, at, part, run.states)?)
            }
            (None, Source::Packed(p)) => CpuInput::Packed(p),
            (None, _) => CpuInput::InPlace,
        });
    }
    let Some((scratch, output_parts)) = write_parts.split_last_mut() else { return Ok(()) };
    let mut made = SmallVec::new();
    outputs(graph, step, output_parts.iter_mut().map(|part| &mut **part), &mut made)?;
    let Some(kernel) = op.cpu() else {
        return Err(GraphError::Unsupported {
            op: op.name(),
            path: path(graph, step),
            why: "it has no CPU kernel".into(),
        });
    };
    let mut call = CpuCall { inputs: &call_inputs, outputs: &mut made, scratch, cpu: run.cpu };
    // A kernel's panic must not take the caller's program down; the arena holds plain bytes, so that nothing is left
    // half changed that a later run could trip over.
    match catch_unwind(AssertUnwindSafe(|| kernel.run(&mut call))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(GraphError::Op { path: path(graph, step), source }),
        Err(payload) => {
            Err(GraphError::Panicked { path: path(graph, step), message: panic_message(&*payload) })
        }
    }
}

fn copy_step(
    graph: &Graph,
    step: &Step,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    let ([operand], [slot]) = (step.inputs.as_slice(), step.outputs.as_slice()) else {
        return Err(GraphError::Build { what: "a copy has one input and one output".into() });
    };
    let from = match locate(graph, operand, base, inputs) {
        Some(InputRef::Slice(bytes)) => bytes,
        Some(InputRef::State(index, range)) => run.states.bytes(index).get(range).unwrap_or(&[]),
        _ => &[],
    };
    match run.arena.as_mut_slice().get_mut(shifted(&slot.range, base)) {
        Some(to) if to.len() == from.len() => to.copy_from_slice(from),
        _ => return Err(GraphError::Build { what: "an output has another size than its value".into() }),
    }
    Ok(())
}

/// The tensor of an operand while nothing is written to the arena.
pub(crate) fn read<'a>(
    graph: &'a Graph,
    of: &str,
    operand: &'a Operand,
    base: usize,
    inputs: &[InputRef<'a>],
    (arena, states): (&'a AlignedBytes, &'a States),
) -> Result<TensorView<'a>, GraphError> {
    let at = locate(graph, operand, base, inputs).unwrap_or(InputRef::Slice(&[]));
    tensor(|| of.to_owned(), operand, &at, |range| arena.as_slice().get(range.clone()), states)
}

fn append_step(
    graph: &Graph,
    step: &Step,
    state: usize,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    let (Some(def), [rows, at]) = (graph.states.get(state), step.inputs.as_slice()) else {
        return Err(GraphError::Build { what: format!("append at {} takes rows and at", path(graph, step)) });
    };
    let mut buffer = run.states.take(state);
    let memory = (&*run.arena, &*run.states);
    let result = read(graph, &def.name, rows, base, inputs, memory)
        .and_then(|rows| Ok((rows, read(graph, &def.name, at, base, inputs, memory)?)))
        .and_then(|(rows, at)| append(buffer.as_mut_slice(), def, &rows, &at));
    run.states.put(state, buffer);
    result
}

fn piece_step(
    graph: &Graph,
    plan: &Plan,
    step: &Step,
    piece: &Arc<Piece>,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    let (mut located, mut reads) = (Located::new(), Ranges::new());
    locate_all(graph, step, base, inputs, &mut located, &mut reads);
    let writes: Ranges = step.outputs.iter().map(|s| shifted(&s.range, base)).collect();
    let (read_parts, write_parts) = run
        .arena
        .split_many(&reads, &writes)
        .map_err(|source| GraphError::Plan { path: path(graph, step), source })?;
    let mut next_read = read_parts.into_iter();
    let mut views = Vec::with_capacity(located.len());
    for (operand, at) in step.inputs.iter().zip(&located) {
        let at = at.as_ref().unwrap_or(&InputRef::Slice(&[]));
        views.push(tensor(|| path(graph, step), operand, at, |_| next_read.next(), run.states)?);
    }
    let mut made = SmallVec::new();
    outputs(graph, step, write_parts, &mut made)?;
    let mut call =
        PieceCall { bindings: &plan.bindings, inputs: &views, outputs: &mut made, cancel: run.cancel };
    run.executions.run(piece, run.cpu, &mut call)?;
    if let Some(watch) = &run.watch {
        watch.kernels(&run.executions.kernels(piece));
    }
    Ok(())
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

fn tile_step(
    graph: &Graph,
    step: &Step,
    tiles: &TileSteps,
    base: usize,
    inputs: &[InputRef<'_>],
    run: &mut Run<'_>,
) -> Result<(), GraphError> {
    let [x, lengths] = step.inputs.as_slice() else {
        return Err(GraphError::Build {
            what: format!("tile_time at {} takes x and lengths", path(graph, step)),
        });
    };
    let [y] = step.outputs.as_slice() else {
        return Err(GraphError::Build { what: format!("tile_time at {} has one output", path(graph, step)) });
    };
    let (Some(x_at), Some(lengths_at)) =
        (locate(graph, x, base, inputs), locate(graph, lengths, base, inputs))
    else {
        return Err(GraphError::Build {
            what: format!("tile_time at {}: inputs are not tensors", path(graph, step)),
        });
    };
    let batch = x.dims.first().copied().unwrap_or(0);
    for item in 0..batch {
        let valid = read_length(&lengths_at, item, run);
        for tile in &tiles.tiles {
            let spot = Spot { x_at: &x_at, item, valid, scratch: shifted(&step.scratch, base) };
            let rows = run_tile(step, tiles, tile, &spot, run)?;
            let row_bytes = rows.len() / tile.y_rows.len().max(1);
            let y_row = item * y.dims.get(1).copied().unwrap_or(0) + tile.y_rows.start;
            let to = base + y.range.start + y_row * row_bytes;
            let len = rows.len();
            let mut split = run
                .arena
                .split(std::slice::from_ref(&rows), std::slice::from_ref(&(to..to + len)))
                .map_err(|source| GraphError::Plan { path: path(graph, step), source })?;
            let (from, to) = split.parts();
            to[0].copy_from_slice(from[0]);
        }
    }
    Ok(())
}

/// Which part of x a tile of which item reads, and where the body may work.
struct Spot<'a> {
    x_at: &'a InputRef<'a>,
    item: usize,
    valid: i32,
    scratch: Range<usize>,
}

/// Runs the body on one tile; returns where in the arena the rows to keep are.
fn run_tile(
    step: &Step,
    tiles: &TileSteps,
    tile: &Tile,
    spot: &Spot<'_>,
    run: &mut Run<'_>,
) -> Result<Range<usize>, GraphError> {
    let x = &step.inputs[0];
    let frames = x.dims.get(1).copied().unwrap_or(0);
    let per_frame: usize = x.dims.iter().skip(2).product();
    let frame_bytes = tensor_bytes(x.dtype, &[per_frame]).unwrap_or(0);
    let start = (spot.item * frames + tile.x_frames.start) * frame_bytes;
    let range = start..start + tile.x_frames.len() * frame_bytes;
    let x_tile = match spot.x_at {
        InputRef::Slice(bytes) => InputRef::Slice(bytes.get(range).unwrap_or(&[])),
        InputRef::Arena(whole) => InputRef::Arena(shifted(&range, whole.start)),
        InputRef::State(index, whole) => InputRef::State(*index, shifted(&range, whole.start)),
    };
    let frames_here = i32::try_from(tile.x_frames.len()).unwrap_or(i32::MAX);
    let before = i32::try_from(tile.x_frames.start).unwrap_or(i32::MAX);
    let valid = spot.valid.saturating_sub(before).clamp(0, frames_here);
    let header = spot.scratch.start..spot.scratch.start + 4;
    run.arena.as_mut_slice()[header.clone()].copy_from_slice(&valid.to_le_bytes());

    let base = spot.scratch.start + tiles.header;
    execute(&tiles.node.body, &tile.plan, base, &[x_tile, InputRef::Arena(header)], run)?;

    let (_, out) = &tile.plan.outputs[0];
    let rows = out.dims.get(1).copied().unwrap_or(0);
    let row_bytes = out.range.len() / rows.max(1);
    if tile.y_skip + tile.y_rows.len() > rows {
        return Err(GraphError::Build {
            what: format!(
                "a tile of {} frames gave {rows} rows, needed {}",
                tile.x_frames.len(),
                tile.y_skip + tile.y_rows.len()
            ),
        });
    }
    let start = base + out.range.start + tile.y_skip * row_bytes;
    Ok(start..start + tile.y_rows.len() * row_bytes)
}

fn read_length(at: &InputRef<'_>, item: usize, run: &Run<'_>) -> i32 {
    let bytes = match at {
        InputRef::Slice(b) => b,
        InputRef::Arena(r) => run.arena.as_slice().get(r.clone()).unwrap_or(&[]),
        InputRef::State(index, r) => run.states.bytes(*index).get(r.clone()).unwrap_or(&[]),
    };
    bytes.get(item * 4..item * 4 + 4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_le_bytes)
}
