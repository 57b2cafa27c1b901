//! WebVTT: a header, a point before the milliseconds, `&`, `<` and `>` escaped.

use std::io::{self, Write};

use super::FormatOptions;
use super::cue::cues;
use super::txt::clock;
use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "WEBVTT\n")?;
    let (limits, width) = options.subtitles();
    for cue in cues(transcript, &limits, options.highlight_words) {
        let cue = cue.wrapped(width);
        writeln!(out, "{} --> {}", clock(cue.start_ms, '.'), clock(cue.end_ms, '.'))?;
        let (before, highlight, after) = (escape(&cue.before), escape(&cue.highlight), escape(&cue.after));
        let said_by = cue.speaker.map_or(String::new(), |s| format!("<v Speaker {}>", s + 1));
        if highlight.is_empty() {
            writeln!(out, "{said_by}{before}{after}\n")?;
        } else {
            writeln!(out, "{said_by}{before}<u>{highlight}</u>{after}\n")?;
        }
    }
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
