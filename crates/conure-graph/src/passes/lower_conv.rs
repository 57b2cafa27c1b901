//! Convolutions become im2col and products, for a device without them.

use super::{Decompose, Pass};
use crate::error::GraphError;
use crate::graph::Graph;

/// The other way of [`super::FuseConv`]: for a device that multiplies matrices and knows no convolution. Not among the passes that
/// run by default; [`super::Decompose::refused_by`] does the same where a device refuses a convolution and takes its parts.
///
/// ```text
///   x [B, T, F, C] ── conv2d ── y
///
///   x ── transpose ── im2col ── linear ── y                                 with groups: im2col of each group, one product for
///        [B, C, T, F]  [B, T', F', C kT kF]                                 each, and the groups put side by side
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LowerConv;

impl Pass for LowerConv {
    fn name(&self) -> &'static str {
        "lower_conv"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Decompose::named(self.name(), &["conv2d", "depthwise_conv1d"]).run(graph)
    }
}
