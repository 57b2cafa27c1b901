//! What beam searches share: how they are set, texts as nodes of a tree, and scores.

use super::hot_words::HotWords;
use super::{DecodeError, Token, confidence};
use std::collections::HashMap;
use std::sync::Arc;

/// How tokens are searched for.
#[derive(Debug, Clone)]
pub struct Search {
    /// Texts that are followed at once; 1, or 0, is greedy decoding.
    pub beam: usize,
    /// Texts that are told, the likeliest first, where more than one is followed.
    pub n_best: usize,
    /// Taken off the blank's logit: more than 0 makes a model say more, less than 0 less.
    pub blank_penalty: f32,
    /// Phrases to prefer.
    pub hot_words: Option<Arc<HotWords>>,
}

impl Default for Search {
    fn default() -> Search {
        Search { beam: 1, n_best: 1, blank_penalty: 0.0, hot_words: None }
    }
}

/// A text that a search found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hypothesis {
    /// Its tokens, on the frames of the likeliest of its alignments that were followed.
    pub tokens: Vec<Token>,
    /// Natural logarithm of its probability: of all its alignments that were followed together. With hot words and a blank
    /// penalty, that under the model changed by them.
    pub score: f64,
}

/// `ln(exp(a) + exp(b))`.
pub(super) fn log_add(a: f64, b: f64) -> f64 {
    let (most, least) = if a > b { (a, b) } else { (b, a) };
    if least == f64::NEG_INFINITY { most } else { most + (least - most).exp().ln_1p() }
}

/// `ln` of the sum of the exponentials of `scores`.
fn log_sum(scores: &[f32]) -> f64 {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = scores.iter().map(|s| f64::from(s - most).exp()).sum();
    f64::from(most) + sum.ln()
}

/// Logarithms of the probabilities that logits stand for.
pub(super) fn log_softmax(logits: &[f32], out: &mut Vec<f32>, frame: usize) -> Result<(), DecodeError> {
    let sum = log_sum(logits);
    if !sum.is_finite() || logits.iter().any(|l| l.is_nan()) {
        return Err(DecodeError::NotFinite { frame });
    }
    out.clear();
    out.extend(logits.iter().map(|l| (f64::from(*l) - sum) as f32));
    Ok(())
}

impl Search {
    /// Logarithms of the probabilities of tokens and, last, the blank in a state of the hot words (0 without any): `scores` are
    /// logits, or their logarithms already.
    ///
    /// Hot words move probability from token to token only, so that the blank's is as without them; and where the blank is the
    /// likeliest they do nothing: else the texts that might have been said in noise, each less likely than none, would all add up
    /// to one.
    pub(super) fn log_probs(
        &self,
        scores: &[f32],
        state: u32,
        frame: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), DecodeError> {
        if self.blank_penalty == 0.0 {
            log_softmax(scores, out, frame)?;
        } else {
            let mut lowered = scores.to_vec();
            if let Some(blank) = lowered.last_mut() {
                *blank -= self.blank_penalty;
            }
            log_softmax(&lowered, out, frame)?;
        }
        let Some(words) = &self.hot_words else { return Ok(()) };
        let tokens = out.len().saturating_sub(1);
        if out[..tokens].iter().all(|score| *score <= out[tokens]) {
            return Ok(());
        }
        let moves = words.moves(state);
        let before = log_sum(&out[..tokens]);
        for step in moves.iter() {
            if let Some(score) = out[..tokens].get_mut(step.token as usize) {
                *score += step.bonus;
            }
        }
        let shift = (before - log_sum(&out[..tokens])) as f32;
        if shift.is_finite() {
            out[..tokens].iter_mut().for_each(|score| *score += shift);
        }
        Ok(())
    }

    /// The best choice without hot words. The last of `scores` is the blank's.
    pub(super) fn best(&self, scores: &[f32], frame: usize) -> Result<usize, DecodeError> {
        let choice = super::best(scores, frame)?;
        if self.blank_penalty == 0.0 {
            return Ok(choice);
        }
        let blank = scores.len() - 1;
        let token = super::best(&scores[..blank], frame)?;
        Ok(if scores[blank] - self.blank_penalty > scores[token] { blank } else { token })
    }

    /// The choice of greedy decoding in a state of the hot words: the blank if it is the best without them, else the token that
    /// is the best with them. The last of `scores` is the blank's.
    pub(super) fn choose(&self, scores: &[f32], state: u32, frame: usize) -> Result<usize, DecodeError> {
        let blank = scores.len().saturating_sub(1);
        let mut choice = self.best(scores, frame)?;
        let Some(words) = self.hot_words.as_ref().filter(|_| choice != blank) else { return Ok(choice) };
        let mut most = scores[choice] + words.after(state, choice as u32).bonus;
        for step in words.moves(state).iter() {
            if let Some(score) = scores[..blank].get(step.token as usize)
                && score + step.bonus > most
            {
                (choice, most) = (step.token as usize, score + step.bonus);
            }
        }
        Ok(choice)
    }

    /// The state of the hot words after a token.
    pub(super) fn after(&self, state: u32, token: u32) -> u32 {
        self.hot_words.as_ref().map_or(0, |words| words.after(state, token).next)
    }

    /// What a text has gained by a phrase that it began, after one more token that gained `gain`, and what of earlier gains it
    /// must give back because that phrase was not gone on with.
    pub(super) fn credit(&self, state: u32, credit: f64, token: u32, gain: f64) -> (f64, f64) {
        let Some(words) = &self.hot_words else { return (0.0, 0.0) };
        let step = words.after(state, token);
        let gain = if step.bonus > 0.0 { gain.max(0.0) } else { 0.0 };
        match (step.extends, step.completes) {
            (true, true) => (0.0, 0.0),
            (true, false) => (credit + gain, 0.0),
            (false, true) => (0.0, credit),
            (false, false) => (if step.next == 0 { 0.0 } else { gain }, credit),
        }
    }
}

/// Frames about an emission of greedy decoding in which hot words count: 240 ms, since a beam may place a word a little apart.
const REACH: usize = 3;

/// Which of `frames` frames lie near one of `emitted`: where something is said.
pub(super) fn spoken(emitted: impl Iterator<Item = usize>, frames: usize) -> Vec<bool> {
    let mut spoken = vec![false; frames];
    for frame in emitted {
        let end = (frame + REACH + 1).min(frames);
        spoken[frame.saturating_sub(REACH).min(end)..end].fill(true);
    }
    spoken
}

/// The ids of the `count` greatest of the tokens' scores; in no order.
pub(super) fn greatest(scores: &[f32], count: usize, ids: &mut Vec<u32>) {
    ids.clear();
    ids.extend(0..scores.len() as u32);
    if count < ids.len() {
        // Equal ones by id, so that the same is chosen every time.
        let order = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        ids.select_nth_unstable_by(count, order);
        ids.truncate(count);
    }
}

/// A text of a search: 0 is the empty one.
pub(super) type Text = u32;

/// Texts as a tree: each is another one and a token more.
#[derive(Debug)]
pub(super) struct Texts {
    nodes: Vec<TextNode>,
    next: HashMap<(Text, u32), Text>,
}

#[derive(Debug, Clone, Copy)]
struct TextNode {
    before: Text,
    token: Option<u32>,
    /// State of the hot words.
    state: u32,
}

impl Texts {
    pub fn new() -> Texts {
        Texts { nodes: vec![TextNode { before: 0, token: None, state: 0 }], next: HashMap::new() }
    }

    pub fn token(&self, text: Text) -> Option<u32> {
        self.nodes[text as usize].token
    }

    pub fn before(&self, text: Text) -> Text {
        self.nodes[text as usize].before
    }

    pub fn state(&self, text: Text) -> u32 {
        self.nodes[text as usize].state
    }

    /// The text with a token more, if it is there.
    pub fn find(&self, text: Text, token: u32) -> Option<Text> {
        self.next.get(&(text, token)).copied()
    }

    /// The text with a token more.
    pub fn add(&mut self, text: Text, token: u32, search: &Search) -> Text {
        let new = self.nodes.len() as Text;
        let found = *self.next.entry((text, token)).or_insert(new);
        if found == new {
            let state = search.after(self.state(text), token);
            self.nodes.push(TextNode { before: text, token: Some(token), state });
        }
        found
    }
}

/// A text of a candidate: one that is there, or one with a token more that may never be needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Text(Text),
    After(Text, u32),
}

impl Place {
    /// The same text has the same place once texts that came to be since are looked up.
    pub fn looked_up(self, texts: &Texts) -> Place {
        match self {
            Place::After(text, token) => texts.find(text, token).map_or(self, Place::Text),
            Place::Text(_) => self,
        }
    }

    pub fn made(self, texts: &mut Texts, search: &Search) -> Text {
        match self {
            Place::Text(text) => text,
            Place::After(text, token) => texts.add(text, token, search),
        }
    }
}

/// The number of an emission in [`Traces`]; [`NO_TRACE`] is none.
pub(super) type Trace = u32;
pub(super) const NO_TRACE: Trace = u32::MAX;

/// The emissions of alignments, each behind the one before it.
#[derive(Debug, Default)]
pub(super) struct Traces(Vec<(Trace, Token)>);

impl Traces {
    pub fn push(&mut self, before: Trace, token: Token) -> Trace {
        self.0.push((before, token));
        (self.0.len() - 1) as Trace
    }

    pub fn get(&self, trace: Trace) -> Option<&(Trace, Token)> {
        self.0.get(trace as usize)
    }

    /// The tokens up to an emission, in order.
    pub fn tokens(&self, mut trace: Trace) -> Vec<Token> {
        let mut tokens = Vec::new();
        while let Some((before, token)) = self.get(trace) {
            tokens.push(*token);
            trace = *before;
        }
        tokens.reverse();
        tokens
    }
}

/// A token on a frame, with its confidence by the model's own scores.
pub(super) fn token(id: u32, frame: usize, duration: usize, scores: &[f32]) -> Token {
    Token { id, frame, duration, confidence: confidence(scores, id as usize) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use conure_text::Vocabulary;

    #[test]
    fn sums_of_logarithms() {
        assert!((log_add(0.5f64.ln(), 0.25f64.ln()) - 0.75f64.ln()).abs() < 1e-12);
        assert_eq!(log_add(f64::NEG_INFINITY, -1.0), -1.0);
        assert_eq!(log_add(f64::NEG_INFINITY, f64::NEG_INFINITY), f64::NEG_INFINITY);
        let mut out = Vec::new();
        log_softmax(&[1.0, 2.0, f32::NEG_INFINITY], &mut out, 0).unwrap();
        assert!((out.iter().map(|p| p.exp()).sum::<f32>() - 1.0).abs() < 1e-6 && out[2] == f32::NEG_INFINITY);
        assert!(log_softmax(&[f32::NAN, 1.0], &mut out, 3).is_err());
        assert!(log_softmax(&[f32::NEG_INFINITY; 2], &mut out, 3).is_err());
    }

    #[test]
    fn the_greatest_are_found_and_equal_ones_by_id() {
        let mut ids = Vec::new();
        greatest(&[1.0, 5.0, 3.0, 3.0, 3.0], 3, &mut ids);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3]);
        greatest(&[1.0], 3, &mut ids);
        assert_eq!(ids, [0]);
    }

    fn search(weight: f32) -> Search {
        let vocabulary = Vocabulary::new(["\u{2581}a", "b", "c"]);
        let words = HotWords::new(&vocabulary, [("ab", weight)]).unwrap();
        Search { hot_words: Some(Arc::new(words)), ..Search::default() }
    }

    /// The blank's probability is what it was, the tokens' sum too, and greedy decoding never turns a blank into a word.
    #[test]
    fn hot_words_leave_the_blank_alone() {
        let (scores, silence) = ([0.3f32, -0.2, 0.6, 0.5], [0.3f32, -0.2, 0.1, 0.5]);
        let (mut plain, mut hot) = (Vec::new(), Vec::new());
        for weight in [0.1, 5.0, 100.0] {
            let search = search(weight);
            Search::default().log_probs(&silence, 0, 0, &mut plain).unwrap();
            search.log_probs(&silence, 0, 0, &mut hot).unwrap();
            assert_eq!(plain, hot);
            Search::default().log_probs(&scores, 0, 0, &mut plain).unwrap();
            search.log_probs(&scores, 0, 0, &mut hot).unwrap();
            assert_eq!(plain[3], hot[3]);
            assert!((hot.iter().map(|p| p.exp()).sum::<f32>() - 1.0).abs() < 1e-5, "{hot:?}");
            assert!(hot[0] > plain[0] && hot[1] < plain[1] && hot[2] < plain[2]);
            assert_eq!(search.choose(&silence, 0, 0).unwrap(), 3);
            // Where something is said, it is the phrase's beginning, and after that its end.
            let spoken = [0.25, 0.3, 0.4, 0.0];
            assert_eq!(search.choose(&spoken, 0, 0).unwrap(), 0);
            assert_eq!(search.choose(&spoken, search.after(0, 0), 0).unwrap(), 1);
        }
    }

    #[test]
    fn hot_words_count_where_something_is_said() {
        let near = |emitted: &[usize], frames| -> Vec<usize> {
            let spoken = spoken(emitted.iter().copied(), frames);
            (0..frames).filter(|f| spoken[*f]).collect()
        };
        assert_eq!(near(&[0, 9], 20), [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(near(&[4], 5), [1, 2, 3, 4]);
        assert_eq!(near(&[], 5), [0usize; 0]);
        assert_eq!(near(&[9], 3), [0usize; 0]);
    }

    #[test]
    fn a_blank_penalty_is_taken_off_the_blank() {
        let search = Search { blank_penalty: 0.4, ..Search::default() };
        for (scores, expected) in [([0.0, 0.1, 0.0, 0.6], 3), ([0.0, 0.3, 0.0, 0.6], 1)] {
            assert_eq!(search.choose(&scores, 0, 0).unwrap(), expected);
        }
        let mut out = Vec::new();
        search.log_probs(&[0.0, 0.0, 0.0, 0.4], 0, 0, &mut out).unwrap();
        assert!(out.iter().all(|p| (p - 0.25f32.ln()).abs() < 1e-6), "{out:?}");
    }

    #[test]
    fn what_was_gained_by_a_beginning_is_given_back() {
        let search = search(1.0);
        let begun = search.after(0, 0);
        assert_eq!(search.credit(0, 0.0, 0, 1.5), (1.5, 0.0));
        assert_eq!(search.credit(begun, 1.5, 1, 2.0), (0.0, 0.0));
        assert_eq!(search.credit(begun, 1.5, 2, -0.5), (0.0, 1.5));
        assert_eq!(search.credit(begun, 1.5, 0, 1.0), (1.0, 1.5));
    }
}
