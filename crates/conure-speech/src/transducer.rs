//! Predictor and joint at work on one clip.

use crate::decode::Transducer;
use conure_graph::{Device, GraphError, Observer, Session};
use conure_kernels::Cpu;
use conure_models::{ModelError, Parakeet};
use conure_tensor::{Bindings, Symbol, TensorView};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const B: Symbol = Symbol::new("B");

/// A tensor that one step of the predictor hands to the next.
#[derive(Debug)]
struct State {
    input: String,
    output: String,
    values: Vec<f32>,
}

/// The sessions of predictor and joint, the predictor's state, and the clip's projected encoder frames.
#[derive(Debug)]
pub(crate) struct TransducerSession {
    predictor: Session,
    joint: Session,
    states: Vec<State>,
    /// `joint.pred` of the present predictor output, `[J]`.
    pred: Vec<f32>,
    /// `joint.enc` of the clip, `[T', J]`; of a stream, only of the chunk.
    frames: Vec<f32>,
    /// The number of the first of these frames.
    first_frame: usize,
    bindings: Bindings,
    /// Every row of logits, where a capture asked for them.
    record: Option<Vec<f32>>,
}

impl TransducerSession {
    pub(crate) fn new(
        model: &Parakeet,
        device: &Device,
        cpu: &Arc<Cpu>,
    ) -> Result<TransducerSession, ModelError> {
        let predictor = Session::on(model.predictor()?, device, cpu.clone())?;
        let joint = Session::on(model.joint()?, device, cpu.clone())?;
        let (layers, hidden, joint_hidden) = match &model.config().transducer {
            Some(t) => (t.pred_layers, t.pred_hidden, t.joint_hidden),
            None => (0, 0, 0),
        };
        let states = (0..layers)
            .flat_map(|layer| ["h", "c"].map(|kind| format!("{kind}{layer}")))
            .map(|input| State { output: format!("{input}_next"), input, values: vec![0.0; hidden] })
            .collect();
        Ok(TransducerSession {
            predictor,
            joint,
            states,
            pred: vec![0.0; joint_hidden],
            frames: Vec::new(),
            first_frame: 0,
            bindings: Bindings::new().with(B, 1),
            record: None,
        })
    }

    /// Puts a clip's projected encoder frames in place.
    pub(crate) fn set_frames(&mut self, frames: &[f32]) {
        self.set_frames_from(0, frames);
    }

    /// Puts a chunk's projected encoder frames in place, which count from `first` on.
    pub(crate) fn set_frames_from(&mut self, first: usize, frames: &[f32]) {
        self.first_frame = first;
        self.frames.clear();
        self.frames.extend_from_slice(frames);
    }

    pub(crate) fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.predictor.set_cancel(cancel.clone());
        self.joint.set_cancel(cancel);
    }

    pub(crate) fn set_observer(&mut self, observer: Option<&Arc<dyn Observer>>) {
        self.predictor.set_observer(observer.cloned());
        self.joint.set_observer(observer.cloned());
    }

    /// Keeps every row of logits from now on, until [`TransducerSession::take_record`].
    pub(crate) fn start_record(&mut self) {
        self.record = Some(Vec::new());
    }

    pub(crate) fn take_record(&mut self) -> Vec<f32> {
        self.record.take().unwrap_or_default()
    }

    /// Bytes of both arenas.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.predictor.arena_bytes() + self.joint.arena_bytes()
    }
}

fn tensor_error(source: conure_tensor::TensorError) -> GraphError {
    GraphError::Tensor { path: "transducer".into(), source }
}

impl Transducer for TransducerSession {
    type Error = GraphError;

    fn predict(&mut self, token: Option<u32>) -> Result<(), GraphError> {
        let id = match token {
            // A row of -1 is the zero row: the start of the text.
            None => {
                for state in &mut self.states {
                    state.values.fill(0.0);
                }
                [-1i32]
            }
            Some(token) => [i32::try_from(token).unwrap_or(i32::MAX)],
        };
        let mut inputs = SmallVec::<[(&str, TensorView<'_>); 8]>::new();
        inputs.push(("token", TensorView::of(&[1], &id).map_err(tensor_error)?));
        for state in &self.states {
            let view = TensorView::of(&[1, state.values.len()], &state.values).map_err(tensor_error)?;
            inputs.push((state.input.as_str(), view));
        }
        let outputs = self.predictor.run(&self.bindings, &inputs)?;
        drop(inputs);
        for state in &mut self.states {
            let next = outputs.get(&state.output)?;
            state.values.copy_from_slice(next.as_slice::<f32>().map_err(tensor_error)?);
        }
        let pred = outputs.get("joint.pred")?;
        self.pred.copy_from_slice(pred.as_slice::<f32>().map_err(tensor_error)?);
        Ok(())
    }

    fn joint(&mut self, frame: usize) -> Result<&[f32], GraphError> {
        let width = self.pred.len();
        let enc = frame
            .checked_sub(self.first_frame)
            .and_then(|frame| frame.checked_mul(width))
            .and_then(|at| self.frames.get(at..at + width))
            .ok_or_else(|| GraphError::Build { what: format!("encoder frame {frame} is not there") })?;
        let inputs = [
            ("joint.enc", TensorView::of(&[1, width], enc).map_err(tensor_error)?),
            ("joint.pred", TensorView::of(&[1, width], &self.pred).map_err(tensor_error)?),
        ];
        let outputs = self.joint.run(&self.bindings, &inputs)?;
        let logits = outputs.get("joint.logits")?.as_slice::<f32>().map_err(tensor_error)?;
        if let Some(record) = &mut self.record {
            record.extend_from_slice(logits);
        }
        Ok(logits)
    }
}
