//! What a container's reader tells of a track, and the packets that it gives.

use std::io;
use std::ops::Range;

use symphonia::core::codecs::audio::AudioCodecParameters;

use crate::error::AudioErrorKind;

/// Encoded sound and its place. All times are in samples of one channel.
#[derive(Debug, Default, Clone)]
pub(crate) struct Packet {
    pub(crate) data: Vec<u8>,
    /// Where the first decoded sample belongs.
    pub(crate) at: Option<i64>,
    /// How many samples it should decode to, trimmed ones included; 0 if not known.
    pub(crate) duration: u64,
    /// Decoded samples to leave out at the beginning and at the end.
    pub(crate) trim: (u64, u64),
    /// Something before is missing, so that a decoder should not go on from it.
    pub(crate) reset: bool,
    /// Damage was jumped over before it, which is worth a warning even if no time is missing.
    pub(crate) damage: bool,
}

/// Why there is no packet.
#[derive(Debug)]
pub(crate) enum SourceError {
    Read(io::Error),
    /// The file ends too early.
    Truncated(String),
    /// This packet is lost, but the next may be read.
    Damaged,
    /// Nothing more can be read.
    Broken(String),
    /// Another stream begins here (chained Ogg), with its own parameters.
    NewStream(Box<Track>),
}

impl SourceError {
    /// As an error about a file that cannot even be opened.
    pub(crate) fn into_kind(self, format: &str) -> AudioErrorKind {
        match self {
            SourceError::Read(e) => AudioErrorKind::Read(e),
            SourceError::Truncated(why) | SourceError::Broken(why) => AudioErrorKind::malformed(format, why),
            SourceError::Damaged | SourceError::NewStream(_) => {
                AudioErrorKind::malformed(format, "it has no sound")
            }
        }
    }
}

/// Yields the packets of one track.
pub(crate) trait PacketSource: Send {
    /// The next packet; `None` at a regular end.
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError>;
}

/// What the decoding of a track needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Track {
    pub(crate) params: AudioCodecParameters,
    /// The codec's name for messages.
    pub(crate) codec: String,
    /// Parts of the time line that are not sound but an encoder's delay and padding.
    pub(crate) drop: Vec<Range<i64>>,
    /// How far a packet's place may be behind what was decoded before it is a gap, in samples.
    pub(crate) tolerance: i64,
    /// The place where the track should begin, if that is known: what is missing before the first packet is a gap.
    pub(crate) start: Option<i64>,
    /// The place where the track should end, if a header says so.
    pub(crate) end: Option<i64>,
    /// Which of several tracks of sound this is, to be said at its begin.
    pub(crate) chosen: Option<String>,
    /// What of the file is not in this track and is not read, to be said at its end.
    pub(crate) left_out: Option<String>,
}

impl Track {
    /// A track that begins with its first packet and ends with its last.
    pub(crate) fn new(params: AudioCodecParameters, codec: impl Into<String>) -> Track {
        let codec = codec.into();
        let (chosen, left_out) = (None, None);
        Track { params, codec, drop: Vec::new(), tolerance: 0, start: None, end: None, chosen, left_out }
    }

    /// Notes that the file has `count` tracks of sound and this is the one at `index`.
    pub(crate) fn choose(&mut self, index: usize, count: usize) {
        self.chosen = (count > 1).then(|| {
            let (number, codec) = (index + 1, &self.codec);
            format!("of its {count} sound tracks only number {number} is used ({codec})")
        });
    }

    /// How much of a part of the time line is sound, in samples.
    pub(crate) fn kept(&self, from: i64, to: i64) -> u64 {
        let dropped =
            self.drop.iter().map(|d| d.end.clamp(from, to).abs_diff(d.start.clamp(from, to))).sum::<u64>();
        to.abs_diff(from).saturating_sub(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_no_gap() {
        let mut track = Track::new(AudioCodecParameters::new(), "x");
        track.drop = vec![i64::MIN..312, 1000..1100];
        for (from, to, kept) in
            [(0, 960, 648), (0, 300, 0), (312, 412, 100), (900, 1200, 200), (2000, 2000, 0)]
        {
            assert_eq!(track.kept(from, to), kept, "{from}..{to}");
        }
    }
}
