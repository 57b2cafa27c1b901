//! The ops: one folder each, with meaning, shape rule, reference, kernels and conformance cases.

mod op;

pub use op::{Attr, CpuCall, CpuInput, CpuOp, Op, OpError, Outputs, Packed, ValueType};
