//! From probabilities of speech to spans of speech, pauses, and places to cut.

use super::FRAME_SECONDS;
use std::ops::Range;

/// How spans are made of probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanOptions {
    /// A probability from which on speech begins.
    pub threshold: f32,
    /// A probability below which it ends; lower than `threshold`, so that it does not flicker.
    pub release: f32,
    /// Shorter spans, in seconds, are no speech.
    pub min_speech: f64,
    /// Shorter pauses, in seconds, do not part two spans.
    pub min_silence: f64,
}

impl Default for SpanOptions {
    /// Half a chance to begin, 0.35 to go on; speech of a quarter and pauses of a tenth of a second, as Silero has them.
    fn default() -> SpanOptions {
        SpanOptions { threshold: 0.5, release: 0.35, min_speech: 0.25, min_silence: 0.1 }
    }
}

/// The spans of speech, in frames of [`FRAME_SECONDS`], in order.
pub fn speech(probabilities: &[f32], options: &SpanOptions) -> Vec<Range<usize>> {
    let frames = |seconds: f64| (seconds / FRAME_SECONDS).round() as usize;
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut begun = None;
    for (at, &p) in probabilities.iter().chain(&[f32::NEG_INFINITY]).enumerate() {
        match begun {
            None if p >= options.threshold => begun = Some(at),
            Some(start) if p < options.release => {
                begun = None;
                match spans.last_mut() {
                    Some(last) if start - last.end < frames(options.min_silence) => last.end = at,
                    _ => spans.push(start..at),
                }
            }
            _ => {}
        }
    }
    spans.retain(|s| s.len() >= frames(options.min_speech));
    spans
}

/// Spans made longer by `pad` frames at both ends, within `0 .. end`; those that then meet become one.
pub fn padded(spans: &[Range<usize>], pad: usize, end: usize) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for span in spans {
        let (from, to) = (span.start.saturating_sub(pad), span.end.saturating_add(pad).min(end));
        match out.last_mut() {
            Some(last) if from <= last.end => last.end = to.max(last.end),
            _ => out.push(from..to),
        }
    }
    out
}

/// The longest pause among `probabilities`: its frames. Where nothing falls below `release`, the frame least likely to
/// be speech; `None` of nothing. The last of equals.
pub fn longest_pause(probabilities: &[f32], release: f32) -> Option<Range<usize>> {
    let mut longest: Option<Range<usize>> = None;
    let mut begun = None;
    for (at, &p) in probabilities.iter().chain(&[f32::INFINITY]).enumerate() {
        match begun {
            None if p < release => begun = Some(at),
            Some(start) if p >= release => {
                begun = None;
                if longest.as_ref().is_none_or(|l| at - start >= l.len()) {
                    longest = Some(start..at);
                }
            }
            _ => {}
        }
    }
    longest.or_else(|| {
        let least = probabilities.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        least.map(|(at, _)| at..at + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter a frame: `#` speech, `+` between release and threshold, `.` silence.
    fn letters(text: &str) -> Vec<f32> {
        text.chars()
            .map(|c| {
                if c == '#' {
                    0.9
                } else if c == '+' {
                    0.4
                } else {
                    0.1
                }
            })
            .collect()
    }

    fn pairs(spans: &[Range<usize>]) -> Vec<(usize, usize)> {
        spans.iter().map(|s| (s.start, s.end)).collect()
    }

    #[test]
    fn spans_begin_high_end_low_and_bridge_short_pauses() {
        // Pauses under 3 frames are bridged, spans under 8 frames dropped.
        for (text, expected) in [
            ("", &[][..]),
            ("........", &[]),
            ("..##########..", &[(2, 12)]),
            ("++##########++++..", &[(2, 16)]),
            ("..+++..##########", &[(7, 17)]),
            ("#####..#####", &[(0, 12)]),
            ("##########...##########", &[(0, 10), (13, 23)]),
            ("...#######...", &[]),
            ("###########", &[(0, 11)]),
        ] {
            assert_eq!(pairs(&speech(&letters(text), &SpanOptions::default())), expected, "{text}");
        }
    }

    #[test]
    fn padding_joins_what_meets() {
        assert_eq!(pairs(&padded(&[5..10, 13..20, 40..50], 2, 51)), [(3, 22), (38, 51)]);
        assert_eq!(pairs(&padded(&[1..2, 90..91], 3, 92)), [(0, 5), (87, 92)]);
    }

    #[test]
    fn the_longest_pause_is_where_to_cut() {
        for (text, expected) in [
            ("##..###....##...", Some(7..11)),
            ("##..##..", Some(6..8)),
            ("....", Some(0..4)),
            ("##+#", Some(2..3)),
            ("", None),
        ] {
            assert_eq!(longest_pause(&letters(text), 0.35), expected, "{text}");
        }
    }
}
