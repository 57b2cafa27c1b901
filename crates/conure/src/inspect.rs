//! Looking inside a model: its graphs as pictures, where they run, what memory they take.

use crate::error::Error;
use crate::model::SpeechModel;
use conure_graph::{DrawOptions, Drawing, Placement, Program};
use conure_models::{Attention, ModelError};
use conure_speech::{Decoder, SpeechError};
use conure_tensor::{Bindings, Symbol};
use std::sync::Arc;

/// A graph of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The encoder with its heads.
    #[default]
    Encoder,
    /// The predictor: one step.
    Predictor,
    /// The joint: one step.
    Joint,
}

/// Lengths for the symbols of a graph: `T` mel frames, `B` items of a batch. What is left out of a graph that is bound at
/// all is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Mel frames, 100 a second.
    pub frames: Option<usize>,
    /// Items of the batch.
    pub batch: Option<usize>,
}

impl Lengths {
    /// None if nothing is bound.
    fn bindings(self) -> Option<Bindings> {
        (self != Lengths::default()).then(|| bindings(self.frames.unwrap_or(1), self.batch.unwrap_or(1)))
    }
}

fn bindings(frames: usize, batch: usize) -> Bindings {
    Bindings::new().with(Symbol::new("T"), frames).with(Symbol::new("B"), batch)
}

impl SpeechModel {
    fn program(&self, part: Part, local_attention: Option<usize>) -> Result<Arc<Program>, Error> {
        let model = self.recogniser().model();
        let attention = match local_attention {
            None => Attention::Model,
            Some(0) => return Err(SpeechError::LocalAttention(0).into()),
            Some(window) => Attention::Local(window),
        };
        let program = match part {
            Part::Encoder => model.encoder(attention),
            Part::Predictor => model.predictor(),
            Part::Joint => model.joint(),
        };
        program.map_err(|e: ModelError| SpeechError::from(e).into())
    }

    /// A graph of the model as a picture, after the rewrites that the model was loaded with; with `placed`, each node says
    /// on which device it runs.
    ///
    /// # Errors
    /// A part that the model has not; a piece that the device cannot compile.
    pub fn drawing(
        &self,
        part: Part,
        local_attention: Option<usize>,
        lengths: Lengths,
        placed: bool,
    ) -> Result<Drawing, Error> {
        let program = self.program(part, local_attention)?;
        let placed = if placed {
            Some(program.placed(self.recogniser().device(), &[]).map_err(SpeechError::from)?)
        } else {
            None
        };
        let bindings = lengths.bindings();
        let options = DrawOptions { bindings: bindings.as_ref(), placed: placed.as_deref() };
        Ok(Drawing::new(program.graph(), &options).map_err(SpeechError::from)?)
    }

    /// Which nodes of a graph the model's device runs, in how many pieces, and why not the rest.
    ///
    /// # Errors
    /// As [`SpeechModel::drawing`].
    pub fn placement(&self, part: Part, local_attention: Option<usize>) -> Result<Placement, Error> {
        let program = self.program(part, local_attention)?;
        let placed = program.placed(self.recogniser().device(), &[]).map_err(SpeechError::from)?;
        Ok(placed.placement().clone())
    }

    /// Bytes of the arena that recognising `clips` recordings of `frames` mel frames together takes in the encoder on the CPU,
    /// where most of a run's memory is. Nothing is allocated for it.
    ///
    /// # Errors
    /// A window of no frames; lengths that no memory holds.
    pub fn arena_bytes(
        &self,
        frames: usize,
        clips: usize,
        local_attention: Option<usize>,
    ) -> Result<usize, Error> {
        let program = self.program(Part::Encoder, local_attention)?;
        let recogniser = self.recogniser();
        let capture = recogniser.head(Decoder::Auto)?.capture();
        let bytes = program.arena_bytes(&bindings(frames, clips), &[capture], recogniser.cpu());
        Ok(bytes.map_err(SpeechError::from)?)
    }
}
