//! Greedy TDT: each decision is a token and a duration, which says how many frames further the next decision is made.

use super::batch::decode_batch;
use super::{
    BatchTransducer, Decide, DecodeError, Progress, Search, Token, Transducer, TransducerState, best,
    confidence, decode_one,
};

/// Greedy TDT with the rules of NeMo's `greedy_batch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TdtGreedy {
    /// Size of the vocabulary, which is also the id of the blank.
    pub blank: u32,
    /// Most tokens on one frame, at least 1 (GGUF key `parakeet.decoding.max_symbols`).
    pub max_symbols: usize,
    /// Frames that each duration choice stands for (GGUF key `parakeet.tdt.durations`), usually 0 to 4.
    pub durations: Vec<usize>,
}

impl TdtGreedy {
    /// Decides the frames from where `state` stands up to `frames` and appends the tokens. `state` may end beyond
    /// `frames`, by the last duration.
    ///
    /// Token and duration are chosen apart, on raw logits. A blank moves on by its duration, at least one frame; a
    /// token of duration 0 stays on its frame; the last of `max_symbols` tokens on one frame moves on by its
    /// duration, at least one frame. (NeMo's unbatched decoder adds a frame to the latter.)
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
    /// tokens of a clip, their durations among them, are those that it has alone. (NeMo's batched decoder records other
    /// durations.)
    ///
    /// # Errors
    /// As [`TdtGreedy::decode`]; a frame that an error names is that of one of the clips.
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

impl Decide for TdtGreedy {
    fn width(&self) -> usize {
        self.blank as usize + 1 + self.durations.len()
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
        let (scores, durations) = logits.split_at(self.blank() + 1);
        let duration = self.durations.get(best(durations, frame)?).copied().unwrap_or(0);
        let token = (choice != self.blank()).then(|| Token {
            id: choice as u32,
            frame,
            duration,
            confidence: confidence(scores, choice),
        });
        Ok((token, duration))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::script::Script;
    use super::*;

    fn decoder(max_symbols: usize) -> TdtGreedy {
        TdtGreedy { blank: 3, max_symbols, durations: vec![0, 1, 2, 4] }
    }

    /// Tokens as (id, frame, duration), from decisions as (choice, index of the duration).
    fn decode(
        frames: &[(usize, &[(u32, usize)])],
        count: usize,
        max_symbols: usize,
    ) -> Vec<(u32, usize, usize)> {
        let (mut model, mut tokens) = (Script::new(8, frames), Vec::new());
        decoder(max_symbols)
            .decode(&mut model, count, &mut TransducerState::default(), &mut tokens, None)
            .unwrap();
        tokens.iter().map(|t| (t.id, t.frame, t.duration)).collect()
    }

    #[test]
    fn durations_say_where_the_next_decision_is() {
        // the script fails for frames that must be skipped
        let tokens = decode(&[(0, &[(1, 2)]), (2, &[(3, 3)]), (6, &[(0, 1)]), (7, &[(2, 3)])], 8, 10);
        assert_eq!(tokens, [(1, 0, 2), (0, 6, 1), (2, 7, 4)]);
    }

    #[test]
    fn a_blank_of_duration_0_moves_on_by_1() {
        assert_eq!(decode(&[(0, &[(3, 0)]), (1, &[(1, 1)])], 2, 10), [(1, 1, 1)]);
    }

    #[test]
    fn a_token_of_duration_0_stays() {
        let tokens = decode(&[(0, &[(1, 0), (2, 0), (3, 1)]), (1, &[(3, 3)])], 2, 10);
        assert_eq!(tokens, [(1, 0, 0), (2, 0, 0)]);
    }

    #[test]
    fn a_full_frame_moves_on_by_1_or_by_the_last_duration() {
        let full = decode(&[(0, &[(1, 0), (1, 0), (1, 0)]), (1, &[(3, 3)])], 2, 3);
        assert_eq!(full, [(1, 0, 0); 3]);
        // hybrid_tdt80 of the goldens, frame 15 of its minute: the tenth token has duration 1, the next is on 16
        let with_duration = decode(&[(0, &[(1, 0), (1, 0), (1, 1)]), (1, &[(2, 3)])], 2, 3);
        assert_eq!(with_duration, [(1, 0, 0), (1, 0, 0), (1, 0, 1), (2, 1, 4)]);
    }

    #[test]
    fn the_count_of_a_frame_starts_anew_on_the_next() {
        let tokens = decode(&[(0, &[(1, 0), (2, 1)]), (1, &[(1, 0), (2, 0)]), (2, &[(3, 1)])], 3, 2);
        assert_eq!(tokens, [(1, 0, 0), (2, 0, 1), (1, 1, 0), (2, 1, 0)]);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let frames: &[(usize, &[(u32, usize)])] =
            &[(0, &[(1, 0), (2, 3)]), (4, &[(3, 2)]), (6, &[(0, 1)]), (7, &[(3, 3)])];
        let mut whole = Vec::new();
        let mut state = TransducerState::default();
        decoder(10).decode(&mut Script::new(8, frames), 8, &mut state, &mut whole, None).unwrap();
        assert_eq!(state.next_frame(), 11);
        let (mut model, mut state, mut pieces) =
            (Script::new(8, frames), TransducerState::default(), Vec::new());
        for end in 0..=8 {
            decoder(10).decode(&mut model, end, &mut state, &mut pieces, None).unwrap();
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn a_duration_head_that_is_not_finite_is_an_error() {
        let logits = [0.0, 1.0, 0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0];
        assert!(matches!(
            decoder(10).decide(&logits, 5, &Search::default(), 0),
            Err(DecodeError::NotFinite { frame: 5 })
        ));
        assert!(matches!(
            decoder(10).decide(&logits[1..], 5, &Search::default(), 0),
            Err(DecodeError::ScoreLength { got: 7, expected: 8 })
        ));
    }

    /// The duration logits do not count towards the confidence of the token, however large.
    #[test]
    fn durations_do_not_dilute_the_confidence() {
        let logits = [0.0, 4.0, 0.0, 0.0, 90.0, 0.0, 0.0, 0.0];
        let (token, duration) = decoder(10).decide(&logits, 0, &Search::default(), 0).unwrap();
        let want = confidence(&logits[..4], 1);
        assert!(want > 0.9 && (token.unwrap().confidence - want).abs() < 1e-6);
        assert_eq!(duration, 0);
    }
}
