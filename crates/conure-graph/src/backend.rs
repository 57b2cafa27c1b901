//! What a device does with graphs: say what it runs, compile pieces, run them.
//!
//! The CPU is the host: it runs whatever no other device takes, straight from the plan (`cpu.rs`). Every other device is
//! a [`Backend`]. The unit it gets is a [`Piece`], not a node: a graph of its own, compiled once and run by each session
//! through an [`Execution`] that keeps the piece's states where the device computes.

use crate::device::DeviceInfo;
use crate::error::GraphError;
use crate::graph::{Graph, Node, StateDef};
use crate::observe::KernelDone;
use crate::session::{Program, Session};
use conure_kernels::Cpu;
use conure_tensor::{Bindings, TensorMut, TensorView};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A device that runs pieces of graphs.
pub trait Backend: fmt::Debug + Send + Sync {
    /// What it is; the name tells devices apart.
    fn info(&self) -> DeviceInfo;

    /// Whether it runs this node, by op, types and shapes.
    ///
    /// # Errors
    /// Why not, for the placement's report.
    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), String>;

    /// Compiles a piece. Called once per piece and program; weights are read from the graph's source.
    ///
    /// # Errors
    /// What the device cannot do after all, naming device and node.
    fn compile(&self, piece: &Graph) -> Result<Arc<dyn Compiled>, GraphError>;

    /// Rows that a run of a model with caches should have at most, if the device cares.
    fn chunk(&self) -> Option<usize> {
        None
    }

    /// In which numbers it computes what it takes: of the pieces made ready so far, else as it was asked to. `None`: as the CPU's
    /// kernels are told.
    fn precision(&self) -> Option<String> {
        None
    }

    /// How many pieces were compiled so far, and how many came from a cache.
    fn compilations(&self) -> Compilations {
        Compilations::default()
    }
}

/// Pieces that a device made ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compilations {
    /// Compiled.
    pub compiled: usize,
    /// Taken from a cache.
    pub cached: usize,
}

/// A piece compiled for a device, shared by sessions.
pub trait Compiled: fmt::Debug + Send + Sync {
    /// A place to run it, with states of its own, all zeros.
    ///
    /// # Errors
    /// What the device lacks: memory, most often.
    fn start(&self, cpu: &Arc<Cpu>) -> Result<Box<dyn Execution>, GraphError>;
}

/// A compiled piece in use by one session.
pub trait Execution: fmt::Debug + Send {
    /// Runs the piece. Its states stay as they are: what is to enter them is kept until [`Execution::commit`], which comes
    /// when the whole graph has run, or until the next run. Inputs and outputs of the call are gone by then.
    ///
    /// # Errors
    /// What failed. Unless it was cancelled, the session then reads the states, drops this execution, and writes them into
    /// a fresh one. States that cannot be read are lost, and the session says so until they are reset or restored.
    fn run(&mut self, call: &mut PieceCall<'_, '_>) -> Result<(), GraphError>;

    /// Lets what the last run made enter the states.
    ///
    /// # Errors
    /// What failed. All states of the session are lost then.
    fn commit(&mut self) -> Result<(), GraphError>;

    /// Bytes that it holds for intermediates.
    fn arena_bytes(&self) -> usize;

    /// Gives back what it holds for intermediates; states stay.
    fn shrink(&mut self);

    /// The bytes of state `index` of the piece's graph.
    ///
    /// # Errors
    /// If the device cannot give them.
    fn read_state(&mut self, index: usize, bytes: &mut [u8]) -> Result<(), GraphError>;

    /// Sets state `index` of the piece's graph.
    ///
    /// # Errors
    /// If the device cannot take them.
    fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GraphError>;

    /// The kernels of the last run, if the device was told to look.
    fn kernels(&self) -> Vec<KernelDone> {
        Vec::new()
    }
}

/// What an [`Execution`] gets for one run.
#[derive(Debug)]
pub struct PieceCall<'a, 'b> {
    /// The values of the symbols.
    pub bindings: &'b Bindings,
    /// Inputs in the order of [`Graph::inputs`].
    pub inputs: &'b [TensorView<'a>],
    /// Outputs in the order of [`Graph::outputs`], to be written whole.
    pub outputs: &'b mut [TensorMut<'a>],
    /// Set once the run is to end.
    pub cancel: Option<&'b AtomicBool>,
}

/// A part of a graph that a device runs as one.
pub struct Piece {
    /// The device's name.
    pub device: String,
    /// The part: inputs are what comes from outside, outputs what is used outside.
    pub graph: Graph,
    compiled: Arc<dyn Compiled>,
}

impl Piece {
    /// `graph`, compiled for `backend`.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn new(graph: Graph, backend: &dyn Backend) -> Result<Arc<Piece>, GraphError> {
        let compiled = backend.compile(&graph)?;
        Ok(Arc::new(Piece { device: backend.info().name, graph, compiled }))
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} nodes on {})", self.graph.nodes().len(), self.device)
    }
}

/// The executions of one session: one per piece that it has run so far.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    running: Vec<(Arc<Piece>, Box<dyn Execution>)>,
    /// States of executions that failed, until the next begins.
    saved: Vec<(String, Vec<u8>)>,
    /// States whose contents are gone.
    lost: Vec<String>,
}

impl Executions {
    /// Runs `piece`. An execution that fails is dropped: the next run starts a fresh one, with the states of the old.
    pub(crate) fn run(
        &mut self,
        piece: &Arc<Piece>,
        cpu: &Arc<Cpu>,
        call: &mut PieceCall<'_, '_>,
    ) -> Result<(), GraphError> {
        let at = self.start(piece, cpu)?;
        let result = self.running[at].1.run(call);
        if let Err(error) = &result
            && !matches!(error, GraphError::Cancelled)
        {
            let (piece, mut failed) = self.running.remove(at);
            for (index, state) in piece.graph.states().iter().enumerate() {
                let mut bytes = Vec::new();
                // A large cache may not fit a second time.
                let saved = bytes.try_reserve_exact(state.bytes()).is_ok() && {
                    bytes.resize(state.bytes(), 0);
                    failed.read_state(index, &mut bytes).is_ok()
                };
                match saved {
                    true => self.saved.push((state.name.clone(), bytes)),
                    false => self.lost.push(state.name.clone()),
                }
            }
        }
        result
    }

    /// Lets what the last run of each of `pieces` made enter its states.
    pub(crate) fn commit(&mut self, pieces: &[Arc<Piece>]) -> Result<(), GraphError> {
        for piece in pieces.iter().filter(|p| p.graph.changes_states()) {
            if let Some((_, execution)) = self.running.iter_mut().find(|(p, _)| Arc::ptr_eq(p, piece)) {
                execution.commit()?;
            }
        }
        Ok(())
    }

    /// Says of these states that their contents are gone.
    pub(crate) fn lose(&mut self, states: &[StateDef]) {
        self.clear();
        self.lost = states.iter().map(|s| s.name.clone()).collect();
    }

    /// Whether all states are there.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        if self.lost.is_empty() {
            return Ok(());
        }
        Err(GraphError::StatesLost { states: self.lost.clone() })
    }

    /// The kernels that the last run of `piece` called.
    pub(crate) fn kernels(&self, piece: &Arc<Piece>) -> Vec<KernelDone> {
        let found = self.running.iter().find(|(p, _)| Arc::ptr_eq(p, piece));
        found.map(|(_, execution)| execution.kernels()).unwrap_or_default()
    }

    /// The execution of `piece`, begun if there is none. States that another piece of the same graph keeps (the same part
    /// with more captures) move over.
    fn start(&mut self, piece: &Arc<Piece>, cpu: &Arc<Cpu>) -> Result<usize, GraphError> {
        if let Some(at) = self.running.iter().position(|(p, _)| Arc::ptr_eq(p, piece)) {
            return Ok(at);
        }
        let mut fresh = piece.compiled.start(cpu)?;
        for (index, state) in piece.graph.states().iter().enumerate() {
            if let Some(bytes) = self.kept(&state.name)? {
                fresh.write_state(index, &bytes)?;
            }
        }
        self.saved.retain(|(name, _)| !piece.graph.states().iter().any(|s| s.name == *name));
        // The older holder of a state must not be asked for it again.
        let holds = |p: &Piece| p.graph.states().iter().any(|s| piece.graph.states().contains(s));
        self.running.retain(|(p, _)| !holds(p));
        self.running.push((piece.clone(), fresh));
        Ok(self.running.len() - 1)
    }

    /// The bytes of a state; `None` if no execution keeps one of this name.
    pub(crate) fn read(&mut self, state: &str) -> Result<Option<Vec<u8>>, GraphError> {
        if self.lost.iter().any(|name| name == state) {
            self.check()?;
        }
        self.kept(state)
    }

    fn kept(&mut self, state: &str) -> Result<Option<Vec<u8>>, GraphError> {
        if let Some((_, bytes)) = self.saved.iter().find(|(name, _)| name == state) {
            return Ok(Some(bytes.clone()));
        }
        for (piece, execution) in &mut self.running {
            if let Some(index) = piece.graph.states().iter().position(|s| s.name == state) {
                let mut bytes = vec![0; piece.graph.states()[index].bytes()];
                execution.read_state(index, &mut bytes)?;
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Sets a state; the piece that keeps it is begun if need be. `false` if `pieces` keep no such state: the CPU does. It
    /// is not lost any more, unless the device cannot take it.
    pub(crate) fn write(
        &mut self,
        pieces: &[Arc<Piece>],
        state: &str,
        bytes: &[u8],
        cpu: &Arc<Cpu>,
    ) -> Result<bool, GraphError> {
        let holder = |piece: &&Arc<Piece>| piece.graph.states().iter().any(|s| s.name == state);
        let holder = pieces.iter().find(holder);
        if let Some(piece) = holder {
            let at = self.start(piece, cpu)?;
            let index = piece.graph.states().iter().position(|s| s.name == state).unwrap_or(0);
            if let Err(error) = self.running[at].1.write_state(index, bytes) {
                self.lost.push(state.to_owned());
                return Err(error);
            }
        }
        self.lost.retain(|name| name != state);
        Ok(holder.is_some())
    }

    /// Forgets all states, and with them the executions.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
        self.saved.clear();
        self.lost.clear();
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.running.iter().map(|(_, e)| e.arena_bytes()).sum()
    }

    pub(crate) fn shrink(&mut self) {
        self.running.iter_mut().for_each(|(_, e)| e.shrink());
    }
}

/// A piece run by the CPU's own kernels, in a session of its own: what a device that is only a limit on the ops uses, and
/// what stands in for a device in tests.
#[derive(Debug)]
pub(crate) struct OnHost(pub(crate) Arc<Program>);

impl Compiled for OnHost {
    fn start(&self, cpu: &Arc<Cpu>) -> Result<Box<dyn Execution>, GraphError> {
        Ok(Box::new(Session::new(self.0.clone(), cpu.clone())?))
    }
}

impl Execution for Session {
    fn run(&mut self, call: &mut PieceCall<'_, '_>) -> Result<(), GraphError> {
        let program = self.program().clone();
        let names = program.graph().inputs().map(|(name, _)| name);
        let inputs: Vec<(&str, TensorView<'_>)> = names.zip(call.inputs.iter().cloned()).collect();
        self.compute(call.bindings, &inputs, &[], call.cancel)?;
        let outputs = self.outputs()?;
        for ((name, _), out) in program.graph().outputs().zip(call.outputs.iter_mut()) {
            let view = outputs.get(name)?;
            if view.bytes().len() != out.bytes_mut().len() {
                return Err(GraphError::Build { what: format!("the piece's {name} has another size") });
            }
            out.bytes_mut().copy_from_slice(view.bytes());
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), GraphError> {
        Session::commit(self)
    }

    fn arena_bytes(&self) -> usize {
        Session::arena_bytes(self)
    }

    fn shrink(&mut self) {
        Session::shrink(self);
    }

    fn read_state(&mut self, index: usize, bytes: &mut [u8]) -> Result<(), GraphError> {
        let name = state_name(self, index)?;
        let tensor = self.state(&name)?;
        bytes.copy_from_slice(TensorView::bytes(&tensor.view()));
        Ok(())
    }

    fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GraphError> {
        let name = state_name(self, index)?;
        let state = self.program().graph().states()[index].clone();
        let view = TensorView::new(state.ty.dtype, &state.dims(), bytes)
            .map_err(|source| GraphError::Tensor { path: name.clone(), source })?;
        self.set_state(&name, &view)
    }
}

fn state_name(session: &Session, index: usize) -> Result<String, GraphError> {
    let state = session.program().graph().states().get(index);
    state
        .map(|s| s.name.clone())
        .ok_or_else(|| GraphError::Build { what: format!("the piece has no state {index}") })
}
