//! Words in pieces of a bearable length, cut where speech pauses.

use crate::result::{Word, is_mark};

/// How long a segment, line or cue may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most words; lines are filled up to it.
    pub words: usize,
    /// Most seconds.
    pub seconds: f64,
    /// Most characters.
    pub characters: usize,
    /// Most lines, if lines are filled up to `width` characters.
    pub lines: usize,
    /// Characters of a line.
    pub width: usize,
}

impl Limits {
    /// None.
    pub const NONE: Limits = Limits {
        words: usize::MAX,
        seconds: f64::INFINITY,
        characters: usize::MAX,
        lines: usize::MAX,
        width: usize::MAX,
    };
    /// What can be read as a subtitle: two lines of 42 characters for seven seconds.
    pub const SUBTITLES: Limits = Limits { seconds: 7.0, characters: 84, ..Limits::NONE };

    /// These, where they are given, and no others.
    pub fn some(words: Option<usize>, seconds: Option<f64>) -> Limits {
        Limits {
            words: words.unwrap_or(usize::MAX).max(1),
            seconds: seconds.filter(|s| s.is_finite() && *s > 0.0).unwrap_or(f64::INFINITY),
            ..Limits::NONE
        }
    }
}

/// The words in lines within the limits; a word too long for them is a line of its own.
pub(crate) fn lines<'a>(words: &'a [Word], limits: &Limits) -> Vec<&'a [Word]> {
    let mut lines = Vec::new();
    let mut rest = words;
    while !rest.is_empty() {
        let fits = longest_prefix(rest, limits);
        // who counts words wants that many; the other limits leave a choice
        let cut = if fits == rest.len() || fits == limits.words { fits } else { best_cut(rest, fits) };
        let (line, others) = rest.split_at(cut);
        lines.push(line);
        rest = others;
    }
    lines
}

/// How many words from the first are within the limits; at least 1.
fn longest_prefix(words: &[Word], limits: &Limits) -> usize {
    let start = words.first().map_or(0.0, |word| word.start);
    let mut characters = 0usize;
    // Characters of the line under way, and of the word at its end with the marks that stick to it.
    let (mut line, mut column, mut last) = (1usize, 0usize, 0usize);
    for (i, word) in words.iter().enumerate() {
        let length = word.word.chars().count();
        characters += length + usize::from(i > 0);
        let mark = i > 0 && is_mark(&word.word);
        last = length + if mark { last } else { 0 };
        column += length + usize::from(i > 0 && !mark);
        if column > limits.width && column > last {
            (line, column) = (line + 1, last);
        }
        let over = i >= limits.words
            || characters > limits.characters
            || line > limits.lines
            || word.end - start > limits.seconds + 1e-9;
        if over && i > 0 {
            return i;
        }
    }
    words.len()
}

/// Where to cut a line that could hold `fits` words: in its second half after the longest pause, a comma counting as
/// 0.3 s of it; the later of equals.
fn best_cut(words: &[Word], fits: usize) -> usize {
    let weight = |cut: usize| {
        let (Some(last), Some(next)) = (words.get(cut - 1), words.get(cut)) else { return 0.0 };
        let comma = last.word.ends_with([',', ';', ':', '.', '?', '!']);
        (next.start - last.end).max(0.0) + if comma { 0.3 } else { 0.0 }
    };
    let mut best = fits;
    for cut in (fits.div_ceil(2).max(1)..fits).rev() {
        if weight(cut) > weight(best) + 1e-9 {
            best = cut;
        }
    }
    best
}
