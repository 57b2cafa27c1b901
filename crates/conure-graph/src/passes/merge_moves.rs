//! Chains of reshapes and transposes become one transpose at most.

use super::moves::{Move, Moves};
use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{Reshape, Transpose};

/// Merges what moves data one after the other, and drops what moves nothing.
///
/// ```text
///   x ── transpose ── reshape ── transpose ── y        x ── reshape ── transpose ── reshape ── y
///
///   reshapes are views and cost nothing; each transpose copies the tensor. What comes back to where it was is dropped:
///
///   x ── transpose 0 2 1 ── transpose 0 2 1 ── y       x ── y
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MergeMoves;

impl Pass for MergeMoves {
    fn name(&self) -> &'static str {
        "merge_moves"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let Some(chain) = chain(r, index) else { return Ok(false) };
            let out = r.old_node(index).outputs[0];
            let (from, to) = (&r.old_ty(chain.start).shape, &r.old_ty(out).shape);
            let steps = chain.moves.steps(from, to);
            let transposes = steps.iter().filter(|m| matches!(m, Move::Transpose(_))).count();
            if (transposes, steps.len()) >= (chain.transposes, chain.length) {
                return Ok(false);
            }
            // What can be captured must be computed: a view of an input or a weight would not be.
            if transposes == 0 && (chain.transposes > 0 || steps.is_empty()) && r.seen_outside(out) {
                return Ok(false);
            }
            let path = &r.old_node(index).path;
            let mut x = r.new_of(chain.start)?;
            x = emit(r, x, steps, path)?;
            r.replace(out, x)?;
            Ok(true)
        })
    }
}

/// Applies moves to a new value.
pub(super) fn emit(
    r: &mut Rewriter<'_>,
    mut x: ValueId,
    steps: Vec<Move>,
    path: &str,
) -> Result<ValueId, GraphError> {
    for step in steps {
        x = match step {
            Move::Reshape(shape) => r.apply(Reshape { shape }, &[x], path)?,
            Move::Transpose(perm) => r.apply(Transpose { perm }, &[x], path)?,
        };
    }
    Ok(x)
}

struct Chain {
    start: ValueId,
    moves: Moves,
    length: usize,
    transposes: usize,
}

/// The moves that end at this node, as far back as nothing else reads what lies between them.
fn chain(r: &Rewriter<'_>, index: usize) -> Option<Chain> {
    let mut nodes = vec![];
    let mut at = index;
    let start = loop {
        let input = match (r.op::<Reshape>(at), r.op::<Transpose>(at)) {
            (None, None) => return None,
            _ => *r.old_node(at).inputs.first()?,
        };
        nodes.push(at);
        let before = r.producer(input).filter(|_| r.only_use(input));
        match before {
            Some(n) if r.op::<Reshape>(n).is_some() || r.op::<Transpose>(n).is_some() => at = n,
            _ => break input,
        }
    };
    let mut moves = Moves::of(&r.old_ty(start).shape);
    let mut transposes = 0;
    for &n in nodes.iter().rev() {
        moves = match (r.op::<Reshape>(n), r.op::<Transpose>(n)) {
            (Some(reshape), _) => moves.reshape(&reshape.shape)?,
            (_, Some(transpose)) => {
                transposes += 1;
                moves.transpose(&transpose.perm)
            }
            _ => return None,
        };
    }
    Some(Chain { start, moves, length: nodes.len(), transposes })
}
