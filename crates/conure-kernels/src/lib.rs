//! CPU kernels: the only home of SIMD intrinsics and of compute threads.
//!
//! Kernels know nothing of graphs, models or files. They take plain slices and dimensions, check both at entry and
//! return a [`KernelError`] on a mismatch; none allocates on the heap once a thread's scratch has reached its
//! high-water mark. Every kernel exists as portable code and in AVX2+FMA, AVX-512 and NEON form, all written once
//! over a small vector trait; [`Cpu`] holds the choice ([`Isa`]) and the thread pool ([`Threads`]).
//!
//! Axis letters: B batch, T frames, D model, H heads, K inner dimension of a product, N its output columns, M its
//! rows, C channels, F frequency bins. All tensors are contiguous and row-major, the last axis fastest.
//!
//! **Determinism.** A row's result never depends on how many rows, batch items or threads there are: each output of
//! a product is one chain of multiply-adds in the order of K, whichever path computes it. Different instruction
//! sets may differ in the last bits.
#![allow(unsafe_code)]

mod budget;
mod buffer;
mod check;
mod isa;
mod pages;
mod simd;
mod weighted;

pub mod attention;
pub mod conv1d;
pub mod conv2d;
pub mod elementwise;
pub mod embedding;
mod error;
pub mod gated;
pub mod gated_delta;
pub mod gemm;
pub mod im2col;
pub mod lstm;
pub mod matmul;
pub mod moments;
pub mod permute;
pub mod positions;
pub mod rms_norm;
pub mod roofline;
pub mod rotary;
pub mod route;
pub mod rows;
pub mod sdpa;
pub mod threads;

pub use budget::ThreadBudget;
pub use buffer::zeroed;
pub use error::KernelError;
pub use isa::{Cpu, Isa, Precision};
pub use threads::Threads;

/// What every kernel returns.
pub type Result<T> = std::result::Result<T, KernelError>;
