//! FLAC in its own container (RFC 9639), by Symphonia's reader; streams that were joined end to end are read one after
//! the other.

use std::io;

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::formats::FlacReader;

use crate::behind::behind;
use crate::chunks::Chunks;
use crate::error::{AudioErrorKind, WarningLog, joined};
use crate::flac_end::{Found, StreamEnd};
use crate::guard::guard;
use crate::layout::ChannelLayout;
use crate::packets::{Packet, PacketSource, PacketStream, SourceError, Track};
use crate::pcm::{MAX_RATE, MIN_RATE};
use crate::source::{Media, SharedMedia};
use crate::stream::{BlockSource, Spec};

pub(crate) fn open(mut media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    if let Some(spec) = empty(&mut media).map_err(AudioErrorKind::Read)? {
        return Ok(Box::new(NoSound(spec)));
    }
    let media = media.shared();
    let (stream, track) = FlacStream::open(&media, 0)?;
    Ok(Box::new(PacketStream::new("FLAC", Box::new(FlacFrames { media, stream }), track)?))
}

/// What a file states that ends behind its headers and says that it has no samples.
fn empty(media: &mut Media) -> io::Result<Option<Spec>> {
    let header = header_len(media)?;
    let mut b = [0u8; 42];
    let n = media.read_at(0, &mut b)?;
    // The rate, the channels, the bits and the count of samples share eight bytes of STREAMINFO (RFC 9639, 8.2).
    let shape = b[18..26].iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
    let (rate, channels, count) =
        ((shape >> 44) as u32, (shape >> 41 & 7) as usize + 1, shape & 0xf_ffff_ffff);
    let whole = n == b.len() && b[5..8] == [0, 0, 34] && header <= media.len();
    let bare = behind(media, header, Chunks::None)?.is_none();
    let valid = whole && bare && count == 0 && (MIN_RATE..=MAX_RATE).contains(&rate);
    Ok(valid.then(|| Spec { sample_rate: rate, layout: ChannelLayout::default_for(channels) }))
}

/// A file without samples.
struct NoSound(Spec);

impl BlockSource for NoSound {
    fn next_block(&mut self, _: &mut Vec<f32>, _: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        Ok(false)
    }

    fn spec(&self) -> Option<&Spec> {
        Some(&self.0)
    }

    fn declared_spec(&self) -> Option<Spec> {
        Some(self.0.clone())
    }

    fn codec(&self) -> &str {
        "FLAC"
    }

    fn expected_frames(&self) -> Option<u64> {
        Some(0)
    }
}

/// One stream: headers and frames.
struct FlacStream {
    reader: Box<dyn FormatReader>,
    errors: u32,
    /// What is looked at where the reader finds no more frames.
    end: StreamEnd,
    /// Where in the file another stream begins, joined to the end of this one.
    next: Option<u64>,
}

impl FlacStream {
    /// The stream at byte `at` of the file.
    fn open(shared: &SharedMedia, at: u64) -> Result<(FlacStream, Track), AudioErrorKind> {
        let mut media = shared.window(at, u64::MAX).map_err(AudioErrorKind::Read)?;
        let header = header_len(&mut media).map_err(AudioErrorKind::Read)?;
        // Symphonia would take what follows the last frame for a part of it.
        let len = another(&mut media, header).map_err(AudioErrorKind::Read)?;
        let media = shared.window(at, len.unwrap_or(u64::MAX)).map_err(AudioErrorKind::Read)?;
        let stream = MediaSourceStream::new(Box::new(media), Default::default());
        let reader = match guard(move || FlacReader::try_new(stream, FormatOptions::default())) {
            Ok(Ok(reader)) => Box::new(reader) as Box<dyn FormatReader>,
            Ok(Err(SymphoniaError::IoError(e))) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(AudioErrorKind::malformed("FLAC", "it ends within its headers"));
            }
            Ok(Err(e)) => return Err(AudioErrorKind::malformed("FLAC", e.to_string())),
            Err(_) => return Err(AudioErrorKind::malformed("FLAC", "its headers are damaged")),
        };
        let track = reader.tracks().first();
        let params = track.and_then(|t| t.codec_params.as_ref()).and_then(|p| p.audio()).cloned();
        let Some(params) = params else {
            return Err(AudioErrorKind::malformed("FLAC", "its stream information is missing"));
        };
        let track = track_of(params, track.and_then(|t| t.num_frames));
        let end = StreamEnd::new(at, len, header, &track);
        Ok((FlacStream { reader, errors: 0, end, next: len.map(|n| at + n) }, track))
    }
}

fn track_of(params: AudioCodecParameters, end: Option<u64>) -> Track {
    let mut track = Track::new(params, "FLAC");
    track.end = end.and_then(|n| i64::try_from(n).ok());
    // Every frame says which one it is, so what is missing before the first is known.
    track.start = Some(0);
    track
}

/// Where the frames begin, by the lengths of the metadata blocks (RFC 9639, 8.1).
fn header_len(media: &mut Media) -> io::Result<u64> {
    let mut at = 4u64;
    // More blocks than this are no file that anyone wrote.
    for _ in 0..10_000 {
        let mut head = [0u8; 4];
        if media.read_at(at, &mut head)? < 4 {
            break;
        }
        at += 4 + u64::from(u32::from_be_bytes([0, head[1], head[2], head[3]]));
        if head[0] & 0x80 != 0 {
            break;
        }
    }
    Ok(at)
}

/// Where another stream begins in `media`, from `from` on.
fn another(media: &mut Media, from: u64) -> io::Result<Option<u64>> {
    const BLOCK: usize = 256 << 10;
    // The marker, then the stream information, which is always the first block and has 34 bytes.
    const LEN: usize = 8;
    let is_stream = |w: &[u8]| w.starts_with(b"fLaC") && w[4] & 0x7f == 0 && w[5..LEN] == [0, 0, 34];
    let mut block = vec![0u8; BLOCK];
    let mut at = from;
    loop {
        let n = media.read_at(at, &mut block)?;
        let bytes = &block[..n];
        let mut begins = 0;
        while let Some(f) = bytes[begins..].iter().position(|&b| b == b'f') {
            begins += f;
            if bytes.get(begins..begins + LEN).is_some_and(is_stream) {
                return Ok(Some(at + begins as u64));
            }
            begins += 1;
        }
        if n < BLOCK {
            return Ok(None);
        }
        at += (BLOCK - LEN) as u64;
    }
}

struct FlacFrames {
    media: SharedMedia,
    stream: FlacStream,
}

/// After this many errors of the reader in a row the rest is given up.
const MAX_ERRORS: u32 = 1000;

impl FlacFrames {
    /// What there is where the reader finds no more frames: a last one, a stream that is joined, the end.
    fn end(&mut self) -> Result<Option<Packet>, SourceError> {
        let stream = &mut self.stream;
        match stream.end.look(&self.media).map_err(SourceError::Read)? {
            Found::Frame(packet) => Ok(Some(packet)),
            Found::Stray(why) => {
                stream.next = None;
                Err(SourceError::Truncated(why))
            }
            Found::Cut if stream.next.is_none() => {
                Err(SourceError::Truncated("its last frame is cut off or damaged".into()))
            }
            Found::Cut | Found::Nothing => match stream.next {
                Some(at) => Err(self.join(at)),
                None => Ok(None),
            },
        }
    }

    /// Goes on with the stream at `at`.
    fn join(&mut self, at: u64) -> SourceError {
        self.stream.next = None;
        match FlacStream::open(&self.media, at) {
            Ok((stream, track)) => {
                self.stream = stream;
                SourceError::NewStream(Box::new(track))
            }
            Err(AudioErrorKind::Read(e)) => SourceError::Read(e),
            Err(_) => {
                let left = match self.media.window(at, u64::MAX) {
                    Ok(rest) => rest.len(),
                    Err(e) => return SourceError::Read(e),
                };
                SourceError::Broken(joined("FLAC with damaged headers", Some(left)))
            }
        }
    }
}

impl PacketSource for FlacFrames {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let stream = &mut self.stream;
        if stream.end.reached() {
            return self.end();
        }
        let packet = match stream.reader.next_packet() {
            // Missing samples are told from the header's count, if there is one.
            Err(SymphoniaError::IoError(e)) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(SymphoniaError::IoError(e)) => return Err(SourceError::Read(e)),
            Err(SymphoniaError::DecodeError(_)) if stream.errors < MAX_ERRORS => {
                stream.errors += 1;
                return Err(SourceError::Damaged);
            }
            Err(e) => return Err(SourceError::Broken(e.to_string())),
            Ok(packet) => packet,
        };
        let Some(packet) = packet else { return self.end() };
        stream.errors = 0;
        // Its ticks are samples.
        let packet = Packet {
            at: Some(packet.pts.get()),
            duration: packet.dur.get(),
            data: packet.data.into_vec(),
            ..Packet::default()
        };
        stream.end.saw(&packet);
        Ok(Some(packet))
    }
}

/// A STREAMINFO block for frames that come without one (RFC 9639, 8.2): what the first frame's header says of the size of
/// samples (9.1.4), with the rate and the channels that the container states. `None` if it is no such frame.
pub(crate) fn stream_info(frame: &[u8], rate: u32, channels: usize) -> Option<Vec<u8>> {
    let head: [u8; 4] = frame.get(..4)?.try_into().ok()?;
    if head[0] != 0xff || head[1] & 0xfe != 0xf8 || rate >= 1 << 20 || !(1..=8).contains(&channels) {
        return None;
    }
    let bits = match head[3] >> 1 & 7 {
        1 => 8u64,
        2 => 12,
        4 => 16,
        5 => 20,
        6 => 24,
        7 => 32,
        _ => return None,
    };
    // Least and greatest samples of a frame, both bounds of the format; no frame sizes, no count, no checksum.
    let mut info = vec![0, 16, 0xff, 0xff, 0, 0, 0, 0, 0, 0];
    let shape = u64::from(rate) << 44 | (channels as u64 - 1) << 41 | (bits - 1) << 36;
    info.extend(shape.to_be_bytes());
    info.resize(34, 0);
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_information_of_a_frame() {
        let info = stream_info(&[0xff, 0xf8, 0x35, 0x08, 0], 16_000, 1).unwrap();
        assert_eq!(info.len(), 34);
        assert_eq!(info[10..18], [0x03, 0xe8, 0x00, 0xf0, 0, 0, 0, 0], "16 kHz, 1 channel, 16 bits");
        for (frame, rate, channels) in [
            (&[0xff, 0xfa, 0, 8][..], 16_000, 1),
            (&[0xff, 0xf8, 0, 8], 16_000, 9),
            (&[0xff, 0xf8], 1, 1),
            (&[0xff, 0xf8, 0, 6], 1, 1),
        ] {
            assert_eq!(stream_info(frame, rate, channels), None);
        }
    }
}
