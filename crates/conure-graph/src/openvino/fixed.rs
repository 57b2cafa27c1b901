//! Models of fixed lengths, as an NPU wants them: one for each of a few lengths, and runs padded to the next of these.
//!
//! ```text
//!   37 tokens ─▶ padded to 256 ─▶ the model for 256 ─▶ the rows of the 37
//!    1 token  ─────────────────▶ the model for 1
//! ```
//!
//! Only lengths are padded that the graph allows to be ([`crate::GraphBuilder::may_pad`]); others have a model for each that is met.
//! Caches come in whole, with the table that says which rows are seen. States are one set for all models of a session.

use super::execution::OpenVinoExecution;
use super::{OpenVino, OpenVinoPiece};
use crate::backend::{Compiled, Execution, PieceCall};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use crate::observe::KernelDone;
use conure_device::arena::AlignedBytes;
use conure_kernels::Cpu;
use conure_tensor::{Bindings, DType, Dims, Symbol, TensorMut, TensorView, tensor_bytes};
use std::sync::{Arc, Mutex, PoisonError};

/// The length that a run of `n` is padded to: 1, `chunk`, or more in steps of a half and a third, so that few are ever met and
/// none is padded by more than a half.
fn padded(n: usize, chunk: usize) -> usize {
    if n <= 1 {
        return 1;
    }
    let mut length = chunk.max(2);
    loop {
        if n <= length {
            return length;
        }
        if n <= length / 2 * 3 {
            return length / 2 * 3;
        }
        match length.checked_mul(2) {
            Some(next) => length = next,
            None => return n,
        }
    }
}

/// The values of symbols, in order: what tells models apart.
type Lengths = Vec<(Symbol, usize)>;

#[derive(Debug)]
struct Models {
    device: OpenVino,
    graph: Graph,
    made: Mutex<Vec<(Lengths, Arc<OpenVinoPiece>)>>,
}

impl Models {
    /// The model for runs of these lengths.
    fn of(&self, lengths: &Lengths, bindings: &Bindings) -> Result<Arc<OpenVinoPiece>, GraphError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, piece)) = made.iter().find(|(known, _)| known == lengths) {
            return Ok(piece.clone());
        }
        let piece = Arc::new(self.device.make(&self.graph, Some(bindings))?);
        made.push((lengths.clone(), piece.clone()));
        Ok(piece)
    }

    /// What a run binds once it is padded.
    fn padded(&self, bindings: &Bindings) -> Bindings {
        let mut padded = bindings.clone();
        for (symbol, n) in bindings.iter().filter(|(s, _)| self.graph.pads.contains(s)) {
            padded.set(symbol, self::padded(n, self.device.options.chunk()));
        }
        padded
    }

    fn dims(&self, value: ValueId, bindings: &Bindings) -> Result<Dims, GraphError> {
        let shape = &self.graph.values[value.index()].ty.shape;
        shape.eval(bindings).map_err(|source| GraphError::Dim { path: self.device.info.name.clone(), source })
    }
}

/// A piece of which models are made as lengths are met.
#[derive(Debug)]
pub(super) struct FixedPiece(Arc<Models>);

impl FixedPiece {
    pub(super) fn new(device: OpenVino, graph: Graph) -> FixedPiece {
        FixedPiece(Arc::new(Models { device, graph, made: Mutex::default() }))
    }
}

impl Compiled for FixedPiece {
    fn start(&self, _cpu: &Arc<Cpu>) -> Result<Box<dyn Execution>, GraphError> {
        let states = self.0.graph.states.iter().map(super::execution::zeroed).collect::<Result<_, _>>()?;
        Ok(Box::new(FixedExecution {
            models: self.0.clone(),
            executions: Vec::new(),
            current: None,
            states,
            inputs: Vec::new(),
            outputs: Vec::new(),
        }))
    }
}

#[derive(Debug)]
struct FixedExecution {
    models: Arc<Models>,
    executions: Vec<(Lengths, OpenVinoExecution)>,
    /// The execution that has the states.
    current: Option<usize>,
    /// The states, while none has them.
    states: Vec<AlignedBytes>,
    /// Inputs and outputs with padding.
    inputs: Vec<AlignedBytes>,
    outputs: Vec<AlignedBytes>,
}

impl FixedExecution {
    /// Gives the states to the execution for these lengths, which is begun if there is none.
    fn choose(&mut self, bindings: &Bindings) -> Result<usize, GraphError> {
        let lengths: Lengths = bindings.iter().collect();
        let known = self.executions.iter().position(|(l, _)| *l == lengths);
        if known.is_some() && known == self.current {
            return Ok(known.unwrap_or(0));
        }
        if let Some(current) = self.current.take() {
            self.executions[current].1.swap_states(&mut self.states);
        }
        let at = match known {
            Some(at) => at,
            None => {
                let piece = self.models.of(&lengths, bindings)?;
                self.executions.push((lengths, piece.execution()?));
                self.executions.len() - 1
            }
        };
        self.executions[at].1.swap_states(&mut self.states);
        self.current = Some(at);
        Ok(at)
    }

    fn failed(&self, source: conure_tensor::TensorError) -> GraphError {
        GraphError::Tensor { path: self.models.device.info.name.clone(), source }
    }

    fn check_state(&self, index: usize, bytes: usize) -> Result<(), GraphError> {
        match self.models.graph.states.get(index).is_some_and(|state| state.bytes() == bytes) {
            true => Ok(()),
            false => {
                Err(GraphError::Build { what: format!("the piece has no state {index} of {bytes} bytes") })
            }
        }
    }
}

/// Room of so many zeros.
fn zeros(room: &mut AlignedBytes, len: usize, path: &str) -> Result<(), GraphError> {
    if room.len() == len {
        room.as_mut_slice().fill(0);
        return Ok(());
    }
    let memory = AlignedBytes::zeroed(len);
    *room = memory.map_err(|source| GraphError::StateMemory {
        state: format!("inputs and outputs with padding on {path}"),
        bytes: len,
        source,
    })?;
    Ok(())
}

/// Copies what both have room for: elements of `size` bytes.
fn copy(from: (&[u8], &[usize]), to: (&mut [u8], &[usize]), size: usize) {
    let ((from, from_dims), (to, to_dims)) = (from, to);
    let (Some((&n, from_inner)), Some((&m, to_inner))) = (from_dims.split_first(), to_dims.split_first())
    else {
        to[..size].copy_from_slice(&from[..size]);
        return;
    };
    let (each_from, each_to) =
        (from_inner.iter().product::<usize>() * size, to_inner.iter().product::<usize>() * size);
    if each_from == 0 || each_to == 0 {
        return;
    }
    if from_inner == to_inner {
        let both = n.min(m) * each_to;
        to[..both].copy_from_slice(&from[..both]);
        return;
    }
    for (from, to) in from.chunks_exact(each_from).zip(to.chunks_exact_mut(each_to)) {
        copy((from, from_inner), (to, to_inner), size);
    }
}

fn element_size(dtype: DType) -> usize {
    tensor_bytes(dtype, &[1]).unwrap_or(0)
}

impl Execution for FixedExecution {
    fn run(&mut self, call: &mut PieceCall<'_, '_>) -> Result<(), GraphError> {
        let models = self.models.clone();
        let path = &models.device.info.name;
        let bindings = models.padded(call.bindings);
        let at = self.choose(&bindings)?;
        let mut shapes = Vec::with_capacity(call.inputs.len());
        self.inputs.resize_with(call.inputs.len(), AlignedBytes::default);
        for ((view, &id), room) in call.inputs.iter().zip(&models.graph.inputs).zip(&mut self.inputs) {
            let dims = models.dims(id, &bindings)?;
            if view.shape() != dims.as_slice() {
                zeros(room, tensor_bytes(view.dtype(), &dims).unwrap_or(0), path)?;
                let to = (room.as_mut_slice(), dims.as_slice());
                copy((TensorView::bytes(view), view.shape()), to, element_size(view.dtype()));
            }
            shapes.push(dims);
        }
        let mut inputs = Vec::with_capacity(shapes.len());
        for ((view, dims), room) in call.inputs.iter().zip(&shapes).zip(&self.inputs) {
            inputs.push(match view.shape() == dims.as_slice() {
                true => view.clone(),
                false => TensorView::new(view.dtype(), dims, room.as_slice()).map_err(|e| self.failed(e))?,
            });
        }
        self.outputs.resize_with(call.outputs.len(), AlignedBytes::default);
        let mut out_shapes = Vec::with_capacity(call.outputs.len());
        for (&(_, id), room) in models.graph.outputs.iter().zip(&mut self.outputs) {
            let dims = models.dims(id, &bindings)?;
            let dtype = models.graph.values[id.index()].ty.dtype;
            zeros(room, tensor_bytes(dtype, &dims).unwrap_or(0), path)?;
            out_shapes.push((dtype, dims));
        }
        let mut outputs = Vec::with_capacity(out_shapes.len());
        for ((dtype, dims), room) in out_shapes.iter().zip(&mut self.outputs) {
            let made = TensorMut::new(*dtype, dims, room.as_mut_slice());
            outputs.push(made.map_err(|source| GraphError::Tensor { path: path.clone(), source })?);
        }
        let execution = &mut self.executions[at].1;
        execution.keep_rows(execution.rows_of(call.bindings)?);
        let mut padded =
            PieceCall { bindings: &bindings, inputs: &inputs, outputs: &mut outputs, cancel: call.cancel };
        execution.run(&mut padded)?;
        for (((dtype, dims), room), to) in out_shapes.iter().zip(&self.outputs).zip(call.outputs.iter_mut()) {
            let to_dims = Dims::from_slice(to.view().shape());
            copy((room.as_slice(), dims), (to.bytes_mut(), &to_dims), element_size(*dtype));
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), GraphError> {
        match self.current {
            Some(at) => self.executions[at].1.commit(),
            None => Ok(()),
        }
    }

    fn kernels(&self) -> Vec<KernelDone> {
        self.current.map(|at| self.executions[at].1.kernels()).unwrap_or_default()
    }

    fn arena_bytes(&self) -> usize {
        let rooms = self.inputs.iter().chain(&self.outputs).map(AlignedBytes::len);
        rooms.sum::<usize>() + self.executions.iter().map(|(_, e)| e.arena_bytes()).sum::<usize>()
    }

    fn shrink(&mut self) {
        self.inputs.clear();
        self.outputs.clear();
        self.executions.iter_mut().for_each(|(_, e)| e.shrink());
    }

    fn read_state(&mut self, index: usize, bytes: &mut [u8]) -> Result<(), GraphError> {
        self.check_state(index, bytes.len())?;
        match self.current {
            Some(at) => self.executions[at].1.read_state(index, bytes)?,
            None => bytes.copy_from_slice(self.states[index].as_slice()),
        }
        Ok(())
    }

    fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GraphError> {
        self.check_state(index, bytes.len())?;
        match self.current {
            Some(at) => self.executions[at].1.write_state(index, bytes)?,
            None => self.states[index].as_mut_slice().copy_from_slice(bytes),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_few_and_long_enough() {
        for (n, expected) in [
            (0, 1),
            (1, 1),
            (2, 256),
            (256, 256),
            (257, 384),
            (384, 384),
            (385, 512),
            (513, 768),
            (769, 1024),
            (40_000, 49_152),
        ] {
            assert_eq!(padded(n, 256), expected, "{n}");
        }
        let all: std::collections::BTreeSet<usize> = (0..40_000).map(|n| padded(n, 256)).collect();
        assert!(all.len() < 20, "{all:?}");
        assert!((2..40_000).all(|n| padded(n, 256) >= n && (n <= 256 || padded(n, 256) < n * 3 / 2 + 1)));
    }

    #[test]
    fn what_both_have_is_copied() {
        let from: Vec<u8> = (1..=12).collect();
        let mut to = vec![0; 20];
        copy((&from, &[2, 3, 2]), (&mut to, &[2, 5, 2]), 1);
        assert_eq!(to, [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]);
        let mut back = vec![0; 12];
        copy((&to, &[2, 5, 2]), (&mut back, &[2, 3, 2]), 1);
        assert_eq!(back, from);
        let mut nothing = vec![];
        copy((&to, &[2, 5, 2]), (&mut nothing, &[0, 5, 2]), 1);
        let mut one = [0; 4];
        copy((&[1, 2, 3, 4], &[]), (&mut one, &[]), 4);
        assert_eq!(one, [1, 2, 3, 4]);
    }
}
