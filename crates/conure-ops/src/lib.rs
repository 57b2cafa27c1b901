//! The ops: one folder each, with meaning, shape rule, reference, kernels and conformance cases.
//!
//! A folder's `mod.rs` holds the type (its fields are the op's attributes) with its shape rule and its reference,
//! the slow loops in f64 that define it; `cpu.rs` its kernel calls; `cases.rs` what the conformance walk runs to
//! hold every device to the reference. All tensors are row-major with channels last.

mod activation;
mod count;
mod decompose;
mod infer;
mod kernel;
mod list;
mod op;
mod values;

pub mod batch_norm;
pub mod binary;
pub mod broadcast;
pub mod cases;
pub mod cast;
pub mod concat;
pub mod conv2d;
pub mod conv_length;
pub mod depthwise_conv1d;
pub mod embedding;
pub mod gated;
pub mod glu;
pub mod im2col;
pub mod layer_norm;
pub mod linear;
pub mod log_softmax;
pub mod lstm_cell;
pub mod mask_scores;
pub mod mask_time;
pub mod matmul;
pub mod rel_pos_attention;
pub mod rel_pos_encoding;
pub mod rel_pos_projection;
pub mod rel_shift;
pub mod reshape;
pub mod rms_norm;
pub mod rope;
pub mod rotary_angles;
pub mod scale;
pub mod sdpa;
pub mod slice;
pub mod softmax;
pub mod transpose;
pub mod unary;

pub use activation::Activation;
pub use batch_norm::BatchNorm;
pub use binary::{Binary, BinaryKind};
pub use broadcast::Broadcast;
pub use cast::Cast;
pub use concat::Concat;
pub use conure_kernels::gated::Gate;
pub use conure_kernels::rotary::Pairs;
pub use conv_length::ConvLength;
pub use conv2d::Conv2d;
pub use decompose::{Decomposition, Part, Step};
pub use depthwise_conv1d::DepthwiseConv1d;
pub use embedding::Embedding;
pub use gated::Gated;
pub use glu::Glu;
pub use im2col::Im2col;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use list::{Entry, all};
pub use log_softmax::LogSoftmax;
pub use lstm_cell::LstmCell;
pub use mask_scores::MaskScores;
pub use mask_time::MaskTime;
pub use matmul::MatMul;
pub use op::{Attr, CpuCall, CpuInput, CpuOp, Op, OpError, Outputs, Packed, ValueType};
pub use rel_pos_attention::{AttentionMask, RelPosAttention};
pub use rel_pos_encoding::RelPosEncoding;
pub use rel_pos_projection::RelPosProjection;
pub use rel_shift::RelShift;
pub use reshape::Reshape;
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use rotary_angles::{RopeScaling, RotaryAngles, Sections};
pub use scale::Scale;
pub use sdpa::Sdpa;
pub use slice::Slice;
pub use softmax::Softmax;
pub use transpose::Transpose;
pub use unary::{Unary, UnaryKind};
