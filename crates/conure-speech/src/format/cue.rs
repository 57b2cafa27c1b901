//! Cues: pieces of a transcript that are shown at once.

use super::one_line;
use crate::result::{Segment, Transcript, Word, join_words};
use crate::split::{Limits, lines};

/// A text and when it is shown, in milliseconds: `start_ms < end_ms`, starts in order, all within the audio (of at
/// least a millisecond). Those of one speaker overlap only where they must.
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
    /// Who speaks, counted from 0, where speakers are told apart.
    pub speaker: Option<usize>,
}

impl Cue {
    /// The whole text.
    pub fn text(&self) -> String {
        format!("{}{}{}", self.before, self.highlight, self.after)
    }

    /// The cue with line breaks in place of spaces, so that no line is longer than `width` characters but for words that are; lines
    /// are filled from the first on.
    #[must_use]
    pub fn wrapped(mut self, width: usize) -> Cue {
        let mut column = 0;
        let text = self.text();
        let mut breaks = Vec::new();
        let mut at = 0;
        for (i, word) in text.split(' ').enumerate() {
            let length = word.chars().count();
            if i > 0 {
                if column + 1 + length > width {
                    breaks.push(at - 1);
                    column = length;
                } else {
                    column += 1 + length;
                }
            } else {
                column = length;
            }
            at += word.len() + 1;
        }
        let mut begin = 0;
        for part in [&mut self.before, &mut self.highlight, &mut self.after] {
            let end = begin + part.len();
            for place in breaks.iter().filter(|p| (begin..end).contains(*p)) {
                part.replace_range(place - begin..place - begin + 1, "\n");
            }
            begin = end;
        }
        self
    }
}

/// The cues of a transcript: its segments, split where they exceed `limits`; with `highlight` one per word and one
/// per pause.
pub fn cues(transcript: &Transcript, limits: &Limits, highlight: bool) -> Vec<Cue> {
    let mut list = Vec::new();
    for segment in &transcript.segments {
        if segment.words.is_empty() {
            list.push(plain(segment.start, segment.end, &segment.text, segment.speaker));
            continue;
        }
        for line in lines(&segment.words, limits) {
            if highlight {
                highlighted(line, segment.speaker, &mut list);
            } else {
                list.push(whole(segment, line));
            }
        }
    }
    list.retain(|cue| !cue.text().is_empty());
    // whole milliseconds of audio; the small term undoes what a division by the sample rate leaves
    let end = transcript.start + transcript.duration;
    let limit = (end * 1e3 + 1e-6).floor() as u64;
    // Speakers talk at the same time; only what one of them says is in a row.
    list.sort_by_key(|cue| cue.speaker);
    list.chunk_by_mut(|a, b| a.speaker == b.speaker).for_each(|cues| make_valid(cues, limit));
    list.sort_by_key(|cue| cue.start_ms);
    list
}

fn whole(segment: &Segment, line: &[Word]) -> Cue {
    let start = line.first().map_or(segment.start, |word| word.start);
    let end = line.iter().map(|word| word.end).fold(start, f64::max);
    plain(start, end, &join_words(line.iter().map(|word| word.word.as_str())), segment.speaker)
}

fn plain(start: f64, end: f64, text: &str, speaker: Option<usize>) -> Cue {
    Cue {
        start_ms: milliseconds(start),
        end_ms: milliseconds(end),
        before: one_line(text),
        highlight: String::new(),
        after: String::new(),
        speaker,
    }
}

/// A cue for each word of the line, and for each pause between two the line without highlight.
fn highlighted(line: &[Word], speaker: Option<usize>, list: &mut Vec<Cue>) {
    let text = |words: &[Word]| one_line(&join_words(words.iter().map(|word| word.word.as_str())));
    let mut shown_until = line.first().map_or(0.0, |word| word.start);
    for (i, word) in line.iter().enumerate() {
        if word.start - shown_until >= 1e-3 {
            list.push(plain(shown_until, word.start, &text(line), speaker));
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
            speaker,
        });
        shown_until = shown_until.max(word.end);
    }
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
            segments: vec![Segment { start, end, text, words, ..Segment::default() }],
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
        // two lines of nine characters hold `one two` and `three`, but not `four` as well
        let limits = Limits { lines: 2, width: 9, ..Limits::NONE };
        let wide = [(0, 1000, "one two"), (1900, 4000, "three four five")];
        expect(shown(&transcript, &limits, false), &wide);
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
        let limits = Limits { words: 0, seconds: 1.0, characters: 0, ..Limits::NONE };
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
    fn speakers_talk_at_the_same_time() {
        let [mut both, other] = [0.0, 0.1].map(|late: f64| {
            let words = [("a", late, 0.5), ("b", 0.5 + late, 1.0), ("c", 1.0 + late, 1.5)];
            transcript(&words, 2.0)
        });
        both.segments.extend(other.segments);
        for (speaker, segment) in both.segments.iter_mut().enumerate() {
            segment.speaker = Some(speaker);
        }
        let got = cues(&both, &Limits { words: 1, ..Limits::NONE }, false);
        let got: Vec<_> = got.iter().map(|c| (c.speaker.unwrap(), c.start_ms, c.end_ms, c.text())).collect();
        let want = [
            (0, 0, 500, "a"),
            (1, 100, 500, "a"),
            (0, 500, 1000, "b"),
            (1, 600, 1000, "b"),
            (0, 1000, 1500, "c"),
            (1, 1100, 1500, "c"),
        ];
        assert_eq!(got, want.map(|(speaker, start, end, text)| (speaker, start, end, text.to_owned())));
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
    fn lines_are_no_wider_than_asked_for() {
        let cue = |before: &str, highlight: &str, after: &str| Cue {
            start_ms: 0,
            end_ms: 1,
            before: before.into(),
            highlight: highlight.into(),
            after: after.into(),
            speaker: None,
        };
        for (cue, width, want) in [
            (cue("one two three four", "", ""), 9, "one two\nthree\nfour"),
            (cue("one two ", "three", " four"), 9, "one two\nthree\nfour"),
            (cue("", "ünö", " two three"), 7, "ünö two\nthree"),
            (cue("a verylongword b", "", ""), 4, "a\nverylongword\nb"),
            (cue("", "", ""), 4, ""),
            (cue("one two", "", ""), usize::MAX, "one two"),
        ] {
            let highlight = cue.highlight.clone();
            let wrapped = cue.wrapped(width);
            assert_eq!((wrapped.text().as_str(), &wrapped.highlight), (want, &highlight));
        }
    }

    #[test]
    fn a_segment_without_words_is_one_cue() {
        let segment = Segment { start: 1.0, end: 2.0, text: "x\ny".into(), ..Segment::default() };
        let blank = Segment { text: " \n".into(), ..segment.clone() };
        let transcript =
            Transcript { duration: 3.0, segments: vec![segment, blank], ..Transcript::default() };
        expect(shown(&transcript, &Limits::SUBTITLES, true), &[(1000, 2000, "x y")]);
    }
}
