//! Tab-separated: `start`, `end` in whole milliseconds, `text`.

use std::io::{self, Write};

use super::cue::cues;
use super::{FormatOptions, Limits};
use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "start\tend\ttext")?;
    for cue in cues(transcript, &options.limits(Limits::NONE), false) {
        writeln!(out, "{}\t{}\t{}", cue.start_ms, cue.end_ms, cue.text())?;
    }
    Ok(())
}
