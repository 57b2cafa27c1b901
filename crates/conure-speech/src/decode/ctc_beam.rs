//! Beam search for CTC over texts (prefixes): the probability of a text is the sum over its alignments, kept apart by whether
//! they end in the blank (Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional
//! Recurrent DNNs", 2014). With a beam as wide as there are texts, scores are exact.

use super::search::{
    Hypothesis, NO_TRACE, Place, Search, Text, Texts, Trace, Traces, greatest, log_add, spoken, token,
};
use super::{DecodeError, Progress, Ticker, Token};

/// Fewest tokens of a frame that are looked at.
const TOKENS: usize = 16;

/// Beam search for CTC.
#[derive(Debug, Clone)]
pub struct CtcBeam {
    /// Size of the vocabulary, which is also the id of the blank.
    pub blank: u32,
    /// How it is searched.
    pub search: Search,
}

/// Alignments of a text that end alike: all together, and the likeliest with its emissions.
#[derive(Debug, Clone, Copy)]
struct Ending {
    score: f64,
    best: f64,
    trace: Trace,
    /// An emission that is not among the traces yet: most candidates are dropped.
    emitted: Option<Token>,
}

impl Ending {
    const NONE: Ending =
        Ending { score: f64::NEG_INFINITY, best: f64::NEG_INFINITY, trace: NO_TRACE, emitted: None };

    /// With its emission among the traces.
    fn kept(mut self, traces: &mut Traces) -> Ending {
        if let Some(token) = self.emitted.take() {
            self.trace = traces.push(self.trace, token);
        }
        self
    }

    fn after(self, p: f64) -> Ending {
        Ending { score: self.score + p, best: self.best + p, ..self }
    }

    fn add(&mut self, other: Ending) {
        let score = log_add(self.score, other.score);
        if other.best > self.best {
            *self = other;
        }
        self.score = score;
    }
}

/// A text that is followed.
#[derive(Debug, Clone, Copy)]
struct Path {
    text: Text,
    blank: Ending,
    /// Ending in the text's last token.
    token: Ending,
    /// What a phrase that it has begun has gained it.
    credit: f64,
}

impl Path {
    fn all(&self) -> Ending {
        let mut all = self.blank;
        all.add(self.token);
        all
    }
}

/// Part of what a text gets on a frame.
#[derive(Debug, Clone, Copy)]
struct Share {
    place: Place,
    ending: Ending,
    in_blank: bool,
    credit: f64,
}

impl CtcBeam {
    /// The `n_best` likeliest texts of `scores`, `[T, vocabulary + 1]` row-major: log-probabilities or logits of the valid
    /// encoder frames, the blank last. The likeliest first; at least one.
    ///
    /// # Errors
    /// A length that is no multiple of `vocabulary + 1`, scores that are not finite, or a stop by `progress`.
    pub fn decode(
        &self,
        scores: &[f32],
        n_best: usize,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<Hypothesis>, DecodeError> {
        let width = self.blank as usize + 1;
        let rows = scores.chunks_exact(width);
        if !rows.remainder().is_empty() {
            return Err(DecodeError::ScoreLength { got: rows.remainder().len(), expected: width });
        }
        let (mut texts, mut traces) = (Texts::new(), Traces::default());
        let begin = Ending { score: 0.0, best: 0.0, ..Ending::NONE };
        let mut paths = vec![Path { text: 0, blank: begin, token: Ending::NONE, credit: 0.0 }];
        let mut ticker = Ticker::new(progress, 0);
        let mut frame_of = Frame::default();
        let emitted =
            |row: &&[f32]| self.search.best(row, 0).is_ok_and(|choice| choice != self.blank as usize);
        let said =
            scores.chunks_exact(width).enumerate().filter(|(_, row)| emitted(row)).map(|(frame, _)| frame);
        let spoken = spoken(said, scores.len() / width);
        let plain = Search { hot_words: None, ..self.search.clone() };
        for (frame, row) in rows.enumerate() {
            ticker.at(frame)?;
            frame_of.shares.clear();
            for path in &paths {
                let search = if spoken[frame] { &self.search } else { &plain };
                self.spread(path, (row, frame), search, (&texts, &traces), &mut frame_of)?;
            }
            paths = self.settle(&mut frame_of.shares, &mut texts, &mut traces);
        }
        for path in &mut paths {
            let back = path.credit.max(0.0);
            (path.blank, path.token) = (path.blank.after(-back), path.token.after(-back));
        }
        paths.sort_by(|a, b| b.all().score.total_cmp(&a.all().score));
        paths.truncate(n_best.max(1));
        let hypothesis = |p: Path| {
            let all = p.all();
            Hypothesis { tokens: traces.tokens(all.trace), score: all.score }
        };
        Ok(paths.into_iter().map(hypothesis).collect())
    }

    /// What a path gives on a frame: to itself by the blank or its last token again, to longer texts by other tokens.
    fn spread(
        &self,
        path: &Path,
        (row, frame): (&[f32], usize),
        search: &Search,
        (texts, traces): (&Texts, &Traces),
        of: &mut Frame,
    ) -> Result<(), DecodeError> {
        let Frame { shares, log_probs, plain, ids } = of;
        let (blank, state) = (self.blank as usize, texts.state(path.text));
        search.log_probs(row, state, frame, log_probs)?;
        let last = texts.token(path.text);
        // Going on with a token, and emitting it again, is as likely as without hot words, which prefer new ones.
        if self.search.hot_words.is_some() {
            Search { hot_words: None, ..self.search.clone() }.log_probs(row, state, frame, plain)?;
            if let Some(last) = last {
                log_probs[last as usize] = plain[last as usize];
            }
        }
        let all = path.all();
        let p = |id: usize| f64::from(log_probs[id]);
        let here = Place::Text(path.text);
        let stays = |ending, in_blank| Share { place: here, ending, in_blank, credit: path.credit };
        shares.push(stays(all.after(p(blank)), true));
        if let Some(last) = last
            && path.token.score > f64::NEG_INFINITY
        {
            let mut again = path.token.after(p(last as usize));
            if let Some(&(before, mut emitted)) = traces.get(again.trace) {
                emitted.duration += 1;
                emitted.confidence = emitted.confidence.min(token(last, frame, 1, row).confidence);
                (again.trace, again.emitted) = (before, Some(emitted));
            }
            shares.push(stays(again, false));
        }
        greatest(&log_probs[..blank], self.search.beam.max(TOKENS), ids);
        for &id in ids.iter() {
            let from = if last == Some(id) { path.blank } else { all };
            let p_token = p(id as usize);
            if p_token == f64::NEG_INFINITY || from.score == f64::NEG_INFINITY {
                continue;
            }
            let gained = if plain.is_empty() { 0.0 } else { p_token - f64::from(plain[id as usize]) };
            let (credit, back) = self.search.credit(state, path.credit, id, gained);
            let mut ending = from.after(p_token - back.max(0.0));
            ending.emitted = Some(token(id, frame, 1, row));
            shares.push(Share { place: Place::After(path.text, id), ending, in_blank: false, credit });
        }
        Ok(())
    }

    /// Adds up what each text gets, and keeps the likeliest.
    fn settle(&self, shares: &mut [Share], texts: &mut Texts, traces: &mut Traces) -> Vec<Path> {
        shares.iter_mut().for_each(|s| s.place = s.place.looked_up(texts));
        shares.sort_by_key(|s| s.place);
        let mut met: Vec<(Place, Path)> = Vec::new();
        for share in shares.iter() {
            if met.last().is_none_or(|(place, _)| *place != share.place) {
                let path = Path { text: 0, blank: Ending::NONE, token: Ending::NONE, credit: share.credit };
                met.push((share.place, path));
            }
            if let Some((_, path)) = met.last_mut() {
                let ending = if share.in_blank { &mut path.blank } else { &mut path.token };
                ending.add(share.ending);
            }
        }
        met.sort_by(|(a, x), (b, y)| y.all().score.total_cmp(&x.all().score).then(a.cmp(b)));
        met.truncate(self.search.beam.max(1));
        met.into_iter()
            .map(|(place, path)| Path {
                text: place.made(texts, &self.search),
                blank: path.blank.kept(traces),
                token: path.token.kept(traces),
                ..path
            })
            .collect()
    }
}

/// What is used again from frame to frame.
#[derive(Default)]
struct Frame {
    shares: Vec<Share>,
    log_probs: Vec<f32>,
    plain: Vec<f32>,
    ids: Vec<u32>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::ctc::CtcGreedy;
    use super::super::tests::below;
    use super::*;
    use std::collections::BTreeMap;

    fn scores(frames: usize, width: usize, scale: f32, seed: &mut u64) -> Vec<f32> {
        (0..frames * width).map(|_| below(seed, 1000) as f32 / 1000.0 * scale).collect()
    }

    /// The sum over all paths of each text, path by path.
    fn enumerate(scores: &[f32], width: usize) -> BTreeMap<Vec<u32>, f64> {
        let frames = scores.len() / width;
        let p: Vec<Vec<f64>> = scores
            .chunks(width)
            .map(|row| {
                let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                row.iter().map(|x| f64::from(*x).exp() / sum).collect()
            })
            .collect();
        let mut totals = BTreeMap::new();
        for number in 0..width.pow(frames as u32) {
            let path: Vec<usize> = (0..frames).map(|t| number / width.pow(t as u32) % width).collect();
            let mut text: Vec<u32> = path.iter().map(|c| *c as u32).collect();
            text.dedup();
            text.retain(|c| *c as usize != width - 1);
            let probability: f64 = path.iter().enumerate().map(|(t, c)| p[t][*c]).product();
            *totals.entry(text).or_default() += probability;
        }
        totals
    }

    fn ids(hypothesis: &Hypothesis) -> Vec<u32> {
        hypothesis.tokens.iter().map(|t| t.id).collect()
    }

    fn beam(width: usize) -> CtcBeam {
        CtcBeam { blank: 2, search: Search { beam: width, ..Search::default() } }
    }

    #[test]
    fn a_wide_beam_is_exact() {
        let mut seed = 3;
        for round in 0..20 {
            let frames = 1 + below(&mut seed, 7);
            let scores = scores(frames, 3, 4.0, &mut seed);
            let exact = enumerate(&scores, 3);
            let found = beam(usize::MAX).decode(&scores, usize::MAX, None).unwrap();
            assert_eq!(found.len(), exact.len(), "round {round}");
            for hypothesis in &found {
                let want = exact[&ids(hypothesis)].ln();
                assert!((hypothesis.score - want).abs() < 2e-5, "round {round}: {hypothesis:?} {want}");
                let ends = hypothesis.tokens.iter().map(|t| t.frame + t.duration);
                let starts = hypothesis.tokens.iter().skip(1).map(|t| t.frame).chain([frames]);
                assert!(ends.zip(starts).all(|(end, start)| end <= start), "{hypothesis:?}");
            }
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));
            // The likeliest path of all is among the texts, on its frames.
            let greedy = CtcGreedy { blank: 2 }.decode(&scores, None).unwrap();
            let same = found.iter().find(|h| ids(h) == greedy.iter().map(|t| t.id).collect::<Vec<_>>());
            let places = |tokens: &[Token]| tokens.iter().map(|t| (t.frame, t.duration)).collect::<Vec<_>>();
            assert_eq!(places(&same.unwrap().tokens), places(&greedy), "round {round}");
        }
    }

    #[test]
    fn a_narrow_beam_is_a_lower_bound() {
        let mut seed = 8;
        let scores = scores(7, 3, 4.0, &mut seed);
        let exact = enumerate(&scores, 3);
        for width in [1, 2, 3, 5] {
            for found in beam(width).decode(&scores, width, None).unwrap() {
                assert!(found.score <= exact[&ids(&found)].ln() + 1e-5, "{width}: {found:?}");
            }
        }
        let best = exact.iter().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        assert_eq!(ids(&beam(8).decode(&scores, 1, None).unwrap()[0]), *best.0);
    }

    #[test]
    fn errors_and_nothing() {
        assert_eq!(beam(2).decode(&[], 3, None).unwrap(), [Hypothesis::default()]);
        assert!(matches!(
            beam(2).decode(&[0.0; 4], 1, None),
            Err(DecodeError::ScoreLength { got: 1, expected: 3 })
        ));
        let nan = [0.0, 1.0, 0.0, f32::NAN, 0.0, 0.0];
        assert!(matches!(beam(2).decode(&nan, 1, None), Err(DecodeError::NotFinite { frame: 1 })));
    }
}
