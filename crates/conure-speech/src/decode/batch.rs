//! Greedy decoding of many clips at once: one step of the joint for all that are still at work, one of the predictor for
//! those that emitted. Every clip walks by itself, so that its tokens are those that it has alone.

use super::{
    BatchTransducer, Decide, DecodeError, JointRow, PredictorRow, Progress, Search, Ticker, Token, Walk,
};

/// Decodes clips of so many frames each; see [`Decide`] for the rule. `progress` is told the frames done of all clips
/// together.
pub(super) fn decode_batch<D: Decide, M: BatchTransducer>(
    rule: &D,
    model: &mut M,
    frames: &[usize],
    search: &Search,
    progress: Option<Progress<'_>>,
) -> Result<Vec<Vec<Token>>, DecodeError> {
    let mut tokens: Vec<Vec<Token>> = vec![Vec::new(); frames.len()];
    let mut walks = vec![Walk::default(); frames.len()];
    // Of the hot words, after each clip's text.
    let mut states = vec![0; frames.len()];
    let mut rows: Vec<JointRow> = (0..frames.len())
        .filter(|&item| frames[item] > 0)
        .map(|item| JointRow { item, frame: 0, slot: item })
        .collect();
    if rows.is_empty() {
        return Ok(tokens);
    }
    let start = |row: &JointRow| PredictorRow { token: None, from: None, to: row.slot };
    let mut emitted: Vec<PredictorRow> = rows.iter().map(start).collect();
    let mut ticker = Ticker::new(progress, 0);
    let mut done = 0;
    while !rows.is_empty() {
        ticker.at(done)?;
        if !emitted.is_empty() {
            model.predict_rows(&emitted).map_err(DecodeError::model)?;
            emitted.clear();
        }
        let logits = model.joint_rows(&rows).map_err(DecodeError::model)?;
        let width = rule.width();
        if logits.len() != rows.len() * width {
            return Err(DecodeError::ScoreLength { got: logits.len() / rows.len(), expected: width });
        }
        for (row, logits) in rows.iter_mut().zip(logits.chunks_exact(width)) {
            let (walk, end) = (&mut walks[row.item], frames[row.item]);
            let state = &mut states[row.item];
            let (token, duration) = rule.decide(logits, row.frame, search, *state)?;
            walk.step(token.is_some(), duration, rule.max_symbols());
            done += walk.frame.min(end) - row.frame;
            row.frame = walk.frame;
            if let Some(token) = token {
                tokens[row.item].push(token);
                *state = search.after(*state, token.id);
                if walk.frame < end {
                    emitted.push(PredictorRow { token: Some(token.id), from: Some(row.slot), to: row.slot });
                }
            }
        }
        rows.retain(|row| row.frame < frames[row.item]);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::rnnt::RnntGreedy;
    use super::super::script::{Net, Together};
    use super::super::tdt::TdtGreedy;
    use super::super::{TransducerState, tests::below};
    use super::*;

    /// Random networks, clips of random lengths (none among them): every clip gets what it gets alone, to the last bit of
    /// its confidence, and only the rows that are needed are run.
    #[test]
    fn clips_get_together_what_they_get_alone() {
        let mut seed = 7;
        for round in 0..60 {
            let durations = if round % 2 == 0 { vec![0, 1, 2, 4] } else { Vec::new() };
            let net = Net::random(4, durations.len(), 24, &mut seed);
            let frames: Vec<usize> = (0..1 + below(&mut seed, 6)).map(|_| below(&mut seed, 25)).collect();
            let max_symbols = 1 + below(&mut seed, 4);
            let (rnnt, tdt) = (
                RnntGreedy { blank: 4, max_symbols },
                TdtGreedy { blank: 4, max_symbols, durations: durations.clone() },
            );
            let mut together = Together::new(&net);
            let all = if durations.is_empty() {
                rnnt.decode_batch(&mut together, &frames, &Search::default(), None)
            } else {
                tdt.decode_batch(&mut together, &frames, &Search::default(), None)
            };
            for (item, tokens) in all.unwrap().into_iter().enumerate() {
                let (mut alone, mut state) = (Vec::new(), TransducerState::default());
                let mut model = net.on(item);
                if durations.is_empty() {
                    rnnt.decode(&mut model, frames[item], &mut state, &mut alone, None).unwrap();
                } else {
                    tdt.decode(&mut model, frames[item], &mut state, &mut alone, None).unwrap();
                }
                assert_eq!(tokens, alone, "round {round}, clip {item} of {frames:?}");
            }
            assert!(together.calls <= together.rows, "{} {}", together.calls, together.rows);
        }
    }

    #[test]
    fn it_can_be_stopped_and_wrong_widths_are_errors() {
        let mut seed = 3;
        let net = Net::random(4, 0, 300, &mut seed);
        let greedy = RnntGreedy { blank: 4, max_symbols: 2 };
        let stop = |frame: usize| frame < 100;
        let stopped =
            greedy.decode_batch(&mut Together::new(&net), &[300, 200], &Search::default(), Some(&stop));
        assert!(matches!(stopped, Err(DecodeError::Cancelled { frame }) if frame >= 100), "{stopped:?}");
        let narrow = RnntGreedy { blank: 3, max_symbols: 2 };
        let wrong = narrow.decode_batch(&mut Together::new(&net), &[5], &Search::default(), None);
        assert!(matches!(wrong, Err(DecodeError::ScoreLength { got: 5, expected: 4 })), "{wrong:?}");
        let nothing = greedy.decode_batch(&mut Together::new(&net), &[0, 0], &Search::default(), None);
        assert_eq!(nothing.unwrap(), [vec![], vec![]]);
    }
}
