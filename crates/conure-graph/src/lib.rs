//! Graphs: built once, planned for each set of lengths in microseconds, run any number of times.
//!
//! [`GraphBuilder`] appends ops to a [`Graph`]; lengths that change (frames, batch) are expressions over symbols. A
//! [`Program`] holds the graph and its plans; each [`Session`] has an arena of its own and runs the program on inputs.
//! A plan is a list of kernel calls with the place of every operand in the arena, found from liveness. Nothing is built,
//! planned or allocated in a run of lengths that ran before.

mod build;
mod cpu;
mod device;
mod error;
mod graph;
mod liveness;
mod observe;
mod plan;
mod reference;
mod session;
mod weights;

pub use build::GraphBuilder;
pub use device::{DeviceInfo, NoSuchDevice, devices, pick};
pub use error::GraphError;
pub use graph::{Def, Graph, Node, NodeOp, TileTime, Value, ValueId};
pub use observe::{Observer, StepDone};
pub use plan::Plan;
pub use reference::run_reference;
pub use session::{Program, RunOutputs, Session};
pub use weights::{MemoryWeights, WeightInfo, WeightSource, Weights};
