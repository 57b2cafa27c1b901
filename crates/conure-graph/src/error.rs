//! What can go wrong when a graph is built, planned or run.

use conure_device::arena::ArenaError;
use conure_ops::OpError;
use conure_tensor::{DType, DimError, Symbol, TensorError};

/// Why a graph cannot be built, planned or run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// An op does not fit its inputs, or its kernel failed.
    #[error("{source} at {path}")]
    Op {
        /// Path of the node: the scopes it was built in.
        path: String,
        /// What the op said.
        #[source]
        source: OpError,
    },
    /// The model has no weight of this name.
    #[error("{origin}: the tensor {name} is missing; the file is incomplete or of another model family")]
    MissingWeight {
        /// Where the weights come from.
        origin: String,
        /// Name of the weight.
        name: String,
    },
    /// A weight has another shape than the model's configuration says.
    #[error("{origin}: the tensor {name} has shape {found:?}, but the configuration asks for {expected:?}")]
    WeightShape {
        /// Where the weights come from.
        origin: String,
        /// Name of the weight.
        name: String,
        /// Shape in the file, slowest axis first.
        found: Vec<usize>,
        /// Shape by the configuration.
        expected: Vec<usize>,
    },
    /// A length has no value under the bindings.
    #[error("{source} (at {path})")]
    Dim {
        /// Path of the node.
        path: String,
        /// What has no value.
        #[source]
        source: DimError,
    },
    /// The graph has no input, output or node of this name.
    #[error("the graph has no {what} named {name:?}; it has: {known}")]
    UnknownName {
        /// Input, output, or node.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// There is no pass of this name.
    #[error("there is no pass {name:?}; there are: {known}")]
    UnknownPass {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// An input was not given to a run.
    #[error("the input {name:?} was not given")]
    MissingInput {
        /// Name of the input.
        name: String,
    },
    /// An input of a run has another type or shape than the graph declares.
    #[error("the input {name:?} is {found_dtype} {found:?}, expected {expected_dtype} {expected:?}")]
    Input {
        /// Name of the input.
        name: String,
        /// Type given.
        found_dtype: DType,
        /// Shape given.
        found: Vec<usize>,
        /// Type declared.
        expected_dtype: DType,
        /// Shape declared, under the run's bindings.
        expected: Vec<usize>,
    },
    /// No kernel of the device takes this node.
    #[error("the cpu cannot run {op} at {path}: {why}")]
    Unsupported {
        /// Name of the op.
        op: &'static str,
        /// Path of the node.
        path: String,
        /// Why not.
        why: String,
    },
    /// The intermediates do not fit in memory.
    #[error(
        "the run needs {} MiB for intermediates at {bindings} and they cannot be had ({source}); {}",
        bytes / (1 << 20), would_fit(*fits)
    )]
    OutOfMemory {
        /// Bytes wanted.
        bytes: usize,
        /// The lengths that led to them.
        bindings: String,
        /// The largest of these lengths, and the most that it could be now with the others as they are.
        fits: Option<(Symbol, usize)>,
        /// What the allocator said.
        #[source]
        source: ArenaError,
    },
    /// A state does not fit in memory.
    #[error("the state {state} needs {} MiB and they cannot be had ({source}); make it smaller", bytes / (1 << 20))]
    StateMemory {
        /// Name of the state.
        state: String,
        /// Bytes wanted.
        bytes: usize,
        /// What the allocator said.
        #[source]
        source: ArenaError,
    },
    /// A state cannot take what a run or a caller gives it.
    #[error("state {state}: {what}")]
    State {
        /// Name of the state.
        state: String,
        /// What does not fit, and what does.
        what: String,
    },
    /// States are gone: the device that kept them failed and cannot give them any more.
    #[error(
        "the states were lost when a run failed: {}; reset or restore them, or set each, before the next run",
        states.join(", ")
    )]
    StatesLost {
        /// Their names.
        states: Vec<String>,
    },
    /// A device failed; the session can be used again. States are as they were before the run; if the device could not keep
    /// them, the next run is a [`GraphError::StatesLost`].
    #[error("{device}: {what}")]
    Device {
        /// Name of the device.
        device: String,
        /// What failed, where, and what to do.
        what: String,
    },
    /// The sizes of a plan overflow.
    #[error(
        "the tensor at {path}, {shape:?} of {dtype}, and what a run keeps beside it are more than memory can be; \
         use a shorter window or chunk"
    )]
    TooLarge {
        /// Path of the node.
        path: String,
        /// Its lengths.
        shape: Vec<usize>,
        /// Its type.
        dtype: DType,
    },
    /// A plan names memory that is not there: a fault in the planner.
    #[error("internal: the memory plan is inconsistent at {path}: {source}")]
    Plan {
        /// Path of the node.
        path: String,
        /// What was wrong.
        #[source]
        source: ArenaError,
    },
    /// A tensor's bytes are not what they are said to be.
    #[error("{source} at {path}")]
    Tensor {
        /// Path of the node.
        path: String,
        /// What was wrong.
        #[source]
        source: TensorError,
    },
    /// The run was cancelled between two nodes.
    #[error("the run was cancelled")]
    Cancelled,
    /// A kernel panicked; the session can be used again.
    #[error("internal: a kernel panicked in {path}: {message}; please report it")]
    Panicked {
        /// Path of the node.
        path: String,
        /// The panic's message.
        message: String,
    },
    /// The parts of a graph do not fit together: a fault in the code that builds it.
    #[error("internal: {what}")]
    Build {
        /// What does not fit.
        what: String,
    },
}

fn would_fit(fits: Option<(Symbol, usize)>) -> String {
    match fits {
        Some((symbol, length)) => {
            format!("{} up to {length} would fit: use a shorter window or chunk", symbol.name())
        }
        None => "use a shorter window or chunk, or a smaller batch".into(),
    }
}
