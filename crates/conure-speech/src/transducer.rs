//! Predictor and joint at work: on one clip or stream, or on the hypotheses of many at once.

use crate::decode::{BatchTransducer, JointRow, PredictorRow, Transducer};
use crate::token_gates::{Tabulated, TokenGates};
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
    /// Of every slot, `[slots, P]`.
    kept: Vec<f32>,
    /// Of the rows of the step under way, `[rows, P]`.
    rows: Vec<f32>,
}

/// The sessions of predictor and joint, the predictor's states in numbered slots, and the projected encoder frames.
///
/// A step runs as many rows as it is given, and a row's result does not depend on its company (products are one chain of
/// multiply-adds a value, whatever the number of rows), so that clips decoded together get what they get alone.
#[derive(Debug)]
pub(crate) struct TransducerSession {
    predictor: Session,
    /// What goes into the predictor in place of tokens.
    tabulated: Option<Tabulated>,
    joint: Session,
    states: Vec<State>,
    /// Widths of the predictor (P) and of the joint (J).
    hidden: usize,
    width: usize,
    slots: usize,
    /// `joint.pred` of every slot, `[slots, J]`.
    preds: Vec<f32>,
    /// `joint.enc` of the items one after the other, `[T', J]` each; of a stream, only of the chunk.
    frames: Vec<f32>,
    /// Where in `frames` each item begins and ends, in rows.
    items: Vec<(usize, usize)>,
    /// The number of the first frame of each item: not 0 in a stream.
    first_frame: usize,
    tokens: Vec<i32>,
    enc_rows: Vec<f32>,
    pred_rows: Vec<f32>,
    /// Every row of logits, where a capture asked for them.
    record: Option<Vec<f32>>,
}

impl TransducerSession {
    pub(crate) fn new(
        model: &Parakeet,
        device: &Device,
        cpu: &Arc<Cpu>,
        kept: &Arc<TokenGates>,
    ) -> Result<TransducerSession, ModelError> {
        let session = |program| Session::on(program, device, cpu.clone());
        // Another device runs the whole step in one piece; what it would save is less than what a second piece costs.
        let (predictor, tabulated) = match model.tabulated_predictor()? {
            Some(parts) if device.is_cpu() => {
                (session(parts.step)?, Some(Tabulated::new(session(parts.gates)?, kept.clone())))
            }
            _ => (session(model.predictor()?)?, None),
        };
        let joint = session(model.joint()?)?;
        let (layers, hidden, width) = match &model.config().transducer {
            Some(t) => (t.pred_layers, t.pred_hidden, t.joint_hidden),
            None => (0, 0, 0),
        };
        let states = (0..layers)
            .flat_map(|layer| ["h", "c"].map(|kind| format!("{kind}{layer}")))
            .map(|input| State { output: format!("{input}_next"), input, kept: Vec::new(), rows: Vec::new() })
            .collect();
        let mut session = TransducerSession {
            predictor,
            tabulated,
            joint,
            states,
            hidden,
            width,
            slots: 0,
            preds: Vec::new(),
            frames: Vec::new(),
            items: Vec::new(),
            first_frame: 0,
            tokens: Vec::new(),
            enc_rows: Vec::new(),
            pred_rows: Vec::new(),
            record: None,
        };
        session.reserve(1);
        Ok(session)
    }

    /// Makes slots up to this number.
    fn reserve(&mut self, slots: usize) {
        if slots > self.slots {
            self.slots = slots;
            self.states.iter_mut().for_each(|s| s.kept.resize(slots * self.hidden, 0.0));
            self.preds.resize(slots * self.width, 0.0);
        }
    }

    /// Puts a clip's projected encoder frames in place.
    pub(crate) fn set_frames(&mut self, frames: &[f32]) {
        self.set_frames_from(0, frames);
    }

    /// Puts a chunk's projected encoder frames in place, which count from `first` on.
    pub(crate) fn set_frames_from(&mut self, first: usize, frames: &[f32]) {
        self.set_items([frames]);
        self.first_frame = first;
    }

    /// Puts the projected encoder frames of several clips in place.
    pub(crate) fn set_items<'a>(&mut self, items: impl IntoIterator<Item = &'a [f32]>) {
        self.first_frame = 0;
        self.frames.clear();
        self.items.clear();
        for frames in items {
            let begin = self.frames.len() / self.width.max(1);
            self.frames.extend_from_slice(frames);
            self.items.push((begin, self.frames.len() / self.width.max(1)));
        }
    }

    pub(crate) fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.predictor.set_cancel(cancel.clone());
        self.tabulated.iter_mut().for_each(|t| t.set_cancel(cancel.clone()));
        self.joint.set_cancel(cancel);
    }

    pub(crate) fn set_observer(&mut self, observer: Option<&Arc<dyn Observer>>) {
        self.predictor.set_observer(observer.cloned());
        self.tabulated.iter_mut().for_each(|t| t.set_observer(observer.cloned()));
        self.joint.set_observer(observer.cloned());
    }

    /// Keeps every row of logits from now on, until [`TransducerSession::take_record`].
    pub(crate) fn start_record(&mut self) {
        self.record = Some(Vec::new());
    }

    pub(crate) fn take_record(&mut self) -> Vec<f32> {
        self.record.take().unwrap_or_default()
    }

    /// Bytes of all arenas.
    pub(crate) fn arena_bytes(&self) -> usize {
        let tabulated = self.tabulated.as_ref().map_or(0, Tabulated::arena_bytes);
        self.predictor.arena_bytes() + tabulated + self.joint.arena_bytes()
    }

    /// The projected encoder frame that a row of the joint reads.
    fn encoder_row(&self, row: &JointRow) -> Result<&[f32], GraphError> {
        let place = self.items.get(row.item).and_then(|&(begin, end)| {
            let at = begin.checked_add(row.frame.checked_sub(self.first_frame)?)?;
            let at = (at < end).then_some(at)?.checked_mul(self.width)?;
            self.frames.get(at..at + self.width)
        });
        place.ok_or_else(|| GraphError::Build {
            what: format!("encoder frame {} of clip {} is not there", row.frame, row.item),
        })
    }
}

fn tensor_error(source: conure_tensor::TensorError) -> GraphError {
    GraphError::Tensor { path: "transducer".into(), source }
}

fn part(slot: usize, width: usize) -> std::ops::Range<usize> {
    slot * width..(slot + 1) * width
}

impl BatchTransducer for TransducerSession {
    type Error = GraphError;

    fn predict_rows(&mut self, rows: &[PredictorRow]) -> Result<(), GraphError> {
        let (count, hidden) = (rows.len(), self.hidden);
        self.reserve(rows.iter().map(|r| r.from.unwrap_or(0).max(r.to) + 1).max().unwrap_or(0));
        self.tokens.clear();
        // A row of -1 is the zero row: the start of the text.
        let id = |token: Option<u32>| token.map_or(-1, |t| i32::try_from(t).unwrap_or(i32::MAX));
        self.tokens.extend(rows.iter().map(|r| id(r.token)));
        for state in &mut self.states {
            state.rows.clear();
            for row in rows {
                match row.from {
                    Some(slot) => state.rows.extend_from_slice(&state.kept[part(slot, hidden)]),
                    None => state.rows.resize(state.rows.len() + hidden, 0.0),
                }
            }
        }
        let mut inputs = SmallVec::<[(&str, TensorView<'_>); 8]>::new();
        match &mut self.tabulated {
            None => inputs.push(("token", TensorView::of(&[count], &self.tokens).map_err(tensor_error)?)),
            Some(tabulated) => {
                let gates = tabulated.rows(&self.tokens)?;
                let view = TensorView::of(&[count, 4 * hidden], gates).map_err(tensor_error)?;
                inputs.push(("predictor.gates", view));
            }
        }
        for state in &self.states {
            let view = TensorView::of(&[count, hidden], &state.rows).map_err(tensor_error)?;
            inputs.push((state.input.as_str(), view));
        }
        let outputs = self.predictor.run(&Bindings::new().with(B, count), &inputs)?;
        drop(inputs);
        for state in &mut self.states {
            let next = outputs.get(&state.output)?;
            let next = next.as_slice::<f32>().map_err(tensor_error)?;
            for (i, row) in rows.iter().enumerate() {
                state.kept[part(row.to, hidden)].copy_from_slice(&next[part(i, hidden)]);
            }
        }
        let pred = outputs.get("joint.pred")?;
        let pred = pred.as_slice::<f32>().map_err(tensor_error)?;
        for (i, row) in rows.iter().enumerate() {
            self.preds[part(row.to, self.width)].copy_from_slice(&pred[part(i, self.width)]);
        }
        Ok(())
    }

    fn joint_rows(&mut self, rows: &[JointRow]) -> Result<&[f32], GraphError> {
        let width = self.width;
        let (mut enc, mut pred) = (std::mem::take(&mut self.enc_rows), std::mem::take(&mut self.pred_rows));
        enc.clear();
        pred.clear();
        for row in rows {
            enc.extend_from_slice(self.encoder_row(row)?);
            pred.extend_from_slice(&self.preds[part(row.slot, width)]);
        }
        (self.enc_rows, self.pred_rows) = (enc, pred);
        let inputs = [
            ("joint.enc", TensorView::of(&[rows.len(), width], &self.enc_rows).map_err(tensor_error)?),
            ("joint.pred", TensorView::of(&[rows.len(), width], &self.pred_rows).map_err(tensor_error)?),
        ];
        let outputs = self.joint.run(&Bindings::new().with(B, rows.len()), &inputs)?;
        let logits = outputs.get("joint.logits")?.as_slice::<f32>().map_err(tensor_error)?;
        if let Some(record) = &mut self.record {
            record.extend_from_slice(logits);
        }
        Ok(logits)
    }
}

impl Transducer for TransducerSession {
    type Error = GraphError;

    fn predict(&mut self, token: Option<u32>) -> Result<(), GraphError> {
        self.predict_rows(&[PredictorRow { token, from: token.map(|_| 0), to: 0 }])
    }

    fn joint(&mut self, frame: usize) -> Result<&[f32], GraphError> {
        self.joint_rows(&[JointRow { item: 0, frame, slot: 0 }])
    }
}
