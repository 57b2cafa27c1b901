//! Holes: stretches where somebody speaks and the decoder gave nothing. They are heard again by themselves.

use super::stitch::{Seam, join};
use crate::decode::Token;
use conure_audio::vad::{FRAME_SECONDS, SpanOptions, speech};
use conure_text::Vocabulary;
use std::ops::Range;

/// The shortest hole, and how much of it must be speech, in seconds. In real speech, read or spontaneous, 8 s without a
/// word are a pause or a fault.
const HOLE: f64 = 8.0;
const SPEECH: f64 = 3.0;
/// What is heard with it on both sides.
const MARGIN: f64 = 1.0;

/// The holes of a window of `frames` encoder frames, in such frames.
pub(super) fn holes(
    tokens: &[Token],
    frames: usize,
    frame_seconds: f64,
    probabilities: &[f32],
) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(tokens.iter().map(|t| t.frame + t.duration));
    let ends = tokens.iter().map(|t| t.frame).chain([frames]);
    let long = |r: &Range<usize>| r.len() as f64 * frame_seconds >= HOLE;
    let gaps: Vec<Range<usize>> = starts.zip(ends).map(|(a, b)| a..b).filter(long).collect();
    if gaps.is_empty() {
        return gaps;
    }
    let spans = speech(probabilities, &SpanOptions::default());
    let spoken = |gap: &Range<usize>| -> f64 {
        let at = |frame: usize| (frame as f64 * frame_seconds / FRAME_SECONDS) as usize;
        let (from, to) = (at(gap.start), at(gap.end));
        spans.iter().map(|s| s.end.min(to).saturating_sub(s.start.max(from)) as f64 * FRAME_SECONDS).sum()
    };
    gaps.into_iter().filter(|gap| spoken(gap) >= SPEECH).collect()
}

/// The encoder frames that are heard again for a hole.
pub(super) fn again(hole: &Range<usize>, frames: usize, frame_seconds: f64) -> Range<usize> {
    let margin = (MARGIN / frame_seconds) as usize;
    hole.start.saturating_sub(margin)..(hole.end + margin).min(frames)
}

/// Puts `found`, what was heard again in the frames `heard`, into the hole.
pub(super) fn fill(
    tokens: &mut Vec<Token>,
    hole: &Range<usize>,
    found: &[Token],
    heard: &Range<usize>,
    vocabulary: &Vocabulary,
) {
    if found.is_empty() {
        return;
    }
    let split = tokens.partition_point(|t| t.frame < hole.end);
    let after = tokens.split_off(split);
    join(tokens, found, &Seam { from: heard.start, cut: hole.start, to: hole.start }, vocabulary);
    join(tokens, &after, &Seam { from: hole.end, cut: hole.end, to: heard.end }, vocabulary);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: f64 = 0.08;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new(["\u{2581}a", "\u{2581}b", "\u{2581}c", "\u{2581}d", "."])
    }

    fn tokens(list: &[(u32, usize)]) -> Vec<Token> {
        list.iter().map(|&(id, frame)| Token { id, frame, duration: 1, confidence: 1.0 }).collect()
    }

    #[test]
    fn holes_are_long_and_spoken_in() {
        // 60 s, speech from 10 to 30 s and from 35 to 37 s.
        let spoken: Vec<f32> = (0..1875)
            .map(|i| f64::from(i) * FRAME_SECONDS)
            .map(|at| if (10.0..30.0).contains(&at) || (35.0..37.0).contains(&at) { 0.9 } else { 0.1 })
            .collect();
        let all_over = [(0, 100), (0, 190), (0, 280), (0, 370), (0, 460), (0, 550), (0, 640)];
        for (what, list, expected) in [
            ("nothing heard at all", &[][..], &[(0, 750)][..]),
            ("words all over", &all_over, &[]),
            ("holes in speech", &[(0, 130), (0, 240), (0, 350), (0, 450)], &[(131, 240), (241, 350)]),
            ("pauses only", &[(0, 130), (0, 200), (0, 290), (0, 340), (0, 376)], &[]),
            ("two seconds of speech in a long gap", &[(0, 100), (0, 190), (0, 280), (0, 376)], &[]),
        ] {
            let found = holes(&tokens(list), 750, FRAME, &spoken);
            let found: Vec<(usize, usize)> = found.iter().map(|h| (h.start, h.end)).collect();
            assert_eq!(found, expected, "{what}");
        }
        assert!(holes(&tokens(&[(0, 10), (0, 90)]), 120, FRAME, &spoken).is_empty(), "no gap is long");
    }

    #[test]
    fn a_hole_is_filled_between_its_neighbours() {
        let hole = 11..200;
        let heard = again(&hole, 260, FRAME);
        assert_eq!(heard, 0..212);
        let mut all = tokens(&[(0, 10), (3, 200), (4, 220)]);
        fill(&mut all, &hole, &tokens(&[(0, 9), (1, 50), (2, 120), (3, 201)]), &heard, &vocabulary());
        let ids: Vec<u32> = all.iter().map(|t| t.id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        let mut all = tokens(&[(0, 10), (4, 200)]);
        fill(&mut all, &hole, &[], &heard, &vocabulary());
        assert_eq!(all, tokens(&[(0, 10), (4, 200)]));
    }
}
