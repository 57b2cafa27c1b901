//! Cues: pieces of a transcript that are shown at once.

use super::{FormatOptions, one_line};
use crate::result::{Segment, Transcript, Word, join_words};

/// A text and when it is shown, in milliseconds: `start_ms < end_ms`, starts in order, all within the audio (of at
/// least a millisecond).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cue {
    /// First millisecond.
    pub start_ms: u64,
    /// First millisecond after.
    pub end_ms: u64,
    /// Text before the highlighted word, or all of it; one line.
    pub before: String,
    /// The highlighted word.
    pub highlight: String,
    /// Text after the highlighted word.
    pub after: String,
}

impl Cue {
    /// The whole text.
    pub fn text(&self) -> String {
        format!("{}{}{}", self.before, self.highlight, self.after)
    }
}

/// How long a cue may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most words; lines are filled up to it.
    pub words: usize,
    /// Most seconds.
    pub seconds: f64,
    /// Most characters.
    pub characters: usize,
}

impl Limits {
    /// None.
    pub const NONE: Limits = Limits { words: usize::MAX, seconds: f64::INFINITY, characters: usize::MAX };
    /// What can be read as a subtitle: two lines of 42 characters for seven seconds.
    pub const SUBTITLES: Limits = Limits { words: usize::MAX, seconds: 7.0, characters: 84 };

    /// Those that the options ask for, else `default`.
    pub(super) fn of(options: &FormatOptions, default: Limits) -> Limits {
        match (options.max_words, options.max_duration) {
            (None, None) => default,
            (words, seconds) => Limits {
                words: words.unwrap_or(usize::MAX).max(1),
                seconds: seconds.filter(|s| s.is_finite() && *s > 0.0).unwrap_or(f64::INFINITY),
                ..Limits::NONE
            },
        }
    }
}

/// The cues of a transcript: its segments, split where they exceed `limits`; with `highlight` one per word and one
/// per pause.
pub fn cues(transcript: &Transcript, limits: &Limits, highlight: bool) -> Vec<Cue> {
    let mut list = Vec::new();
    for segment in &transcript.segments {
        if segment.words.is_empty() {
            list.push(plain(segment.start, segment.end, &segment.text));
            continue;
        }
        for line in lines(&segment.words, limits) {
            if highlight {
                highlighted(line, &mut list);
            } else {
                list.push(whole(segment, line));
            }
        }
    }
    list.retain(|cue| !cue.text().is_empty());
    // whole milliseconds of audio; the small term undoes what a division by the sample rate leaves
    let end = transcript.start + transcript.duration;
    make_valid(&mut list, (end * 1e3 + 1e-6).floor() as u64);
    list
}

fn whole(segment: &Segment, line: &[Word]) -> Cue {
    let start = line.first().map_or(segment.start, |word| word.start);
    let end = line.iter().map(|word| word.end).fold(start, f64::max);
    plain(start, end, &join_words(line.iter().map(|word| word.word.as_str())))
}

fn plain(start: f64, end: f64, text: &str) -> Cue {
    Cue {
        start_ms: milliseconds(start),
        end_ms: milliseconds(end),
        before: one_line(text),
        highlight: String::new(),
        after: String::new(),
    }
}

/// A cue for each word of the line, and for each pause between two the line without highlight.
fn highlighted(line: &[Word], list: &mut Vec<Cue>) {
    let text = |words: &[Word]| one_line(&join_words(words.iter().map(|word| word.word.as_str())));
    let mut shown_until = line.first().map_or(0.0, |word| word.start);
    for (i, word) in line.iter().enumerate() {
        if word.start - shown_until >= 1e-3 {
            list.push(plain(shown_until, word.start, &text(line)));
        }
        let (mut before, mut after) = (text(&line[..i]), text(&line[i + 1..]));
        // the spaces that stand around the word in the joined text
        let joined = text(&line[..=i]);
        let highlight = one_line(&word.word);
        if !before.is_empty() && joined.len() > before.len() + highlight.len() {
            before.push(' ');
        }
        if !after.is_empty() && text(&line[i..]).len() > highlight.len() + after.len() {
            after.insert(0, ' ');
        }
        list.push(Cue {
            start_ms: milliseconds(word.start),
            end_ms: milliseconds(word.end),
            before,
            highlight,
            after,
        });
        shown_until = shown_until.max(word.end);
    }
}

/// The words in lines within the limits; a word too long for them is a line of its own.
fn lines<'a>(words: &'a [Word], limits: &Limits) -> Vec<&'a [Word]> {
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
    for (i, word) in words.iter().enumerate() {
        characters += word.word.chars().count() + usize::from(i > 0);
        let over =
            i >= limits.words || characters > limits.characters || word.end - start > limits.seconds + 1e-9;
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

/// Seconds to whole milliseconds; negative and NaN become 0.
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3).round() as u64
}

/// Makes the cues keep what [`Cue`] promises: a cue of no length gets a millisecond, one that runs into the next is
/// cut there, none reaches beyond `limit_ms`.
fn make_valid(cues: &mut [Cue], limit_ms: u64) {
    let limit = limit_ms.max(1);
    let mut earliest = 0;
    for cue in cues.iter_mut() {
        cue.start_ms = cue.start_ms.clamp(earliest, limit - 1);
        cue.end_ms = cue.end_ms.clamp(cue.start_ms + 1, limit);
        earliest = cue.start_ms;
    }
    for i in 1..cues.len() {
        let next = cues[i].start_ms;
        if next > cues[i - 1].start_ms {
            cues[i - 1].end_ms = cues[i - 1].end_ms.min(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(words: &[(&str, f64, f64)], duration: f64) -> Transcript {
        let word =
            |&(word, start, end): &(&str, f64, f64)| Word { word: word.into(), start, end, confidence: 1.0 };
        let words: Vec<Word> = words.iter().map(word).collect();
        let text = join_words(words.iter().map(|word| word.word.as_str()));
        let (start, end) = (words[0].start, words[words.len() - 1].end);
        Transcript {
            text: text.clone(),
            duration,
            segments: vec![Segment { id: 0, start, end, text, words }],
            ..Transcript::default()
        }
    }

    fn shown(transcript: &Transcript, limits: &Limits, highlight: bool) -> Vec<(u64, u64, String)> {
        cues(transcript, limits, highlight).iter().map(|cue| (cue.start_ms, cue.end_ms, cue.text())).collect()
    }

    fn expect(got: Vec<(u64, u64, String)>, want: &[(u64, u64, &str)]) {
        let got: Vec<_> = got.iter().map(|(start, end, text)| (*start, *end, text.as_str())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn lines_break_at_the_longest_pause_of_their_second_half() {
        let words: &[(&str, f64, f64)] = &[
            ("one", 0.0, 0.5),
            ("two", 0.5, 1.0),
            ("three", 1.9, 2.0),
            ("four", 2.0, 3.0),
            ("five", 3.0, 4.0),
        ];
        let transcript = transcript(words, 5.0);
        let limits = Limits { seconds: 3.0, ..Limits::NONE };
        expect(shown(&transcript, &limits, false), &[(0, 1000, "one two"), (1900, 4000, "three four five")]);
        let limits = Limits { words: 4, ..Limits::NONE };
        expect(shown(&transcript, &limits, false), &[(0, 3000, "one two three four"), (3000, 4000, "five")]);
        let limits = Limits { seconds: 1.0, ..Limits::NONE };
        let seconds =
            [(0, 1000, "one two"), (1900, 2000, "three"), (2000, 3000, "four"), (3000, 4000, "five")];
        expect(shown(&transcript, &limits, false), &seconds);
        let limits = Limits { characters: 9, ..Limits::NONE };
        let characters = [(0, 1000, "one two"), (1900, 2000, "three"), (2000, 4000, "four five")];
        expect(shown(&transcript, &limits, false), &characters);
        expect(shown(&transcript, &Limits::NONE, false), &[(0, 4000, "one two three four five")]);
    }

    #[test]
    fn a_comma_attracts_the_break() {
        let words: &[(&str, f64, f64)] =
            &[("a", 0.0, 1.0), ("b,", 1.0, 2.0), ("c", 2.0, 3.0), ("d", 3.1, 4.0)];
        let limits = Limits { seconds: 3.0, ..Limits::NONE };
        expect(shown(&transcript(words, 4.0), &limits, false), &[(0, 2000, "a b,"), (2000, 4000, "c d")]);
    }

    #[test]
    fn a_word_beyond_every_limit_stands_alone() {
        let words: &[(&str, f64, f64)] = &[("a", 0.0, 90.0), ("b", 90.0, 180.0)];
        let limits = Limits { words: 0, seconds: 1.0, characters: 0 };
        expect(shown(&transcript(words, 200.0), &limits, false), &[(0, 90_000, "a"), (90_000, 180_000, "b")]);
    }

    #[test]
    fn highlighting_walks_through_words_and_pauses() {
        let words: &[(&str, f64, f64)] = &[("a", 0.0, 1.0), ("b", 2.0, 3.0), ("?", 3.0, 3.5)];
        let transcript = transcript(words, 4.0);
        let got = cues(&transcript, &Limits::NONE, true);
        let parts: Vec<_> = got
            .iter()
            .map(|c| (c.start_ms, c.end_ms, c.before.as_str(), c.highlight.as_str(), c.after.as_str()))
            .collect();
        assert_eq!(
            parts,
            [
                (0, 1000, "", "a", " b?"),
                (1000, 2000, "a b?", "", ""),
                (2000, 3000, "a ", "b", "?"),
                (3000, 3500, "a b", "?", ""),
            ]
        );
    }

    #[test]
    fn cues_get_a_length_and_do_not_overlap_where_they_need_not() {
        // words of RNN-T that share a frame, at the very end of the clip too
        let words: &[(&str, f64, f64)] =
            &[("a", 0.08, 0.16), ("b", 0.08, 0.16), ("c", 0.1, 0.1), ("d", 0.5, 0.5), ("e", 0.5, 0.5)];
        let limits = Limits { words: 1, ..Limits::NONE };
        let want = [(80, 160, "a"), (80, 100, "b"), (100, 101, "c"), (499, 500, "d"), (499, 500, "e")];
        expect(shown(&transcript(words, 0.5), &limits, false), &want);
    }

    #[test]
    fn odd_times_are_tamed() {
        let words: &[(&str, f64, f64)] =
            &[("a", f64::NAN, -1.0), ("b", f64::INFINITY, f64::NAN), ("c", 0.2, 1e300)];
        let limits = Limits { words: 1, ..Limits::NONE };
        for duration in [0.0, 1.0, f64::NAN, f64::INFINITY] {
            let got = shown(&transcript(words, duration), &limits, false);
            assert_eq!(got.len(), 3);
            assert!(got.iter().all(|(start, end, _)| start < end), "{got:?}");
        }
    }

    #[test]
    fn a_segment_without_words_is_one_cue() {
        let segment = Segment { id: 0, start: 1.0, end: 2.0, text: "x\ny".into(), words: vec![] };
        let blank = Segment { text: " \n".into(), ..segment.clone() };
        let transcript =
            Transcript { duration: 3.0, segments: vec![segment, blank], ..Transcript::default() };
        expect(shown(&transcript, &Limits::SUBTITLES, true), &[(1000, 2000, "x y")]);
    }
}
