//! Sources that are heard while they come: pipes that may never end.

use crate::audio::{AudioOptions, AudioSource, Blocks, Warning};
use crate::error::Error;
use crate::model::SpeechModel;
use conure_speech::{Stream, StreamOptions, StreamUpdate};
use std::ops::ControlFlow;

/// What a live source gave when it had ended.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Seconds of audio.
    pub seconds: f64,
    /// What the reader had to say: parts that are damaged or missing.
    pub warnings: Vec<Warning>,
}

impl SpeechModel {
    /// Hears a source as it comes and tells what was said as soon as it is known: once for every block of the source that
    /// brought news, and once at the end. The source may be a pipe that never ends; `told` ends it with
    /// [`ControlFlow::Break`], after which what is left is not heard.
    ///
    /// # Errors
    /// As [`SpeechModel::stream`], and what cannot be read.
    pub fn listen(
        &self,
        source: AudioSource,
        audio: &AudioOptions,
        options: StreamOptions,
        mut told: impl FnMut(&StreamUpdate, &Stream) -> ControlFlow<()>,
    ) -> Result<Heard, Error> {
        // A model that cannot stream must say so before the first sound is waited for.
        let mut stream = self.stream(options)?;
        let mut blocks = Blocks::open(source, self.sample_rate(), audio)?;
        let (mut samples, mut partial) = (Vec::new(), Vec::new());
        loop {
            samples.clear();
            let more = blocks.next(&mut samples)?;
            let update = stream.feed(&samples)?;
            let final_news =
                !(update.tokens.is_empty() && update.captures.is_empty() && update.ends.is_empty());
            let news = final_news || update.partial != partial;
            partial.clone_from(&update.partial);
            if news && told(&update, &stream).is_break() {
                break;
            }
            if !more {
                let update = stream.finish()?;
                let _ = told(&update, &stream);
                break;
            }
        }
        Ok(Heard { seconds: stream.seconds(), warnings: blocks.warnings().to_vec() })
    }
}
