//! Planning a node that is tiled in time: which frames each tile reads, and the plans of its body.

use crate::error::GraphError;
use crate::graph::TileTime;
use crate::plan::{Packing, Plan, plan_with};
use conure_kernels::Cpu;
use conure_tensor::Bindings;
use std::ops::Range;
use std::sync::Arc;

/// Tiles of one node at most: a list of them takes 64 MiB.
pub(crate) const MOST: usize = 1 << 20;

/// A [`TileTime`] node for given lengths.
#[derive(Debug)]
pub(crate) struct TileSteps {
    pub node: Arc<TileTime>,
    pub tiles: Vec<Tile>,
    /// Bytes before the body's arena in the scratch of the step: the tile's own `lengths`.
    pub header: usize,
}

/// One tile: which frames of x it reads and which rows of the body's y it keeps.
#[derive(Debug)]
pub(crate) struct Tile {
    pub plan: Arc<Plan>,
    pub x_frames: Range<usize>,
    pub y_skip: usize,
    pub y_rows: Range<usize>,
}

/// Cuts `rows` rows of y into tiles; plans of equal tiles are shared.
pub(crate) fn tile_steps(
    node: &Arc<TileTime>,
    frames: usize,
    rows: usize,
    cpu: &Cpu,
    packing: Packing,
) -> Result<TileSteps, GraphError> {
    let mut plans: Vec<(usize, Arc<Plan>)> = Vec::new();
    let mut tiles = Vec::new();
    let mut start = 0;
    while start < rows {
        let end = start.saturating_add(node.tile).min(rows);
        let first = start.saturating_sub(node.halo_before);
        let x_of = |row: usize| row.saturating_mul(node.factor).min(frames);
        let x_start = x_of(first);
        let x_end = if end == rows { frames } else { x_of(end.saturating_add(node.halo_after)) };
        let length = x_end.saturating_sub(x_start);
        let plan = match plans.iter().find(|(l, _)| *l == length) {
            Some((_, p)) => p.clone(),
            None => {
                let bindings = Bindings::new().with(node.time, length).with(node.batch, 1);
                let p = Arc::new(plan_with(&node.body, &bindings, &[], cpu, packing)?);
                plans.push((length, p.clone()));
                p
            }
        };
        tiles.push(Tile { plan, x_frames: x_start..x_end, y_skip: start - first, y_rows: start..end });
        start = end;
    }
    Ok(TileSteps { node: node.clone(), tiles, header: conure_device::arena::ALIGNMENT })
}
