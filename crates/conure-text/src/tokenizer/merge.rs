//! Merging neighbours, the best pair first: what both kinds of byte-pair encoding do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the text and the number of its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

/// A symbol among its neighbours; one that was merged into the one before it is empty.
#[derive(Clone, Copy)]
struct Link {
    symbol: Symbol,
    before: usize,
    after: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Merges neighbours until none can be: always the pair of the least rank, of equals the leftmost. `rank` gives a pair's rank
/// and the piece that it becomes. Time grows with n log n.
pub(super) fn merge(symbols: &mut Vec<Symbol>, rank: impl Fn(&Symbol, &Symbol) -> Option<(u64, u32)>) {
    let count = symbols.len();
    let mut links: Vec<Link> = symbols
        .iter()
        .enumerate()
        .map(|(i, &symbol)| Link {
            symbol,
            before: if i == 0 { NONE } else { i - 1 },
            after: if i + 1 == count { NONE } else { i + 1 },
        })
        .collect();
    // Rank, left symbol, the end of the pair (to know it again), the piece that it becomes.
    let mut queue: BinaryHeap<Reverse<(u64, usize, usize, u32)>> = BinaryHeap::new();
    let offer = |queue: &mut BinaryHeap<_>, links: &[Link], left: usize| {
        let Some(right) = links.get(left).and_then(|l| links.get(l.after)) else { return };
        if let Some((rank, id)) = rank(&links[left].symbol, &right.symbol) {
            queue.push(Reverse((rank, left, right.symbol.end, id)));
        }
    };
    for left in 0..count {
        offer(&mut queue, &links, left);
    }
    while let Some(Reverse((_, left, end, id))) = queue.pop() {
        let link = links[left];
        let Some(&next) = links.get(link.after) else { continue };
        // Either side may have been merged since this pair was offered.
        let alive = link.symbol.start < link.symbol.end && next.symbol.end == end;
        if !alive {
            continue;
        }
        links[link.after].symbol.end = links[link.after].symbol.start;
        links[left].symbol.end = end;
        links[left].symbol.id = id;
        links[left].after = next.after;
        if let Some(after) = links.get_mut(next.after) {
            after.before = left;
        }
        offer(&mut queue, &links, left);
        offer(&mut queue, &links, link.before);
    }
    symbols.clear();
    symbols.extend(links.iter().map(|l| l.symbol).filter(|s| s.start < s.end));
}
