//! A device for tests: the CPU's own kernels behind the interface of a foreign device, for a chosen set of ops.
//!
//! Whatever it refuses runs on the CPU, so that any cut of any graph can be made and compared with the whole. It can also
//! be told to fail.

use crate::backend::{Backend, Compiled, Execution, OnHost, PieceCall};
use crate::device::{Device, DeviceInfo};
use crate::error::GraphError;
use crate::graph::{Graph, Node};
use crate::session::Program;
use conure_kernels::Cpu;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A device for tests was asked to take an op that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no op {name:?}; there are: {known}")]
pub struct NoSuchOp {
    /// The name asked for.
    pub name: String,
    /// The names there are.
    pub known: String,
}

type Takes = Arc<dyn Fn(&Graph, &Node) -> bool + Send + Sync>;

/// The device. By name: `partial` takes every op, `partial:linear,glu` these, `partial:random:7` each node by the toss of
/// a coin, the same for the same number.
pub struct Partial {
    /// What it says of itself.
    pub info: DeviceInfo,
    takes: Takes,
    faults: Arc<Faults>,
}

/// What is to go wrong.
#[derive(Debug, Default)]
struct Faults {
    /// Runs of pieces until one fails; 0: none does.
    runs: AtomicUsize,
    /// Whether that takes the states along.
    forgets: AtomicBool,
    /// Commits until one fails; 0: none does.
    commits: AtomicUsize,
}

/// Whether this one is to fail.
fn is_due(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1)
}

impl fmt::Debug for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partial").field("name", &self.info.name).finish_non_exhaustive()
    }
}

impl Partial {
    /// One that takes the nodes that `takes` says. What is made for a device is kept by its name: devices of one name must
    /// take the same nodes.
    pub fn new(name: &str, takes: impl Fn(&Graph, &Node) -> bool + Send + Sync + 'static) -> Partial {
        let description = "the CPU behind the interface of another device, for tests".to_owned();
        let info = DeviceInfo { name: name.to_owned(), description, ..Device::cpu().info().clone() };
        Partial { info, takes: Arc::new(takes), faults: Arc::default() }
    }

    /// One that takes everything.
    pub fn all() -> Partial {
        Partial::new("partial", |_, _| true)
    }

    /// One that takes these ops, by name.
    ///
    /// # Errors
    /// [`NoSuchOp`] with the names there are.
    pub fn ops(names: &[&str]) -> Result<Partial, NoSuchOp> {
        let known = || conure_ops::all().iter().map(|op| op.name).chain(["append", "tile_time"]);
        if let Some(name) = names.iter().find(|name| !known().any(|n| n == **name)) {
            return Err(NoSuchOp { name: (*name).to_owned(), known: known().collect::<Vec<_>>().join(", ") });
        }
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let name = format!("partial:{}", names.join(","));
        Ok(Partial::new(&name, move |_, node| names.iter().any(|n| n == node.op_name())))
    }

    /// One that takes about half of the nodes: which, depends on `seed` and on the place of the node in its graph.
    pub fn random(seed: u64) -> Partial {
        Partial::new(&format!("partial:random:{seed}"), move |graph, node| {
            let at = graph.nodes().iter().position(|n| std::ptr::eq(n, node)).unwrap_or(0) as u64;
            let mut x = (seed << 32 | at).wrapping_add(0x9E37_79B9_7F4A_7C15);
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (x ^ (x >> 31)) & 1 == 1
        })
    }

    /// The device that a name beginning with `partial` means.
    ///
    /// # Errors
    /// What is wrong with what follows the colon.
    pub fn by_name(name: &str) -> Option<Result<Partial, String>> {
        let name = name.trim().to_ascii_lowercase();
        let rest = name.strip_prefix("partial")?;
        let Some(rest) = rest.strip_prefix(':') else {
            return rest.is_empty().then(|| Ok(Partial::all()));
        };
        Some(match rest.strip_prefix("random:") {
            Some(seed) => match seed.parse() {
                Ok(seed) => Ok(Partial::random(seed)),
                Err(_) => Err(format!("the toss {seed:?} is not a whole number")),
            },
            None => {
                let names: Vec<&str> = rest.split(',').map(str::trim).collect();
                Partial::ops(&names).map_err(|e| e.to_string())
            }
        })
    }

    /// Lets the `n`th run of a piece from now on fail; those after it work.
    pub fn fail_in(&self, n: usize) {
        self.faults.forgets.store(false, Ordering::Relaxed);
        self.faults.runs.store(n, Ordering::Relaxed);
    }

    /// As [`Partial::fail_in`], as a device does that was pulled out: the states that it kept for the piece are gone.
    pub fn forget_in(&self, n: usize) {
        self.fail_in(n);
        self.faults.forgets.store(true, Ordering::Relaxed);
    }

    /// Lets the `n`th commit of a piece's states from now on fail.
    pub fn fail_commit_in(&self, n: usize) {
        self.faults.commits.store(n, Ordering::Relaxed);
    }
}

impl Backend for Partial {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), String> {
        let takes = (self.takes)(graph, node);
        if takes { Ok(()) } else { Err(format!("{} was not asked to run it", self.info.name)) }
    }

    fn compile(&self, piece: &Graph) -> Result<Arc<dyn Compiled>, GraphError> {
        let inner = OnHost(Program::new(piece.clone()));
        Ok(Arc::new(PartialPiece { inner, device: self.info.name.clone(), faults: self.faults.clone() }))
    }
}

#[derive(Debug)]
struct PartialPiece {
    inner: OnHost,
    device: String,
    faults: Arc<Faults>,
}

impl Compiled for PartialPiece {
    fn start(&self, cpu: &Arc<Cpu>) -> Result<Box<dyn Execution>, GraphError> {
        let inner = self.inner.start(cpu)?;
        let (device, faults) = (self.device.clone(), self.faults.clone());
        Ok(Box::new(PartialExecution { inner, device, faults, forgot: false }))
    }
}

#[derive(Debug)]
struct PartialExecution {
    inner: Box<dyn Execution>,
    device: String,
    faults: Arc<Faults>,
    /// Whether its states are gone.
    forgot: bool,
}

impl PartialExecution {
    fn fault(&self, what: &str) -> GraphError {
        GraphError::Device { device: self.device.clone(), what: what.to_owned() }
    }
}

impl Execution for PartialExecution {
    fn run(&mut self, call: &mut PieceCall<'_, '_>) -> Result<(), GraphError> {
        if is_due(&self.faults.runs) {
            self.forgot = self.faults.forgets.load(Ordering::Relaxed);
            return Err(self.fault("it was told to fail; run again"));
        }
        self.inner.run(call)
    }

    fn commit(&mut self) -> Result<(), GraphError> {
        if is_due(&self.faults.commits) {
            return Err(self.fault("it was told to fail to keep its states"));
        }
        self.inner.commit()
    }

    fn arena_bytes(&self) -> usize {
        self.inner.arena_bytes()
    }

    fn shrink(&mut self) {
        self.inner.shrink();
    }

    fn read_state(&mut self, index: usize, bytes: &mut [u8]) -> Result<(), GraphError> {
        if self.forgot {
            return Err(self.fault("its states are gone"));
        }
        self.inner.read_state(index, bytes)
    }

    fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GraphError> {
        self.inner.write_state(index, bytes)
    }
}
