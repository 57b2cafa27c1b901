//! Detectors of speech at work: by level, or with Silero's model.

use crate::error::SpeechError;
use crate::front_end::tensor_error;
use conure_audio::vad::{EnergyVad, FRAME_SECONDS, frame_samples};
use conure_gguf::GgufFile;
use conure_graph::{Device, Passes, Session};
use conure_kernels::Cpu;
use conure_models::Silero;
use conure_tensor::{Bindings, Symbol, TensorView};
use std::sync::Arc;

const B: Symbol = Symbol::new("B");

/// Chunks that are encoded together: about a second.
const BATCH: usize = 32;

/// Which detector tells where somebody speaks.
#[derive(Clone, Debug, Default)]
pub enum Vad {
    /// What is clearly louder than the quietest parts around it; needs no model.
    #[default]
    Energy,
    /// Silero's model.
    Silero(Arc<SileroVad>),
}

impl Vad {
    /// `energy` or `silero`.
    pub fn name(&self) -> &'static str {
        match self {
            Vad::Energy => "energy",
            Vad::Silero(_) => "silero",
        }
    }

    /// A detector for one recording at `sample_rate` Hz.
    ///
    /// # Errors
    /// A rate that the model does not take; memory that cannot be had.
    pub fn detector(&self, sample_rate: u32) -> Result<VadDetector, SpeechError> {
        Ok(VadDetector(match self {
            Vad::Energy => Detector::Energy(Box::new(EnergyVad::new(sample_rate))),
            Vad::Silero(vad) => Detector::Silero(Box::new(vad.detector(sample_rate)?)),
        }))
    }
}

/// A Silero model ready to run, shared by any number of detectors.
#[derive(Debug)]
pub struct SileroVad {
    model: Silero,
    device: Device,
    cpu: Arc<Cpu>,
}

impl SileroVad {
    /// The model in `file`, which messages call `origin`.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name.
    pub fn load(
        file: Arc<GgufFile>,
        origin: &str,
        device: Device,
        cpu: Arc<Cpu>,
        passes: &Passes,
    ) -> Result<SileroVad, SpeechError> {
        let model = Silero::load(file, origin, passes)?;
        let config = model.config();
        // What follows a detector counts in frames of 32 ms.
        if config.chunk != frame_samples(config.sample_rate) {
            return Err(SpeechError::VadChunk { origin: origin.to_owned(), samples: config.chunk });
        }
        Ok(SileroVad { model, device, cpu })
    }

    fn detector(&self, sample_rate: u32) -> Result<SileroDetector, SpeechError> {
        let config = self.model.config();
        if sample_rate != config.sample_rate {
            return Err(SpeechError::VadRate { found: sample_rate, expected: config.sample_rate });
        }
        let session = |program| Session::on(program, &self.device, self.cpu.clone());
        Ok(SileroDetector {
            encoder: session(self.model.encoder().clone())?,
            step: session(self.model.step().clone())?,
            one: Bindings::new().with(B, 1),
            context: config.context,
            chunk: config.chunk,
            reflect: config.reflect,
            pending: vec![0.0; config.context],
            rows: Vec::new(),
            h: vec![0.0; config.hidden],
            c: vec![0.0; config.hidden],
        })
    }
}

/// Tells, for samples that come in blocks of any size, how likely speech is in every frame of
/// [`FRAME_SECONDS`].
#[derive(Debug)]
pub struct VadDetector(Detector);

#[derive(Debug)]
enum Detector {
    Energy(Box<EnergyVad>),
    Silero(Box<SileroDetector>),
}

impl VadDetector {
    /// Seconds of a frame.
    pub const FRAME_SECONDS: f64 = FRAME_SECONDS;

    /// Takes samples in -1 ..= 1 and appends the probabilities that are decided: a second later, by level five.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), SpeechError> {
        match &mut self.0 {
            Detector::Energy(vad) => vad.push(samples, out),
            Detector::Silero(vad) => vad.push(samples, out)?,
        }
        Ok(())
    }

    /// Appends what is left, the frame that is not full among it. The detector is then as new.
    ///
    /// # Errors
    /// As [`VadDetector::push`].
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), SpeechError> {
        match &mut self.0 {
            Detector::Energy(vad) => vad.finish(out),
            Detector::Silero(vad) => vad.finish(out)?,
        }
        Ok(())
    }
}

/// The sessions of a Silero model on one recording.
#[derive(Debug)]
struct SileroDetector {
    encoder: Session,
    step: Session,
    one: Bindings,
    context: usize,
    chunk: usize,
    reflect: usize,
    /// Samples from the context of the next chunk on.
    pending: Vec<f32>,
    /// Chunks as the encoder takes them.
    rows: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
}

impl SileroDetector {
    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), SpeechError> {
        for block in samples.chunks(BATCH * self.chunk) {
            self.pending.extend_from_slice(block);
            let ready = (self.pending.len() - self.context) / self.chunk;
            if ready >= BATCH {
                self.run(ready, out)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), SpeechError> {
        let left = self.pending.len() - self.context;
        let chunks = left.div_ceil(self.chunk);
        self.pending.resize(self.context + chunks * self.chunk, 0.0);
        if chunks > 0 {
            self.run(chunks, out)?;
        }
        self.pending.clear();
        self.pending.resize(self.context, 0.0);
        self.h.fill(0.0);
        self.c.fill(0.0);
        Ok(())
    }

    /// The next `count` chunks.
    fn run(&mut self, count: usize, out: &mut Vec<f32>) -> Result<(), SpeechError> {
        let seen = self.context + self.chunk;
        self.rows.clear();
        for at in 0..count {
            let row = &self.pending[at * self.chunk..at * self.chunk + seen];
            self.rows.extend_from_slice(row);
            self.rows.extend(row.iter().rev().skip(1).take(self.reflect));
        }
        self.pending.drain(..count * self.chunk);
        let chunks = TensorView::of(&[count, seen + self.reflect, 1, 1], &self.rows).map_err(tensor_error)?;
        let outputs = self.encoder.run(&Bindings::new().with(B, count), &[("chunks", chunks)])?;
        let encoded = outputs.get("encoded")?;
        let hidden = self.h.len();
        for x in encoded.as_slice::<f32>().map_err(tensor_error)?.chunks_exact(hidden) {
            let inputs = [("encoded", row(x)?), ("h", row(&self.h)?), ("c", row(&self.c)?)];
            let next = self.step.run(&self.one, &inputs)?;
            self.h.copy_from_slice(next.get("h_next")?.as_slice::<f32>().map_err(tensor_error)?);
            self.c.copy_from_slice(next.get("c_next")?.as_slice::<f32>().map_err(tensor_error)?);
            out.extend_from_slice(next.get("probability")?.as_slice::<f32>().map_err(tensor_error)?);
        }
        Ok(())
    }
}

fn row(values: &[f32]) -> Result<TensorView<'_>, SpeechError> {
    TensorView::of(&[1, values.len()], values).map_err(tensor_error)
}
