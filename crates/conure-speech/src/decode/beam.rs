//! Beam search for transducers, frame by frame: of the texts that may have been said up to a frame, the likeliest are
//! followed, and alignments of one text are added up.
//!
//! The model that is searched is the one that greedy decoding walks: on a frame a token or the blank, with RNN-T the blank
//! moves on by one frame, with TDT either moves on by a duration of its own probability; the last of `max_symbols` tokens on
//! a frame moves on by at least one. Texts that reach a frame by different ways meet there. With a beam as wide as there are
//! texts, scores are the exact probabilities (the tests hold them to the sum over all alignments).

use super::rnnt::RnntGreedy;
use super::search::{
    Hypothesis, NO_TRACE, Place, Search, Text, Texts, Trace, Traces, greatest, log_add, log_softmax, spoken,
    token,
};
use super::tdt::TdtGreedy;
use super::{BatchTransducer, DecodeError, JointRow, PredictorRow, Progress, Ticker, Token};
use std::collections::{HashMap, VecDeque};

/// Beam search for a transducer.
#[derive(Debug, Clone)]
pub struct TransducerBeam {
    /// Size of the vocabulary, which is also the id of the blank.
    pub blank: u32,
    /// Most tokens on one frame, at least 1.
    pub max_symbols: usize,
    /// Frames that each duration choice stands for; none: RNN-T.
    pub durations: Vec<usize>,
    /// How it is searched.
    pub search: Search,
}

/// A text that is followed, at a frame.
#[derive(Debug, Clone, Copy)]
struct Path {
    text: Text,
    /// Of all its alignments.
    score: f64,
    /// Of the one whose emissions are kept.
    best: f64,
    trace: Trace,
    /// What a phrase that it has begun has gained it.
    credit: f64,
}

/// A text that may be followed.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    place: Place,
    path: Path,
    emitted: Option<Token>,
}

/// A search under way.
struct Run<'a, M> {
    beam: &'a TransducerBeam,
    model: &'a mut M,
    item: usize,
    /// Frames on which hot words count, and the search without them; no frames where there are none.
    spoken: Vec<bool>,
    plain: Search,
    texts: Texts,
    traces: Traces,
    /// Candidates of the frames from the present one on.
    ahead: VecDeque<Vec<Candidate>>,
    /// The slots of the predictor, by text.
    slots: HashMap<Text, usize>,
    free: Vec<usize>,
    log_probs: Vec<f32>,
    durations: Vec<f32>,
    ids: Vec<u32>,
}

impl TransducerBeam {
    /// The `n_best` likeliest texts of `frames` encoder frames of clip `item`, the likeliest first; at least one.
    ///
    /// # Errors
    /// A network that fails, scores of the wrong length or not finite, or a stop by `progress`.
    pub fn decode<M: BatchTransducer>(
        &self,
        model: &mut M,
        item: usize,
        frames: usize,
        n_best: usize,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<Hypothesis>, DecodeError> {
        let spoken = self.spoken(model, item, frames)?;
        let furthest = self.durations.iter().copied().max().unwrap_or(1).max(1);
        let start = Path { text: 0, score: 0.0, best: 0.0, trace: NO_TRACE, credit: 0.0 };
        let mut ahead: VecDeque<_> = (0..=furthest).map(|_| Vec::new()).collect();
        ahead[0].push(Candidate { place: Place::Text(0), path: start, emitted: None });
        let mut run = Run {
            beam: self,
            model,
            item,
            spoken,
            plain: Search { hot_words: None, ..self.search.clone() },
            texts: Texts::new(),
            traces: Traces::default(),
            ahead,
            slots: HashMap::new(),
            free: Vec::new(),
            log_probs: Vec::new(),
            durations: Vec::new(),
            ids: Vec::new(),
        };
        let mut ticker = Ticker::new(progress, 0);
        for frame in 0..frames {
            ticker.at(frame)?;
            run.frame(frame, frames)?;
        }
        // What reached the end, on whichever frame beyond it.
        let all = run.ahead.drain(..).flatten().collect();
        let mut paths = run.settle(all, usize::MAX);
        paths.iter_mut().for_each(|p| p.score -= p.credit.max(0.0));
        paths.sort_by(|a, b| b.score.total_cmp(&a.score));
        paths.truncate(n_best.max(1));
        let hypothesis = |p: Path| Hypothesis { tokens: run.traces.tokens(p.trace), score: p.score };
        Ok(paths.into_iter().map(hypothesis).collect())
    }

    fn width(&self) -> usize {
        self.blank as usize + 1 + self.durations.len()
    }

    /// Where greedy decoding without hot words says something: only there may they be preferred.
    fn spoken<M: BatchTransducer>(
        &self,
        model: &mut M,
        item: usize,
        frames: usize,
    ) -> Result<Vec<bool>, DecodeError> {
        if self.search.hot_words.is_none() {
            return Ok(Vec::new());
        }
        let plain = Search { hot_words: None, ..self.search.clone() };
        let mut clips = vec![0; item + 1];
        clips[item] = frames;
        let (blank, max_symbols) = (self.blank, self.max_symbols);
        let mut tokens = if self.durations.is_empty() {
            RnntGreedy { blank, max_symbols }.decode_batch(model, &clips, &plain, None)?
        } else {
            let durations = self.durations.clone();
            TdtGreedy { blank, max_symbols, durations }.decode_batch(model, &clips, &plain, None)?
        };
        Ok(spoken(tokens.pop().into_iter().flatten().map(|t| t.frame), frames))
    }
}

impl<M: BatchTransducer> Run<'_, M> {
    /// Follows the texts that reached a frame.
    fn frame(&mut self, frame: usize, frames: usize) -> Result<(), DecodeError> {
        let beam = self.beam.search.beam.max(1);
        let here = std::mem::take(&mut self.ahead[0]);
        let mut paths = self.settle(here, beam);
        for symbol in 1..=self.beam.max_symbols.max(1) {
            if paths.is_empty() {
                break;
            }
            self.predict(&paths)?;
            let rows: Vec<JointRow> = paths
                .iter()
                .map(|p| JointRow {
                    item: self.item,
                    frame,
                    slot: self.slots.get(&p.text).copied().unwrap_or(0),
                })
                .collect();
            let logits = self.model.joint_rows(&rows).map_err(DecodeError::model)?.to_vec();
            let width = self.beam.width();
            if logits.len() != rows.len() * width {
                return Err(DecodeError::ScoreLength { got: logits.len() / rows.len(), expected: width });
            }
            let mut stay = Vec::new();
            for (path, logits) in paths.iter().zip(logits.chunks_exact(width)) {
                self.expand(path, logits, frame, symbol, &mut stay)?;
            }
            // Whatever is as unlikely as the last of those that moved on can only become less likely.
            let least = self.least(beam);
            stay.retain(|c| c.path.score > least);
            paths = self.settle(stay, beam);
        }
        // Beyond the end there are no frames: all that lie there are its.
        self.ahead.pop_front();
        self.ahead.push_back(Vec::new());
        if frame + 1 < frames {
            self.release();
        }
        Ok(())
    }

    /// The score that `beam` of the candidates of later frames reach.
    fn least(&self, beam: usize) -> f64 {
        let mut scores: Vec<f64> = self.ahead.iter().skip(1).flatten().map(|c| c.path.score).collect();
        if scores.len() < beam {
            return f64::NEG_INFINITY;
        }
        let at = beam - 1;
        *scores.select_nth_unstable_by(at, |a, b| b.total_cmp(a)).1
    }

    /// What a path may become on a frame: those that move on go ahead, those that stay to `stay`.
    fn expand(
        &mut self,
        path: &Path,
        logits: &[f32],
        frame: usize,
        symbol: usize,
        stay: &mut Vec<Candidate>,
    ) -> Result<(), DecodeError> {
        let Run { beam, texts, ahead, log_probs, durations, ids, spoken, plain: without, .. } = self;
        let blank = beam.blank as usize;
        let (scores, steps) = logits.split_at(blank + 1);
        let state = texts.state(path.text);
        let hot = spoken.get(frame).copied().unwrap_or(false);
        let search = if hot { &beam.search } else { &*without };
        search.log_probs(scores, state, frame, log_probs)?;
        if beam.durations.is_empty() {
            durations.clear();
        } else {
            log_softmax(steps, durations, frame)?;
        }
        let steps = |stays: usize| {
            // RNN-T: a token stays, the blank moves on by one.
            let alone = durations.is_empty().then_some((stays, 0.0f32));
            alone.into_iter().chain(beam.durations.iter().copied().zip(durations.iter().copied()))
        };
        for (step, p) in steps(1) {
            let gain = f64::from(log_probs[blank]) + f64::from(p);
            let path = Path { score: path.score + gain, best: path.best + gain, ..*path };
            ahead[step.max(1)].push(Candidate { place: Place::Text(path.text), path, emitted: None });
        }
        greatest(&log_probs[..blank], beam.search.beam.max(1), ids);
        let plain = if beam.search.hot_words.is_some() { plain_log_prob(beam, scores) } else { 0.0 };
        for &id in ids.iter() {
            let p_token = f64::from(log_probs[id as usize]);
            if p_token == f64::NEG_INFINITY {
                continue;
            }
            let gained = p_token - (f64::from(scores[id as usize]) - plain);
            let (credit, back) = beam.search.credit(state, path.credit, id, gained);
            for (step, p) in steps(0) {
                let gain = p_token + f64::from(p) - back.max(0.0);
                let (score, best) = (path.score + gain, path.best + gain);
                let duration = if beam.durations.is_empty() { 1 } else { step };
                let candidate = Candidate {
                    place: Place::After(path.text, id),
                    path: Path { score, best, credit, ..*path },
                    emitted: Some(token(id, frame, duration, scores)),
                };
                match step {
                    0 if symbol < beam.max_symbols.max(1) => stay.push(candidate),
                    step => ahead[step.max(1)].push(candidate),
                }
            }
        }
        Ok(())
    }

    /// Adds up the candidates of one text each, and keeps the likeliest texts.
    fn settle(&mut self, mut candidates: Vec<Candidate>, beam: usize) -> Vec<Path> {
        candidates.iter_mut().for_each(|c| c.place = c.place.looked_up(&self.texts));
        candidates.sort_by_key(|c| c.place);
        let mut met: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            match met.last_mut() {
                Some(one) if one.place == candidate.place => {
                    let score = log_add(one.path.score, candidate.path.score);
                    if candidate.path.best > one.path.best {
                        *one = candidate;
                    }
                    one.path.score = score;
                }
                _ => met.push(candidate),
            }
        }
        met.sort_by(|a, b| b.path.score.total_cmp(&a.path.score).then(a.place.cmp(&b.place)));
        met.truncate(beam);
        met.into_iter()
            .map(|c| {
                let trace = c.emitted.map_or(c.path.trace, |token| self.traces.push(c.path.trace, token));
                Path { text: c.place.made(&mut self.texts, &self.beam.search), trace, ..c.path }
            })
            .collect()
    }

    /// Runs the predictor for the texts that it has not run for.
    fn predict(&mut self, paths: &[Path]) -> Result<(), DecodeError> {
        let mut rows = Vec::new();
        for path in paths {
            if self.slots.contains_key(&path.text) {
                continue;
            }
            let to = self.free.pop().unwrap_or(self.slots.len());
            let token = self.texts.token(path.text);
            let from = token.and_then(|_| self.slots.get(&self.texts.before(path.text)).copied());
            rows.push(PredictorRow { token, from, to });
            self.slots.insert(path.text, to);
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.model.predict_rows(&rows).map_err(DecodeError::model)
    }

    /// Frees the slots that no candidate needs, be it to go on from.
    fn release(&mut self) {
        let mut needed: Vec<Text> = Vec::new();
        for candidate in self.ahead.iter().flatten() {
            match candidate.place.looked_up(&self.texts) {
                Place::Text(text) => needed.extend([text, self.texts.before(text)]),
                Place::After(text, _) => needed.push(text),
            }
        }
        needed.sort_unstable();
        let free = &mut self.free;
        self.slots.retain(|text, slot| {
            let keep = needed.binary_search(text).is_ok();
            if !keep {
                free.push(*slot);
            }
            keep
        });
    }
}

/// What is taken off a logit for the logarithm of its probability without hot words.
fn plain_log_prob(beam: &TransducerBeam, scores: &[f32]) -> f64 {
    let lowered = |(i, s): (usize, &f32)| {
        f64::from(*s) - if i == beam.blank as usize { f64::from(beam.search.blank_penalty) } else { 0.0 }
    };
    scores.iter().enumerate().map(lowered).fold(f64::NEG_INFINITY, log_add)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::script::{Net, Together};
    use super::super::tests::below;
    use super::*;
    use std::collections::BTreeMap;

    /// Every alignment by itself: the sum of their probabilities for each text.
    struct Enumerated<'a> {
        net: &'a Net,
        beam: &'a TransducerBeam,
        frames: usize,
        totals: BTreeMap<Vec<u32>, f64>,
    }

    impl Enumerated<'_> {
        fn walk(&mut self, frame: usize, symbols: usize, text: &mut Vec<u32>, p: f64) {
            if frame >= self.frames {
                *self.totals.entry(text.clone()).or_default() += p;
                return;
            }
            let logits: Vec<f64> = self.net.logits(0, frame, text).into_iter().map(f64::from).collect();
            let softmax = |l: &[f64]| {
                let sum: f64 = l.iter().map(|x| x.exp()).sum();
                l.iter().map(|x| x.exp() / sum).collect::<Vec<f64>>()
            };
            let blank = self.beam.blank as usize;
            let (tokens, steps) = logits.split_at(blank + 1);
            let (tokens, steps) = (softmax(tokens), softmax(steps));
            for (choice, p_choice) in tokens.iter().enumerate() {
                let moves: Vec<(usize, f64)> = match (&self.beam.durations, choice == blank) {
                    (d, true) if d.is_empty() => vec![(1, 1.0)],
                    (d, false) if d.is_empty() => vec![(0, 1.0)],
                    (d, _) => d.iter().copied().zip(steps.iter().copied()).collect(),
                };
                for (step, p_step) in moves {
                    let p = p * p_choice * p_step;
                    if choice == blank {
                        self.walk(frame + step.max(1), 0, text, p);
                        continue;
                    }
                    text.push(choice as u32);
                    if step == 0 && symbols + 1 < self.beam.max_symbols {
                        self.walk(frame, symbols + 1, text, p);
                    } else {
                        self.walk(frame + step.max(1), 0, text, p);
                    }
                    text.pop();
                }
            }
        }
    }

    fn ids(hypothesis: &Hypothesis) -> Vec<u32> {
        hypothesis.tokens.iter().map(|t| t.id).collect()
    }

    /// A beam as wide as there are texts gives every text with the exact sum over its alignments, RNN-T and TDT.
    #[test]
    fn a_wide_beam_is_exact() {
        let mut seed = 11;
        for round in 0..24 {
            let durations: Vec<usize> = if round % 2 == 0 { Vec::new() } else { vec![0, 1, 3] };
            let (vocabulary, frames) = (2, 1 + below(&mut seed, 3));
            let net = Net::random(vocabulary, durations.len(), frames, &mut seed);
            let search = Search { beam: usize::MAX, ..Search::default() };
            let beam = TransducerBeam {
                blank: vocabulary as u32,
                max_symbols: 1 + below(&mut seed, 3),
                durations,
                search,
            };
            let mut exact = Enumerated { net: &net, beam: &beam, frames, totals: BTreeMap::new() };
            exact.walk(0, 0, &mut Vec::new(), 1.0);
            let found = beam.decode(&mut Together::new(&net), 0, frames, usize::MAX, None).unwrap();
            assert!((exact.totals.values().sum::<f64>() - 1.0).abs() < 1e-9);
            assert_eq!(found.len(), exact.totals.len(), "round {round}");
            for hypothesis in &found {
                let want = exact.totals[&ids(hypothesis)].ln();
                // f32 logarithms of at most 3 frames x 4 decisions: 12 roundings of 2^-24 of a number below 20
                assert!((hypothesis.score - want).abs() < 2e-5, "round {round}: {hypothesis:?} {want}");
            }
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        }
    }

    /// A narrow beam never says that a text is likelier than it is, and its slots stay few however long the clip.
    #[test]
    fn a_narrow_beam_is_a_lower_bound_and_frees_what_it_leaves() {
        let mut seed = 5;
        for durations in [Vec::new(), vec![0, 1, 2]] {
            let net = Net::random(2, durations.len(), 200, &mut seed);
            let beam = |width: usize| TransducerBeam {
                blank: 2,
                max_symbols: 2,
                durations: durations.clone(),
                search: Search { beam: width, ..Search::default() },
            };
            let wide = beam(usize::MAX).decode(&mut Together::new(&net), 0, 3, usize::MAX, None).unwrap();
            let all: BTreeMap<Vec<u32>, f64> = wide.iter().map(|h| (ids(h), h.score)).collect();
            for width in [1, 2, 4, 8] {
                for narrow in beam(width).decode(&mut Together::new(&net), 0, 3, 3, None).unwrap() {
                    assert!(narrow.score <= all[&ids(&narrow)] + 1e-5, "{width} {narrow:?}");
                }
            }
            let mut model = Together::new(&net);
            let long = beam(4).decode(&mut model, 0, 200, 4, None).unwrap();
            assert!(long.len() <= 4 && long[0].tokens.is_sorted_by_key(|t| t.frame), "{long:?}");
            assert!(model.most_slots <= 64, "{}", model.most_slots);
        }
    }

    #[test]
    fn nothing_to_decode_and_a_stop() {
        let net = Net::random(2, 0, 200, &mut 9);
        let beam = TransducerBeam {
            blank: 2,
            max_symbols: 2,
            durations: Vec::new(),
            search: Search { beam: 2, ..Search::default() },
        };
        let nothing = beam.decode(&mut Together::new(&net), 0, 0, 5, None).unwrap();
        assert_eq!(nothing, [Hypothesis::default()]);
        let stop = |frame: usize| frame < 64;
        let stopped = beam.decode(&mut Together::new(&net), 0, 200, 1, Some(&stop));
        assert!(matches!(stopped, Err(DecodeError::Cancelled { frame: 64 })), "{stopped:?}");
    }
}
