//! Sessions and buffers of one caller of a recogniser.

use crate::error::SpeechError;
use crate::front_end::{item_rows, tensor_error};
use crate::transducer::TransducerSession;
use conure_audio::log_mel::{Features, Scratch};
use conure_graph::{Device, Session};
use conure_kernels::Cpu;
use conure_models::{Attention, Parakeet};
use conure_tensor::TensorView;
use std::sync::Arc;
use std::time::Duration;

/// Sessions and buffers of one caller, kept warm between calls.
#[derive(Debug)]
pub(crate) struct Worker {
    pub encoders: Vec<(Attention, Session)>,
    pub transducer: Option<TransducerSession>,
    pub features: Features,
    pub scratch: Scratch,
    pub batch: Vec<f32>,
    pub lengths: Vec<i32>,
    pub prompt: Vec<f32>,
    /// What the features of the last batch took.
    pub features_took: Duration,
}

/// A batch on its way through the encoder.
pub(crate) struct Encoded {
    /// Which of the worker's encoder sessions holds the outputs.
    pub session: usize,
    /// Encoder frames of each item.
    pub frames: Vec<usize>,
    /// Seconds of silence put before each item.
    pub paddings: Vec<f64>,
}

impl Worker {
    /// The place of the session for this attention, made if there is none.
    pub fn encoder(
        &mut self,
        model: &Parakeet,
        device: &Device,
        cpu: &Arc<Cpu>,
        attention: Attention,
    ) -> Result<usize, SpeechError> {
        if let Some(at) = self.encoders.iter().position(|(a, _)| *a == attention) {
            return Ok(at);
        }
        let session = Session::on(model.encoder(attention)?, device, cpu.clone())?;
        self.encoders.push((attention, session));
        Ok(self.encoders.len() - 1)
    }

    pub fn arena_bytes(&self) -> usize {
        self.encoders.iter().map(|(_, s)| s.arena_bytes()).sum::<usize>()
            + self.transducer.as_ref().map_or(0, TransducerSession::arena_bytes)
    }

    pub fn features_view(&self) -> Result<TensorView<'_>, SpeechError> {
        let f = &self.features;
        TensorView::of(&[f.frames, f.n_mels], &f.data).map_err(tensor_error)
    }

    /// Hands the projected frames of all items to the transducer.
    pub fn load_frames(&mut self, encoded: &Encoded) -> Result<&mut TransducerSession, SpeechError> {
        let rows = self.encoders[encoded.session].1.outputs()?.get("joint.enc")?;
        let transducer = self.transducer.as_mut().ok_or(SpeechError::Cancelled)?;
        let items = encoded.frames.iter().enumerate().map(|(item, &frames)| item_rows(&rows, item, frames));
        transducer.set_items(items.collect::<Result<Vec<_>, _>>()?);
        Ok(transducer)
    }
}
