//! Greedy CTC: the best choice of each frame, repeats merged, blanks dropped.

use super::{DecodeError, Progress, Search, Ticker, Token, confidence};

/// Greedy CTC over a matrix of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtcGreedy {
    /// Size of the vocabulary, which is also the id of the blank.
    pub blank: u32,
}

impl CtcGreedy {
    /// Tokens of `scores`, `[T, vocabulary + 1]` row-major: log-probabilities or logits of the valid encoder frames,
    /// the blank last.
    ///
    /// # Errors
    /// A length that is no multiple of `vocabulary + 1`, scores that are not finite, or a stop by `progress`.
    pub fn decode(&self, scores: &[f32], progress: Option<Progress<'_>>) -> Result<Vec<Token>, DecodeError> {
        self.decode_with(scores, &Search::default(), progress)
    }

    /// As [`CtcGreedy::decode`], with the blank penalty and the hot words of `search`. On the first frame of a run it is decided
    /// which token it stands for; the rest of the run, frames with the same best choice, goes with it.
    ///
    /// # Errors
    /// As [`CtcGreedy::decode`].
    pub fn decode_with(
        &self,
        scores: &[f32],
        search: &Search,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<Token>, DecodeError> {
        let (blank, width) = (self.blank as usize, self.blank as usize + 1);
        let mut tokens: Vec<Token> = Vec::new();
        let (mut previous, mut state) = (blank, 0);
        let mut ticker = Ticker::new(progress, 0);
        let rows = scores.chunks_exact(width);
        if !rows.remainder().is_empty() {
            return Err(DecodeError::ScoreLength { got: rows.remainder().len(), expected: width });
        }
        for (frame, row) in rows.enumerate() {
            ticker.at(frame)?;
            let run = search.best(row, frame)?;
            if run != blank {
                let last = tokens.last().map(|t| t.id as usize).filter(|_| previous != blank);
                let choice = match last {
                    Some(last) if run == previous => last,
                    _ => search.choose(row, state, frame)?,
                };
                let confidence = confidence(row, choice);
                match tokens.last_mut() {
                    Some(token) if last == Some(choice) => {
                        token.duration += 1;
                        token.confidence = token.confidence.min(confidence);
                    }
                    _ => {
                        tokens.push(Token { id: choice as u32, frame, duration: 1, confidence });
                        state = search.after(state, choice as u32);
                    }
                }
            }
            previous = run;
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Scores whose best choices are `path`, with three tokens and the blank 3.
    fn scores(path: &[usize]) -> Vec<f32> {
        path.iter().flat_map(|best| (0..4).map(move |i| if i == *best { 2.0 } else { 0.0 })).collect()
    }

    fn runs(path: &[usize]) -> Vec<(u32, usize, usize)> {
        let tokens = CtcGreedy { blank: 3 }.decode(&scores(path), None).unwrap();
        tokens.iter().map(|t| (t.id, t.frame, t.duration)).collect()
    }

    #[test]
    fn repeats_merge_unless_a_blank_stands_between() {
        for (path, want) in [
            (vec![], vec![]),
            (vec![3, 3], vec![]),
            (vec![0, 0, 3, 0, 1, 1], vec![(0, 0, 2), (0, 3, 1), (1, 4, 2)]),
            (vec![3, 2, 2, 2, 3, 3, 1], vec![(2, 1, 3), (1, 6, 1)]),
            (vec![1, 2, 1], vec![(1, 0, 1), (2, 1, 1), (1, 2, 1)]),
        ] {
            assert_eq!(runs(&path), want, "{path:?}");
        }
    }

    #[test]
    fn confidence_is_the_least_of_the_run() {
        let mut scores = scores(&[1, 1, 1]);
        scores[4 + 1] = 1.0;
        let tokens = CtcGreedy { blank: 3 }.decode(&scores, None).unwrap();
        assert_eq!(tokens.len(), 1);
        assert!((tokens[0].confidence - confidence(&[0.0, 1.0, 0.0, 0.0], 1)).abs() < 1e-6);
    }

    #[test]
    fn errors() {
        let decoder = CtcGreedy { blank: 3 };
        assert!(matches!(
            decoder.decode(&[0.0; 7], None),
            Err(DecodeError::ScoreLength { got: 3, expected: 4 })
        ));
        let mut bad = scores(&[0, 1]);
        bad[6] = f32::NAN;
        assert!(matches!(decoder.decode(&bad, None), Err(DecodeError::NotFinite { frame: 1 })));
        let long = scores(&[0; 200]);
        let seen = std::cell::RefCell::new(Vec::new());
        let stop = |frame: usize| {
            seen.borrow_mut().push(frame);
            frame < 128
        };
        assert!(matches!(decoder.decode(&long, Some(&stop)), Err(DecodeError::Cancelled { frame: 128 })));
        assert_eq!(*seen.borrow(), [0, 64, 128]);
    }
}
