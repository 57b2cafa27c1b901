//! A compiled model in use by one session: its request, its states, and what runs need besides.

use super::Models;
use super::caches::Columns;
use super::kept::{KeptValues, length_input};
use super::lower::{From, Lowered, ResultOf};
use super::options::{Notices, OpenVinoOptions};
use super::weights::element;
use crate::backend::{Execution, PieceCall};
use crate::error::GraphError;
use crate::graph::{Graph, StateDef};
use crate::observe::KernelDone;
use crate::states::{append, check_append, check_commit, commit};
use conure_device::arena::AlignedBytes;
use conure_device::openvino::{
    CompiledModel, Element, HostInput, HostOutput, OpenVinoError, Profile, Request,
};
use conure_tensor::{Bindings, DType, Dims, TensorView, tensor_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What enters a state, kept until it does: a result in the execution's own memory stays there, the rest is copied.
#[derive(Debug)]
enum Staged {
    Own { at: usize, len: usize },
    Copied(Vec<u8>),
}

/// Where a result of the model is written.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Output of the piece.
    Output(usize),
    /// Own memory: it enters a state.
    Own(usize),
}

#[derive(Debug)]
pub(super) struct OpenVinoExecution {
    request: Request,
    model: Arc<CompiledModel>,
    /// What depends on lengths only.
    kept: Option<KeptValues>,
    /// Caches of which attention gets columns.
    columns: Option<Columns>,
    /// Rows of the run that enter caches, the rest being padding; `None`: all.
    rows: Option<usize>,
    lowered: Arc<Lowered>,
    graph: Graph,
    device: String,
    states: Vec<AlignedBytes>,
    /// Where each result goes.
    places: Vec<Place>,
    /// Memory of results that are no outputs.
    own: Vec<AlignedBytes>,
    /// What the last run made of each commit, and of each append its rows and places; none before the first run, and after a
    /// commit.
    staged: Vec<(Staged, DType, Dims)>,
    /// The lengths of the run, as the model takes them.
    lengths: Vec<[u8; 8]>,
    /// Whether runs keep what each layer cost.
    profiling: bool,
    notices: Notices,
}

impl OpenVinoExecution {
    pub(super) fn new(
        models: &Models,
        lowered: Arc<Lowered>,
        graph: &Graph,
        device: String,
        options: &OpenVinoOptions,
    ) -> Result<OpenVinoExecution, GraphError> {
        let failed = |e: OpenVinoError| GraphError::Device { device: device.clone(), what: e.to_string() };
        let request = request(&models.main, &lowered, graph).map_err(failed)?;
        let kept = models.kept.as_ref().map(|model| KeptValues::new(model, lowered.clone(), &device));
        let slice = options.choices.slice_cache && !lowered.fixed;
        let columns = lowered.caches.clone().map(|caches| Columns::new(caches, lowered.stateful, slice));
        let states = graph.states.iter().map(zeroed).collect::<Result<Vec<_>, _>>()?;
        let mut own = 0;
        let places = (0..lowered.results.len())
            .map(|r| match lowered.outputs.iter().position(|&o| o == From::Result(r)) {
                Some(output) => Place::Output(output),
                None => {
                    own += 1;
                    Place::Own(own - 1)
                }
            })
            .collect();
        let own = (0..own).map(|_| AlignedBytes::default()).collect();
        Ok(OpenVinoExecution {
            request,
            model: models.main.clone(),
            kept: kept.transpose()?,
            columns,
            rows: None,
            lowered,
            graph: graph.clone(),
            device,
            states,
            places,
            own,
            staged: Vec::new(),
            lengths: Vec::new(),
            profiling: options.profiling,
            notices: options.notices.clone(),
        })
    }

    /// Exchanges its states with `states`.
    pub(super) fn swap_states(&mut self, states: &mut Vec<AlignedBytes>) {
        std::mem::swap(&mut self.states, states);
        if let Some(columns) = &mut self.columns {
            columns.forget();
        }
    }

    /// Rows that a run of these lengths appends to each item of a cache.
    pub(super) fn rows_of(&self, bindings: &Bindings) -> Result<Option<usize>, GraphError> {
        let rows = self.lowered.appends.first().map(|of| match of.rows {
            From::Result(result) => Some(&self.lowered.results[result].ty),
            From::Input(input) => Some(&self.graph.values[self.graph.inputs[input].index()].ty),
            From::State(_) => None,
        });
        rows.flatten().and_then(|ty| ty.shape.get(1)).map(|rows| eval(rows, bindings)).transpose()
    }

    /// Lets only the first so many rows of the next runs enter caches.
    pub(super) fn keep_rows(&mut self, rows: Option<usize>) {
        self.rows = rows;
    }

    /// Tells the range of each value that is watched.
    fn watch(&self, call: &PieceCall<'_, '_>, shapes: &[Dims]) -> Result<(), GraphError> {
        for (name, from) in &self.lowered.watched {
            let view = self.value(call, *from, shapes)?;
            self.notices.tell(&format!("{}: {name}: {}", self.device, range(&view)));
        }
        Ok(())
    }

    /// What a run must not be asked for.
    fn check(&self, call: &PieceCall<'_, '_>) -> Result<(), GraphError> {
        if call.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(GraphError::Cancelled);
        }
        let refuse = |what: String| Err(GraphError::Device { device: self.device.clone(), what });
        for (dim, most, what) in &self.lowered.limits {
            let length = eval(dim, call.bindings)?;
            if length > *most {
                return refuse(format!("{what}; this run has {length}"));
            }
        }
        for (input, low, high, what) in &self.lowered.ranges {
            let Some(view) = call.inputs.get(*input) else { continue };
            let values = view
                .as_slice::<i32>()
                .map_err(|source| GraphError::Tensor { path: self.device.clone(), source })?;
            if let Some(wrong) = values.iter().find(|v| !(low..=high).contains(v)) {
                return refuse(format!("{what}, is {wrong}, outside {low} ..= {high}"));
            }
        }
        Ok(())
    }

    /// Makes room for results that are no outputs.
    fn reserve(&mut self, shapes: &[Dims]) -> Result<(), GraphError> {
        for ((place, result), shape) in self.places.iter().zip(&self.lowered.results).zip(shapes) {
            if let Place::Own(at) = *place {
                let bytes = result.bytes(shape);
                if self.own[at].len() < bytes {
                    self.own[at] = AlignedBytes::zeroed(bytes).map_err(|source| GraphError::StateMemory {
                        state: format!("what enters the states on {}", self.device),
                        bytes,
                        source,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Lays out the columns that attention gets; how many the run adds.
    fn prepare_columns(&mut self, call: &PieceCall<'_, '_>, shapes: &[Dims]) -> Result<usize, GraphError> {
        let Some(columns) = &mut self.columns else { return Ok(0) };
        let rows = self.lowered.appends.first().map(|of| of.rows);
        let tokens = match rows {
            Some(From::Result(result)) => shapes[result].get(1).copied(),
            Some(From::Input(input)) => call.inputs[input].shape().get(1).copied(),
            _ => None,
        };
        let missing = || GraphError::Build { what: "a cache without rows or places".into() };
        let (tokens, at) = (tokens.ok_or_else(missing)?, call.inputs.get(columns.at()).ok_or_else(missing)?);
        let at = at
            .as_slice::<i32>()
            .map_err(|source| GraphError::Tensor { path: self.device.clone(), source })?;
        if columns.prepare(at, tokens, &self.graph.states, &self.states)? {
            let fresh = request(&self.model, &self.lowered, &self.graph);
            self.request =
                fresh.map_err(|e| GraphError::Device { device: self.device.clone(), what: e.to_string() })?;
        }
        Ok(tokens)
    }

    fn infer(&mut self, call: &mut PieceCall<'_, '_>, shapes: &[Dims]) -> Result<(), GraphError> {
        let state_dims: Vec<Dims> = self.graph.states.iter().map(StateDef::dims).collect();
        let mut inputs = Vec::with_capacity(call.inputs.len() + self.states.len() + self.lengths.len());
        for view in call.inputs {
            let element = element(view.dtype()).unwrap_or(Element::U8);
            inputs.push(HostInput { element, shape: view.shape(), bytes: TensorView::bytes(view) });
        }
        for (i, (def, dims)) in self.graph.states.iter().zip(&state_dims).enumerate() {
            let element = element(def.ty.dtype).unwrap_or(Element::U8);
            let columns = self.columns.as_ref().and_then(|c| c.input(i, &self.states));
            let whole = HostInput { element, shape: dims, bytes: self.states[i].as_slice() };
            inputs.push(columns.unwrap_or(whole));
        }
        inputs.extend(self.lengths.iter().map(length_input));
        inputs.extend(self.kept.iter().flat_map(KeptValues::inputs));
        let tables = self.columns.as_ref().map(Columns::tables);
        if let Some((places_shape, places, items_shape, items)) = &tables {
            inputs.push(HostInput { element: Element::I32, shape: places_shape, bytes: places });
            inputs.push(HostInput { element: Element::I32, shape: items_shape, bytes: items });
        }
        let mut given: Vec<Option<&mut [u8]>> =
            call.outputs.iter_mut().map(|o| Some(o.bytes_mut())).collect();
        let mut own: Vec<Option<&mut [u8]>> = self.own.iter_mut().map(|o| Some(o.as_mut_slice())).collect();
        let mut outputs = Vec::with_capacity(self.places.len());
        for ((place, result), shape) in self.places.iter().zip(&self.lowered.results).zip(shapes) {
            let slot = match *place {
                Place::Output(at) => given.get_mut(at),
                Place::Own(at) => own.get_mut(at),
            };
            let bytes = slot.and_then(Option::take).unwrap_or_default();
            let bytes = bytes.get_mut(..result.bytes(shape)).unwrap_or_default();
            outputs.push(HostOutput { element: result.element, shape, bytes });
        }
        self.request
            .run(&inputs, &mut outputs)
            .map_err(|e| GraphError::Device { device: self.device.clone(), what: e.to_string() })
    }

    /// Outputs that the model did not write: the same value as another, or what came in.
    fn copy_outputs(&self, call: &mut PieceCall<'_, '_>) {
        for (i, from) in self.lowered.outputs.iter().enumerate() {
            let bytes = match *from {
                From::Result(result) => match self.places[result] {
                    Place::Output(first) if first != i => call.outputs[first].view().bytes().to_vec(),
                    _ => continue,
                },
                From::Input(input) => TensorView::bytes(&call.inputs[input]).to_vec(),
                From::State(state) => self.states[state].as_slice().to_vec(),
            };
            let to = call.outputs[i].bytes_mut();
            let len = to.len().min(bytes.len());
            to[..len].copy_from_slice(&bytes[..len]);
        }
    }

    /// Keeps what is to enter the states, and refuses what does not fit.
    fn stage(&mut self, call: &PieceCall<'_, '_>, shapes: &[Dims]) -> Result<(), GraphError> {
        let lowered = self.lowered.clone();
        let mut staged = Vec::new();
        for (how, &from) in self.graph.commits.iter().zip(&lowered.commits) {
            let value = self.value(call, from, shapes)?;
            check_commit(&self.graph.states[how.state()], how, value.dtype(), value.shape())?;
            staged.push(self.staged(from, &value));
        }
        for of in &lowered.appends {
            let (rows, at) = (self.value(call, of.rows, shapes)?, self.value(call, of.at, shapes)?);
            let rows = self.first_rows(rows)?;
            check_append(&self.graph.states[of.state], &rows, &at)?;
            staged.extend([self.staged(of.rows, &rows), self.staged(of.at, &at)]);
        }
        self.staged = staged;
        Ok(())
    }

    /// Of the rows `[1, N, ...]` of a run those that are no padding.
    fn first_rows<'s>(&self, rows: TensorView<'s>) -> Result<TensorView<'s>, GraphError> {
        let mut dims = Dims::from_slice(rows.shape());
        match (self.rows, dims.as_mut_slice()) {
            (Some(kept), [1, count, ..]) if kept < *count => *count = kept,
            _ => return Ok(rows),
        }
        let size = tensor_bytes(rows.dtype(), &dims).unwrap_or(0);
        let bytes = rows.bytes().get(..size).unwrap_or_default();
        TensorView::new(DType::F32, &dims, bytes)
            .map_err(|source| GraphError::Tensor { path: self.device.clone(), source })
    }

    fn staged(&self, from: From, value: &TensorView<'_>) -> (Staged, DType, Dims) {
        let bytes = TensorView::bytes(value);
        let staged = match from {
            From::Result(result) if let Place::Own(at) = self.places[result] => {
                Staged::Own { at, len: bytes.len() }
            }
            _ => Staged::Copied(bytes.to_vec()),
        };
        (staged, value.dtype(), Dims::from_slice(value.shape()))
    }

    fn unstaged<'s>(
        &'s self,
        (staged, dtype, dims): &'s (Staged, DType, Dims),
    ) -> Result<TensorView<'s>, GraphError> {
        let bytes = match staged {
            Staged::Own { at, len } => self.own[*at].as_slice().get(..*len).unwrap_or_default(),
            Staged::Copied(bytes) => bytes,
        };
        TensorView::new(*dtype, dims, bytes)
            .map_err(|source| GraphError::Tensor { path: self.device.clone(), source })
    }

    /// A value that the run made or was given.
    fn value<'s>(
        &'s self,
        call: &'s PieceCall<'_, '_>,
        from: From,
        shapes: &[Dims],
    ) -> Result<TensorView<'s>, GraphError> {
        let tensor_error = |source| GraphError::Tensor { path: self.device.clone(), source };
        let result = match from {
            From::Result(result) => result,
            From::Input(input) => return Ok(call.inputs[input].clone()),
            From::State(state) => {
                let def = &self.graph.states[state];
                let view = TensorView::new(def.ty.dtype, &def.dims(), self.states[state].as_slice());
                return view.map_err(tensor_error);
            }
        };
        let of = &self.lowered.results[result];
        let shape = &shapes[result];
        let bytes = match self.places[result] {
            Place::Output(at) => call.outputs[at].view().bytes(),
            Place::Own(at) => self.own[at].as_slice(),
        };
        let bytes = bytes.get(..of.bytes(shape)).unwrap_or_default();
        TensorView::new(of.ty.dtype, shape, bytes).map_err(tensor_error)
    }
}

/// A request whose inputs are those of the graph, its states and what runs decide.
fn request(model: &Arc<CompiledModel>, lowered: &Lowered, graph: &Graph) -> Result<Request, OpenVinoError> {
    let numbered = |letter: char, count: usize| (0..count).map(move |i| format!("{letter}{i}"));
    let mut inputs: Vec<String> = numbered('i', graph.inputs.len()).collect();
    inputs.extend(numbered('s', graph.states.len()));
    inputs.extend(numbered('n', lowered.lengths.len()));
    inputs.extend(numbered('k', lowered.kept.len()));
    if lowered.caches.is_some() {
        inputs.extend(["places".to_owned(), "items".to_owned()]);
    }
    let outputs: Vec<String> = numbered('r', lowered.results.len()).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    model.request(&inputs, &outputs.iter().map(String::as_str).collect::<Vec<_>>())
}

impl ResultOf {
    pub(super) fn bytes(&self, shape: &[usize]) -> usize {
        tensor_bytes(self.ty.dtype, shape).unwrap_or(0)
    }
}

fn eval(dim: &conure_tensor::Dim, bindings: &Bindings) -> Result<usize, GraphError> {
    dim.eval(bindings).map_err(|source| GraphError::Dim { path: "openvino".into(), source })
}

/// Shape and range of a value, in words.
fn range(view: &TensorView<'_>) -> String {
    let shape = view.shape();
    let Ok(values) = view.as_slice::<f32>() else { return format!("{} {shape:?}", view.dtype()) };
    let finite = values.iter().copied().filter(|v| v.is_finite());
    let (mut low, mut high, mut sum, mut count) = (f32::INFINITY, f32::NEG_INFINITY, 0f64, 0usize);
    for v in finite {
        (low, high, sum, count) = (low.min(v), high.max(v), sum + f64::from(v), count + 1);
    }
    let mean = sum / count.max(1) as f64;
    let odd = values.len() - count;
    format!("{} {shape:?}, {low} to {high}, mean {mean:.6}, {odd} not finite", view.dtype())
}

pub(super) fn zeroed(def: &StateDef) -> Result<AlignedBytes, GraphError> {
    AlignedBytes::zeroed(def.bytes()).map_err(|source| GraphError::StateMemory {
        state: def.name.clone(),
        bytes: def.bytes(),
        source,
    })
}

impl Execution for OpenVinoExecution {
    fn run(&mut self, call: &mut PieceCall<'_, '_>) -> Result<(), GraphError> {
        self.staged.clear();
        self.check(call)?;
        let mut shapes = Vec::with_capacity(self.lowered.results.len());
        for result in &self.lowered.results {
            let shape = result.ty.shape.eval(call.bindings);
            shapes.push(shape.map_err(|source| GraphError::Dim { path: self.device.clone(), source })?);
        }
        let empty = |(r, shape): (&ResultOf, &Dims)| r.bytes(shape) == 0;
        if self.lowered.results.iter().zip(&shapes).all(empty) {
            self.copy_outputs(call);
            return self.stage(call, &shapes);
        }
        self.lengths.clear();
        for dim in &self.lowered.lengths {
            let length = eval(dim, call.bindings)?;
            self.lengths.push(i64::try_from(length).unwrap_or(i64::MAX).to_le_bytes());
        }
        self.reserve(&shapes)?;
        if let Some(kept) = &mut self.kept {
            kept.prepare(&self.lengths, call.bindings)?;
        }
        let tokens = self.prepare_columns(call, &shapes)?;
        let ran = self.infer(call, &shapes);
        self.kept.iter_mut().for_each(KeptValues::trim);
        if let Some(columns) = &mut self.columns {
            match &ran {
                Ok(()) => columns.ran(tokens),
                Err(_) => columns.forget(),
            }
        }
        ran?;
        self.watch(call, &shapes)?;
        self.copy_outputs(call);
        self.stage(call, &shapes)
    }

    fn commit(&mut self) -> Result<(), GraphError> {
        let (staged, lowered) = (std::mem::take(&mut self.staged), self.lowered.clone());
        if staged.is_empty() {
            return Ok(());
        }
        let (commits, appends) = staged.split_at(self.graph.commits.len());
        for (how, value) in self.graph.commits.iter().zip(commits) {
            let mut state = std::mem::take(&mut self.states[how.state()]);
            let def = &self.graph.states[how.state()];
            let done = self.unstaged(value).and_then(|v| commit(state.as_mut_slice(), def, how, &v));
            self.states[how.state()] = state;
            done?;
        }
        for (of, value) in lowered.appends.iter().zip(appends.chunks_exact(2)) {
            let mut state = std::mem::take(&mut self.states[of.state]);
            let def = &self.graph.states[of.state];
            let (rows, at) = (self.unstaged(&value[0]), self.unstaged(&value[1]));
            let done = rows.and_then(|rows| append(state.as_mut_slice(), def, &rows, &at?));
            self.states[of.state] = state;
            done?;
        }
        if let Some(columns) = &mut self.columns {
            columns.committed();
        }
        Ok(())
    }

    fn kernels(&self) -> Vec<KernelDone> {
        if !self.profiling {
            return Vec::new();
        }
        // Looking must not make a run fail that went well.
        let mut layers = self.request.profile().unwrap_or_default();
        layers.extend(self.kept.iter().flat_map(KeptValues::profile));
        let kernel = |layer: Profile| KernelDone {
            layer: layer.name,
            kind: layer.kind,
            kernel: layer.kernel,
            nanos: u64::try_from(layer.micros).unwrap_or(0) * 1000,
        };
        layers.into_iter().map(kernel).collect()
    }

    fn arena_bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, KeptValues::len);
        kept + self.own.iter().map(AlignedBytes::len).sum::<usize>()
    }

    fn shrink(&mut self) {
        self.kept.iter_mut().for_each(KeptValues::forget);
        self.own.iter_mut().for_each(|o| *o = AlignedBytes::default());
    }

    fn read_state(&mut self, index: usize, bytes: &mut [u8]) -> Result<(), GraphError> {
        let state = self.states.get(index).filter(|s| s.len() == bytes.len());
        let state =
            state.ok_or_else(|| GraphError::Build { what: format!("the piece has no state {index}") })?;
        bytes.copy_from_slice(state.as_slice());
        Ok(())
    }

    fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GraphError> {
        let state = self.states.get_mut(index).filter(|s| s.len() == bytes.len());
        let state =
            state.ok_or_else(|| GraphError::Build { what: format!("the piece has no state {index}") })?;
        state.as_mut_slice().copy_from_slice(bytes);
        if let Some(columns) = &mut self.columns {
            columns.forget();
        }
        Ok(())
    }
}
