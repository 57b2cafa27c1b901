//! Caches of keys and values: which of a piece's states are such, and which rows attention sees of them.
//!
//! Attention does not care in which order its keys come. So what it gets are columns: rows that were there, then those of the
//! run, and beside them a table that says where in its item each column stands. Nothing is written into the middle of a cache on
//! the device, and no cache is copied for a run.
//!
//! ```text
//!   columns   k0 k1 k2 k3 │ k4          places   0 1 2 3 │ 4          a query at p sees the columns with places up to p
//!   rewound to 2, then two more:                 0 1 - - │ - 2 3      what was dropped stays as a column that nobody sees
//! ```
//!
//! In the *stateful* form the columns are states of OpenVINO's own, which its attention grows in place; a request begins with
//! what the host has. In the other form the rows come in as inputs, read where the host keeps them.

use super::weights::element;
use crate::error::GraphError;
use crate::graph::{Def, Graph, NodeOp, StateDef, ValueId};
use conure_device::arena::AlignedBytes;
use conure_device::openvino::{Element, HostInput};
use conure_tensor::DType;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// The place of a column that nobody sees.
const NOWHERE: i32 = i32::MAX;

/// The caches of a piece: all its appends, if attention alone reads what they make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caches {
    /// The input of the graph that says where the new rows go.
    pub at: usize,
    /// The states, in order, without repetition.
    pub states: Vec<usize>,
    /// What they hold.
    pub dtype: DType,
    /// Rows of an item.
    pub capacity: usize,
}

impl Caches {
    /// Of `graph`; `None` if there are none, or something else has to do with them.
    pub(super) fn of(graph: &Graph) -> Option<Caches> {
        let mut found: Option<Caches> = None;
        for node in &graph.nodes {
            let NodeOp::Append(state) = node.op else { continue };
            let (&rows, &at, &made) = (node.inputs.first()?, node.inputs.get(1)?, node.outputs.first()?);
            let Def::Input(at_input) = graph.value(at)?.def else { return None };
            let def = graph.states.get(state)?;
            let capacity = def.ty.shape.get(1)?.as_constant()?;
            let real = matches!(def.ty.dtype, DType::F32 | DType::F16 | DType::BF16);
            let shaped = def.ty.shape.rank() == 4 && graph.value(rows)?.ty.dtype == DType::F32;
            if !real || !shaped || !only_attention_reads(graph, made, at) || is_read(graph, state) {
                return None;
            }
            let caches = found.get_or_insert_with(|| Caches {
                at: at_input,
                states: Vec::new(),
                dtype: def.ty.dtype,
                capacity,
            });
            let same = (caches.at, caches.dtype, caches.capacity) == (at_input, def.ty.dtype, capacity);
            if !same || caches.states.contains(&state) {
                return None;
            }
            caches.states.push(state);
        }
        found
    }
}

/// Whether all that reads `value` is attention that sees up to its own row, counted from `at`.
fn only_attention_reads(graph: &Graph, value: ValueId, at: ValueId) -> bool {
    let asked_for = graph.outputs.iter().any(|&(_, v)| v == value);
    let kept = graph.commits.iter().any(|c| c.value() == value);
    let reads = |node: &crate::graph::Node| {
        node.inputs.iter().enumerate().filter(|(_, v)| **v == value).all(|(i, _)| match &node.op {
            NodeOp::Op(op) => {
                let places = op.openvino().and_then(|op| op.reads_cache(i));
                places.is_some_and(|places| node.inputs.get(places) == Some(&at))
            }
            _ => false,
        })
    };
    !asked_for && !kept && graph.nodes.iter().all(reads)
}

/// Whether a state is read as it was, or written in another way.
fn is_read(graph: &Graph, state: usize) -> bool {
    graph.commits.iter().any(|c| c.state() == state)
        || graph.values.iter().any(|v| matches!(v.def, Def::State(s) if s == state))
}

/// Where in its item each column stands.
#[derive(Debug, Default)]
pub(super) struct Places {
    items: Vec<Item>,
    /// Columns that none of the items sees.
    unseen: usize,
    /// The table as a run takes it, `[B, E]`.
    table: Vec<i32>,
}

#[derive(Debug, Default)]
struct Item {
    columns: Vec<i32>,
    /// The rows that are there: all before this one.
    rows: usize,
}

/// How many columns that nobody sees are carried along: a quarter of all, and some. Beginning anew copies what is seen; carrying
/// one costs each run a row of every cache.
fn bearable(columns: usize) -> usize {
    64 + columns / 4
}

impl Places {
    /// No columns.
    pub(super) fn forget(&mut self) {
        self.items.clear();
    }

    /// Adds `tokens` columns to each item, from its row `at` on. What stood there before is seen no more. `false` if what comes
    /// before is not there, or so much is unseen that beginning anew is better.
    pub(super) fn go_on(&mut self, at: &[i32], tokens: usize) -> bool {
        let starts = at.iter().map(|&at| usize::try_from(at).unwrap_or(0));
        if self.items.len() != at.len() || starts.clone().zip(&self.items).any(|(at, item)| at > item.rows) {
            return false;
        }
        let dropped: Vec<usize> = starts.zip(&self.items).map(|(at, item)| item.rows - at).collect();
        self.unseen += dropped.iter().max().copied().unwrap_or(0);
        if self.unseen > bearable(self.items.first().map_or(0, |item| item.columns.len())) {
            return false;
        }
        for ((item, &at), dropped) in self.items.iter_mut().zip(at).zip(dropped) {
            if dropped > 0 {
                item.columns.iter_mut().filter(|c| **c >= at).for_each(|c| *c = NOWHERE);
            }
            item.grow(at, tokens);
        }
        self.fill();
        true
    }

    /// Begins with `before` columns, of which each item has rows up to its `at`, and adds `tokens` to each.
    pub(super) fn begin(&mut self, at: &[i32], before: usize, tokens: usize) {
        self.items.clear();
        self.unseen = 0;
        for &at in at {
            let here = |row: i32| if row < at { row } else { NOWHERE };
            let mut item = Item { columns: (0..).map(here).take(before).collect(), rows: 0 };
            item.grow(at, tokens);
            self.items.push(item);
        }
        self.fill();
    }

    /// Takes back what the last run added: it failed, or is not to be kept.
    pub(super) fn take_back(&mut self, tokens: usize) {
        for item in &mut self.items {
            item.rows -= tokens.min(item.rows);
            let rows = i32::try_from(item.rows).unwrap_or(i32::MAX);
            item.columns.iter_mut().filter(|c| **c >= rows).for_each(|c| *c = NOWHERE);
        }
        self.unseen += tokens;
    }

    fn fill(&mut self) {
        self.table.clear();
        self.items.iter().for_each(|item| self.table.extend_from_slice(&item.columns));
    }

    /// `[B, E]`: items and columns of each, and the places.
    pub(super) fn table(&self) -> ([usize; 2], &[i32]) {
        let columns = self.items.first().map_or(0, |item| item.columns.len());
        ([self.items.len(), columns], &self.table)
    }
}

impl Item {
    fn grow(&mut self, at: i32, tokens: usize) {
        self.columns.extend((at..).take(tokens));
        self.rows = usize::try_from(at).unwrap_or(0) + tokens;
    }
}

/// The columns of one execution.
#[derive(Debug)]
pub(super) struct Columns {
    caches: Caches,
    /// Whether the device keeps them.
    stateful: bool,
    /// Whether rows that hold nothing yet are left out.
    slice: bool,
    places: Places,
    /// Columns that come in with the run, and their shape `[B, before, G, K]` for each cache.
    before: usize,
    shapes: Vec<[usize; 4]>,
    /// Rows of all items of each cache side by side, where they do not lie so.
    gathered: Vec<Vec<u8>>,
    items: Vec<i32>,
    /// Columns of the last run, until its rows are in the host's caches as well.
    pending: usize,
    used: bool,
}

impl Columns {
    pub(super) fn new(caches: Caches, stateful: bool, slice: bool) -> Columns {
        let count = caches.states.len();
        Columns {
            caches,
            stateful,
            slice,
            places: Places::default(),
            before: 0,
            shapes: vec![[0; 4]; count],
            gathered: vec![Vec::new(); count],
            items: Vec::new(),
            pending: 0,
            used: false,
        }
    }

    /// The input of the graph that says where items stand.
    pub(super) fn at(&self) -> usize {
        self.caches.at
    }

    /// Makes ready for a run of `tokens` tokens of each item, from the rows `at` on. Whether a fresh request is needed.
    ///
    /// # Errors
    /// Places that are no rows of the caches.
    pub(super) fn prepare(
        &mut self,
        at: &[i32],
        tokens: usize,
        defs: &[StateDef],
        states: &[AlignedBytes],
    ) -> Result<bool, GraphError> {
        let most = at.iter().copied().max().map_or(0, |most| usize::try_from(most).unwrap_or(0));
        if most > self.caches.capacity || at.iter().any(|&at| at < 0) {
            let what = format!("rows at {at:?} of a cache of {} rows", self.caches.capacity);
            return Err(GraphError::Build { what });
        }
        let taken_back = std::mem::take(&mut self.pending);
        if taken_back > 0 {
            self.places.take_back(taken_back);
        }
        self.items = (0..).take(at.len()).collect();
        let goes_on = self.stateful && self.places.go_on(at, tokens);
        if !goes_on {
            // OpenVINO does not survive tensors of no elements everywhere; a state may begin empty.
            let least = usize::from(!self.stateful);
            self.before = if self.slice || self.stateful { most.max(least) } else { self.caches.capacity };
            self.places.begin(at, self.before, tokens);
        } else {
            self.before = 0;
        }
        let taken = |&state: &usize| defs.get(state).is_none_or(|def| def.dims().first() < Some(&at.len()));
        if self.caches.states.iter().any(taken) {
            return Err(GraphError::Build { what: format!("{} items for a cache of fewer", at.len()) });
        }
        for (i, &state) in self.caches.states.iter().enumerate() {
            let (dims, state_bytes) = (defs[state].dims(), states[state].as_slice());
            let [items, before, groups, width] = [at.len(), self.before, dims[2], dims[3]];
            self.shapes[i] =
                if self.stateful { [items, groups, before, width] } else { [items, before, groups, width] };
            let row = defs[state].bytes() / (dims[0] * dims[1]).max(1);
            let rows = (0..at.len()).map(|item| &state_bytes[item * dims[1] * row..][..self.before * row]);
            self.gathered[i].clear();
            match self.stateful {
                true => {
                    rows.for_each(|rows| by_head(rows, groups, row, self.caches.dtype, &mut self.gathered[i]))
                }
                false if at.len() == 1 => {}
                false => rows.for_each(|rows| self.gathered[i].extend_from_slice(rows)),
            }
        }
        let fresh = !goes_on && self.used && self.stateful;
        self.used = true;
        Ok(fresh)
    }

    /// The run has gone well, and its rows are not in the host's caches yet.
    pub(super) fn ran(&mut self, tokens: usize) {
        self.pending = if self.stateful { tokens } else { 0 };
    }

    /// They are now.
    pub(super) fn committed(&mut self) {
        self.pending = 0;
    }

    /// What the device has is no longer what the host has.
    pub(super) fn forget(&mut self) {
        self.places.forget();
        self.pending = 0;
    }

    /// What a run gets of state `index` of the graph, if that is one of the caches.
    pub(super) fn input<'a>(&'a self, index: usize, states: &'a [AlignedBytes]) -> Option<HostInput<'a>> {
        let i = self.caches.states.iter().position(|&s| s == index)?;
        let element = if self.stateful { Element::F32 } else { element(self.caches.dtype)? };
        let shape = &self.shapes[i];
        let size = element.bytes(shape)?;
        // The rows of one item lie side by side already.
        let lies_ready = self.items.len() == 1 && !self.stateful;
        let whole = if lies_ready { states[index].as_slice() } else { self.gathered[i].as_slice() };
        Some(HostInput { element, shape, bytes: whole.get(..size)? })
    }

    /// The table, and the items.
    pub(super) fn tables(&self) -> ([usize; 2], &[u8], [usize; 1], &[u8]) {
        let (shape, places) = self.places.table();
        let items = [self.items.len()];
        (shape, bytemuck::cast_slice(places), items, bytemuck::cast_slice(&self.items))
    }
}

/// Rows `[E, G, K]` of `row` bytes each as `[G, E, K]` in f32.
fn by_head(rows: &[u8], groups: usize, row: usize, dtype: DType, to: &mut Vec<u8>) {
    let width = row / groups.max(1);
    for group in 0..groups {
        for row in rows.chunks_exact(row.max(1)) {
            let head = &row[group * width..][..width];
            match dtype {
                DType::F16 => widen(head, to),
                _ => to.extend_from_slice(head),
            }
        }
    }
}

/// f16 as f32.
fn widen(halves: &[u8], to: &mut Vec<u8>) {
    const AT_ONCE: usize = 1024;
    let mut wide = [0f32; AT_ONCE];
    for part in halves.chunks(2 * AT_ONCE) {
        let mut narrow = [f16::ZERO; AT_ONCE];
        let count = part.len() / 2;
        bytemuck::cast_slice_mut::<f16, u8>(&mut narrow)[..part.len()].copy_from_slice(part);
        narrow[..count].convert_to_f32_slice(&mut wide[..count]);
        to.extend_from_slice(bytemuck::cast_slice(&wide[..count]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: i32 = NOWHERE;

    #[test]
    fn columns_say_where_they_stand_whatever_comes() {
        let mut places = Places::default();
        assert!(!places.go_on(&[0], 2), "nothing is there yet");
        places.begin(&[0], 0, 3);
        assert_eq!(places.table(), ([1, 3], &[0, 1, 2][..]));
        assert!(places.go_on(&[3], 1));
        assert_eq!(places.table(), ([1, 4], &[0, 1, 2, 3][..]));
        assert!(places.go_on(&[1], 2), "rewound");
        assert_eq!(places.table(), ([1, 6], &[0, NO, NO, NO, 1, 2][..]));
        assert!(places.go_on(&[3], 1));
        assert_eq!(places.table(), ([1, 7], &[0, NO, NO, NO, 1, 2, 3][..]));
        places.take_back(1);
        assert!(places.go_on(&[3], 1), "the failed run again");
        assert_eq!(places.table(), ([1, 8], &[0, NO, NO, NO, 1, 2, NO, 3][..]));
        assert!(!places.go_on(&[5], 1), "row 4 is not there");
        assert!(!places.go_on(&[4, 4], 1), "another number of items");
        places.begin(&[2, 1], 2, 1);
        assert_eq!(places.table(), ([2, 3], &[0, 1, 2, 0, NO, 1][..]));
        assert!(places.go_on(&[3, 0], 1), "one of two begins again");
        assert_eq!(places.table(), ([2, 4], &[0, 1, 2, 3, NO, NO, NO, 0][..]));
        places.forget();
        assert!(!places.go_on(&[0, 0], 1));
    }

    #[test]
    fn what_nobody_sees_is_not_carried_along_for_ever() {
        let mut places = Places::default();
        places.begin(&[100], 100, 1);
        let mut kept = 0;
        while places.go_on(&[100], 1) {
            kept += 1;
            assert!(kept < 1000, "no end");
        }
        // 64 and a quarter of the 100 or so that are seen and the 120 that are not.
        assert!((100..150).contains(&kept), "{kept}");
    }
}
