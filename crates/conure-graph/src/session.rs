//! Programs and sessions: a graph with its plans, shared; an arena and a place to run, one per user.

use crate::backend::Executions;
use crate::cpu::{InputRef, Run, commit_states, execute};
use crate::device::Device;
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use crate::observe::{Observer, Watch};
use crate::passes::Passes;
use crate::place::{Placed, place};
use crate::plan::{Packing, Plan, Slot, plan, plan_with};
use crate::states::States;
use conure_device::arena::AlignedBytes;
use conure_kernels::{Cpu, Isa};
use conure_tensor::{Bindings, Symbol, TensorView};
use smallvec::SmallVec;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept per program; the one used longest ago goes first.
const MAX_PLANS: usize = 64;
/// Placements kept per program, as plans are.
const MAX_PLACED: usize = 16;

/// What a plan was made for; the first is the address of the placed graph.
type PlanKey = (usize, Bindings, Vec<ValueId>, usize, Isa);
/// A plan keeps its placed graph alive, so that the address in the key stays its own.
type KeptPlan = (PlanKey, Arc<Placed>, Arc<Plan>);
type PlacedKey = (String, Vec<ValueId>);

/// A graph ready to run, with the placements and plans made for it so far. Shared by sessions.
#[derive(Debug)]
pub struct Program {
    on_cpu: Arc<Placed>,
    /// Used last at the end.
    placed: Mutex<Vec<(PlacedKey, Arc<Placed>)>>,
    /// Used last at the end.
    plans: Mutex<Vec<KeptPlan>>,
}

impl Program {
    /// A program of `graph` as it is.
    pub fn new(graph: Graph) -> Arc<Program> {
        let on_cpu = Arc::new(Placed::on_cpu(graph));
        Arc::new(Program { on_cpu, placed: Mutex::new(Vec::new()), plans: Mutex::new(Vec::new()) })
    }

    /// A program of `graph` after `passes`.
    ///
    /// # Errors
    /// As [`Passes::run`].
    pub fn with_passes(graph: Graph, passes: &Passes) -> Result<Arc<Program>, GraphError> {
        Ok(Program::new(passes.run(graph)?))
    }

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        &self.on_cpu.graph
    }

    /// The graph cut for `device`, made if that was not done yet; `captures` are values that a run has to give besides the
    /// outputs.
    ///
    /// # Errors
    /// What the device says when it compiles a piece.
    pub fn placed(&self, device: &Device, captures: &[ValueId]) -> Result<Arc<Placed>, GraphError> {
        if device.backend().is_none() {
            return Ok(self.on_cpu.clone());
        }
        // The lock is held while compiling: two sessions that start at once must not both compile.
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let matches = |key: &PlacedKey| key.0 == device.name() && key.1 == captures;
        if let Some(i) = placed.iter().rposition(|(key, _)| matches(key)) {
            let hit = placed.remove(i);
            let found = hit.1.clone();
            placed.push(hit);
            return Ok(found);
        }
        let made = Arc::new(place(self.graph(), device, captures)?);
        if placed.len() >= MAX_PLACED {
            placed.remove(0);
        }
        placed.push(((device.name().to_owned(), captures.to_vec()), made.clone()));
        Ok(made)
    }

    /// Bytes of the arena that a run of these lengths needs where the CPU runs all of it, and the named nodes are captured.
    /// Nothing is allocated, and no weight is packed.
    ///
    /// # Errors
    /// A symbol without a value, a name that no node has, lengths that no memory holds.
    pub fn arena_bytes(
        &self,
        bindings: &Bindings,
        captures: &[&str],
        cpu: &Cpu,
    ) -> Result<usize, GraphError> {
        let graph = self.graph();
        let ids = captures.iter().map(|n| graph.named(n)).collect::<Result<Vec<_>, _>>()?;
        Ok(plan_with(graph, bindings, &ids, cpu, Packing::Never)?.arena_bytes())
    }

    /// The plan for these lengths, made if there is none yet.
    ///
    /// # Errors
    /// A symbol without a value, an op without a kernel, a weight that cannot be packed.
    pub fn plan(
        &self,
        placed: &Arc<Placed>,
        bindings: &Bindings,
        captures: &[ValueId],
        cpu: &Cpu,
    ) -> Result<Arc<Plan>, GraphError> {
        let (at, threads, isa) = (Arc::as_ptr(placed) as usize, cpu.threads().count(), cpu.isa());
        let matches = |key: &PlanKey| {
            key.0 == at && key.1 == *bindings && key.2 == captures && key.3 == threads && key.4 == isa
        };
        {
            let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(i) = plans.iter().rposition(|(key, ..)| matches(key)) {
                let hit = plans.remove(i);
                let found = hit.2.clone();
                plans.push(hit);
                return Ok(found);
            }
        }
        let made = Arc::new(plan(&placed.graph, bindings, captures, cpu)?);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MAX_PLANS {
            plans.remove(0);
        }
        let key = (at, bindings.clone(), captures.to_vec(), threads, isa);
        plans.push((key, placed.clone(), made.clone()));
        Ok(made)
    }
}

/// The plan of a session's last run, and what it was made for.
#[derive(Debug)]
struct Last {
    captures: Vec<ValueId>,
    placed: Arc<Placed>,
    plan: Arc<Plan>,
}

/// One user of a program: an arena, its states, and the plan of its last run.
#[derive(Debug)]
pub struct Session {
    program: Arc<Program>,
    device: Device,
    cpu: Arc<Cpu>,
    arena: AlignedBytes,
    states: States,
    executions: Executions,
    last: Option<Last>,
    /// Whether the arena holds the outputs of a run of `last`.
    ran: bool,
    cancel: Option<Arc<AtomicBool>>,
    observer: Option<Arc<dyn Observer>>,
}

/// The outputs and captures of a run, in the session's arena until the next run.
#[derive(Debug)]
pub struct RunOutputs<'a> {
    outputs: &'a [(String, Slot)],
    arena: &'a AlignedBytes,
}

impl<'a> RunOutputs<'a> {
    /// The output or captured node of this name.
    ///
    /// # Errors
    /// [`GraphError::UnknownName`] if the run had no such output.
    pub fn get(&self, name: &str) -> Result<TensorView<'a>, GraphError> {
        let slot = self.outputs.iter().find(|(n, _)| n == name).map(|(_, s)| s).ok_or_else(|| {
            GraphError::UnknownName {
                what: "output",
                name: name.to_owned(),
                known: self.outputs.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "),
            }
        })?;
        let bytes = self.arena.as_slice().get(slot.range.clone()).unwrap_or(&[]);
        TensorView::new(slot.dtype, &slot.dims, bytes)
            .map_err(|source| GraphError::Tensor { path: name.to_owned(), source })
    }
}

impl Session {
    /// A session of `program` on the CPU; nothing is allocated before the first run.
    ///
    /// # Errors
    /// None at present; a device may refuse.
    pub fn new(program: Arc<Program>, cpu: Arc<Cpu>) -> Result<Session, GraphError> {
        Session::on(program, &Device::cpu(), cpu)
    }

    /// A session of `program` on `device`; `cpu` runs what the device does not take. Pieces are compiled at the first run
    /// of any session, or by [`Program::placed`].
    ///
    /// # Errors
    /// None at present; a device may refuse.
    pub fn on(program: Arc<Program>, device: &Device, cpu: Arc<Cpu>) -> Result<Session, GraphError> {
        Ok(Session {
            program,
            device: device.clone(),
            cpu,
            arena: AlignedBytes::default(),
            states: States::default(),
            executions: Executions::default(),
            last: None,
            ran: false,
            cancel: None,
            observer: None,
        })
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// A flag that ends a run between two nodes with [`GraphError::Cancelled`] once it is set.
    pub fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.cancel = cancel;
    }

    /// Who is told of each step of the runs from now on; `None`: nobody, at no cost.
    pub fn set_observer(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.observer = observer;
    }

    /// Bytes that the arenas hold, on the CPU and on the device: the most that any run so far needed.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len() + self.executions.arena_bytes()
    }

    /// Bytes that the states on the CPU may take; memory that was never written is not there yet.
    pub fn state_bytes(&self) -> usize {
        self.states.total()
    }

    /// Gives the arenas' memory back; the next run takes what it needs. States stay.
    pub fn shrink(&mut self) {
        self.arena = AlignedBytes::default();
        self.executions.shrink();
        self.ran = false;
    }

    /// Runs the graph for these lengths on these inputs.
    ///
    /// Once a run of the same lengths has been made, another allocates nothing.
    ///
    /// # Errors
    /// Inputs that do not fit, memory that cannot be had, a kernel that fails, cancellation. The session can be used
    /// again afterwards, and its states are what they were before the run (of a state that is appended to: but for the rows
    /// that the run was to append). [`GraphError::StatesLost`] if a device failed in an earlier run and could not keep them.
    pub fn run(
        &mut self,
        bindings: &Bindings,
        inputs: &[(&str, TensorView<'_>)],
    ) -> Result<RunOutputs<'_>, GraphError> {
        self.run_capturing(bindings, inputs, &[])
    }

    /// As [`Session::run`], and keeps the named nodes.
    ///
    /// # Errors
    /// As [`Session::run`], and [`GraphError::UnknownName`] for a capture that is not in the graph.
    pub fn run_capturing(
        &mut self,
        bindings: &Bindings,
        inputs: &[(&str, TensorView<'_>)],
        captures: &[&str],
    ) -> Result<RunOutputs<'_>, GraphError> {
        let cancel = self.cancel.clone();
        self.compute(bindings, inputs, captures, cancel.as_deref())?;
        self.commit()?;
        self.outputs()
    }

    /// Lets what the last run made enter the states, those that devices keep first: they may fail.
    pub(crate) fn commit(&mut self) -> Result<(), GraphError> {
        let Some(last) = self.last.as_ref().filter(|_| self.ran) else { return Ok(()) };
        let done = self.executions.commit(&last.placed.pieces);
        let done =
            done.and_then(|()| commit_states(&last.placed.graph, &last.plan, &self.arena, &mut self.states));
        if done.is_err() {
            // Some have entered and some have not: none can be trusted.
            self.ran = false;
            self.executions.lose(self.program.graph().states());
        }
        done
    }

    /// As [`Session::run`], with a flag that is not the session's own, and without the last step: [`Session::commit`].
    pub(crate) fn compute(
        &mut self,
        bindings: &Bindings,
        inputs: &[(&str, TensorView<'_>)],
        captures: &[&str],
        cancel: Option<&AtomicBool>,
    ) -> Result<(), GraphError> {
        self.ran = false;
        self.executions.check()?;
        let (placed, plan) = self.plan_for(bindings, captures)?;
        self.reserve(&plan)?;
        self.states.reserve(placed.graph.states())?;
        let refs = self.bind(&plan, inputs)?;
        let watch = self.observer.as_deref().map(|observer| Watch::new(observer, &plan));
        let mut run = Run {
            arena: &mut self.arena,
            states: &mut self.states,
            executions: &mut self.executions,
            cpu: &self.cpu,
            cancel,
            watch,
        };
        execute(&placed.graph, &plan, 0, &refs, &mut run)?;
        self.ran = true;
        Ok(())
    }

    /// The outputs and captures of the last run.
    ///
    /// # Errors
    /// [`GraphError::Build`] if there was none, or it failed.
    pub fn outputs(&self) -> Result<RunOutputs<'_>, GraphError> {
        match &self.last {
            Some(last) if self.ran => Ok(RunOutputs { outputs: &last.plan.outputs, arena: &self.arena }),
            _ => Err(GraphError::Build { what: "outputs were asked for, but no run has made any".into() }),
        }
    }

    pub(crate) fn states_mut(&mut self) -> (&mut States, &mut Executions) {
        (&mut self.states, &mut self.executions)
    }

    /// Sets a state that a piece keeps; `false` if the CPU keeps it.
    pub(crate) fn set_on_device(&mut self, state: &str, bytes: &[u8]) -> Result<bool, GraphError> {
        let placed = match &self.last {
            Some(last) => last.placed.clone(),
            None => self.program.placed(&self.device, &[])?,
        };
        self.executions.write(&placed.pieces, state, bytes, &self.cpu)
    }

    fn plan_for(
        &mut self,
        bindings: &Bindings,
        captures: &[&str],
    ) -> Result<(Arc<Placed>, Arc<Plan>), GraphError> {
        let ids = captures
            .iter()
            .map(|n| self.program.graph().named(n))
            .collect::<Result<SmallVec<[ValueId; 8]>, _>>()?;
        if let Some(last) = &self.last
            && last.plan.bindings == *bindings
            && last.captures.as_slice() == ids.as_slice()
        {
            return Ok((last.placed.clone(), last.plan.clone()));
        }
        let placed = self.program.placed(&self.device, &ids)?;
        let plan = self.program.plan(&placed, bindings, &ids, &self.cpu)?;
        self.last = Some(Last { captures: ids.to_vec(), placed: placed.clone(), plan: plan.clone() });
        Ok((placed, plan))
    }

    fn reserve(&mut self, plan: &Plan) -> Result<(), GraphError> {
        if plan.arena_len <= self.arena.len() {
            return Ok(());
        }
        // The old arena goes first: both at once would be the peak.
        self.arena = AlignedBytes::default();
        self.ran = false;
        match AlignedBytes::zeroed(plan.arena_len) {
            Ok(arena) => self.arena = arena,
            Err(source) => {
                let (bytes, bindings) = (plan.arena_len, plan.bindings.to_string());
                return Err(GraphError::OutOfMemory { bytes, bindings, fits: self.fits(plan), source });
            }
        }
        Ok(())
    }

    /// The longest that the largest length of `plan` could be for its arena to be had now. Found by halving: a plan takes
    /// far less than a millisecond.
    fn fits(&self, plan: &Plan) -> Option<(Symbol, usize)> {
        let last = self.last.as_ref()?;
        let (symbol, most) = plan.bindings.iter().max_by_key(|&(_, value)| value)?;
        let fits = |length: usize| {
            let bindings = plan.bindings.clone().with(symbol, length);
            let shorter = crate::plan::plan(&last.placed.graph, &bindings, &last.captures, &self.cpu);
            shorter.is_ok_and(|p| AlignedBytes::would_fit(p.arena_len))
        };
        let (mut good, mut bad) = (0, most);
        while bad - good > 1 + good / 64 {
            let middle = good + (bad - good) / 2;
            if fits(middle) { good = middle } else { bad = middle }
        }
        (good > 0).then_some((symbol, good))
    }

    fn bind<'i>(
        &self,
        plan: &Plan,
        inputs: &[(&str, TensorView<'i>)],
    ) -> Result<SmallVec<[InputRef<'i>; 8]>, GraphError> {
        for (name, _) in inputs {
            if !self.program.graph().inputs().any(|(n, _)| n == *name) {
                return Err(GraphError::UnknownName {
                    what: "input",
                    name: (*name).to_owned(),
                    known: self.program.graph().inputs().map(|(n, _)| n).collect::<Vec<_>>().join(", "),
                });
            }
        }
        let mut refs = SmallVec::new();
        for ((name, _), (dtype, dims)) in self.program.graph().inputs().zip(&plan.inputs) {
            let Some((_, view)) = inputs.iter().find(|(n, _)| *n == name) else {
                return Err(GraphError::MissingInput { name: name.to_owned() });
            };
            if view.dtype() != *dtype || view.shape() != dims.as_slice() {
                return Err(GraphError::Input {
                    name: name.to_owned(),
                    found_dtype: view.dtype(),
                    found: view.shape().to_vec(),
                    expected_dtype: *dtype,
                    expected: dims.to_vec(),
                });
            }
            refs.push(InputRef::Slice(view.bytes()));
        }
        Ok(refs)
    }
}
