//! Where two windows of a recording meet: one list of tokens out of two that overlap.
//!
//! Both windows heard the overlap. Their tokens are aligned there (the longest common subsequence of pieces at like times,
//! capitals or not), and the second takes over after a pair that is close to the cut: what both heard is there once, and what
//! only one heard stays, or not, on its side of that pair. Where the two have nothing in common, the words that begin
//! before the cut are the first's, the others the second's.

use crate::decode::Token;
use conure_text::Vocabulary;

/// Encoder frames by which the same token may lie apart in two windows: 0.4 s.
pub(crate) const APART: usize = 5;
/// What it costs, in frames from the cut, to change over within a word, or at a pair without a neighbour that matches.
const WITHIN_WORD: usize = 25;
const ALONE: usize = 12;

/// An overlap, in encoder frames: from where the second window begins to where the first ends, and the cut between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seam {
    pub from: usize,
    pub cut: usize,
    pub to: usize,
}

/// Appends the tokens of the next window, all in frames of the recording.
pub(crate) fn join(tokens: &mut Vec<Token>, next: &[Token], seam: &Seam, vocabulary: &Vocabulary) {
    let before = tokens.partition_point(|t| t.frame + APART < seam.from);
    let common = next.partition_point(|t| t.frame < seam.to + APART);
    let (kept, taken) = match changeover(&tokens[before..], &next[..common], seam, vocabulary) {
        Some((i, j)) => (before + i + 1, j + 1),
        None => {
            let begins = |list: &[Token]| {
                let found = list.iter().position(|t| t.frame >= seam.cut && starts(t, vocabulary));
                found.unwrap_or(list.len())
            };
            (begins(tokens), begins(next))
        }
    };
    tokens.truncate(kept);
    append(tokens, &next[taken..]);
}

/// Appends tokens of another reading: none is before the last of those that are there, which ends where the next begins.
pub(crate) fn append(tokens: &mut Vec<Token>, next: &[Token]) {
    if let Some((last, first)) = tokens.last_mut().zip(next.first()) {
        // Never to nothing: a token that is a word would be one without length.
        last.duration = last.duration.min(first.frame.saturating_sub(last.frame).max(1));
    }
    let earliest = tokens.last().map_or(0, |t| t.frame);
    tokens.extend(next.iter().map(|t| {
        let late = earliest.saturating_sub(t.frame);
        Token {
            frame: t.frame + late,
            duration: t.duration.saturating_sub(late).max(t.duration.min(1)),
            ..*t
        }
    }));
}

pub(crate) fn starts(token: &Token, vocabulary: &Vocabulary) -> bool {
    vocabulary.starts_word(token.id) && !vocabulary.is_punctuation(token.id)
}

/// The pair of the alignment after which the second list takes over.
fn changeover(a: &[Token], b: &[Token], seam: &Seam, vocabulary: &Vocabulary) -> Option<(usize, usize)> {
    let pairs = alignment(a, b, vocabulary);
    let word_ends = |list: &[Token], at: usize| list.get(at + 1).is_none_or(|t| starts(t, vocabulary));
    let cost = |&(i, j): &(usize, usize)| {
        let clean = word_ends(a, i) && word_ends(b, j);
        let before = i.checked_sub(1).zip(j.checked_sub(1));
        let company = pairs.contains(&(i + 1, j + 1)) || before.is_some_and(|b| pairs.contains(&b));
        a[i].frame.midpoint(b[j].frame).abs_diff(seam.cut)
            + if clean { 0 } else { WITHIN_WORD }
            + if company { 0 } else { ALONE }
    };
    pairs.iter().min_by_key(|pair| cost(pair)).copied()
}

/// A longest common subsequence: pairs of indices, in order.
pub(crate) fn alignment(a: &[Token], b: &[Token], vocabulary: &Vocabulary) -> Vec<(usize, usize)> {
    let key = |t: &Token| vocabulary.piece(t.id).map(str::to_lowercase);
    let (keys_a, keys_b): (Vec<_>, Vec<_>) = (a.iter().map(key).collect(), b.iter().map(key).collect());
    let same = |i: usize, j: usize| a[i].frame.abs_diff(b[j].frame) <= APART && keys_a[i] == keys_b[j];
    let width = b.len() + 1;
    // lengths[i * width + j]: of the longest common subsequence of a[i..] and b[j..].
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let skip = lengths[(i + 1) * width + j].max(lengths[i * width + j + 1]);
            let both = if same(i, j) { lengths[(i + 1) * width + j + 1] + 1 } else { 0 };
            lengths[i * width + j] = skip.max(both);
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        let here = lengths[i * width + j];
        if same(i, j) && here == lengths[(i + 1) * width + j + 1] + 1 {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if here == lengths[(i + 1) * width + j] {
            i += 1;
        } else {
            j += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let words = ["the", "The", "cat", "sat", "on", "a", "mat"].map(|w| format!("\u{2581}{w}"));
        let rest = [".", ",", "s"].map(str::to_owned);
        let pieces: Vec<String> = words.into_iter().chain(rest).collect();
        Vocabulary::new(pieces.iter().map(String::as_str))
    }

    /// `the@10 cat@12 .@13`: pieces at frames; `+s` continues a word.
    fn tokens(text: &str) -> Vec<Token> {
        let vocabulary = vocabulary();
        let token = |part: &str| {
            let (piece, frame) = part.split_once('@').unwrap_or((part, "0"));
            let own = piece.strip_prefix('+');
            let marked = format!("\u{2581}{piece}");
            let id = vocabulary.id(own.unwrap_or(&marked)).or_else(|| vocabulary.id(piece)).unwrap_or(99);
            Token { id, frame: frame.parse().unwrap_or(0), duration: 1, confidence: 1.0 }
        };
        text.split_whitespace().map(token).collect()
    }

    fn joined(a: &str, b: &str, cut: usize) -> String {
        let (mut a, vocabulary) = (tokens(a), vocabulary());
        join(&mut a, &tokens(b), &Seam { from: 100, cut, to: 200 }, &vocabulary);
        let ids: Vec<u32> = a.iter().map(|t| t.id).collect();
        assert!(a.is_sorted_by_key(|t| t.frame), "{a:?}");
        vocabulary.decode(&ids)
    }

    #[test]
    fn windows_become_one() {
        for (what, a, b, cut, expected) in [
            (
                "what both heard is there once",
                "the@90 cat@110 sat@120 on@180",
                "cat@111 sat@119 on@180 a@220",
                150,
                "the cat sat on a",
            ),
            (
                "a token that moved over the cut is not doubled",
                "cat@110 sat@149",
                "cat@110 sat@151 on@180",
                150,
                "cat sat on",
            ),
            (
                "nor one that became a capital",
                "cat@110 .@111 the@152",
                "cat@110 .@112 The@150 mat@160",
                151,
                "cat. the mat",
            ),
            (
                "what the second missed before the cut stays",
                "the@110 cat@120 sat@160",
                "sat@160 on@170",
                140,
                "the cat sat on",
            ),
            (
                "what the first missed after the cut comes",
                "the@110 cat@120",
                "cat@120 sat@160 on@170",
                140,
                "the cat sat on",
            ),
            (
                "nothing in common: by time",
                "the@110 cat@120 a@190",
                "mat@104 sat@160 on@170",
                140,
                "the cat sat on",
            ),
            (
                "a word over the cut is whole",
                "the@110 cat@139 +s@141",
                "mat@104 +s@142 on@170",
                140,
                "the cats on",
            ),
            (
                "a mark that both heard is there once",
                "the@110 cat@120 .@138",
                "the@111 cat@120 .@141 a@170",
                140,
                "the cat. a",
            ),
            ("silence on both sides", "the@10 cat@20", "sat@220 on@230", 150, "the cat sat on"),
            ("nothing before", "", "sat@120 on@230", 150, "on"),
            ("nothing after", "the@110 cat@120", "", 150, "the cat"),
        ] {
            assert_eq!(joined(a, b, cut), expected, "{what}");
        }
    }

    #[test]
    fn what_was_heard_first_ends_where_the_second_begins() {
        let token = |frame, duration| Token { id: 0, frame, duration, confidence: 1.0 };
        for (first, second, expected) in [
            // A long duration that the second reading cuts.
            (vec![(1, 2), (4, 6)], vec![(7, 2)], vec![(1, 2), (4, 3), (7, 2)]),
            // What would come before the last comes with it, and ends where it did.
            (vec![(4, 3)], vec![(2, 4), (6, 1)], vec![(4, 1), (4, 2), (6, 1)]),
            (vec![(4, 0)], vec![(9, 0)], vec![(4, 0), (9, 0)]),
        ] {
            let list = |list: Vec<(usize, usize)>| -> Vec<Token> {
                list.into_iter().map(|(frame, duration)| token(frame, duration)).collect()
            };
            let mut tokens = list(first);
            append(&mut tokens, &list(second));
            assert_eq!(tokens, list(expected));
        }
    }

    /// Whatever two windows misheard near their ends, every word of a sentence that each heard well comes once.
    #[test]
    fn every_split_of_one_reading_gives_it_back() {
        let whole: Vec<Token> = (0..60)
            .map(|i| Token { id: (i * 5 % 7) as u32, frame: 100 + i * 3, duration: 1, confidence: 1.0 })
            .collect();
        for cut in (130..220).step_by(3) {
            let seam = Seam { from: cut - 30, cut, to: cut + 30 };
            let mut a: Vec<Token> = whole.iter().filter(|t| t.frame < seam.to).copied().collect();
            let b: Vec<Token> = whole.iter().filter(|t| t.frame >= seam.from).copied().collect();
            join(&mut a, &b, &seam, &vocabulary());
            assert_eq!(a, whole, "cut at {cut}");
        }
    }
}
