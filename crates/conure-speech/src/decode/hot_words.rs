//! Hot words: phrases that are to be preferred where something is said at all.
//!
//! The phrases are a trie over characters with failure links (Aho and Corasick, 1975), which every emitted piece walks
//! through by its characters, so that a phrase is found however the model cuts it into pieces. A piece is preferred by
//! `weight` for each character of a phrase that is there with it, those of earlier pieces among them: what a phrase has begun with
//! is lost by a piece that does not go on with it.
//!
//! Preference only moves probability from token to token: how likely a blank is, and so whether anything is said on a
//! frame, stays as the model has it. Where a blank is the likeliest nothing is preferred, and a beam prefers only near what
//! greedy decoding without hot words says. That is why a hot word does not appear, or repeat, in silence.

use conure_text::Vocabulary;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// What a piece's word mark is, and a phrase's spaces.
const WORD_MARK: char = '\u{2581}';

/// Most characters of all phrases together: the trie takes about 100 bytes for each.
const MOST: usize = 1 << 20;

/// Phrases to prefer, for one vocabulary.
#[derive(Debug)]
pub struct HotWords {
    nodes: Vec<Node>,
    /// Each token's characters; `None` for tokens that are no text.
    pieces: Vec<Option<Vec<char>>>,
    /// What the tokens do in a state, computed when it is first reached.
    moves: Mutex<HashMap<u32, Arc<[Move]>>>,
}

#[derive(Debug, Default)]
struct Node {
    next: HashMap<char, u32>,
    /// The longest end of this node's text that another phrase begins with.
    fail: u32,
    depth: usize,
    /// Length and weight of the longest phrase that ends here.
    ends: Option<(usize, f32)>,
    /// The greatest weight of the phrases that this is a beginning of.
    weight: f32,
}

/// What a token does in a state: where it leads and by how much it is preferred. Tokens without one lead to the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Move {
    pub token: u32,
    pub next: u32,
    pub bonus: f32,
    /// Whether a phrase is complete with it.
    pub completes: bool,
    /// Whether it goes on with what was begun before it.
    pub extends: bool,
}

/// Why phrases cannot be preferred.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HotWordError {
    /// A phrase of nothing.
    #[error("hot words: phrase {0} is empty; leave it out")]
    Empty(usize),
    /// A character that the vocabulary does not have.
    #[error("hot words: {phrase:?} cannot be written by this model, whose vocabulary has no {character:?}")]
    Character {
        /// The phrase.
        phrase: String,
        /// Its first such character.
        character: char,
    },
    /// A weight that is no preference.
    #[error("hot words: the weight of {phrase:?} is {weight}; expected more than 0 and at most 100")]
    Weight {
        /// The phrase.
        phrase: String,
        /// Its weight.
        weight: f32,
    },
    /// More than can sensibly be preferred.
    #[error("hot words: the phrases have more than {MOST} characters together; give fewer")]
    TooMany,
}

impl HotWords {
    /// The phrases with their weights in nats for each character: the more, the more other words turn into
    /// these. Case does not count, and a phrase may be the beginning of a longer word.
    ///
    /// # Errors
    /// [`HotWordError`].
    pub fn new<'a>(
        vocabulary: &Vocabulary,
        phrases: impl IntoIterator<Item = (&'a str, f32)>,
    ) -> Result<HotWords, HotWordError> {
        let pieces: Vec<Option<Vec<char>>> = (0u32..)
            .zip(vocabulary.pieces())
            .map(|(id, piece)| {
                let text = !vocabulary.is_special(id) && !is_byte(piece);
                text.then(|| folded(piece).collect())
            })
            .collect();
        let known: HashSet<char> = pieces.iter().flatten().flatten().copied().collect();
        let mut words = HotWords { nodes: vec![Node::default()], pieces, moves: Mutex::default() };
        for (number, (phrase, weight)) in (1..).zip(phrases) {
            let text = phrase.split_whitespace().collect::<Vec<_>>().join("\u{2581}");
            if text.is_empty() {
                return Err(HotWordError::Empty(number));
            }
            if !(weight > 0.0 && weight <= 100.0) {
                return Err(HotWordError::Weight { phrase: phrase.to_owned(), weight });
            }
            let text: Vec<char> = std::iter::once(WORD_MARK).chain(folded(&text)).collect();
            if let Some(&character) = text.iter().find(|c| !known.contains(*c)) {
                return Err(HotWordError::Character { phrase: phrase.to_owned(), character });
            }
            if words.nodes.len() + text.len() > MOST {
                return Err(HotWordError::TooMany);
            }
            words.add(&text, weight);
        }
        words.link();
        Ok(words)
    }

    fn add(&mut self, text: &[char], weight: f32) {
        let mut at = 0;
        for (depth, c) in (1..).zip(text) {
            let new = self.nodes.len() as u32;
            let next = *self.nodes[at].next.entry(*c).or_insert(new);
            if next == new {
                self.nodes.push(Node { depth, ..Node::default() });
            }
            at = next as usize;
            self.nodes[at].weight = self.nodes[at].weight.max(weight);
        }
        let before = self.nodes[at].ends.map_or(0.0, |(_, w)| w);
        self.nodes[at].ends = Some((text.len(), weight.max(before)));
    }

    /// Failure links, breadth first: those of shorter texts are there when a longer one needs them.
    fn link(&mut self) {
        let mut queue: VecDeque<u32> = self.nodes[0].next.values().copied().collect();
        while let Some(at) = queue.pop_front() {
            let next: Vec<(char, u32)> = self.nodes[at as usize].next.iter().map(|(c, n)| (*c, *n)).collect();
            for (c, child) in next {
                let fail = self.step(self.nodes[at as usize].fail, c);
                self.nodes[child as usize].fail = fail;
                if self.nodes[child as usize].ends.is_none() {
                    self.nodes[child as usize].ends = self.nodes[fail as usize].ends;
                }
                queue.push_back(child);
            }
        }
    }

    fn step(&self, mut at: u32, c: char) -> u32 {
        loop {
            let node = &self.nodes[at as usize];
            match node.next.get(&c) {
                Some(next) => return *next,
                None if at == 0 => return 0,
                None => at = node.fail,
            }
        }
    }

    /// What tokens do in a state (0 is the start), by token.
    pub(super) fn moves(&self, state: u32) -> Arc<[Move]> {
        let mut moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        moves.entry(state).or_insert_with(|| self.compute_moves(state)).clone()
    }

    /// What one token does in a state.
    pub(super) fn after(&self, state: u32, token: u32) -> Move {
        let moves = self.moves(state);
        let found = moves.binary_search_by_key(&token, |m| m.token).ok().map(|i| moves[i]);
        found.unwrap_or(Move { token, next: 0, bonus: 0.0, completes: false, extends: false })
    }

    fn compute_moves(&self, state: u32) -> Arc<[Move]> {
        let begun = self.nodes[state as usize].depth;
        let moves = (0u32..).zip(&self.pieces).filter_map(|(token, piece)| {
            let piece = piece.as_ref().filter(|p| !p.is_empty())?;
            let (mut at, mut inside, mut bonus, mut completes) = (state, true, 0.0f32, false);
            for (i, c) in (1..).zip(piece) {
                at = self.step(at, *c);
                let node = &self.nodes[at as usize];
                inside &= node.depth == begun + i;
                if let Some((length, weight)) = node.ends {
                    completes = true;
                    bonus = bonus.max(weight * length as f32);
                }
            }
            let node = &self.nodes[at as usize];
            bonus = bonus.max(node.weight * node.depth as f32);
            let extends = inside && begun > 0;
            (at != 0 || completes).then_some(Move { token, next: at, bonus, completes, extends })
        });
        moves.collect()
    }
}

/// Characters without their case.
fn folded(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase)
}

/// Whether a piece is one byte of a character, such as `<0xE2>`.
fn is_byte(piece: &str) -> bool {
    piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new([
            "<unk>",
            "\u{2581}",
            "\u{2581}new",
            "\u{2581}York",
            "n",
            "e",
            "w",
            "\u{2581}n",
            "ew",
            "\u{2581}yo",
            "rk",
            "s",
            "\u{2581}NEW\u{2581}y",
            "o",
            "r",
            "k",
            "y",
            "<0x41>",
        ])
    }

    /// Walks through pieces; gives the bonus of the last and whether a phrase was completed.
    fn walk(words: &HotWords, vocabulary: &Vocabulary, pieces: &[&str]) -> (f32, bool) {
        let (mut state, mut bonus, mut complete) = (0, 0.0, false);
        for piece in pieces {
            let step = words.after(state, vocabulary.id(piece).unwrap());
            (state, bonus, complete) = (step.next, step.bonus, complete | step.completes);
        }
        (bonus, complete)
    }

    #[test]
    fn a_phrase_is_found_however_it_is_cut() {
        let vocabulary = vocabulary();
        let words = HotWords::new(&vocabulary, [("New  York", 0.5)]).unwrap();
        // nine characters with the word marks
        for pieces in [
            &["\u{2581}new", "\u{2581}York"][..],
            &["\u{2581}n", "ew", "\u{2581}yo", "rk"],
            &["\u{2581}", "n", "e", "w", "\u{2581}", "y", "o", "r", "k"],
            &["\u{2581}NEW\u{2581}y", "o", "rk"],
            &["s", "\u{2581}new", "\u{2581}York"],
        ] {
            assert_eq!(walk(&words, &vocabulary, pieces), (4.5, true), "{pieces:?}");
        }
        assert_eq!(walk(&words, &vocabulary, &["n", "ew", "\u{2581}York"]), (0.0, false));
        assert_eq!(walk(&words, &vocabulary, &["\u{2581}new", "\u{2581}n"]), (1.0, false));
        assert!(!walk(&words, &vocabulary, &["\u{2581}new", "s", "\u{2581}York"]).1);
        let (start, other) = (vocabulary.id("\u{2581}new").unwrap(), vocabulary.id("s").unwrap());
        let first = words.after(0, start);
        assert!(!first.extends && words.after(first.next, vocabulary.id("\u{2581}York").unwrap()).extends);
        assert_eq!(words.after(first.next, other).next, 0);
    }

    #[test]
    fn a_phrase_in_another_is_found_and_the_greater_weight_counts() {
        let vocabulary = vocabulary();
        let words = HotWords::new(&vocabulary, [("new yorks", 0.1), ("york", 2.0)]).unwrap();
        assert_eq!(walk(&words, &vocabulary, &["\u{2581}new", "\u{2581}York"]), (10.0, true));
    }

    #[test]
    fn what_cannot_be_preferred_is_said() {
        let vocabulary = vocabulary();
        for (phrase, weight, part) in [
            (" ", 1.0, "phrase 1 is empty"),
            ("zebra", 1.0, "no 'z'"),
            ("new", 0.0, "weight"),
            ("new", f32::NAN, "weight"),
            ("new", 101.0, "weight"),
        ] {
            let error = HotWords::new(&vocabulary, [(phrase, weight)]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let long = "new ".repeat(MOST / 4 + 1);
        assert_eq!(HotWords::new(&vocabulary, [(long.as_str(), 1.0)]).unwrap_err(), HotWordError::TooMany);
        assert!(HotWords::new(&vocabulary, []).unwrap().moves(0).is_empty());
    }
}
