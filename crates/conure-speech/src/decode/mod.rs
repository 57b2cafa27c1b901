//! Greedy decoders: CTC, RNN-T and TDT with the rules of NeMo's `greedy_batch`.
//!
//! The decoders know no model. A CTC decoder reads a matrix of scores; the transducer decoders drive a
//! [`Transducer`], which runs the predictor and the joint network.

pub mod ctc;
pub mod rnnt;
pub mod tdt;

#[cfg(test)]
mod script;

use std::error::Error;

/// One emitted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Id in the vocabulary; never the blank.
    pub id: u32,
    /// Encoder frame it was emitted on. CTC: the first frame of its run.
    pub frame: usize,
    /// Encoder frames it covers. TDT: as predicted, possibly 0, possibly beyond the end of the clip; CTC: the length
    /// of its run; RNN-T: 1.
    pub duration: usize,
    /// 0 (no better than chance) to 1 (certain): `(N p - 1) / (N - 1)` with the probability `p` of the token among
    /// the `N = vocabulary + 1` choices. CTC: the least over the run.
    pub confidence: f32,
}

/// A transducer at work on one clip: encoder output in place, predictor with its state.
///
/// A decoder calls [`predict`](Self::predict) once at the start and once after each emission, and
/// [`joint`](Self::joint) for each decision; neither may change what a repeated `joint` of the same frame gives.
pub trait Transducer {
    /// What can go wrong when the networks run.
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// Runs the predictor one step and keeps its output and state. `None` stands for the start of the text: state
    /// and embedding are zero. `Some(token)` continues from the state of the step before.
    ///
    /// # Errors
    /// When the network cannot be run.
    fn predict(&mut self, token: Option<u32>) -> Result<(), Self::Error>;

    /// Raw logits (no softmax) of one encoder frame with the predictor's present output: the vocabulary, the blank,
    /// then one per TDT duration.
    ///
    /// # Errors
    /// When the network cannot be run.
    fn joint(&mut self, frame: usize) -> Result<&[f32], Self::Error>;
}

/// Where a transducer decoder stands between calls: audio that arrives in pieces is decoded by calling `decode` with
/// the same state and more frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransducerState {
    next_frame: usize,
    primed: bool,
}

impl TransducerState {
    /// The encoder frame that is decided next.
    pub fn next_frame(&self) -> usize {
        self.next_frame
    }

    /// Makes the predictor start anew (zero state, start of text) before the next decision, as after an end of
    /// utterance; frames go on counting.
    pub fn restart_predictor(&mut self) {
        self.primed = false;
    }

    fn prime<M: Transducer>(&mut self, model: &mut M) -> Result<(), DecodeError> {
        if !self.primed {
            model.predict(None).map_err(DecodeError::model)?;
            self.primed = true;
        }
        Ok(())
    }
}

/// Asked every [`PROGRESS_FRAMES`] frames with the number of frames done; `false` ends decoding with
/// [`DecodeError::Cancelled`].
pub type Progress<'a> = &'a dyn Fn(usize) -> bool;

/// Frames between two calls of a [`Progress`] function.
pub const PROGRESS_FRAMES: usize = 64;

/// Why decoding stopped.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The predictor or the joint network failed.
    #[error("decoding: the model's network failed: {0}")]
    Model(#[source] Box<dyn Error + Send + Sync>),
    /// The scores of a frame hold NaN or infinity, so that no token is the best.
    #[error(
        "decoding: the scores of encoder frame {frame} are not finite; try --device cpu or an f32 model, and if that \
         fails too, the model file or the audio is damaged"
    )]
    NotFinite {
        /// Encoder frame.
        frame: usize,
    },
    /// The scores have another length than vocabulary, blank and durations ask for.
    #[error("decoding: a score vector has {got} values, expected {expected} (vocabulary, blank, durations)")]
    ScoreLength {
        /// Values found.
        got: usize,
        /// Values expected.
        expected: usize,
    },
    /// The progress function asked to stop.
    #[error("decoding: cancelled at encoder frame {frame}")]
    Cancelled {
        /// Encoder frame that was next.
        frame: usize,
    },
}

impl DecodeError {
    fn model(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        DecodeError::Model(error.into())
    }
}

/// Keeps count of when [`Progress`] is due.
struct Ticker<'a> {
    progress: Option<Progress<'a>>,
    due: usize,
}

impl<'a> Ticker<'a> {
    fn new(progress: Option<Progress<'a>>, frame: usize) -> Self {
        Ticker { progress, due: frame }
    }

    fn at(&mut self, frame: usize) -> Result<(), DecodeError> {
        if let Some(progress) = self.progress
            && frame >= self.due
        {
            self.due = frame + PROGRESS_FRAMES;
            if !progress(frame) {
                return Err(DecodeError::Cancelled { frame });
            }
        }
        Ok(())
    }
}

/// Index of the largest score, the first of equals.
fn best(scores: &[f32], frame: usize) -> Result<usize, DecodeError> {
    let (mut index, mut value) = (0, f32::NEG_INFINITY);
    let mut nan = false;
    for (i, &score) in scores.iter().enumerate() {
        nan |= score.is_nan();
        if score > value {
            (index, value) = (i, score);
        }
    }
    if nan || !value.is_finite() { Err(DecodeError::NotFinite { frame }) } else { Ok(index) }
}

/// [`Token::confidence`] of choice `index` among `scores` (logits or log-probabilities).
fn confidence(scores: &[f32], index: usize) -> f32 {
    let top = scores[index];
    let sum: f32 = scores.iter().map(|score| (score - top).exp()).sum();
    let n = scores.len() as f32;
    if n <= 1.0 { 1.0 } else { ((n / sum - 1.0) / (n - 1.0)).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_first_of_equals_is_best() {
        assert_eq!(best(&[1.0, 3.0, 3.0, 2.0], 0).unwrap(), 1);
        assert_eq!(best(&[f32::NEG_INFINITY, -5.0], 0).unwrap(), 1);
    }

    #[test]
    fn scores_without_a_best_are_errors() {
        for scores in [
            vec![],
            vec![f32::NAN, 1.0],
            vec![1.0, f32::NAN],
            vec![f32::INFINITY, 0.0],
            vec![f32::NEG_INFINITY; 3],
        ] {
            assert!(matches!(best(&scores, 7), Err(DecodeError::NotFinite { frame: 7 })), "{scores:?}");
        }
    }

    #[test]
    fn confidence_is_0_at_chance_and_1_at_certainty() {
        assert!(confidence(&[2.0; 9], 3).abs() < 1e-6);
        assert!((confidence(&[0.0, 80.0, 0.0], 1) - 1.0).abs() < 1e-6);
        // p = 1/2 of two equals among three: (3/2 - 1) / 2
        assert!((confidence(&[5.0, 5.0, f32::NEG_INFINITY], 0) - 0.25).abs() < 1e-6);
        assert_eq!(confidence(&[1.0], 0), 1.0);
    }
}
