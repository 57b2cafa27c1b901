//! WebVTT: a header, a point before the milliseconds, `&`, `<` and `>` escaped.

use std::io::{self, Write};

use super::FormatOptions;
use super::cue::{Limits, cues};
use super::txt::clock;
use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "WEBVTT\n")?;
    let limits = Limits::of(options, Limits::SUBTITLES);
    for cue in cues(transcript, &limits, options.highlight_words) {
        writeln!(out, "{} --> {}", clock(cue.start_ms, '.'), clock(cue.end_ms, '.'))?;
        let (before, highlight, after) = (escape(&cue.before), escape(&cue.highlight), escape(&cue.after));
        if highlight.is_empty() {
            writeln!(out, "{before}{after}\n")?;
        } else {
            writeln!(out, "{before}<u>{highlight}</u>{after}\n")?;
        }
    }
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
