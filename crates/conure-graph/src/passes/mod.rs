//! Rewrites of graphs: one file each, in a fixed order, each of which can be left out by its name.
//!
//! A pass takes a graph and gives one that computes the same, faster. It leaves alone what it is not sure of, and keeps every
//! value that carries a name: what can be captured without passes can be captured with them. `docs/passes.md` says how to
//! add one.

mod decompose;
mod fold_batch_norm;
mod fold_constants;
mod fuse_attention;
mod fuse_bias_activation;
mod fuse_conv;
mod fuse_glu;
mod fuse_sdpa;
mod lower_conv;
mod merge_moves;
mod moves;
mod project_positions;
mod rewrite;
#[cfg(test)]
pub(crate) mod testing;

pub use decompose::Decompose;
pub use fold_batch_norm::FoldBatchNorm;
pub use fold_constants::FoldConstants;
pub use fuse_attention::FuseAttention;
pub use fuse_bias_activation::FuseBiasActivation;
pub use fuse_conv::FuseConv;
pub use fuse_glu::FuseGlu;
pub use fuse_sdpa::FuseSdpa;
pub use lower_conv::LowerConv;
pub use merge_moves::MergeMoves;
pub use project_positions::ProjectPositions;
pub use rewrite::Rewriter;

use crate::device::Device;
use crate::error::GraphError;
use crate::graph::{Graph, NodeOp, TileTime};
use std::fmt;
use std::sync::Arc;

/// A rewrite of graphs.
pub trait Pass: fmt::Debug + Send + Sync {
    /// Its name, which is that of its file: `--without-pass NAME` leaves it out.
    fn name(&self) -> &'static str;

    /// A graph that computes what `graph` computes. Bodies of [`TileTime`] are graphs of their own: [`apply`] visits them.
    ///
    /// # Errors
    /// A rewritten part that does not fit: a fault of the pass.
    fn run(&self, graph: Graph) -> Result<Graph, GraphError>;
}

/// Every pass that a program runs by default, in order. [`Decompose`] follows, for a device that is not the CPU.
const ALL: [&dyn Pass; 9] = [
    &FoldConstants,
    &FuseAttention,
    &FuseSdpa,
    &FuseConv,
    &MergeMoves,
    &FoldBatchNorm,
    &FuseGlu,
    &FuseBiasActivation,
    &ProjectPositions,
];

/// The name that stands for every pass.
const EVERY: &str = "all";

/// The name of [`Decompose`].
const DECOMPOSE: &str = "decompose";

/// Which passes are to run: all, or all but some.
#[derive(Clone, Debug)]
pub struct Passes {
    enabled: Vec<&'static dyn Pass>,
    decompose: bool,
    device: Option<Device>,
}

impl Default for Passes {
    fn default() -> Passes {
        Passes { enabled: ALL.to_vec(), decompose: true, device: None }
    }
}

impl Passes {
    /// None: the graph as the model built it.
    pub fn none() -> Passes {
        Passes { enabled: Vec::new(), decompose: false, device: None }
    }

    /// All but those of these names; `all` means every one.
    ///
    /// # Errors
    /// [`GraphError::UnknownPass`] with the names there are.
    pub fn without<S: AsRef<str>>(names: &[S]) -> Result<Passes, GraphError> {
        for name in names.iter().map(AsRef::as_ref) {
            if name != EVERY && !Passes::names().any(|n| n == name) {
                let known = Passes::names().collect::<Vec<_>>().join(", ");
                return Err(GraphError::UnknownPass { name: name.to_owned(), known });
            }
        }
        if names.iter().any(|n| n.as_ref() == EVERY) {
            return Ok(Passes::none());
        }
        let kept = |name: &str| names.iter().all(|n| n.as_ref() != name);
        let enabled = ALL.iter().copied().filter(|p| kept(p.name())).collect();
        Ok(Passes { enabled, decompose: kept(DECOMPOSE), device: None })
    }

    /// The same for graphs that `device` is to run: what it refuses is taken apart if it takes the parts.
    pub fn for_device(&self, device: &Device) -> Passes {
        Passes { device: Some(device.clone()), ..self.clone() }
    }

    /// The names of all passes, in the order in which they run.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|p| p.name()).chain([DECOMPOSE])
    }

    /// The names of those that run.
    pub fn enabled(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.enabled.iter().map(|p| p.name()).chain(self.decompose.then_some(DECOMPOSE))
    }

    /// The graph after these passes.
    ///
    /// # Errors
    /// As [`Pass::run`].
    pub fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        let graph = self.enabled.iter().try_fold(graph, |g, pass| apply(*pass, g))?;
        match &self.device {
            Some(device) if self.decompose && device.backend().is_some() => {
                apply(&Decompose::refused_by(device), graph)
            }
            _ => Ok(graph),
        }
    }
}

/// Runs one pass on a graph and on the bodies of its tiled nodes.
///
/// # Errors
/// As [`Pass::run`].
pub fn apply(pass: &dyn Pass, mut graph: Graph) -> Result<Graph, GraphError> {
    for node in &mut graph.nodes {
        if let NodeOp::TileTime(tile) = &node.op {
            let body = apply(pass, tile.body.clone())?;
            node.op = NodeOp::TileTime(Arc::new(TileTime { body, ..tile.as_ref().clone() }));
        }
    }
    pass.run(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_left_out_by_name() {
        let names: Vec<&str> = Passes::names().collect();
        assert_eq!(Passes::default().enabled().collect::<Vec<_>>(), names);
        assert_eq!(Passes::none().enabled().count(), 0);
        assert_eq!(Passes::without(&["all"]).unwrap().enabled().count(), 0);
        let some = Passes::without(&["fuse_glu"]).unwrap();
        assert_eq!(some.enabled().count(), names.len() - 1);
        assert!(some.enabled().all(|n| n != "fuse_glu"));
        for names in [&["fuse_everything"][..], &["all", "fuse_everything"], &["fuse_everything", "all"]] {
            let error = Passes::without(names).unwrap_err().to_string();
            assert!(
                error.starts_with("there is no pass \"fuse_everything\"; there are: fold_constants, "),
                "{error}"
            );
        }
    }
}
