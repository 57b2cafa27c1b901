//! Where boxes and lines go: layers from above to below (Sugiyama, Tagawa and Toda, 1981), as few crossings as some sweeps
//! find, and then as straight as the order allows.

/// A box to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    pub width: f64,
    pub height: f64,
}

/// Where everything is.
#[derive(Debug, PartialEq)]
pub(super) struct Layout {
    /// Centre of each box.
    pub centres: Vec<(f64, f64)>,
    /// For each edge, the points that it goes through, ends included.
    pub routes: Vec<Vec<(f64, f64)>>,
    pub width: f64,
    pub height: f64,
}

/// Space between boxes of a layer, between lines, and between layers.
const GAP: f64 = 24.0;
const LINE_GAP: f64 = 12.0;
const LAYER_GAP: f64 = 34.0;
const MARGIN: f64 = 20.0;
/// Sweeps down and up: more changed nothing in the graphs of 17 layers.
const SWEEPS: usize = 12;

/// Something with a place in a layer: a box, or a point where a long line passes.
#[derive(Clone, Debug)]
struct Item {
    layer: usize,
    size: Size,
    /// Half the space that it needs beside it.
    gap: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

/// Lays out boxes and edges (from, to), both numbers of boxes; edges must not form a circle.
pub(super) fn layout(sizes: &[Size], edges: &[(usize, usize)]) -> Layout {
    let layers = layers(sizes.len(), edges);
    let mut items: Vec<Item> = sizes
        .iter()
        .zip(&layers)
        .map(|(&size, &layer)| Item { layer, size, gap: GAP / 2.0, above: Vec::new(), below: Vec::new() })
        .collect();
    let paths = thread_lines(&mut items, edges);
    let mut rows = order(&items);
    for sweep in 0..SWEEPS {
        by_neighbours(&items, &mut rows, sweep % 2 == 0);
    }
    let x = straighten(&items, &rows);
    finish(&items, &rows, &x, &paths, sizes.len())
}

/// The layer of each box: below all that it reads.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0usize; count];
    // Edges lead from earlier to later boxes nearly always, so that two rounds mostly suffice.
    for _ in 0..count.max(1) {
        let mut changed = false;
        for &(from, to) in edges {
            if layer[to] <= layer[from] {
                layer[to] = layer[from] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for node in (0..count).rev() {
        let mut inputs = edges.iter().filter(|&&(_, to)| to == node).map(|&(from, _)| from);
        let first = edges.iter().filter(|&&(from, _)| from == node).map(|&(_, to)| layer[to]).min();
        // What reads nothing, or one value that others read too, can be just above its reader: its line is there anyway.
        let free = match (inputs.next(), inputs.next()) {
            (None, _) => true,
            (Some(from), None) => edges.iter().filter(|&&(f, _)| f == from).count() > 1,
            _ => false,
        };
        if let (true, Some(first)) = (free, first) {
            layer[node] = first.saturating_sub(1).max(layer[node]);
        }
    }
    layer
}

/// Puts points on the layers that a line passes. The lines of one box share theirs: a value that is read all over is one
/// line with branches. Returns the items of each edge.
fn thread_lines(items: &mut Vec<Item>, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let count = items.len();
    // For each box, the points below it, one a layer.
    let mut trunks: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut paths = Vec::with_capacity(edges.len());
    for &(from, to) in edges {
        let between = items[to].layer.saturating_sub(items[from].layer + 1);
        while trunks[from].len() < between {
            let layer = items[from].layer + trunks[from].len() + 1;
            let size = Size { width: 0.0, height: 0.0 };
            items.push(Item { layer, size, gap: LINE_GAP / 2.0, above: Vec::new(), below: Vec::new() });
            let point = items.len() - 1;
            let before = trunks[from].last().copied().unwrap_or(from);
            join(items, before, point);
            trunks[from].push(point);
        }
        let last = between.checked_sub(1).map_or(from, |i| trunks[from][i]);
        join(items, last, to);
        let through = trunks[from][..between].iter().copied();
        paths.push(std::iter::once(from).chain(through).chain([to]).collect());
    }
    paths
}

fn join(items: &mut [Item], above: usize, below: usize) {
    items[above].below.push(below);
    items[below].above.push(above);
}

/// The items of each layer, in the order in which a walk from above meets them.
fn order(items: &[Item]) -> Vec<Vec<usize>> {
    let count = items.iter().map(|i| i.layer + 1).max().unwrap_or(0);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut seen = vec![false; items.len()];
    for root in 0..items.len() {
        let mut stack = vec![root];
        while let Some(i) = stack.pop() {
            if !std::mem::replace(&mut seen[i], true) {
                rows[items[i].layer].push(i);
                stack.extend(items[i].below.iter().rev());
            }
        }
    }
    rows
}

/// Sorts every layer by the mean place of its neighbours in the layer before.
fn by_neighbours(items: &[Item], rows: &mut [Vec<usize>], down: bool) {
    let mut place = vec![0.0; items.len()];
    let set = |row: &[usize], place: &mut [f64]| {
        for (at, &i) in row.iter().enumerate() {
            place[i] = (at as f64 + 0.5) / row.len() as f64;
        }
    };
    rows.iter().for_each(|row| set(row, &mut place));
    let count = rows.len();
    for step in 0..count {
        let row = &mut rows[if down { step } else { count - 1 - step }];
        let key = |&i: &usize| {
            let near = if down { &items[i].above } else { &items[i].below };
            if near.is_empty() {
                return place[i];
            }
            near.iter().map(|&n| place[n]).sum::<f64>() / near.len() as f64
        };
        let mut keyed: Vec<(f64, usize)> = row.iter().map(|i| (key(i), *i)).collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        *row = keyed.into_iter().map(|(_, i)| i).collect();
        set(row, &mut place);
    }
}

/// Horizontal places: each item where its neighbours are, as far as the order and the space between items let it.
fn straighten(items: &[Item], rows: &[Vec<usize>]) -> Vec<f64> {
    let mut x = vec![0.0; items.len()];
    for row in rows {
        let mut at = 0.0;
        for &i in row {
            at += items[i].size.width / 2.0 + items[i].gap;
            x[i] = at;
            at += items[i].size.width / 2.0 + items[i].gap;
        }
        row.iter().for_each(|&i| x[i] -= at / 2.0);
    }
    for sweep in 0..2 * SWEEPS {
        let down = sweep % 2 == 0;
        for step in 0..rows.len() {
            let row = &rows[if down { step } else { rows.len() - 1 - step }];
            let wish = |&i: &usize| {
                let (first, second) = (&items[i].above, &items[i].below);
                let near = match (down, first.is_empty(), second.is_empty()) {
                    (_, true, true) => return x[i],
                    (true, false, _) | (false, false, true) => first,
                    _ => second,
                };
                // Boxes stand under boxes, lines run beside them: a way with many branches would lean to one side else.
                let boxes = near.iter().any(|&n| items[n].size.width > 0.0) && items[i].size.width > 0.0;
                let near = near.iter().filter(|&&n| !boxes || items[n].size.width > 0.0);
                let mut places: Vec<f64> = near.map(|&n| x[n]).collect();
                places.sort_by(f64::total_cmp);
                let middle = places.len() / 2;
                if places.len() % 2 == 1 {
                    places[middle]
                } else {
                    (places[middle - 1] + places[middle]) / 2.0
                }
            };
            let wishes: Vec<f64> = row.iter().map(wish).collect();
            for (&i, place) in row.iter().zip(apart(items, row, &wishes)) {
                x[i] = place;
            }
        }
    }
    x
}

/// The places nearest to `wishes` (least squares) that keep the order and the space between items: blocks that would
/// overlap are merged and moved as one (pool adjacent violators).
fn apart(items: &[Item], row: &[usize], wishes: &[f64]) -> Vec<f64> {
    // Offset of each item in a row without free space.
    let mut offsets = Vec::with_capacity(row.len());
    let mut at = 0.0;
    for &i in row {
        at += items[i].size.width / 2.0 + items[i].gap;
        offsets.push(at);
        at += items[i].size.width / 2.0 + items[i].gap;
    }
    // Blocks: sum of weighted wishes, sum of weights, items. Points weigh more: a long line should be straight.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    for ((&i, wish), offset) in row.iter().zip(wishes).zip(&offsets) {
        let weight = if items[i].size.width == 0.0 { 4.0 } else { 1.0 };
        let mut block = (weight * (wish - offset), weight, 1);
        while let Some(&(sum, weights, count)) = blocks.last() {
            if sum / weights <= block.0 / block.1 {
                break;
            }
            block = (block.0 + sum, block.1 + weights, block.2 + count);
            blocks.pop();
        }
        blocks.push(block);
    }
    let shifts = blocks.iter().flat_map(|&(sum, weights, count)| std::iter::repeat_n(sum / weights, count));
    shifts.zip(&offsets).map(|(shift, offset)| shift + offset).collect()
}

fn finish(items: &[Item], rows: &[Vec<usize>], x: &[f64], paths: &[Vec<usize>], boxes: usize) -> Layout {
    let mut y = vec![0.0; items.len()];
    let mut top = MARGIN;
    for row in rows {
        let height = row.iter().map(|&i| items[i].size.height).fold(0.0, f64::max);
        row.iter().for_each(|&i| y[i] = top + height / 2.0);
        top += height + LAYER_GAP;
    }
    let left = (0..items.len()).map(|i| x[i] - items[i].size.width / 2.0).fold(f64::INFINITY, f64::min);
    let right = (0..items.len()).map(|i| x[i] + items[i].size.width / 2.0).fold(f64::NEG_INFINITY, f64::max);
    let shift = if left.is_finite() { MARGIN - left } else { 0.0 };
    let centre = |i: usize| (x[i] + shift, y[i]);
    let route = |path: &Vec<usize>| {
        let mut points: Vec<(f64, f64)> = path.iter().map(|&i| centre(i)).collect();
        if let (Some(first), Some(&from)) = (points.first_mut(), path.first()) {
            first.1 += items[from].size.height / 2.0;
        }
        if let (Some(last), Some(&to)) = (points.last_mut(), path.last()) {
            last.1 -= items[to].size.height / 2.0;
        }
        points
    };
    Layout {
        centres: (0..boxes).map(centre).collect(),
        routes: paths.iter().map(route).collect(),
        width: if right.is_finite() { right + shift + MARGIN } else { 2.0 * MARGIN },
        height: (top - LAYER_GAP).max(MARGIN) + MARGIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOX: Size = Size { width: 60.0, height: 20.0 };

    #[test]
    fn boxes_do_not_overlap_and_lines_lead_down() {
        // A chain with a residual around two of it, a value that is read twice far below, and a diamond.
        let edges =
            [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (3, 5), (4, 6), (5, 6), (7, 2), (7, 6), (6, 8), (8, 9)];
        let layout = layout(&[BOX; 10], &edges);
        for (i, a) in layout.centres.iter().enumerate() {
            assert!(a.0 - 30.0 >= 0.0 && a.0 + 30.0 <= layout.width && a.1 + 10.0 <= layout.height, "{a:?}");
            for b in &layout.centres[..i] {
                let apart = (a.0 - b.0).abs() >= 60.0 || (a.1 - b.1).abs() >= 20.0;
                assert!(apart, "{a:?} {b:?}");
            }
        }
        for ((from, to), route) in edges.iter().zip(&layout.routes) {
            assert!(route.is_sorted_by(|a, b| a.1 < b.1), "{from} to {to}: {route:?}");
            assert_eq!(route[0], (layout.centres[*from].0, layout.centres[*from].1 + 10.0));
            assert_eq!(*route.last().unwrap(), (layout.centres[*to].0, layout.centres[*to].1 - 10.0));
        }
    }

    #[test]
    fn a_chain_is_straight_and_nothing_is_a_picture_too() {
        let chain: Vec<(usize, usize)> = (0..9).map(|i| (i, i + 1)).collect();
        let straight = layout(&[BOX; 10], &chain);
        assert!(straight.centres.iter().all(|c| (c.0 - straight.centres[0].0).abs() < 1e-9));
        let empty = layout(&[], &[]);
        assert!(empty.width > 0.0 && empty.height > 0.0);
    }

    #[test]
    fn items_keep_apart_as_near_to_their_wishes_as_can_be() {
        let item = Item { layer: 0, size: BOX, gap: 10.0, above: Vec::new(), below: Vec::new() };
        let items = vec![item; 3];
        let places = apart(&items, &[0, 1, 2], &[0.0, 0.0, 300.0]);
        assert_eq!(places, [-40.0, 40.0, 300.0]);
    }
}
