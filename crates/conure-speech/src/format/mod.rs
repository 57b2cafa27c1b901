//! Output formats, one file each.
//!
//! Times are written to the millisecond. Text cannot break a format: line breaks and control characters become
//! spaces, and each format escapes what it must.

mod csv;
mod cue;
mod json;
mod srt;
mod tsv;
mod txt;
mod vtt;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

pub use crate::split::Limits;
pub use cue::{Cue, cues};
pub use txt::clock;

use crate::result::Transcript;

/// A format that transcripts are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputFormat {
    /// The text; with [`FormatOptions::timestamps`] a line per segment behind its times.
    Txt,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// `start`, `end` (integer milliseconds) and `text`, separated by tabs, as whisper writes it.
    Tsv,
    /// As TSV, separated by commas, the text quoted.
    Csv,
    /// The whole [`Transcript`].
    Json,
}

impl OutputFormat {
    /// Every format.
    pub const ALL: [OutputFormat; 6] = [
        OutputFormat::Txt,
        OutputFormat::Srt,
        OutputFormat::Vtt,
        OutputFormat::Tsv,
        OutputFormat::Csv,
        OutputFormat::Json,
    ];

    /// Name, and extension of files: `txt`, `srt`, `vtt`, `tsv`, `csv` or `json`.
    pub fn name(self) -> &'static str {
        match self {
            OutputFormat::Txt => "txt",
            OutputFormat::Srt => "srt",
            OutputFormat::Vtt => "vtt",
            OutputFormat::Tsv => "tsv",
            OutputFormat::Csv => "csv",
            OutputFormat::Json => "json",
        }
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`OutputFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no output format {0:?}; the formats are txt, srt, vtt, tsv, csv and json")]
pub struct UnknownFormat(pub String);

impl FromStr for OutputFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let known = OutputFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

/// How transcripts are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FormatOptions {
    /// TXT: a line per segment, `[00:00:00.000 --> 00:00:04.000]  text`, instead of the text.
    pub timestamps: bool,
    /// Words of a cue or line; longer segments are split.
    pub max_words: Option<usize>,
    /// Most seconds of a cue or line; longer segments are split at their pauses. SRT and VTT split at [`Limits::SUBTITLES`] where neither this nor `max_words`
    /// is given, since a text without punctuation is one segment; the other formats split only when asked to.
    pub max_duration: Option<f64>,
    /// SRT and VTT: most characters of a line of a cue; longer texts have several lines.
    pub max_line_width: Option<usize>,
    /// SRT and VTT: most lines of a cue, 2 by default where there is a width; longer texts are several cues.
    pub max_lines: Option<usize>,
    /// SRT and VTT: a cue per word, which is underlined in the text of its line.
    pub highlight_words: bool,
}

impl FormatOptions {
    /// The limits of cues and lines that are asked for, else `default`.
    fn limits(&self, default: Limits) -> Limits {
        match (self.max_words, self.max_duration) {
            (None, None) => default,
            (words, seconds) => Limits::some(words, seconds),
        }
    }

    /// The limits of subtitles, and the width of their lines.
    fn subtitles(&self) -> (Limits, usize) {
        let limits = self.limits(Limits::SUBTITLES);
        let Some(width) = self.max_line_width.map(|w| w.max(1)) else { return (limits, usize::MAX) };
        let lines = self.max_lines.unwrap_or(2).max(1);
        (Limits { characters: usize::MAX, width, lines, ..limits }, width)
    }
}

/// Writes a transcript.
///
/// # Errors
/// Those of `out`.
pub fn write(
    transcript: &Transcript,
    format: OutputFormat,
    options: &FormatOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        OutputFormat::Txt => txt::write(transcript, options, out),
        OutputFormat::Srt => srt::write(transcript, options, out),
        OutputFormat::Vtt => vtt::write(transcript, options, out),
        OutputFormat::Tsv => tsv::write(transcript, options, out),
        OutputFormat::Csv => csv::write(transcript, options, out),
        OutputFormat::Json => json::write(transcript, out),
    }
}

/// `text` on one line: runs of spaces, line breaks and control characters become one space.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let parts = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|part| !part.is_empty());
    for part in parts {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(part);
    }
    line
}
