//! Data types, shapes with named axes, tensors, and the block formats of quantised weights.
//!
//! Everything here is plain data: no device, no op, no file format. Tensors are contiguous and row-major: the
//! last axis is the fastest.

mod dim;
mod dtype;
pub mod quant;
mod shape;
mod tensor;

pub use dim::{Bindings, Dim, DimError, Symbol};
pub use dtype::DType;
pub use shape::{Axis, Dims, Shape};
pub use tensor::{Element, Tensor, TensorError, TensorMut, TensorView, tensor_bytes};
