//! Which values share memory, how long each is needed, and where in the arena it goes.

use crate::graph::{Def, Graph, NodeOp, ValueId};
use conure_device::arena::ALIGNMENT;
use std::ops::Range;

/// Who reads what, and when for the last time.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The value whose memory a value is: itself, or what it is a view of.
    roots: Vec<ValueId>,
    /// For each root, the last node that reads it; `usize::MAX` if it is kept to the end.
    last: Vec<usize>,
    needed: Vec<bool>,
    /// For each node, the roots that die after it.
    dead: Vec<Vec<ValueId>>,
}

impl Liveness {
    /// The liveness of the values that `wanted` needs.
    pub(crate) fn of(graph: &Graph, wanted: &[ValueId]) -> Liveness {
        let mut roots: Vec<ValueId> = (0..graph.values.len()).map(|i| ValueId(i as u32)).collect();
        for node in &graph.nodes {
            if let NodeOp::Op(op) = &node.op
                && op.is_view()
                && let (Some(&from), Some(&to)) = (node.inputs.first(), node.outputs.first())
            {
                roots[to.index()] = roots[from.index()];
            }
        }
        let mut needed = vec![false; graph.nodes.len()];
        let mut stack: Vec<ValueId> = wanted.to_vec();
        // A piece whose states change is run though nobody reads what it makes.
        for (node, needed) in graph.nodes.iter().zip(&mut needed) {
            if matches!(&node.op, NodeOp::Piece(piece) if piece.graph.changes_states()) {
                *needed = true;
                stack.extend_from_slice(&node.inputs);
            }
        }
        while let Some(v) = stack.pop() {
            if let Def::Node(n, _) = graph.values[v.index()].def
                && !std::mem::replace(&mut needed[n], true)
            {
                stack.extend_from_slice(&graph.nodes[n].inputs);
            }
        }
        // A value that nobody reads dies where it is made.
        let mut last = vec![0usize; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
            for v in node.inputs.iter().chain(&node.outputs) {
                last[roots[v.index()].index()] = index;
            }
        }
        for v in wanted {
            last[roots[v.index()].index()] = usize::MAX;
        }
        let mut dead = vec![Vec::new(); graph.nodes.len()];
        for (i, value) in graph.values.iter().enumerate() {
            let computed = matches!(value.def, Def::Node(n, _) if needed[n]);
            if computed && roots[i].index() == i && last[i] != usize::MAX {
                dead[last[i]].push(ValueId(i as u32));
            }
        }
        Liveness { roots, last, needed, dead }
    }

    pub(crate) fn root(&self, v: ValueId) -> ValueId {
        self.roots[v.index()]
    }

    pub(crate) fn needed(&self, node: usize) -> bool {
        self.needed[node]
    }

    pub(crate) fn dies_at(&self, root: ValueId, node: usize) -> bool {
        self.last[root.index()] == node
    }

    pub(crate) fn dead_after(&self, node: usize) -> Vec<ValueId> {
        self.dead[node].clone()
    }
}

/// Hands out ranges of the arena: the smallest hole that fits, else the end.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    /// Free ranges below the end, sorted, never touching each other.
    holes: Vec<Range<usize>>,
    end: usize,
    high_water: usize,
}

impl Offsets {
    /// A free range of at least `len` bytes, aligned; `None` if all together would be more than memory can be.
    pub(crate) fn alloc(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.checked_next_multiple_of(ALIGNMENT)?;
        if len == 0 {
            return Some(0..0);
        }
        let best = self
            .holes
            .iter()
            .enumerate()
            .filter(|(_, h)| h.len() >= len)
            .min_by_key(|(_, h)| h.len())
            .map(|(i, _)| i);
        if let Some(i) = best {
            let start = self.holes[i].start;
            self.holes[i].start += len;
            if self.holes[i].is_empty() {
                self.holes.remove(i);
            }
            return Some(start..start + len);
        }
        // A hole at the end grows instead of being left.
        let grows = self.holes.last().filter(|h| h.end == self.end).map(|h| h.start);
        let start = grows.unwrap_or(self.end);
        let end = start.checked_add(len).filter(|&end| end <= isize::MAX as usize)?;
        if grows.is_some() {
            self.holes.pop();
        }
        self.end = end;
        self.high_water = self.high_water.max(end);
        Some(start..end)
    }

    /// Gives a range back.
    pub(crate) fn free(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let at = self.holes.partition_point(|h| h.start < range.start);
        self.holes.insert(at, range);
        if at + 1 < self.holes.len() && self.holes[at].end == self.holes[at + 1].start {
            self.holes[at].end = self.holes.remove(at + 1).end;
        }
        if at > 0 && self.holes[at - 1].end == self.holes[at].start {
            self.holes[at - 1].end = self.holes.remove(at).end;
        }
    }

    /// Bytes that all ranges together ever needed.
    pub(crate) fn high_water(&self) -> usize {
        self.high_water
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_and_holes_are_reused() {
        let mut o = Offsets::default();
        // A deterministic sequence of allocations and frees, checked against the set of live ranges.
        let mut live: Vec<Range<usize>> = Vec::new();
        let mut state = 12345u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = (state >> 33) as usize;
            if r.is_multiple_of(3) && !live.is_empty() {
                o.free(live.swap_remove(r % live.len()));
            } else if live.len() < 20 {
                let got = o.alloc(r % 5000 + 1).unwrap();
                assert!(got.len() > r % 5000 && got.start % ALIGNMENT == 0);
                assert!(live.iter().all(|l| l.end <= got.start || got.end <= l.start), "{got:?} in {live:?}");
                live.push(got);
            }
            assert!(o.holes.windows(2).all(|w| w[0].end < w[1].start), "{:?}", o.holes);
        }
        for l in live.drain(..) {
            o.free(l);
        }
        let high = o.high_water();
        let all = o.alloc(high).unwrap();
        assert_eq!(all, 0..high, "everything free is one hole again");
        for huge in [usize::MAX, usize::MAX - high, isize::MAX as usize, isize::MAX as usize - high] {
            assert_eq!(o.alloc(huge), None, "{huge:x}");
        }
        assert_eq!(o.alloc(1), Some(high..high + ALIGNMENT), "what was refused took nothing");
    }
}
