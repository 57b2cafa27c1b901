//! Programs and sessions: a graph with its plans, shared; an arena and a place to run, one per user.

use crate::cpu::{InputRef, Run, execute};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use crate::observe::{Observer, Watch};
use crate::plan::{Plan, Slot, plan};
use conure_device::arena::AlignedBytes;
use conure_kernels::{Cpu, Isa};
use conure_tensor::{Bindings, TensorView};
use smallvec::SmallVec;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept per program; the one used longest ago goes first.
const MAX_PLANS: usize = 64;

type PlanKey = (Bindings, Vec<ValueId>, usize, Isa);

/// A graph ready to run, with the plans made for it so far. Shared by sessions.
#[derive(Debug)]
pub struct Program {
    graph: Graph,
    /// Used last at the end.
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
}

impl Program {
    /// A program of `graph`.
    pub fn new(graph: Graph) -> Arc<Program> {
        Arc::new(Program { graph, plans: Mutex::new(Vec::new()) })
    }

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The plan for these lengths, made if there is none yet.
    ///
    /// # Errors
    /// A symbol without a value, an op without a kernel, a weight that cannot be packed.
    pub fn plan(
        &self,
        bindings: &Bindings,
        captures: &[ValueId],
        cpu: &Cpu,
    ) -> Result<Arc<Plan>, GraphError> {
        let (threads, isa) = (cpu.threads().count(), cpu.isa());
        let matches =
            |key: &PlanKey| key.0 == *bindings && key.1 == captures && key.2 == threads && key.3 == isa;
        {
            let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(i) = plans.iter().rposition(|(key, _)| matches(key)) {
                let hit = plans.remove(i);
                let found = hit.1.clone();
                plans.push(hit);
                return Ok(found);
            }
        }
        let made = Arc::new(plan(&self.graph, bindings, captures, cpu)?);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MAX_PLANS {
            plans.remove(0);
        }
        plans.push(((bindings.clone(), captures.to_vec(), threads, isa), made.clone()));
        Ok(made)
    }
}

/// One user of a program: an arena and the plan of its last run.
#[derive(Debug)]
pub struct Session {
    program: Arc<Program>,
    cpu: Arc<Cpu>,
    arena: AlignedBytes,
    last: Option<(Vec<ValueId>, Arc<Plan>)>,
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
    /// A session on `program`; nothing is allocated before the first run.
    ///
    /// # Errors
    /// None at present; a device may refuse.
    pub fn new(program: Arc<Program>, cpu: Arc<Cpu>) -> Result<Session, GraphError> {
        let arena = AlignedBytes::zeroed(0).map_err(|source| GraphError::OutOfMemory {
            bytes: 0,
            bindings: String::new(),
            source,
        })?;
        Ok(Session { program, cpu, arena, last: None, ran: false, cancel: None, observer: None })
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

    /// Bytes that the arena holds: the most that any run so far needed.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Gives the arena's memory back; the next run takes what it needs.
    pub fn shrink(&mut self) {
        if let Ok(empty) = AlignedBytes::zeroed(0) {
            self.arena = empty;
            self.ran = false;
        }
    }

    /// Runs the graph for these lengths on these inputs.
    ///
    /// Once a run of the same lengths has been made, another allocates nothing.
    ///
    /// # Errors
    /// Inputs that do not fit, memory that cannot be had, a kernel that fails, cancellation. The session can be used
    /// again afterwards.
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
        self.ran = false;
        let plan = self.plan_for(bindings, captures)?;
        self.reserve(&plan)?;
        let refs = self.bind(&plan, inputs)?;
        let watch = self.observer.as_deref().map(|observer| Watch::new(observer, &plan));
        let mut run = Run { arena: &mut self.arena, cpu: &self.cpu, cancel: self.cancel.as_deref(), watch };
        execute(&self.program.graph, &plan, 0, &refs, &mut run)?;
        self.ran = true;
        self.outputs()
    }

    /// The outputs and captures of the last run.
    ///
    /// # Errors
    /// [`GraphError::Build`] if there was none, or it failed.
    pub fn outputs(&self) -> Result<RunOutputs<'_>, GraphError> {
        match &self.last {
            Some((_, plan)) if self.ran => Ok(RunOutputs { outputs: &plan.outputs, arena: &self.arena }),
            _ => Err(GraphError::Build { what: "outputs were asked for, but no run has made any".into() }),
        }
    }

    fn plan_for(&mut self, bindings: &Bindings, captures: &[&str]) -> Result<Arc<Plan>, GraphError> {
        let ids = captures
            .iter()
            .map(|n| self.program.graph.named(n))
            .collect::<Result<SmallVec<[ValueId; 8]>, _>>()?;
        if let Some((kept, plan)) = &self.last
            && plan.bindings == *bindings
            && kept.as_slice() == ids.as_slice()
        {
            return Ok(plan.clone());
        }
        let plan = self.program.plan(bindings, &ids, &self.cpu)?;
        self.last = Some((ids.to_vec(), plan.clone()));
        Ok(plan)
    }

    fn reserve(&mut self, plan: &Plan) -> Result<(), GraphError> {
        if plan.arena_len <= self.arena.len() {
            return Ok(());
        }
        // The old arena goes first: both at once would be the peak.
        self.shrink();
        self.arena = AlignedBytes::zeroed(plan.arena_len).map_err(|source| GraphError::OutOfMemory {
            bytes: plan.arena_len,
            bindings: plan.bindings.to_string(),
            source,
        })?;
        Ok(())
    }

    fn bind<'i>(
        &self,
        plan: &Plan,
        inputs: &[(&str, TensorView<'i>)],
    ) -> Result<SmallVec<[InputRef<'i>; 8]>, GraphError> {
        for (name, _) in inputs {
            if !self.program.graph.inputs().any(|(n, _)| n == *name) {
                return Err(GraphError::UnknownName {
                    what: "input",
                    name: (*name).to_owned(),
                    known: self.program.graph.inputs().map(|(n, _)| n).collect::<Vec<_>>().join(", "),
                });
            }
        }
        let mut refs = SmallVec::new();
        for ((name, _), (dtype, dims)) in self.program.graph.inputs().zip(&plan.inputs) {
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
