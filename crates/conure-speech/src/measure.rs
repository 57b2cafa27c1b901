//! Recognition with a watch in hand.

use crate::decode::tdt::TdtGreedy;
use crate::decode::{Decide, Search, Transducer};
use crate::error::SpeechError;
use crate::options::{Decoder, RecogniseOptions};
use crate::progress::Watching;
use crate::recogniser::{Recogniser, Recognition};
use crate::timing::Head;
use conure_graph::Observer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the stages of one recognition took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Log-mel features.
    pub features: Duration,
    /// The encoder.
    pub encoder: Duration,
    /// The decoder.
    pub decoder: Duration,
}

impl StageTimes {
    /// All stages.
    pub fn total(&self) -> Duration {
        self.features + self.encoder + self.decoder
    }
}

/// What [`Recogniser::batch_times`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// All clips at once, each turn.
    pub together: Vec<Duration>,
    /// One after the other, each turn.
    pub alone: Vec<Duration>,
    /// Tokens of all clips.
    pub tokens: usize,
    /// Whether both gave the same tokens with the same frames, durations and confidence.
    pub same: bool,
}

impl Recogniser {
    /// As [`Recogniser::recognise`], with the time of each stage; `observer` is told of every step of the encoder, the
    /// predictor and the joint.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn measure(
        &self,
        samples: &[f32],
        options: &RecogniseOptions,
        observer: Option<&Arc<dyn Observer>>,
    ) -> Result<(Recognition, StageTimes), SpeechError> {
        let head = self.head(options.decoder)?;
        let mut worker = self.take_worker()?;
        let watch = Watching { part: None, observer };
        let begun = Instant::now();
        let encoded = self.encode(&mut worker, &[samples], options, &[head.capture()], watch)?;
        let encoding = begun.elapsed();
        let mut results = self.decode(&mut worker, &encoded, head, options, watch)?;
        let times = StageTimes {
            features: worker.features_took,
            encoder: encoding.saturating_sub(worker.features_took),
            decoder: begun.elapsed().saturating_sub(encoding),
        };
        self.give_back(worker);
        Ok((results.pop().ok_or(SpeechError::Cancelled)?, times))
    }

    /// Runs the encoder on a clip for `observer`, which is told of every step.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn measure_encoder(
        &self,
        samples: &[f32],
        options: &RecogniseOptions,
        observer: &Arc<dyn Observer>,
    ) -> Result<(), SpeechError> {
        let head = self.head(options.decoder)?;
        let mut worker = self.take_worker()?;
        let watch = Watching { part: None, observer: Some(observer) };
        self.encode(&mut worker, &[samples], options, &[head.capture()], watch)?;
        self.give_back(worker);
        Ok(())
    }

    /// Runs the encoder with all its heads on a clip, and then the transducer if the model has one, for `observer`, which is told of
    /// every step.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn observe(
        &self,
        samples: &[f32],
        options: &RecogniseOptions,
        observer: &Arc<dyn Observer>,
    ) -> Result<(), SpeechError> {
        let heads = self.heads();
        let captures: Vec<&str> = heads.iter().map(|head| head.capture()).collect();
        let mut worker = self.take_worker()?;
        let watch = Watching { part: None, observer: Some(observer) };
        let encoded = self.encode(&mut worker, &[samples], options, &captures, watch)?;
        if let Some(&head) = heads.iter().find(|head| **head != Head::Ctc) {
            self.decode(&mut worker, &encoded, head, options, watch)?;
        }
        self.give_back(worker);
        Ok(())
    }

    /// Times of `count` whole steps of the TDT decoder, after as many that are not counted: the joint on a frame, the
    /// decision, and the predictor on what was decided (the first token, for a blank).
    ///
    /// # Errors
    /// A model without a TDT decoder.
    pub fn step_times(&self, count: usize) -> Result<Vec<Duration>, SpeechError> {
        self.head(Decoder::Tdt)?;
        let mut worker = self.take_worker()?;
        let (Some(transducer), Some(config)) = (&mut worker.transducer, &self.model().config().transducer)
        else {
            return Ok(Vec::new());
        };
        let greedy = TdtGreedy {
            blank: self.blank(),
            durations: config.durations.clone(),
            max_symbols: config.max_symbols,
        };
        transducer.set_observer(None);
        transducer.set_cancel(None);
        transducer.set_frames(&vec![0.1; config.joint_hidden]);
        transducer.predict(None)?;
        let (plain, mut times) = (Search::default(), Vec::with_capacity(2 * count));
        for _ in 0..2 * count {
            let begun = Instant::now();
            let (token, _) = greedy.decide(transducer.joint(0)?, 0, &plain, 0)?;
            transducer.predict(Some(token.map_or(0, |t| t.id)))?;
            times.push(begun.elapsed());
        }
        self.give_back(worker);
        Ok(times.split_off(count))
    }

    /// What decoding `clips` clips of `frames` encoder frames takes, together and one by one, in turns: `turns` times each,
    /// after one turn that is not counted. The encoder's output is made up (the same at every call), so that only the
    /// decoder runs.
    ///
    /// # Errors
    /// A model without a transducer.
    pub fn batch_times(&self, clips: usize, frames: usize, turns: usize) -> Result<BatchTimes, SpeechError> {
        let Some(config) = &self.model().config().transducer else {
            let (model, known) = (self.name().to_owned(), "ctc".to_owned());
            return Err(SpeechError::NoDecoder { model, wanted: "transducer", known });
        };
        let mut state = 1u32;
        let mut made_up = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let length = frames * config.joint_hidden;
        let rows: Vec<f32> = (0..clips * length).map(|_| made_up()).collect();
        let items: Vec<&[f32]> = rows.chunks(length.max(1)).collect();
        let mut worker = self.take_worker()?;
        let mut times = BatchTimes::default();
        let Some(transducer) = &mut worker.transducer else { return Ok(times) };
        transducer.set_observer(None);
        transducer.set_cancel(None);
        let plain = Search::default();
        for turn in 0..=turns {
            let begun = Instant::now();
            transducer.set_items(items.iter().copied());
            let together = self.decode_together(transducer, &vec![frames; items.len()], &plain, &|_| true)?;
            let middle = Instant::now();
            let mut alone = Vec::with_capacity(items.len());
            for item in &items {
                transducer.set_items([*item]);
                alone.extend(self.decode_together(transducer, &[frames], &plain, &|_| true)?);
            }
            times.tokens = together.iter().map(Vec::len).sum();
            times.same = (turn == 0 || times.same) && together == alone;
            if turn > 0 {
                times.together.push(middle - begun);
                times.alone.push(middle.elapsed());
            }
        }
        self.give_back(worker);
        Ok(times)
    }
}
