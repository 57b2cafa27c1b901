//! Comma-separated: `start`, `end` in whole milliseconds, the text in quotes, quotes doubled (RFC 4180).

use std::io::{self, Write};

use super::cue::cues;
use super::{FormatOptions, Limits};
use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "start,end,text")?;
    for cue in cues(transcript, &options.limits(Limits::NONE), false) {
        writeln!(out, "{},{},\"{}\"", cue.start_ms, cue.end_ms, cue.text().replace('"', "\"\""))?;
    }
    Ok(())
}
