//! Audio in: from a path, a pipe or bytes to samples.
//!
//! ```
//! use conure_audio::decode::{DecodeOptions, decode_all};
//! use conure_audio::source::AudioSource;
//!
//! // Half a second of silence as a WAV file in memory.
//! let mut wav = b"RIFF\x24\x20\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x40\x1f\0\0".to_vec();
//! wav.resize(44 + 8000, 0);
//! let audio = decode_all(AudioSource::bytes("silence.wav", wav), &DecodeOptions::default())?;
//! assert_eq!((audio.sample_rate, audio.channels(), audio.frames()), (8000, 1, 4000));
//! # Ok::<(), conure_audio::error::AudioError>(())
//! ```
//!
//! # Formats
//! WAV (RIFF, RIFX, RF64, BW64, Wave64; 8 to 64-bit integers, floats, A-law, mu-law, IMA and Microsoft ADPCM, MP3), AU,
//! AIFF/AIFC, CAF, FLAC, MP1/MP2/MP3, AAC-LC (ADTS, MP4, MKV), ALAC, Ogg (Vorbis, Opus, FLAC), MP4/M4A/MOV and
//! Matroska/WebM with any of these codecs, and samples without a header ([`crate::pcm::RawSpec`]). The format is told by
//! content, never by name. What is known and not read is named in the error.
//!
//! # Damage
//! What is good is decoded, and [`Warning`]s say what was lost. A part lost in the middle, whose length the container
//! tells, becomes silence, so that the times of later words stay right. [`DecodeOptions::strict`] makes damage an error.
//! A file of which nothing can be decoded is always an error; one that truly holds zero samples is zero samples.
//!
//! # Time
//! Encoder delay and padding (LAME tag, MP4 edit list, Opus pre-skip, Matroska codec delay) are cut off, so that sample 0
//! is the sample 0 that went into the encoder.
//!
//! # Bounds
//! Memory does not follow the length of the audio (except for [`decode_all`]'s result) nor any number in a header. Decoded
//! seconds are counted while decoding and end at [`DecodeOptions::max_seconds`].

use crate::error::{AudioError, AudioErrorKind};
pub use crate::error::{Warning, WarningKind};
use crate::pcm::RawSpec;
use crate::sniff::{self, Format};
use crate::source::{AudioSource, HEAD, Input, Media};
use crate::stream::BlockSource;
pub use crate::stream::{Audio, AudioStream};

/// How to read.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeOptions {
    /// The input has no header and is this (`--raw`).
    pub raw: Option<RawSpec>,
    /// Damage is an error instead of a warning.
    pub strict: bool,
    /// More decoded seconds than this are an error. Default: 24 hours.
    pub max_seconds: f64,
    /// More piped bytes than this are an error, for formats that must be kept whole. Default: 64 GiB.
    pub max_bytes: u64,
}

impl Default for DecodeOptions {
    fn default() -> DecodeOptions {
        DecodeOptions { raw: None, strict: false, max_seconds: 86_400.0, max_bytes: 64 << 30 }
    }
}

/// Opens audio and decodes its first block.
///
/// # Errors
/// [`AudioError`] with the input's name: not there, empty, a format that is not read, nothing decodable in it.
pub fn open(source: AudioSource, options: &DecodeOptions) -> Result<AudioStream, AudioError> {
    let input = source.open(options.max_bytes)?;
    let name = input.name.clone();
    let (container, source) = open_input(input, options).map_err(|kind| AudioError::new(&name, kind))?;
    AudioStream::new(name, container, source, options)
}

/// The container of a file that begins with these bytes, of which 64 are enough; `None` for what is none that is read, and for
/// bare MP3 and AAC streams, whose first bytes many other files have too.
pub fn container(head: &[u8]) -> Option<&'static str> {
    sniff::certain(head)
}

/// Decodes a whole input into memory.
///
/// # Errors
/// As [`open`] and [`AudioStream::next_block`].
pub fn decode_all(source: AudioSource, options: &DecodeOptions) -> Result<Audio, AudioError> {
    let stream = open(source, options)?;
    stream.check_length(f64::INFINITY)?;
    stream.into_audio()
}

type Opened = (&'static str, Box<dyn BlockSource>);

fn open_input(input: Input, options: &DecodeOptions) -> Result<Opened, AudioErrorKind> {
    if let Some(spec) = options.raw {
        return crate::wav::open_raw(input, spec).map(|source| ("raw samples", source));
    }
    if sniff::id3v2_len(&input.head).is_some() {
        return open_tagged(input.into_media()?);
    }
    let (format, offset) = sniff::identify(&input.head)?;
    if let Format::Wav | Format::Au = format {
        return crate::wav::open(input, format).map(|source| (format.name(), source));
    }
    open_media(input.into_media()?, format, offset as u64)
}

/// What follows one or more ID3v2 tags: mostly MP3, sometimes FLAC, AAC or even WAV.
fn open_tagged(mut media: Media) -> Result<Opened, AudioErrorKind> {
    let mut offset = 0u64;
    let mut head = vec![0u8; HEAD];
    // A few tags in a row occur; an endless row of empty ones does not.
    for _ in 0..16 {
        head.resize(HEAD, 0);
        let n = media.read_at(offset, &mut head).map_err(AudioErrorKind::Read)?;
        head.truncate(n);
        match sniff::id3v2_len(&head) {
            Some(len) => offset = offset.saturating_add(len),
            None if head.is_empty() => {
                return Err(AudioErrorKind::malformed("MP3", "nothing follows its ID3 tag"));
            }
            None => {
                let (format, skip) = sniff::identify(&head)?;
                let rest = media.len().saturating_sub(offset);
                let media = media.window(offset, rest).map_err(AudioErrorKind::Read)?;
                if let Format::Wav | Format::Au = format {
                    return crate::wav::open_media(media, format).map(|source| (format.name(), source));
                }
                return open_media(media, format, skip as u64);
            }
        }
    }
    Err(AudioErrorKind::malformed("MP3", "more than 16 ID3 tags in a row"))
}

fn open_media(media: Media, format: Format, offset: u64) -> Result<Opened, AudioErrorKind> {
    let rest = media.len().saturating_sub(offset);
    let media = if offset > 0 { media.window(offset, rest).map_err(AudioErrorKind::Read)? } else { media };
    crate::container::open(media, format)
}
