//! When words and segments were spoken.
//!
//! NeMo's rules, in encoder frames (a second is `offset * frame_seconds`):
//!
//! - A token covers: TDT `frame .. frame + duration`; RNN-T `frame .. frame + 1`; CTC from the frame of the token
//!   before (the first token: the frame before its own, at least 0) to its own frame.
//! - TDT: a punctuation mark covers nothing, at the end of the token before. CTC: a token that begins with
//!   punctuation ends where it starts.
//! - A word begins with a token that carries a word mark; a punctuation mark joins the word before.
//! - A segment ends with a word that ends in `.`, `?` or `!`.
//!
//! Special tokens belong to no word. Words of no characters, which NeMo gives for a lone word mark, are left out.

use std::ops::Range;

use conure_text::Vocabulary;

use crate::decode::Token;
use crate::result::{Segment, Word, join_words};
use crate::split::{Limits, lines};

/// Which rule gives the frames that a token covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Tokens of [`CtcGreedy`](crate::decode::ctc::CtcGreedy).
    Ctc,
    /// Tokens of [`RnntGreedy`](crate::decode::rnnt::RnntGreedy).
    Rnnt,
    /// Tokens of [`TdtGreedy`](crate::decode::tdt::TdtGreedy).
    Tdt,
}

impl Head {
    /// `ctc`, `rnnt` or `tdt`.
    pub fn name(self) -> &'static str {
        match self {
            Head::Ctc => "ctc",
            Head::Rnnt => "rnnt",
            Head::Tdt => "tdt",
        }
    }

    /// The encoder's result that this decoder reads, by the name under which it is captured.
    pub fn capture(self) -> &'static str {
        match self {
            Head::Ctc => "ctc.log_probs",
            Head::Rnnt | Head::Tdt => "joint.enc",
        }
    }
}

/// How words and segments are timed.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingOptions {
    /// Seconds of an encoder frame: hop * subsampling / sample rate, 0.08 for Parakeet.
    pub frame_seconds: f64,
    /// Length of the audio in seconds; no time lies beyond it.
    pub duration: f64,
    /// `None`: NeMo's times. `Some(n)`: a word does not stretch over a pause beside it: its first token counts from
    /// its own frame, its last covers at most `n` frames, and punctuation covers none, with every head. NeMo's
    /// rules let a long duration, or with CTC and RNN-T the time up to a late mark, count as part of the word.
    pub tight_frames: Option<usize>,
    /// Silence in seconds from one word to the next that ends a segment too; `None`: only punctuation does. (NeMo
    /// has the same option, but with it stops looking at punctuation after the first word of a segment.)
    pub segment_gap: Option<f64>,
    /// What ends a segment.
    pub segments: Segmentation,
    /// Most words and seconds of a segment; longer ones are cut where speech pauses.
    pub limits: Limits,
}

/// What ends a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// A word that ends in `.`, `?` or `!`, NeMo's rule; and a pause, where [`TimingOptions::segment_gap`] gives one.
    #[default]
    Sentence,
    /// A pause alone: of [`TimingOptions::segment_gap`], or half a second. For models that write no punctuation.
    Pause,
    /// Nothing: all words are one segment.
    Whole,
}

/// Seconds of a pause that ends a segment where no other are asked for: between breaths of read speech, not within.
const PAUSE: f64 = 0.5;

impl TimingOptions {
    /// NeMo's times for audio of `duration` seconds on Parakeet's frames of 80 ms.
    pub fn new(duration: f64) -> Self {
        TimingOptions {
            frame_seconds: 0.08,
            duration,
            tight_frames: None,
            segment_gap: None,
            segments: Segmentation::Sentence,
            limits: Limits::NONE,
        }
    }
}

/// Frames of [`TimingOptions::tight_frames`] that suit speech: 160 ms, about a syllable.
pub const TIGHT_FRAMES: usize = 2;

/// The encoder frames that each token covers.
pub fn token_spans(
    tokens: &[Token],
    head: Head,
    vocabulary: &Vocabulary,
    tight_frames: Option<usize>,
) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(tokens.len());
    for (i, token) in tokens.iter().enumerate() {
        let before = i.checked_sub(1);
        let own = token.frame..token.frame.saturating_add(token.duration);
        let mut span = match (head, tight_frames) {
            (_, Some(most)) => own.start..own.end.min(own.start.saturating_add(most)),
            (Head::Ctc, None) => {
                before.map_or(token.frame.saturating_sub(1), |b| tokens[b].frame)..token.frame
            }
            (Head::Rnnt | Head::Tdt, None) => own,
        };
        if let Some(before) = before {
            let mark = vocabulary.is_punctuation(token.id);
            if mark && (head == Head::Tdt || tight_frames.is_some()) {
                span = spans[before].end..spans[before].end;
            } else if head == Head::Ctc
                && tight_frames.is_none()
                && vocabulary.begins_with_punctuation(token.id)
            {
                span.end = span.start;
            }
        }
        spans.push(span);
    }
    spans
}

/// The words of tokens in the order of emission.
pub fn words(tokens: &[Token], head: Head, vocabulary: &Vocabulary, options: &TimingOptions) -> Vec<Word> {
    let spans = token_spans(tokens, head, vocabulary, options.tight_frames);
    let limit = if options.duration.is_finite() { options.duration.max(0.0) } else { 0.0 };
    let time = |frame: usize| (frame as f64 * options.frame_seconds).clamp(0.0, limit);
    let mut words: Vec<Word> = Vec::new();
    for group in word_groups(tokens, vocabulary) {
        let ids: Vec<u32> = group.ids.iter().map(|i| tokens[*i].id).collect();
        let text = vocabulary.decode(&ids);
        if text.trim().is_empty() {
            continue;
        }
        // a streaming reset or a joined piece must not make time run backwards
        let start = time(spans[group.first].start).max(words.last().map_or(0.0, |word| word.start));
        let confidence = group.ids.iter().map(|i| tokens[*i].confidence).fold(1.0, f32::min);
        let end = time(spans[group.last].end).max(start);
        words.push(Word { word: text.trim().to_owned(), start, end, confidence });
    }
    words
}

/// The segments of words in order.
pub fn segments(words: Vec<Word>, options: &TimingOptions) -> Vec<Segment> {
    let gap = match options.segments {
        Segmentation::Sentence => options.segment_gap,
        Segmentation::Pause => Some(options.segment_gap.unwrap_or(PAUSE)),
        Segmentation::Whole => None,
    };
    let mut segments = Vec::new();
    let mut current: Vec<Word> = Vec::new();
    let mut end = |current: &mut Vec<Word>| {
        for line in lines(current, &options.limits) {
            segments.push(segment(segments.len(), line.to_vec()));
        }
        current.clear();
    };
    for word in words {
        let pause = current.last().map_or(0.0, |last| word.start - last.end);
        // on the frame grid an exact gap may come out an ulp short
        if gap.is_some_and(|most| !current.is_empty() && pause >= most - 1e-9) {
            end(&mut current);
        }
        let sentence = options.segments == Segmentation::Sentence && word.word.ends_with(['.', '?', '!']);
        current.push(word);
        if sentence {
            end(&mut current);
        }
    }
    end(&mut current);
    segments
}

fn segment(id: usize, words: Vec<Word>) -> Segment {
    let start = words.first().map_or(0.0, |word| word.start);
    // with overlapping words (RNN-T) the last need not end last
    let end = words.iter().map(|word| word.end).fold(start, f64::max);
    let text = join_words(words.iter().map(|word| word.word.as_str()));
    Segment { id, start, end, text, words, speaker: None }
}

/// How many of the tokens belong to words that are complete: all but those of the last word, which may grow.
pub(crate) fn finished_tokens(tokens: &[Token], vocabulary: &Vocabulary) -> usize {
    word_groups(tokens, vocabulary).last().map_or(tokens.len(), |group| group.first)
}

/// Indices of the tokens of a word. `first` can be a lone word mark that is not among `ids`.
struct Group {
    first: usize,
    last: usize,
    ids: Vec<usize>,
}

fn word_groups(tokens: &[Token], vocabulary: &Vocabulary) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if vocabulary.is_special(token.id) {
            continue;
        }
        let mark = vocabulary.is_punctuation(token.id);
        match groups.last_mut() {
            Some(group) if mark || !vocabulary.starts_word(token.id) => {
                // NeMo: a word mark of its own before a punctuation mark makes no space
                let lone = |at: &usize| matches!(vocabulary.piece(tokens[*at].id), Some("\u{2581}" | "_"));
                if mark && group.ids.last().is_some_and(lone) {
                    group.ids.pop();
                }
                group.ids.push(i);
                group.last = i;
            }
            _ => groups.push(Group { first: i, last: i, ids: vec![i] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new([
            "<unk>",
            "\u{2581}a",
            "b",
            "\u{2581}c",
            ".",
            ",",
            "\u{2581}",
            "<EOU>",
            "'s",
            "\u{2581}d",
        ])
    }

    fn tokens(list: &[(&str, usize, usize)]) -> Vec<Token> {
        let vocabulary = vocabulary();
        let token = |&(piece, frame, duration): &(&str, usize, usize)| {
            let id = vocabulary.id(piece).unwrap_or(u32::MAX);
            Token { id, frame, duration, confidence: 1.0 - frame as f32 / 100.0 }
        };
        list.iter().map(token).collect()
    }

    /// (word, start, end), times in frames.
    fn timed(list: &[(&str, usize, usize)], head: Head, options: &TimingOptions) -> Vec<(String, f64, f64)> {
        let frames = |seconds: f64| (seconds / options.frame_seconds * 1000.0).round() / 1000.0;
        let words = words(&tokens(list), head, &vocabulary(), options);
        words.iter().map(|w| (w.word.clone(), frames(w.start), frames(w.end))).collect()
    }

    fn compare(got: Vec<(String, f64, f64)>, want: &[(&str, f64, f64)]) {
        let got: Vec<_> = got.iter().map(|(word, start, end)| (word.as_str(), *start, *end)).collect();
        assert_eq!(got, want);
    }

    const A: &str = "\u{2581}a";
    const C: &str = "\u{2581}c";

    #[test]
    fn a_word_does_not_stretch_over_a_pause_when_tight() {
        let nemo = TimingOptions::new(100.0);
        let tight = TimingOptions { tight_frames: Some(TIGHT_FRAMES), ..nemo.clone() };
        let list = [(A, 10, 4), (".", 40, 2), (C, 60, 1), ("b", 61, 4)];
        compare(timed(&list, Head::Tdt, &nemo), &[("a.", 10.0, 14.0), ("cb", 60.0, 65.0)]);
        compare(timed(&list, Head::Tdt, &tight), &[("a.", 10.0, 12.0), ("cb", 60.0, 63.0)]);
        // RNN-T gives a late mark its own frame, CTC starts a word where the one before was last heard
        compare(timed(&list, Head::Rnnt, &nemo), &[("a.", 10.0, 42.0), ("cb", 60.0, 65.0)]);
        compare(timed(&list, Head::Rnnt, &tight), &[("a.", 10.0, 12.0), ("cb", 60.0, 63.0)]);
        compare(timed(&list, Head::Ctc, &nemo), &[("a.", 9.0, 10.0), ("cb", 40.0, 61.0)]);
        compare(timed(&list, Head::Ctc, &tight), &[("a.", 10.0, 12.0), ("cb", 60.0, 63.0)]);
    }

    #[test]
    fn special_tokens_and_lone_word_marks_are_no_words() {
        let options = TimingOptions::new(100.0);
        let list = [("<unk>", 0, 1), (A, 1, 1), ("<EOU>", 2, 1), ("b", 3, 1), ("\u{2581}", 5, 1), (C, 6, 1)];
        compare(timed(&list, Head::Tdt, &options), &[("ab", 1.0, 4.0), ("c", 6.0, 7.0)]);
        compare(timed(&[("\u{2581}", 5, 1)], Head::Tdt, &options), &[]);
        compare(timed(&[("blank", 5, 1)], Head::Tdt, &options), &[]);
        // a word mark and the characters after it are one word, which starts with the mark
        compare(
            timed(&[(A, 0, 1), ("\u{2581}", 5, 1), ("b", 7, 1)], Head::Tdt, &options),
            &[("a", 0.0, 1.0), ("b", 5.0, 8.0)],
        );
        compare(timed(&[], Head::Ctc, &options), &[]);
    }

    #[test]
    fn times_stay_inside_the_audio_and_do_not_run_backwards() {
        let options = TimingOptions::new(0.5);
        compare(timed(&[(A, 5, 4), (C, 9, 4)], Head::Tdt, &options), &[("a", 5.0, 6.25), ("c", 6.25, 6.25)]);
        let wide = TimingOptions::new(100.0);
        compare(timed(&[(A, 50, 2), (C, 10, 2)], Head::Tdt, &wide), &[("a", 50.0, 52.0), ("c", 50.0, 50.0)]);
        let huge = tokens(&[(A, usize::MAX, usize::MAX)]);
        for duration in [f64::NAN, -1.0, f64::INFINITY] {
            let words = words(&huge, Head::Tdt, &vocabulary(), &TimingOptions::new(duration));
            assert!(words.iter().all(|w| w.start == 0.0 && w.end == 0.0), "{duration}");
        }
    }

    /// Whatever the tokens: every time is within the audio, words do not end before they start nor start before the
    /// one before, and the segments hold the words, no more and no fewer.
    #[test]
    fn random_tokens_give_times_in_order() {
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut below = |n: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % n) as usize
        };
        for round in 0..500 {
            let (mut frame, mut list) = (0, Vec::new());
            for _ in 0..below(40) {
                frame += below(2) * below(30);
                list.push(Token { id: below(12) as u32, frame, duration: below(5), confidence: 0.5 });
            }
            let options = TimingOptions {
                tight_frames: (below(2) == 0).then(|| below(4)),
                segment_gap: (below(2) == 0).then(|| below(20) as f64 * 0.08),
                segments: [Segmentation::Sentence, Segmentation::Pause, Segmentation::Whole][below(3)],
                limits: Limits::some(
                    (below(2) == 0).then(|| below(6)),
                    (below(2) == 0).then(|| below(40) as f64 / 10.0),
                ),
                ..TimingOptions::new(below(frame as u64 * 1280 + 2) as f64 / 16_000.0)
            };
            let head = [Head::Ctc, Head::Rnnt, Head::Tdt][below(3)];
            let words = words(&list, head, &vocabulary(), &options);
            for word in &words {
                let inside = 0.0 <= word.start && word.start <= word.end && word.end <= options.duration;
                assert!(inside && !word.word.trim().is_empty(), "round {round}: {word:?}");
                assert!(!word.word.contains(['<', '\u{2581}']), "round {round}: {word:?}");
            }
            assert!(words.windows(2).all(|pair| pair[0].start <= pair[1].start), "round {round}");
            let segments = segments(words.clone(), &options);
            assert!(segments.iter().all(|s| s.words.iter().all(|w| s.start <= w.start && w.end <= s.end)));
            assert!(segments.iter().enumerate().all(|(id, s)| s.id == id && !s.words.is_empty()));
            let within = |s: &Segment| {
                let seconds = s.words.iter().map(|w| w.end - s.start).fold(0.0, f64::max);
                let one = s.words.len() == 1;
                s.words.len() <= options.limits.words && (one || seconds <= options.limits.seconds + 1e-6)
            };
            assert!(segments.iter().all(within), "round {round}: {:?} {segments:?}", options.limits);
            if options.segments == Segmentation::Whole && options.limits == Limits::NONE {
                assert!(segments.len() <= 1, "round {round}");
            }
            assert_eq!(segments.into_iter().flat_map(|s| s.words).collect::<Vec<_>>(), words);
        }
    }

    #[test]
    fn a_word_is_as_sure_as_its_least_sure_token() {
        let words = words(
            &tokens(&[(A, 1, 1), ("b", 40, 1), (C, 41, 1)]),
            Head::Tdt,
            &vocabulary(),
            &TimingOptions::new(9.0),
        );
        let sure: Vec<f32> = words.iter().map(|w| w.confidence).collect();
        assert!((sure[0] - 0.6).abs() < 1e-6 && (sure[1] - 0.59).abs() < 1e-6, "{sure:?}");
    }

    /// Pauses of 8 frames and of none: only the former end a segment, marks or not; limits cut at the pauses first.
    #[test]
    fn segments_end_at_pauses_or_nowhere() {
        let list = [(A, 0, 1), (".", 1, 1), (C, 2, 1), (A, 11, 1), (C, 12, 1), ("\u{2581}d", 14, 1)];
        let texts = |segments: Segmentation, limits: Limits| -> Vec<String> {
            let options = TimingOptions { segments, limits, ..TimingOptions::new(100.0) };
            let words = words(&tokens(&list), Head::Tdt, &vocabulary(), &options);
            super::segments(words, &options).into_iter().map(|s| s.text).collect()
        };
        assert_eq!(texts(Segmentation::Sentence, Limits::NONE), ["a.", "c a c d"]);
        assert_eq!(texts(Segmentation::Pause, Limits::NONE), ["a. c", "a c d"]);
        assert_eq!(texts(Segmentation::Whole, Limits::NONE), ["a. c a c d"]);
        assert_eq!(texts(Segmentation::Whole, Limits::some(Some(2), None)), ["a. c", "a c", "d"]);
        assert_eq!(texts(Segmentation::Whole, Limits::some(None, Some(0.9))), ["a. c", "a c d"]);
    }

    #[test]
    fn segments_end_at_sentence_marks_and_at_gaps() {
        let list = [
            (A, 0, 2),
            (C, 2, 2),
            (".", 4, 1),
            (A, 30, 1),
            ("'s", 31, 1),
            (",", 32, 1),
            (C, 40, 2),
            ("\u{2581}d", 45, 1),
        ];
        let texts = |gap: Option<f64>| -> Vec<(usize, String, f64, f64)> {
            let options = TimingOptions { segment_gap: gap, ..TimingOptions::new(100.0) };
            let words = words(&tokens(&list), Head::Tdt, &vocabulary(), &options);
            let frames = |seconds: f64| (seconds / 0.08).round();
            segments(words, &options)
                .into_iter()
                .map(|s| (s.id, s.text, frames(s.start), frames(s.end)))
                .collect()
        };
        let sentence = (0, "a c.".to_owned(), 0.0, 4.0);
        assert_eq!(texts(None), [sentence.clone(), (1, "a's, c d".to_owned(), 30.0, 46.0)]);
        let parts = [sentence, (1, "a's,".to_owned(), 30.0, 32.0), (2, "c d".to_owned(), 40.0, 46.0)];
        assert_eq!(texts(Some(8.0 * 0.08)), parts);
        assert_eq!(texts(Some(8.1 * 0.08)).len(), 2);
        assert_eq!(segments(vec![], &TimingOptions::new(1.0)), []);
    }
}
