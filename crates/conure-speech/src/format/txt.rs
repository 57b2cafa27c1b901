//! Plain text.

use std::io::{self, Write};

use super::cue::cues;
use super::{FormatOptions, Limits, one_line};
use crate::result::Transcript;

/// The text on one line, or a line per cue behind its times.
pub(super) fn write(transcript: &Transcript, options: &FormatOptions, out: &mut dyn Write) -> io::Result<()> {
    if !options.timestamps && transcript.segments.iter().any(|s| s.speaker.is_some()) {
        return turns(transcript, out);
    }
    if !options.timestamps {
        // spaces stay as they are: the text is the model's
        let text =
            transcript.text.replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), " ");
        return writeln!(out, "{text}");
    }
    for cue in cues(transcript, &options.limits(Limits::NONE), false) {
        let said_by = cue.speaker.map_or(String::new(), |s| format!("Speaker {}: ", s + 1));
        let (start, end) = (clock(cue.start_ms, '.'), clock(cue.end_ms, '.'));
        writeln!(out, "[{start} --> {end}]  {said_by}{}", cue.text())?;
    }
    Ok(())
}

/// A line for each turn of a speaker.
fn turns(transcript: &Transcript, out: &mut dyn Write) -> io::Result<()> {
    for turn in transcript.segments.chunk_by(|a, b| a.speaker == b.speaker) {
        let texts: Vec<String> = turn.iter().map(|s| one_line(&s.text)).collect();
        let speaker = turn.first().and_then(|s| s.speaker).map_or(0, |s| s + 1);
        writeln!(out, "Speaker {speaker}: {}", texts.join(" "))?;
    }
    Ok(())
}

/// Milliseconds as `HH:MM:SS`, `separator`, three digits; hours grow beyond two digits.
pub fn clock(ms: u64, separator: char) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}{separator}{:03}", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks() {
        assert_eq!(clock(0, '.'), "00:00:00.000");
        assert_eq!(clock(3_723_004, ','), "01:02:03,004");
        assert_eq!(clock(359_999_999, '.'), "99:59:59.999");
        assert_eq!(clock(360_000_000, '.'), "100:00:00.000");
    }
}
