//! Greedy RNN-T: on each frame tokens until the blank wins, or until there are `max_symbols` of them.

use super::batch::decode_batch;
use super::{
    BatchTransducer, Decide, DecodeError, Progress, Search, Token, Transducer, TransducerState, confidence,
    decode_one,
};

/// Greedy RNN-T.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RnntGreedy {
    /// Size of the vocabulary, which is also the id of the blank.
    pub blank: u32,
    /// Most tokens on one frame, at least 1 (GGUF key `parakeet.decoding.max_symbols`): then the next frame's turn
    /// comes without a blank.
    pub max_symbols: usize,
}

impl RnntGreedy {
    /// Decides the frames from where `state` stands up to `frames` and appends the tokens.
    ///
    /// # Errors
    /// A network that fails, scores of the wrong length or not finite, or a stop by `progress`; `tokens` then holds
    /// what was decoded before.
    pub fn decode<M: Transducer>(
        &self,
        model: &mut M,
        frames: usize,
        state: &mut TransducerState,
        tokens: &mut Vec<Token>,
        progress: Option<Progress<'_>>,
    ) -> Result<(), DecodeError> {
        decode_one(self, model, frames, state, tokens, progress)
    }

    /// Decodes clips together: of each, so many encoder frames, with the blank penalty and the hot words of `search`. The
    /// tokens of a clip are those that it has alone.
    ///
    /// # Errors
    /// As [`RnntGreedy::decode`]; a frame that an error names is that of one of the clips.
    pub fn decode_batch<M: BatchTransducer>(
        &self,
        model: &mut M,
        frames: &[usize],
        search: &Search,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<Vec<Token>>, DecodeError> {
        decode_batch(self, model, frames, search, progress)
    }
}

impl Decide for RnntGreedy {
    fn width(&self) -> usize {
        self.blank as usize + 1
    }

    fn max_symbols(&self) -> usize {
        self.max_symbols
    }

    fn blank(&self) -> usize {
        self.blank as usize
    }

    fn chosen(
        &self,
        logits: &[f32],
        frame: usize,
        choice: usize,
    ) -> Result<(Option<Token>, usize), DecodeError> {
        if choice == self.blank() {
            return Ok((None, 1));
        }
        let confidence = confidence(logits, choice);
        Ok((Some(Token { id: choice as u32, frame, duration: 1, confidence }), 0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::script::{Script, emitted};
    use super::*;

    const BLANK: u32 = 3;

    fn decode(model: &mut Script, frames: usize, max_symbols: usize) -> Vec<(u32, usize)> {
        let mut tokens = Vec::new();
        RnntGreedy { blank: BLANK, max_symbols }
            .decode(model, frames, &mut TransducerState::default(), &mut tokens, None)
            .unwrap();
        tokens.iter().map(|t| (t.id, t.frame)).collect()
    }

    #[test]
    fn tokens_stay_on_a_frame_until_the_blank() {
        let mut model =
            Script::new(4, &[(0, &[(0, 0), (1, 0), (3, 0)]), (1, &[(3, 0)]), (2, &[(2, 0), (3, 0)])]);
        assert_eq!(decode(&mut model, 3, 10), [(0, 0), (1, 0), (2, 2)]);
        // the predictor runs at the start and after each emission, never after a blank
        assert_eq!(model.predicted, [None, Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn max_symbols_moves_on_and_keeps_the_state() {
        let mut model = Script::new(4, &[(0, &[(1, 0); 5]), (1, &[(2, 0), (3, 0)])]);
        assert_eq!(decode(&mut model, 2, 3), [(1, 0), (1, 0), (1, 0), (2, 1)]);
        assert_eq!(model.predicted, [None, Some(1), Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let frames: Vec<(usize, &[(u32, usize)])> =
            vec![(0, &[(1, 0), (3, 0)]), (1, &[(0, 0); 4]), (2, &[(3, 0)]), (3, &[(2, 0), (3, 0)])];
        let decoder = RnntGreedy { blank: BLANK, max_symbols: 4 };
        let mut whole = Vec::new();
        decoder
            .decode(&mut Script::new(4, &frames), 4, &mut TransducerState::default(), &mut whole, None)
            .unwrap();
        let (mut model, mut state, mut pieces) =
            (Script::new(4, &frames), TransducerState::default(), Vec::new());
        for end in [1, 1, 2, 4] {
            decoder.decode(&mut model, end, &mut state, &mut pieces, None).unwrap();
        }
        assert_eq!(pieces, whole);
        assert_eq!(emitted(&pieces), [1, 0, 0, 0, 0, 2]);
        assert_eq!(model.predicted.iter().filter(|p| p.is_none()).count(), 1);
        state.restart_predictor();
        assert_eq!(state.next_frame(), 4);
    }

    #[test]
    fn no_frames_run_no_network() {
        let mut model = Script::new(4, &[]);
        assert_eq!(decode(&mut model, 0, 10), []);
        assert!(model.predicted.is_empty());
    }

    #[test]
    fn failures_are_errors() {
        let decoder = RnntGreedy { blank: BLANK, max_symbols: 10 };
        let run = |model: &mut Script, progress: Option<Progress<'_>>| {
            decoder.decode(model, 2, &mut TransducerState::default(), &mut Vec::new(), progress).unwrap_err()
        };
        let frames: &[(usize, &[(u32, usize)])] = &[(0, &[(3, 0)]), (1, &[(3, 0)])];
        let mut nan = Script::new(4, frames);
        nan.poison = Some(1);
        assert!(matches!(run(&mut nan, None), DecodeError::NotFinite { frame: 1 }));
        let mut wide = Script::new(5, frames);
        assert!(matches!(run(&mut wide, None), DecodeError::ScoreLength { got: 5, expected: 4 }));
        let mut ends = Script::new(4, &frames[..1]);
        let error = run(&mut ends, None);
        assert!(error.to_string().contains("nothing scripted for frame 1"), "{error}");
        let mut stopped = Script::new(4, frames);
        assert!(matches!(run(&mut stopped, Some(&|_| false)), DecodeError::Cancelled { frame: 0 }));
    }
}
