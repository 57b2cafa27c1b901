//! What a kernel refuses, and why.

use conure_tensor::DType;

/// Why a kernel did not run. Nothing has been written to the outputs, except after
/// [`KernelError::TaskPanicked`], when their content is unspecified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A slice's length does not follow from the dimensions given.
    #[error("{kernel}: {operand} has {found} elements, but its shape {shape} needs {expected}")]
    Length {
        /// The kernel that refused.
        kernel: &'static str,
        /// The argument.
        operand: &'static str,
        /// The shape in axis letters, such as `[M, K]`.
        shape: &'static str,
        /// Elements the dimensions ask for.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// Dimensions or options that do not fit together.
    #[error("{kernel}: {reason}")]
    Invalid {
        /// The kernel that refused.
        kernel: &'static str,
        /// What was wrong, with both values.
        reason: String,
    },
    /// The product of dimensions does not fit in `usize`.
    #[error("{kernel}: the size of {operand} overflows; are the dimensions right?")]
    Overflow {
        /// The kernel that refused.
        kernel: &'static str,
        /// The argument.
        operand: &'static str,
    },
    /// Memory for weights in the layout that products want was refused.
    #[error(
        "{kernel}: there is no memory for {} MiB of weights; take a model of a smaller type (q8_0, q4_k)",
        bytes.div_ceil(1 << 20)
    )]
    OutOfMemory {
        /// The kernel that asked.
        kernel: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// An element type this kernel does not read.
    #[error("{kernel}: cannot read weights of type {dtype}; convert the file to f32, f16, bf16 or q8_0")]
    DType {
        /// The kernel that refused.
        kernel: &'static str,
        /// The type given.
        dtype: DType,
    },
    /// An instruction set that does not exist or that this machine lacks.
    #[error("instruction set {name:?} cannot be used here; this machine can use: {possible}")]
    Isa {
        /// What was asked for.
        name: String,
        /// The names that would work, comma-separated.
        possible: String,
    },
    /// A thread count of zero, or threads that the system would not start.
    #[error("thread pool: {reason}")]
    Threads {
        /// What happened and what to do.
        reason: String,
    },
    /// Code running on the pool panicked; the pool itself is intact.
    #[error("a compute task panicked: {message}; this is a bug in Conure, please report it")]
    TaskPanicked {
        /// The panic's message.
        message: String,
    },
}
