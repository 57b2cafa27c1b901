//! What can go wrong between a file and its samples, and what was survived.

use std::fmt;

/// Why audio could not be read: the input's name and the reason.
///
/// Displays as `NAME: REASON`, one line, with what to do next where there is something to do.
#[derive(Debug)]
pub struct AudioError {
    /// The file name, or the name the caller gave the bytes or the pipe.
    pub name: String,
    /// The reason.
    pub kind: AudioErrorKind,
}

impl AudioError {
    /// The error of the input called `name`.
    /// An error about the input called `name`.
    pub fn new(name: &str, kind: AudioErrorKind) -> AudioError {
        AudioError { name: name.to_owned(), kind }
    }

    /// A stable machine-readable name of the reason, for a server's error body.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }
}

impl fmt::Display for AudioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name.escape_debug(), self.kind)
    }
}

impl std::error::Error for AudioError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            AudioErrorKind::Open(source) | AudioErrorKind::Read(source) | AudioErrorKind::Spool(source) => {
                Some(source)
            }
            _ => None,
        }
    }
}

/// The reasons of an [`AudioError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioErrorKind {
    /// The file could not be opened.
    #[error("cannot open: {0}")]
    Open(std::io::Error),
    /// The path is a directory.
    #[error("this is a directory; give the audio files in it by name")]
    Directory,
    /// Reading failed half-way.
    #[error("cannot read: {0}")]
    Read(std::io::Error),
    /// A pipe could not be kept in a temporary file.
    #[error(
        "cannot keep the piped input in a temporary file: {0}; free space in the temporary directory or give a file"
    )]
    Spool(std::io::Error),
    /// More bytes than [`crate::decode::DecodeOptions::max_bytes`].
    #[error("the input is longer than the limit of {limit} bytes")]
    TooManyBytes {
        /// The limit, in bytes.
        limit: u64,
    },
    /// No bytes at all.
    #[error("the file is empty (0 bytes)")]
    Empty,
    /// A known format that is not read.
    #[error("this is {what}, which Conure does not read; {advice}")]
    Unsupported {
        /// The format's name, such as "WMA (Windows Media Audio)".
        what: String,
        /// What to do instead.
        advice: String,
    },
    /// Nothing that is known. `start` shows the first bytes.
    #[error(
        "not audio in any format Conure reads (it begins with {start}); expected WAV, FLAC, MP3, Ogg Vorbis, Opus, \
             AAC or ALAC in M4A/MP4, AIFF, CAF, MKV or WebM. Samples without a header need --raw FORMAT:RATE:CHANNELS"
    )]
    Unrecognised {
        /// The first bytes, readable.
        start: String,
    },
    /// A container without a sound track.
    #[error("{container} with no audio track in it")]
    NoAudioTrack {
        /// The container's name.
        container: String,
    },
    /// The format is known, but the content breaks its rules so early that nothing can be decoded.
    #[error("damaged or not really {format}: {reason}")]
    Malformed {
        /// The format's name.
        format: String,
        /// What is wrong.
        reason: String,
    },
    /// Damage, with [`crate::decode::DecodeOptions::strict`].
    #[error("{0} (strict mode: damage is an error)")]
    Damaged(Warning),
    /// Longer than [`crate::decode::DecodeOptions::max_seconds`].
    #[error(
        "the audio is longer than the limit of {limit} s; cut it into shorter files, or read only a part of it (--duration)"
    )]
    TooLong {
        /// The limit, in seconds.
        limit: f64,
    },
    /// `--channel` asks for a channel that is not there.
    #[error("channel {wanted} asked for, but there are {channels}: give 0 to {}", .channels - 1)]
    NoSuchChannel {
        /// The channel asked for, from 0.
        wanted: usize,
        /// How many there are.
        channels: usize,
    },
}

impl AudioErrorKind {
    pub(crate) fn malformed(format: impl Into<String>, reason: impl Into<String>) -> AudioErrorKind {
        AudioErrorKind::Malformed { format: format.into(), reason: reason.into() }
    }

    /// A stable machine-readable name.
    pub fn code(&self) -> &'static str {
        match self {
            AudioErrorKind::Open(_) => "audio_open_failed",
            AudioErrorKind::Directory => "audio_is_directory",
            AudioErrorKind::Read(_) => "audio_read_failed",
            AudioErrorKind::Spool(_) => "audio_spool_failed",
            AudioErrorKind::TooManyBytes { .. } => "audio_too_many_bytes",
            AudioErrorKind::Empty => "audio_empty",
            AudioErrorKind::Unsupported { .. } => "audio_unsupported_format",
            AudioErrorKind::Unrecognised { .. } => "audio_unrecognised_format",
            AudioErrorKind::NoAudioTrack { .. } => "audio_no_audio_track",
            AudioErrorKind::Malformed { .. } => "audio_malformed",
            AudioErrorKind::Damaged(_) => "audio_damaged",
            AudioErrorKind::TooLong { .. } => "audio_too_long",
            AudioErrorKind::NoSuchChannel { .. } => "audio_no_such_channel",
        }
    }
}

/// Something that was survived, with the time it concerns.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    /// What kind of thing.
    pub kind: WarningKind,
    /// In words, without the time.
    pub message: String,
    /// Where it begins, in seconds from the start of the decoded audio.
    pub start: f64,
    /// Where it ends, in seconds; `None` when that cannot be known.
    pub end: Option<f64>,
}

/// What is said of another file that stands behind the sound and is not read, with its length in bytes if that is known.
pub(crate) fn joined(format: &str, bytes: Option<u64>) -> String {
    let bytes = bytes.map_or(String::new(), |n| format!(" ({n} bytes)"));
    format!(
        "another file ({format}) is joined to the end of this one; it was left out{bytes}: give each by itself"
    )
}

/// The kinds of [`Warning`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningKind {
    /// The end of the audio is missing. What came before is decoded.
    TruncatedTail,
    /// A part could not be decoded. Silence of the same length stands for it, so that later times stay right.
    LostSpan,
    /// A part is missing whose length is not known; later times may be early.
    LostUnknown,
    /// Samples that were not finite numbers, or far too large to be sound, replaced by 0.
    NonFinite,
    /// A size in the header contradicts the file; the bytes that are there were read.
    HeaderLies,
    /// Something that is not damage but good to know (a second sound track, a format change).
    Note,
}

impl WarningKind {
    /// Whether strict mode makes an error of it.
    pub fn is_damage(self) -> bool {
        !matches!(self, WarningKind::Note)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Some(end) => write!(f, "{} ({:.3} s to {:.3} s)", self.message, self.start, end),
            None if self.kind == WarningKind::Note => write!(f, "{}", self.message),
            None => write!(f, "{} (from {:.3} s)", self.message, self.start),
        }
    }
}

/// Collects warnings; neighbours of one kind become one, and a damaged file cannot fill the memory with them.
#[derive(Debug, Default)]
pub(crate) struct WarningLog {
    list: Vec<Warning>,
    suppressed: usize,
}

impl WarningLog {
    const MAX: usize = 64;

    pub(crate) fn push(&mut self, warning: Warning) {
        if let (Some(last), Some(end)) = (self.list.last_mut(), warning.end)
            && last.kind == warning.kind
            && last.message == warning.message
            && last.end.is_some_and(|e| warning.start <= e + 0.5)
        {
            last.end = Some(end.max(last.end.unwrap_or(end)));
            return;
        }
        if self.list.len() < Self::MAX {
            self.list.push(warning);
            return;
        }
        self.suppressed += 1;
        if let Some(last) = self.list.last_mut() {
            last.message = format!("{} more places could not be decoded", self.suppressed + 1);
            last.end = warning.end.or(last.end);
        }
    }

    pub(crate) fn list(&self) -> &[Warning] {
        &self.list
    }

    pub(crate) fn first_damage(&self) -> Option<&Warning> {
        self.list.iter().find(|w| w.kind.is_damage())
    }

    pub(crate) fn into_list(self) -> Vec<Warning> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(start: f64, end: f64) -> Warning {
        Warning { kind: WarningKind::LostSpan, message: "lost".into(), start, end: Some(end) }
    }

    #[test]
    fn neighbours_are_joined_and_the_number_is_bounded() {
        let mut log = WarningLog::default();
        log.push(lost(1.0, 1.1));
        log.push(lost(1.2, 1.3));
        log.push(lost(9.0, 9.5));
        assert_eq!(log.list(), &[lost(1.0, 1.3), lost(9.0, 9.5)]);
        for i in 0..1000 {
            log.push(lost(20.0 + 10.0 * f64::from(i), 21.0 + 10.0 * f64::from(i)));
        }
        assert_eq!(log.list().len(), WarningLog::MAX);
        assert!(log.list().last().unwrap().message.contains("more places"));
    }

    #[test]
    fn a_hostile_name_stays_on_one_line() {
        let e = AudioError::new("a\nb\u{1b}[31m.wav", AudioErrorKind::Empty);
        assert_eq!(e.to_string(), "a\\nb\\u{1b}[31m.wav: the file is empty (0 bytes)");
    }
}
