//! From encoder frames to tokens: which decoder runs on what is in place.

use crate::decode::beam::TransducerBeam;
use crate::decode::ctc::CtcGreedy;
use crate::decode::ctc_beam::CtcBeam;
use crate::decode::hot_words::HotWords;
use crate::decode::rnnt::RnntGreedy;
use crate::decode::tdt::TdtGreedy;
use crate::decode::{Hypothesis, Progress, Search, Token, TransducerState};
use crate::error::SpeechError;
use crate::front_end::item_rows;
use crate::options::RecogniseOptions;
use crate::progress::{Stage, Watching};
use crate::recogniser::{Recogniser, Recognition};
use crate::timing::Head;
use crate::transducer::TransducerSession;
use crate::worker::{Encoded, Worker};

/// What a decoder gives of a clip.
enum Found {
    Greedy(Vec<Token>),
    Texts(Vec<Hypothesis>),
}

/// The transducer that a model has.
enum Kind {
    None,
    Rnnt(RnntGreedy),
    Tdt(TdtGreedy),
}

impl Recogniser {
    /// Phrases that this model's decoders are to prefer, with their weights; for [`Search::hot_words`].
    ///
    /// # Errors
    /// Phrases that the model cannot write, weights that are none.
    pub fn hot_words<'a>(
        &self,
        phrases: impl IntoIterator<Item = (&'a str, f32)>,
    ) -> Result<HotWords, SpeechError> {
        Ok(HotWords::new(self.vocabulary(), phrases)?)
    }

    /// Runs the decoder on each item of the batch that is in the worker's encoder session.
    pub(crate) fn decode(
        &self,
        worker: &mut Worker,
        encoded: &Encoded,
        head: Head,
        options: &RecogniseOptions,
        watch: Watching<'_>,
    ) -> Result<Vec<Recognition>, SpeechError> {
        let all = encoded.frames.iter().sum::<usize>().max(1) as f64;
        let go_on = |frame: usize| {
            if let Some(part) = watch.part {
                part.at(Stage::Decoding, frame as f64 / all);
            }
            !options.cancelled()
        };
        let search = &options.search;
        let found = if head == Head::Ctc {
            self.decode_ctc(worker, encoded, search, &go_on)?
        } else {
            let transducer = worker.load_frames(encoded)?;
            transducer.set_cancel(options.cancel.clone());
            transducer.set_observer(watch.observer);
            if search.beam > 1 {
                self.search_each(transducer, &encoded.frames, search, &go_on)?
            } else {
                let all = self.decode_together(transducer, &encoded.frames, search, &go_on)?;
                all.into_iter().map(Found::Greedy).collect()
            }
        };
        let recognition = |((found, &frames), &padding): ((Found, &usize), &f64)| {
            let (tokens, alternatives) = match found {
                Found::Greedy(tokens) => (tokens, Vec::new()),
                Found::Texts(texts) => (texts.first().map(|t| t.tokens.clone()).unwrap_or_default(), texts),
            };
            Recognition { tokens, head, padding, frames, alternatives }
        };
        Ok(found.into_iter().zip(&encoded.frames).zip(&encoded.paddings).map(recognition).collect())
    }

    fn decode_ctc(
        &self,
        worker: &Worker,
        encoded: &Encoded,
        search: &Search,
        go_on: Progress<'_>,
    ) -> Result<Vec<Found>, SpeechError> {
        let blank = self.blank();
        let outputs = worker.encoders[encoded.session].1.outputs()?;
        let mut before = 0;
        let mut all = Vec::with_capacity(encoded.frames.len());
        for (item, &frames) in encoded.frames.iter().enumerate() {
            let scores = item_rows(&outputs.get("ctc.log_probs")?, item, frames)?;
            let go_on = |frame| go_on(before + frame);
            all.push(if search.beam > 1 {
                let beam = CtcBeam { blank, search: search.clone() };
                Found::Texts(beam.decode(scores, search.n_best, Some(&go_on))?)
            } else {
                Found::Greedy(CtcGreedy { blank }.decode_with(scores, search, Some(&go_on))?)
            });
            before += frames;
        }
        Ok(all)
    }

    /// Searches the clips that are in place, one after the other: a beam has rows of its own.
    fn search_each(
        &self,
        transducer: &mut TransducerSession,
        frames: &[usize],
        search: &Search,
        go_on: Progress<'_>,
    ) -> Result<Vec<Found>, SpeechError> {
        let config = self.model().config().transducer.as_ref();
        let beam = TransducerBeam {
            blank: self.blank(),
            max_symbols: config.map_or(1, |c| c.max_symbols),
            durations: config.map_or_else(Vec::new, |c| c.durations.clone()),
            search: search.clone(),
        };
        let mut before = 0;
        let mut all = Vec::with_capacity(frames.len());
        for (item, &frames) in frames.iter().enumerate() {
            let go_on = |frame| go_on(before + frame);
            all.push(Found::Texts(beam.decode(transducer, item, frames, search.n_best, Some(&go_on))?));
            before += frames;
        }
        Ok(all)
    }

    /// Decodes the clips that are in place, all at once.
    pub(crate) fn decode_together(
        &self,
        transducer: &mut TransducerSession,
        frames: &[usize],
        search: &Search,
        go_on: Progress<'_>,
    ) -> Result<Vec<Vec<Token>>, SpeechError> {
        Ok(match self.transducer_kind() {
            Kind::None => vec![Vec::new(); frames.len()],
            Kind::Rnnt(greedy) => greedy.decode_batch(transducer, frames, search, Some(go_on))?,
            Kind::Tdt(greedy) => greedy.decode_batch(transducer, frames, search, Some(go_on))?,
        })
    }

    fn transducer_kind(&self) -> Kind {
        let blank = self.blank();
        match &self.model().config().transducer {
            None => Kind::None,
            Some(config) if config.durations.is_empty() => {
                Kind::Rnnt(RnntGreedy { blank, max_symbols: config.max_symbols })
            }
            Some(config) => {
                let (durations, max_symbols) = (config.durations.clone(), config.max_symbols);
                Kind::Tdt(TdtGreedy { blank, durations, max_symbols })
            }
        }
    }

    /// Decodes the frames up to `frames` that `state` has not seen.
    pub(crate) fn decode_from(
        &self,
        transducer: &mut TransducerSession,
        frames: usize,
        state: &mut TransducerState,
        tokens: &mut Vec<Token>,
    ) -> Result<(), SpeechError> {
        match self.transducer_kind() {
            Kind::None => {}
            Kind::Rnnt(greedy) => greedy.decode(transducer, frames, state, tokens, None)?,
            Kind::Tdt(greedy) => greedy.decode(transducer, frames, state, tokens, None)?,
        }
        Ok(())
    }
}
