//! SubRip: numbered cues, a comma before the milliseconds, a blank line after each.

use std::io::{self, Write};

use super::FormatOptions;
use super::cue::cues;
use super::txt::clock;
use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    let (limits, width) = options.subtitles();
    for (number, cue) in (1u64..).zip(cues(transcript, &limits, options.highlight_words)) {
        let cue = cue.wrapped(width);
        writeln!(out, "{number}\n{} --> {}", clock(cue.start_ms, ','), clock(cue.end_ms, ','))?;
        let (before, highlight, after) = (escape(&cue.before), escape(&cue.highlight), escape(&cue.after));
        let said_by = cue.speaker.map_or(String::new(), |s| format!("Speaker {}: ", s + 1));
        if highlight.is_empty() {
            writeln!(out, "{said_by}{before}{after}\n")?;
        } else {
            writeln!(out, "{said_by}{before}<u>{highlight}</u>{after}\n")?;
        }
    }
    Ok(())
}

/// SubRip knows no escape: an arrow is what a reader looks for to find the times, so none may stand in the text.
fn escape(text: &str) -> String {
    let mut text = text.to_owned();
    while text.contains("-->") {
        text = text.replace("-->", "->");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn no_arrow_is_left() {
        for (text, want) in [("a --> b", "a -> b"), ("---->", "->"), ("-->-->", "->->"), ("<i>", "<i>")] {
            assert_eq!(escape(text), want);
        }
    }
}
