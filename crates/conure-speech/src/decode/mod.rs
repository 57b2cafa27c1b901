//! Greedy decoders: CTC, RNN-T and TDT with the rules of NeMo's `greedy_batch`.
//!
//! The decoders know no model. A CTC decoder reads a matrix of scores; the transducer decoders drive a
//! [`Transducer`], which runs the predictor and the joint network, or a [`BatchTransducer`], which does so for many clips
//! at once. Beam search, blank penalty and hot words: [`Search`], [`beam`], [`ctc_beam`], [`hot_words`].

mod batch;
pub mod beam;
pub mod ctc;
pub mod ctc_beam;
pub mod hot_words;
pub mod rnnt;
mod search;
pub mod tdt;

#[cfg(test)]
mod script;

pub use search::{Hypothesis, Search};

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

/// One row of a step of the predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictorRow {
    /// What was emitted; `None` at the start of the text.
    pub token: Option<u32>,
    /// The slot whose state it continues; `None`: the zero state.
    pub from: Option<usize>,
    /// The slot that keeps its state and output.
    pub to: usize,
}

/// One row of a step of the joint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointRow {
    /// Which clip.
    pub item: usize,
    /// Its encoder frame.
    pub frame: usize,
    /// The slot with the predictor's output.
    pub slot: usize,
}

/// A transducer at work on many hypotheses at once, of one clip or of many: the predictor's states and outputs are kept in
/// numbered slots. A row's result does not depend on the other rows of its step.
pub trait BatchTransducer {
    /// What can go wrong when the networks run.
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// Runs the predictor one step on at least one row. All rows read their slots before any is written.
    ///
    /// # Errors
    /// When the network cannot be run.
    fn predict_rows(&mut self, rows: &[PredictorRow]) -> Result<(), Self::Error>;

    /// Raw logits of at least one row, one after the other; of each, as [`Transducer::joint`] gives them.
    ///
    /// # Errors
    /// When the network cannot be run.
    fn joint_rows(&mut self, rows: &[JointRow]) -> Result<&[f32], Self::Error>;
}

/// What the logits of a frame mean: the choice that a kind of transducer makes of them.
pub(crate) trait Decide {
    /// Logits of a row.
    fn width(&self) -> usize;

    /// Most tokens on one frame.
    fn max_symbols(&self) -> usize;

    /// The blank, and how many tokens there are.
    fn blank(&self) -> usize;

    /// What a choice means: the token, `None` for a blank, and the frames to move on by; after a token 0 stays on the frame.
    fn chosen(
        &self,
        logits: &[f32],
        frame: usize,
        choice: usize,
    ) -> Result<(Option<Token>, usize), DecodeError>;

    /// What logits mean after a text that left the hot words in this state.
    fn decide(
        &self,
        logits: &[f32],
        frame: usize,
        search: &Search,
        state: u32,
    ) -> Result<(Option<Token>, usize), DecodeError> {
        if logits.len() != self.width() {
            return Err(DecodeError::ScoreLength { got: logits.len(), expected: self.width() });
        }
        let choice = search.choose(&logits[..=self.blank()], state, frame)?;
        self.chosen(logits, frame, choice)
    }
}

/// Where a clip's decoding stands: the frame that is decided next and the tokens that it has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Walk {
    pub frame: usize,
    on_frame: usize,
}

impl Walk {
    /// Moves on as a decision says. A blank moves by at least one frame; a token of duration 0 stays on its frame; the last
    /// of `max_symbols` tokens on one frame moves by at least one frame. (NeMo's unbatched TDT decoder adds one to the latter.)
    pub fn step(&mut self, token: bool, duration: usize, max_symbols: usize) {
        self.on_frame += usize::from(token);
        if !token || duration > 0 || self.on_frame >= max_symbols.max(1) {
            self.frame = self.frame.saturating_add(duration.max(1));
            self.on_frame = 0;
        }
    }
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

/// Decides the frames from where `state` stands up to `frames` and appends the tokens; `state` may end beyond `frames`, by
/// the last duration. Stops between frames only.
fn decode_one<D: Decide, M: Transducer>(
    rule: &D,
    model: &mut M,
    frames: usize,
    state: &mut TransducerState,
    tokens: &mut Vec<Token>,
    progress: Option<Progress<'_>>,
) -> Result<(), DecodeError> {
    let mut ticker = Ticker::new(progress, state.next_frame);
    let mut walk = Walk { frame: state.next_frame, on_frame: 0 };
    let search = Search::default();
    while state.next_frame < frames {
        ticker.at(state.next_frame)?;
        while walk.frame == state.next_frame {
            state.prime(model)?;
            let logits = model.joint(walk.frame).map_err(DecodeError::model)?;
            let (token, duration) = rule.decide(logits, walk.frame, &search, 0)?;
            if let Some(token) = token {
                tokens.push(token);
                model.predict(Some(token.id)).map_err(DecodeError::model)?;
            }
            walk.step(token.is_some(), duration, rule.max_symbols());
        }
        state.next_frame = walk.frame;
    }
    Ok(())
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

    /// A number below `n`, from a generator of its own kind.
    pub(super) fn below(seed: &mut u64, n: usize) -> usize {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed % n as u64) as usize
    }

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
