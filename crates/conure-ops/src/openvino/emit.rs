//! What a writer of models offers to ops.

use super::{Perm, Port};
use crate::op::OpError;
use conure_tensor::{DType, Dim, Shape};

/// Which of several forms an op takes where devices differ in what they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Whether attention looks only at the rows of a cache that are filled, rather than at all.
    pub slice_cache: bool,
    /// Whether attention with fewer key heads than query heads is written out, keys and values as they are, rather than as one
    /// operation with keys and values repeated; `None`: where the device does not keep the cache.
    pub manual_attention: Option<bool>,
    /// Whether im2col is one operation that cuts patches, with what brings them in order, rather than a slice for each tap: slower
    /// here, and what a lowering op by op gives. For comparisons.
    pub extract_patches: bool,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { slice_cache: true, manual_attention: None, extract_patches: false }
    }
}

/// Where layers go.
pub trait Emit {
    /// The forms that are wanted.
    fn choices(&self) -> Choices;

    /// Adds a layer; its first output.
    fn layer(
        &mut self,
        kind: &'static str,
        version: &'static str,
        attrs: &[(&'static str, &str)],
        inputs: &[Port],
        outputs: usize,
    ) -> Port;

    /// Adds a small constant.
    ///
    /// # Errors
    /// No memory.
    fn literal(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Port, OpError>;

    /// Input `index` of the op, weights in any stored form as f32; of this shape, if one is given that a weight can have
    /// for nothing.
    ///
    /// # Errors
    /// A weight that cannot be given so.
    fn input(&mut self, index: usize, shape: Option<&[usize]>) -> Result<Port, OpError>;

    /// What is known of input `index` if it is a cache of which attention gets the rows that it needs, as `[B, E, G, K]` f32; as
    /// `[B, G, E, K]` where the device keeps it.
    fn cache(&self, index: usize) -> Option<Cache>;

    /// Whether input `index` is a weight or a constant.
    fn is_fixed(&self, index: usize) -> bool;

    /// The values of input `index`, a small weight or a constant.
    ///
    /// # Errors
    /// An input that is computed, or stored in blocks.
    fn values(&self, index: usize) -> Result<Vec<f32>, OpError>;

    /// A length that runs decide, as `[1]` i64.
    ///
    /// # Errors
    /// If a run could not tell.
    fn length(&mut self, length: &Dim) -> Result<Port, OpError>;

    /// The f32 value `x` of this shape, kept from run to run as long as lengths stay the same, if lengths alone decide it and the
    /// model serves any length; otherwise `x`. Nothing else may read `x`.
    ///
    /// # Errors
    /// If a run could not tell the shape.
    fn keep(&mut self, x: Port, shape: &Shape) -> Result<Port, OpError>;

    /// Lets runs fail in which `length` is more than `most`, with the op's reason.
    fn at_most(&mut self, length: &Dim, most: usize, what: &'static str);

    /// Lets runs fail in which input `index`, if it is one of the graph's, holds integers outside `low ..= high`.
    fn within(&mut self, index: usize, low: i32, high: i32, what: &'static str);

    /// Remembers that `out` is `source` with its axes in the order `perm`.
    fn note_transposed(&mut self, out: Port, source: Port, perm: &[usize]);

    /// What was remembered of `out`.
    fn transposed(&self, out: Port) -> Option<(Port, Perm)>;
}

/// A cache that attention gets as columns: rows that were there, then those of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// `[B, E]` i32: the row of its item at which each column stands; beyond all rows where nobody is to see it.
    pub places: Port,
    /// Whether the device keeps the columns, so that one operation is best that grows and reads them.
    pub kept: bool,
}
