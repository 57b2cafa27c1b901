//! Data types, shapes with named axes, tensors, and the block formats of quantised weights.
//!
//! Everything here is plain data: no device, no op, no file format. Tensors are contiguous and row-major: the
//! last axis is the fastest.

mod dtype;

pub use dtype::DType;
