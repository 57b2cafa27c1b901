//! The states that a session keeps from run to run, and what a caller may do with them.

use crate::error::GraphError;
use crate::graph::{Commit, StateDef};
use crate::session::Session;
use conure_device::arena::AlignedBytes;
use conure_tensor::{Bindings, DType, Dims, Tensor, TensorView, quant, tensor_bytes};

impl StateDef {
    /// Its lengths.
    pub fn dims(&self) -> Dims {
        // `GraphBuilder::finish` refuses a state without fixed lengths.
        self.ty.shape.eval(&Bindings::new()).unwrap_or_default()
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        tensor_bytes(self.ty.dtype, &self.dims()).unwrap_or(0)
    }
}

/// The states of a session at some moment, to go back to: after a beam, a retraction, or for another session of the same
/// program.
#[derive(Clone, Debug)]
pub struct SavedStates {
    states: Vec<(String, Tensor)>,
}

impl SavedStates {
    /// The tensor of a state.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.states.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
}

impl Session {
    /// All states are zeros again, as before the first run.
    pub fn reset_states(&mut self) {
        let (states, executions) = self.states_mut();
        states.clear();
        executions.clear();
    }

    /// What a state holds.
    ///
    /// # Errors
    /// [`GraphError::UnknownName`], and what the device says that keeps it.
    pub fn state(&mut self, name: &str) -> Result<Tensor, GraphError> {
        let (index, def) = self.state_def(name)?;
        let tensor_error = |source| GraphError::Tensor { path: def.name.clone(), source };
        let (states, executions) = self.states_mut();
        let kept = executions.read(name)?;
        let bytes = kept.as_deref().unwrap_or_else(|| states.bytes(index));
        if bytes.is_empty() {
            return Tensor::zeros(def.ty.dtype, &def.dims()).map_err(tensor_error);
        }
        let view = TensorView::new(def.ty.dtype, &def.dims(), bytes).map_err(tensor_error)?;
        Ok(Tensor::from_view(&view))
    }

    /// Sets a state.
    ///
    /// # Errors
    /// [`GraphError::UnknownName`]; [`GraphError::State`] if the tensor is of another type or shape.
    pub fn set_state(&mut self, name: &str, value: &TensorView<'_>) -> Result<(), GraphError> {
        let index = self.settable(name, value)?;
        if self.set_on_device(name, value.bytes())? {
            return Ok(());
        }
        let defs = self.program().graph().states().to_vec();
        let (states, _) = self.states_mut();
        states.reserve(&defs)?;
        states.bytes_mut(index).copy_from_slice(value.bytes());
        Ok(())
    }

    /// The number of a state that can become `value`.
    fn settable(&self, name: &str, value: &TensorView<'_>) -> Result<usize, GraphError> {
        let (index, def) = self.state_def(name)?;
        check_assign(&def, value.dtype(), value.shape())?;
        Ok(index)
    }

    /// All states as they are now.
    ///
    /// # Errors
    /// As [`Session::state`].
    pub fn save_states(&mut self) -> Result<SavedStates, GraphError> {
        let names: Vec<String> = self.program().graph().states().iter().map(|s| s.name.clone()).collect();
        let states = names.into_iter().map(|n| self.state(&n).map(|t| (n, t))).collect::<Result<_, _>>()?;
        Ok(SavedStates { states })
    }

    /// Sets all states to what they were.
    ///
    /// # Errors
    /// As [`Session::set_state`]: states of another program.
    pub fn restore_states(&mut self, saved: &SavedStates) -> Result<(), GraphError> {
        // All are looked at before any is changed.
        saved.states.iter().try_for_each(|(name, tensor)| self.settable(name, &tensor.view()).map(|_| ()))?;
        saved.states.iter().try_for_each(|(name, tensor)| self.set_state(name, &tensor.view()))
    }

    /// Item `i` of every state of several items becomes what item `from[i]` was: for beams.
    ///
    /// # Errors
    /// [`GraphError::State`] if an index names no item of a state; then none is reordered.
    pub fn reorder_states(&mut self, from: &[usize]) -> Result<(), GraphError> {
        for def in self.program().graph().states() {
            let items = axis(&def.dims(), 0);
            if let Some((to, &from)) = from.iter().enumerate().find(|&(to, &from)| from.max(to) >= items) {
                let what = format!("it has {items} items; item {to} cannot become item {from}");
                return Err(GraphError::State { state: def.name.clone(), what });
            }
        }
        let saved = self.save_states()?;
        for (name, old) in &saved.states {
            let items = axis(old.shape(), 0);
            let old_view = old.view();
            let (bytes, item) = (old_view.bytes(), old_view.bytes().len() / items.max(1));
            let mut new = bytes.to_vec();
            for (to, &from) in from.iter().enumerate() {
                new[to * item..(to + 1) * item].copy_from_slice(&bytes[from * item..(from + 1) * item]);
            }
            let view = TensorView::new(old.dtype(), old.shape(), &new)
                .map_err(|source| GraphError::Tensor { path: name.clone(), source })?;
            self.set_state(name, &view)?;
        }
        Ok(())
    }

    /// The first `rows` rows of item 0 of every state `[C0, C, ...]` of `from` become those of `item` in the state of that name:
    /// how a cache that was filled alone joins others. A state that is not appended to has its whole item replaced.
    ///
    /// # Errors
    /// [`GraphError::UnknownName`]; [`GraphError::State`] if there are no such rows, or they are of another type or length.
    pub fn copy_state_rows(
        &mut self,
        item: usize,
        from: &mut Session,
        rows: usize,
    ) -> Result<(), GraphError> {
        let defs = self.program().graph().states().to_vec();
        let on_cpu = self.device().backend().is_none() && from.device().backend().is_none();
        let mut sources = Vec::with_capacity(defs.len());
        // All are looked at before any is changed.
        for (index, def) in defs.iter().enumerate() {
            let (source_index, source_def) = from.state_def(&def.name)?;
            let (dims, source_dims) = (def.dims(), source_def.dims());
            let appended = self.program().graph().is_appended(index);
            let rows = if appended { rows } else { axis(&dims, 1) };
            sources.push((source_index, rows));
            let same = def.ty.dtype == source_def.ty.dtype
                && dims.get(2..) == source_dims.get(2..)
                && (appended || dims.get(1) == source_dims.get(1));
            let most = axis(&dims, 1).min(axis(&source_dims, 1));
            if !same || item >= axis(&dims, 0) || rows > most {
                let what =
                    format!("{rows} rows of {} cannot become item {item} of {}", source_def.ty, def.ty);
                return Err(GraphError::State { state: def.name.clone(), what });
            }
        }
        for (index, (def, (source_index, rows))) in defs.iter().zip(sources).enumerate() {
            let dims = def.dims();
            let row = def.bytes() / (axis(&dims, 0) * axis(&dims, 1)).max(1);
            let (at, count) = (item * axis(&dims, 1) * row, rows * row);
            if on_cpu {
                let (states, _) = self.states_mut();
                states.reserve(&defs)?;
                let to = states.bytes_mut(index).get_mut(at..at + count);
                let (sources, _) = from.states_mut();
                let read = sources.bytes(source_index).get(..count);
                if let (Some(to), Some(read)) = (to, read) {
                    to.copy_from_slice(read);
                }
                continue;
            }
            let (source, whole) = (from.state(&def.name)?, self.state(&def.name)?);
            let mut bytes = whole.view().bytes().to_vec();
            bytes[at..at + count].copy_from_slice(&source.view().bytes()[..count]);
            let view = TensorView::new(def.ty.dtype, &dims, &bytes)
                .map_err(|source| GraphError::Tensor { path: def.name.clone(), source })?;
            self.set_state(&def.name, &view)?;
        }
        Ok(())
    }

    fn state_def(&self, name: &str) -> Result<(usize, StateDef), GraphError> {
        let states = self.program().graph().states();
        let found = states.iter().position(|s| s.name == name);
        found.map(|i| (i, states[i].clone())).ok_or_else(|| GraphError::UnknownName {
            what: "state",
            name: name.to_owned(),
            known: states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// One buffer per state, zeroed when first touched: a large cache costs nothing until it is used.
#[derive(Debug, Default)]
pub(crate) struct States {
    buffers: Vec<AlignedBytes>,
}

impl States {
    /// Makes the buffers that are not there yet.
    pub(crate) fn reserve(&mut self, defs: &[StateDef]) -> Result<(), GraphError> {
        for def in defs.iter().skip(self.buffers.len()) {
            let buffer = AlignedBytes::zeroed(def.bytes()).map_err(|source| GraphError::StateMemory {
                state: def.name.clone(),
                bytes: def.bytes(),
                source,
            })?;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    pub(crate) fn bytes(&self, index: usize) -> &[u8] {
        self.buffers.get(index).map_or(&[], AlignedBytes::as_slice)
    }

    pub(crate) fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        self.buffers.get_mut(index).map_or(&mut [], AlignedBytes::as_mut_slice)
    }

    /// All zeros again. Fresh buffers, not written ones: untouched memory costs nothing.
    pub(crate) fn clear(&mut self) {
        self.buffers.clear();
    }

    pub(crate) fn total(&self) -> usize {
        self.buffers.iter().map(AlignedBytes::len).sum()
    }

    /// Takes a buffer out, so that it can be written while others are read.
    pub(crate) fn take(&mut self, index: usize) -> AlignedBytes {
        self.buffers.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    /// Puts it back.
    pub(crate) fn put(&mut self, index: usize, buffer: AlignedBytes) {
        if let Some(slot) = self.buffers.get_mut(index) {
            *slot = buffer;
        }
    }
}

/// From which rows of the state `[C0, C, ...]` on the `rows` `[B, N, ...]` go, an item each; refuses those that do not fit.
pub(crate) fn check_append<'a>(
    def: &StateDef,
    rows: &TensorView<'_>,
    at: &TensorView<'a>,
) -> Result<&'a [i32], GraphError> {
    let refuse = |what: String| Err(GraphError::State { state: def.name.clone(), what });
    let dims = def.dims();
    let (items, capacity) = (axis(&dims, 0), axis(&dims, 1));
    let (batch, count) = (axis(rows.shape(), 0), axis(rows.shape(), 1));
    if batch > items {
        return refuse(format!("it has room for {items} items, the run has {batch}"));
    }
    let starts = match at.as_slice::<i32>() {
        Ok(starts) => starts,
        Err(error) => return refuse(error.to_string()),
    };
    let fits = |start: i32| usize::try_from(start).is_ok_and(|s| s + count <= capacity);
    let starts = starts.get(..batch).unwrap_or(starts);
    match starts.iter().find(|&&start| !fits(start)) {
        Some(start) => refuse(format!(
            "{count} rows from row {start} on do not fit: it has room for {capacity}; trim it, or make it larger"
        )),
        None => Ok(starts),
    }
}

/// Writes `rows` `[B, N, ...]` into the state `[C0, C, ...]`, those of item b from row `at[b]` on. If those of one item do not
/// fit, none are written.
pub(crate) fn append(
    state: &mut [u8],
    def: &StateDef,
    rows: &TensorView<'_>,
    at: &TensorView<'_>,
) -> Result<(), GraphError> {
    let starts = check_append(def, rows, at)?;
    let refuse = |what: String| GraphError::State { state: def.name.clone(), what };
    let dims = def.dims();
    let (items, capacity) = (axis(&dims, 0), axis(&dims, 1));
    let (batch, count) = (axis(rows.shape(), 0), axis(rows.shape(), 1));
    let (item, row) = (state.len() / items.max(1), state.len() / (items * capacity).max(1));
    let given = rows.bytes().len() / batch.max(1);
    for (b, &start) in starts.iter().enumerate() {
        let start = start as usize; // not negative: it fits
        let to = &mut state[b * item + start * row..b * item + (start + count) * row];
        let from = &rows.bytes()[b * given..(b + 1) * given];
        if rows.dtype() == def.ty.dtype {
            to.copy_from_slice(from);
        } else {
            let values: &[f32] = bytemuck::try_cast_slice(from).map_err(|e| refuse(e.to_string()))?;
            quant::encode(def.ty.dtype, values, to).map_err(|e| refuse(e.to_string()))?;
        }
    }
    Ok(())
}

/// Refuses a value of other type or lengths than the state has.
fn check_assign(def: &StateDef, dtype: DType, shape: &[usize]) -> Result<(), GraphError> {
    if dtype == def.ty.dtype && shape == def.dims().as_slice() {
        return Ok(());
    }
    let what = format!("it is {} and cannot become {dtype} {shape:?}", def.ty);
    Err(GraphError::State { state: def.name.clone(), what })
}

/// Whether a value of this type and these lengths can enter a state as `commit` says.
pub(crate) fn check_commit(
    def: &StateDef,
    commit: &Commit,
    dtype: DType,
    shape: &[usize],
) -> Result<(), GraphError> {
    match commit {
        Commit::Assign { .. } => check_assign(def, dtype, shape),
        Commit::Roll { .. } => {
            let (items, batch) = (axis(&def.dims(), 0), axis(shape, 0));
            if batch == items {
                return Ok(());
            }
            let what = format!("it has {items} items, the run has {batch}");
            Err(GraphError::State { state: def.name.clone(), what })
        }
    }
}

/// Lets `value` enter `state` as `commit` says.
pub(crate) fn commit(
    state: &mut [u8],
    def: &StateDef,
    commit: &Commit,
    value: &TensorView<'_>,
) -> Result<(), GraphError> {
    check_commit(def, commit, value.dtype(), value.shape())?;
    match commit {
        Commit::Assign { .. } => state.copy_from_slice(value.bytes()),
        Commit::Roll { .. } => {
            let items = axis(&def.dims(), 0);
            let (item, given) = (state.len() / items.max(1), value.bytes().len() / items.max(1));
            for b in 0..items {
                let to = &mut state[b * item..(b + 1) * item];
                let from = &value.bytes()[b * given..(b + 1) * given];
                let kept = item.saturating_sub(given);
                to.copy_within(item - kept.., 0);
                to[kept..].copy_from_slice(&from[given - (item - kept)..]);
            }
        }
    }
    Ok(())
}

fn axis(dims: &[usize], i: usize) -> usize {
    dims.get(i).copied().unwrap_or(0)
}
