//! Graphs: built once, planned for each set of lengths in microseconds, run any number of times.
//!
//! [`GraphBuilder`] appends ops to a [`Graph`]; lengths that change (frames, batch) are expressions over symbols. A
//! [`Program`] holds the graph and its plans; each [`Session`] has an arena of its own and runs the program on inputs.
//! A plan is a list of kernel calls with the place of every operand in the arena, found from liveness. Nothing is built,
//! planned or allocated in a run of lengths that ran before.
//!
//! A session runs on a [`Device`]. The CPU runs plans; another device ([`Backend`]) gets the parts of the graph that it
//! takes as pieces of their own, as few as can be, and the CPU the rest.

mod backend;
mod build;
mod cpu;
mod cut;
mod device;
mod drawing;
mod error;
mod graph;
mod liveness;
mod observe;
pub mod openvino;
mod partial;
pub mod passes;
mod place;
mod plan;
mod reference;
mod session;
mod states;
mod tiles;
mod weights;

pub use backend::{Backend, Compilations, Compiled, Execution, Piece, PieceCall};
pub use build::{GraphBuilder, StateId};
pub use device::{DEVICE_VARIABLES, Device, DeviceInfo, NoSuchDevice, Registry, devices};
pub use drawing::{DrawOptions, Drawing, DrawnEdge, DrawnNode};
pub use error::GraphError;
pub use graph::{Commit, Def, Graph, Node, NodeOp, StateDef, TileTime, Value, ValueId};
pub use observe::{KernelDone, Observer, StepDone};
pub use partial::{NoSuchOp, Partial};
pub use passes::Passes;
pub use place::{Placed, PlacedPiece, Placement, Refusal};
pub use plan::Plan;
pub use reference::{run_reference, run_reference_from};
pub use session::{Program, RunOutputs, Session};
pub use states::SavedStates;
pub use weights::{MemoryWeights, WeightInfo, WeightSource, Weights};
