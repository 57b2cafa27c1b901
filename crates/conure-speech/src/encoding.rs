//! From samples to encoder frames: the features of a batch, and the encoder's run on them.

use crate::error::SpeechError;
use crate::front_end::tensor_error;
use crate::options::RecogniseOptions;
use crate::progress::{Part, Stage, Watching};
use crate::recogniser::Recogniser;
use crate::worker::{Encoded, Worker};
use conure_graph::GraphError;
use conure_models::Attention;
use conure_tensor::{Bindings, Symbol, TensorView};
use std::time::Instant;

const T: Symbol = Symbol::new("T");
const B: Symbol = Symbol::new("B");

/// Samples that a clip is padded to: NeMo's `transcribe` centres shorter clips in a second of silence.
const SHORTEST_SECONDS: usize = 1;

impl Recogniser {
    fn attention(&self, options: &RecogniseOptions, frames: usize) -> Result<Attention, SpeechError> {
        match options.local_attention {
            None => Ok(Attention::Model),
            Some(0) => Err(SpeechError::LocalAttention(0)),
            // A window wider than the clip sees all of it; powers of two keep the graphs few.
            Some(window) => Ok(Attention::Local(window.min(frames.next_power_of_two()))),
        }
    }

    /// Log-mel and encoder of a batch; the captures stay in the worker's encoder session.
    pub(crate) fn encode(
        &self,
        worker: &mut Worker,
        clips: &[&[f32]],
        options: &RecogniseOptions,
        captures: &[&str],
        watch: Watching<'_>,
    ) -> Result<Encoded, SpeechError> {
        let prompt = self.prompt_row(options)?;
        let begun = Instant::now();
        let paddings = self.features(worker, clips, options, watch.part)?;
        worker.features_took = begun.elapsed();
        let (batch, frames) = (clips.len(), worker.features.frames);
        worker.prompt.clear();
        (0..batch).for_each(|_| worker.prompt.extend_from_slice(&prompt));
        let attention = self.attention(options, frames / self.model().config().subsampling_factor + 2)?;
        let bindings = Bindings::new().with(B, batch).with(T, frames);
        let at = worker.encoder(self.model(), self.device(), self.cpu(), attention)?;
        let Worker { encoders, batch: data, lengths, prompt, features, .. } = worker;
        let session = &mut encoders[at].1;
        session.set_cancel(options.cancel.clone());
        session.set_observer(watch.encoder());
        let data = if batch == 1 { &features.data } else { data };
        let mut inputs = vec![
            ("log_mel", TensorView::of(&[batch, frames, features.n_mels], data).map_err(tensor_error)?),
            ("lengths", TensorView::of(&[batch], lengths).map_err(tensor_error)?),
        ];
        if !prompt.is_empty() {
            inputs.push((
                "prompt",
                TensorView::of(&[batch, prompt.len() / batch], prompt).map_err(tensor_error)?,
            ));
        }
        let seconds = self.log_mel().config().hop_length as f64 / f64::from(self.sample_rate());
        let outputs = session
            .run_capturing(&bindings, &inputs, captures)
            .map_err(|e| in_seconds(e, frames as f64 * seconds, seconds))?;
        let lengths = outputs.get("encoder_lengths")?;
        let frames = lengths
            .as_slice::<i32>()
            .map_err(tensor_error)?
            .iter()
            .map(|&l| usize::try_from(l).unwrap_or(0))
            .collect();
        Ok(Encoded { session: at, frames, paddings })
    }

    /// Log-mel of all clips into the worker; returns the silence put before each, in seconds.
    fn features(
        &self,
        worker: &mut Worker,
        clips: &[&[f32]],
        options: &RecogniseOptions,
        part: Option<&Part>,
    ) -> Result<Vec<f64>, SpeechError> {
        let rate = self.sample_rate() as usize;
        let mels = self.log_mel().config().n_mels;
        let padded_len = |clip: &[f32]| clip.len().max(SHORTEST_SECONDS * rate);
        let longest = clips.iter().map(|c| self.log_mel().frame_count(padded_len(c))).max().unwrap_or(1);
        worker.lengths.clear();
        worker.batch.clear();
        worker.features.data.clear();
        let batch = if clips.len() > 1 { clips.len() } else { 0 };
        let reserved = worker
            .features
            .data
            .try_reserve(longest * mels)
            .and_then(|()| worker.batch.try_reserve(batch * longest * mels));
        reserved.map_err(|_| SpeechError::OutOfMemory {
            bytes: (batch + 1) * longest * mels * size_of::<f32>(),
            seconds: longest as f64 * self.log_mel().config().hop_length as f64 / rate as f64,
        })?;
        if clips.len() > 1 {
            worker.batch.resize(clips.len() * longest * mels, 0.0);
        }
        let mut paddings = Vec::with_capacity(clips.len());
        for (i, clip) in clips.iter().enumerate() {
            if options.cancelled() {
                return Err(SpeechError::Cancelled);
            }
            if let Some(part) = part {
                part.at(Stage::Features, i as f64 / clips.len() as f64);
            }
            let missing = padded_len(clip) - clip.len();
            let before = missing / 2;
            if missing > 0 {
                let mut padded = vec![0.0; padded_len(clip)];
                padded[before..before + clip.len()].copy_from_slice(clip);
                self.log_mel().compute_into(&padded, &mut worker.features, &mut worker.scratch);
            } else {
                self.log_mel().compute_into(clip, &mut worker.features, &mut worker.scratch);
            }
            worker.lengths.push(i32::try_from(worker.features.valid).unwrap_or(i32::MAX));
            if clips.len() > 1 {
                let row = i * longest * mels;
                let data = &worker.features.data;
                worker.batch[row..row + data.len()].copy_from_slice(data);
            }
            paddings.push(before as f64 / rate as f64);
        }
        worker.features.frames = longest;
        Ok(paddings)
    }
}

/// Says in seconds of audio what a graph says in frames.
fn in_seconds(error: GraphError, seconds: f64, per_frame: f64) -> SpeechError {
    match error {
        GraphError::OutOfMemory { bytes, fits, .. } => SpeechError::EncoderMemory {
            bytes,
            seconds,
            fits: fits.filter(|(symbol, _)| *symbol == T).map(|(_, frames)| frames as f64 * per_frame),
            source: error,
        },
        other => other.into(),
    }
}
