//! Which reader and which decoder a format gets.

use std::io;
use std::sync::LazyLock;

use symphonia::core::audio::{ChannelLabel, Channels, Position};
use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::formats::FlacReader;

use crate::elementary::{AdtsHeader, FrameHeader, Frames, Layer, MpegHeader, info_tag};
use crate::error::AudioErrorKind;
use crate::guard::guard;
use crate::layout::{ChannelLayout, Speaker};
use crate::packets::{Packet, PacketSource, PacketStream, SourceError, Track};
use crate::sniff::{Format, unsupported};
use crate::source::Media;
use crate::stream::BlockSource;

/// The decoders: Symphonia's, and Opus from elsewhere.
static CODECS: LazyLock<CodecRegistry> = LazyLock::new(|| {
    let mut registry = CodecRegistry::new();
    symphonia::default::register_enabled_codecs(&mut registry);
    registry.register_audio_decoder::<crate::opus::OpusAudioDecoder>();
    // Symphonia's own forgets the predictor's lower bits at every block.
    registry.register_audio_decoder::<crate::ima4::Ima4Decoder>();
    registry
});

pub(crate) fn make_decoder(params: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, SymphoniaError> {
    // Only Vorbis must trim by itself: its first packet primes it and gives nothing. All others are trimmed in
    // `packets`, where times are samples whatever the container counts in.
    let options = AudioDecoderOptions::default().gapless(params.codec == CODEC_ID_VORBIS);
    CODECS.make_audio_decoder(params, &options)
}

/// Refuses, by name, what the decoders cannot do.
pub(crate) fn check_supported(track: &Track) -> Result<(), AudioErrorKind> {
    let params = &track.params;
    if params.codec != CODEC_ID_AAC {
        return Ok(());
    }
    let config = params.extra_data.as_deref().and_then(crate::aac_config::AacConfig::parse);
    match config.and_then(|c| c.unsupported_name()) {
        Some(name) => Err(unsupported(&name)),
        None => Ok(()),
    }
}

/// Our layout for Symphonia's channels. Its buffers order positioned channels by bit.
pub(crate) fn layout_of(channels: &Channels) -> ChannelLayout {
    match channels {
        Channels::Positioned(positions) if positions.bits().count_ones() == 1 => ChannelLayout::mono(),
        Channels::Positioned(positions) => {
            ChannelLayout::from_speakers(positions.iter().map(speaker).collect())
        }
        Channels::Custom(labels) => {
            let place = |label: &ChannelLabel| match label {
                ChannelLabel::Positioned(position) => speaker(*position),
                _ => Speaker::Unknown,
            };
            ChannelLayout::from_speakers(labels.iter().map(place).collect())
        }
        Channels::Discrete(n) if *n <= 2 => ChannelLayout::default_for(usize::from(*n)),
        other => ChannelLayout::discrete(other.count()),
    }
}

fn speaker(position: Position) -> Speaker {
    match position {
        Position::FRONT_LEFT => Speaker::FrontLeft,
        Position::FRONT_RIGHT => Speaker::FrontRight,
        Position::FRONT_CENTER => Speaker::FrontCenter,
        Position::LFE1 | Position::LFE2 => Speaker::Lfe,
        Position::REAR_LEFT => Speaker::BackLeft,
        Position::REAR_RIGHT => Speaker::BackRight,
        Position::FRONT_LEFT_CENTER | Position::FRONT_LEFT_WIDE => Speaker::FrontLeftOfCenter,
        Position::FRONT_RIGHT_CENTER | Position::FRONT_RIGHT_WIDE => Speaker::FrontRightOfCenter,
        Position::REAR_CENTER => Speaker::BackCenter,
        Position::SIDE_LEFT => Speaker::SideLeft,
        Position::SIDE_RIGHT => Speaker::SideRight,
        _ => Speaker::Top,
    }
}

type Opened = (&'static str, Box<dyn BlockSource>);

/// Opens what must seek, of any format.
pub(crate) fn open(media: Media, format: Format) -> Result<Opened, AudioErrorKind> {
    let source = match format {
        Format::Mpeg => open_mpeg(media, "MP3")?,
        Format::Adts => open_adts(media)?,
        Format::Aiff => crate::aiff::open(media)?,
        Format::Caf => crate::caf::open(media)?,
        Format::Ogg => {
            let (source, track) = crate::ogg::Ogg::open(media)?;
            Box::new(PacketStream::new(format.name(), Box::new(source), track)?)
        }
        Format::Matroska => {
            let (source, track) = crate::matroska::Matroska::open(media)?;
            Box::new(PacketStream::new(format.name(), Box::new(source), track)?)
        }
        Format::Flac => open_flac(media)?,
        Format::Mp4 => crate::mp4::open(media)?,
        Format::Wav | Format::Au => crate::wav::open_media(media, format)?,
    };
    Ok((format.name(), source))
}

/// A bare stream of MPEG audio frames, from its own file or out of a WAV.
pub(crate) fn open_mpeg(
    media: Media,
    container: &'static str,
) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let len = media.len();
    let mut frames = Frames::<MpegHeader>::new(media)
        .map_err(AudioErrorKind::Read)?
        .ok_or_else(|| AudioErrorKind::malformed("MP3", "it does not begin with a frame"))?;
    let header = *frames.first();
    let tag = frames.peek_first().map(|frame| info_tag(&header, frame)).map_err(AudioErrorKind::Read)?;
    let mut track = Track {
        params: AudioCodecParameters::new(),
        codec: "MP3".into(),
        drop: Vec::new(),
        tolerance: 0,
        end: None,
    };
    if let Some(tag) = tag {
        frames.skip_first();
        let samples = i64::from(header.samples());
        // A count that the file cannot hold is not believed.
        let plausible = |n: &u32| u64::from(*n).saturating_mul(24) <= len;
        let total = tag.frames.filter(plausible).map(|n| i64::from(n) * samples);
        if let Some((delay, padding)) = tag.delay_padding {
            // 528 + 1: the delay of the decoder's own filter bank, which the encoder's numbers do not count.
            track.drop.push(i64::MIN..i64::from(delay) + 529);
            track.drop.extend(total.map(|end| end - i64::from(padding) + 529..end));
        }
        track.end = total;
    }
    let (codec, name) = match header.layer {
        Layer::One => (CODEC_ID_MP1, "MP1"),
        Layer::Two => (CODEC_ID_MP2, "MP2"),
        Layer::Three => (CODEC_ID_MP3, "MP3"),
    };
    track
        .params
        .for_codec(codec)
        .with_sample_rate(header.rate)
        .with_channels(wave_channels(usize::from(header.channels)));
    track.codec = name.to_owned();
    Ok(Box::new(PacketStream::new(container, Box::new(frames), track)?))
}

fn open_adts(media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let frames = Frames::<AdtsHeader>::new(media)
        .map_err(AudioErrorKind::Read)?
        .ok_or_else(|| AudioErrorKind::malformed("AAC", "it does not begin with a frame"))?;
    let header = *frames.first();
    // An AudioSpecificConfig (ISO 14496-3 1.6.2.1): object type, rate index, channel configuration, three zero bits.
    let config = u16::from(header.profile + 1) << 11
        | u16::from(header.rate_index) << 7
        | u16::from(header.channel_config) << 3;
    let mut params = AudioCodecParameters::new();
    params.for_codec(CODEC_ID_AAC).with_extra_data(Box::new(config.to_be_bytes()));
    if let Some(&rate) = crate::aac_config::RATES.get(usize::from(header.rate_index)) {
        params.with_sample_rate(rate);
    }
    let track = Track { params, codec: "AAC".into(), drop: Vec::new(), tolerance: 0, end: None };
    Ok(Box::new(PacketStream::new("AAC", Box::new(frames), track)?))
}

/// FLAC in its own container, by Symphonia's reader.
fn open_flac(mut media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let header = flac_header_len(&mut media).map_err(AudioErrorKind::Read)?;
    let frames = (media.len() - tag_len(&mut media).map_err(AudioErrorKind::Read)?).saturating_sub(header);
    media.rewind().map_err(AudioErrorKind::Read)?;
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
    let end = track.and_then(|t| t.num_frames).and_then(|n| i64::try_from(n).ok());
    let track = Track { params, codec: "FLAC".into(), drop: Vec::new(), tolerance: 0, end };
    // Without a count of samples, bytes that became no frame at the end are all that tells of a cut.
    let left = if end.is_none() { frames } else { 0 };
    Ok(Box::new(PacketStream::new("FLAC", Box::new(FlacFrames { reader, errors: 0, left }), track)?))
}

/// Where the frames begin, by the lengths of the metadata blocks (RFC 9639, 8.1).
fn flac_header_len(media: &mut Media) -> io::Result<u64> {
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

struct FlacFrames {
    reader: Box<dyn FormatReader>,
    errors: u32,
    /// Bytes of frames that were not seen yet, where that is looked at.
    left: u64,
}

/// The length of an ID3v1 tag at the end.
fn tag_len(media: &mut Media) -> io::Result<u64> {
    let Some(at) = media.len().checked_sub(128) else { return Ok(0) };
    let mut mark = [0u8; 3];
    media.read_at(at, &mut mark)?;
    Ok(if &mark == b"TAG" { 128 } else { 0 })
}

/// After this many errors of the reader in a row the rest is given up.
const MAX_ERRORS: u32 = 1000;

impl PacketSource for FlacFrames {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let packet = match self.reader.next_packet() {
            // Missing samples are told from the header's count, if there is one.
            Err(SymphoniaError::IoError(e)) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(SymphoniaError::IoError(e)) => return Err(SourceError::Read(e)),
            Err(SymphoniaError::DecodeError(_)) if self.errors < MAX_ERRORS => {
                self.errors += 1;
                return Err(SourceError::Damaged);
            }
            Err(e) => return Err(SourceError::Broken(e.to_string())),
            Ok(packet) => packet,
        };
        let Some(packet) = packet else {
            return if self.left > 0 {
                Err(SourceError::Truncated("the file ends within a frame".into()))
            } else {
                Ok(None)
            };
        };
        self.errors = 0;
        self.left = self.left.saturating_sub(packet.data.len() as u64);
        // Its ticks are samples.
        Ok(Some(Packet {
            at: Some(packet.pts.get()),
            duration: packet.dur.get(),
            data: packet.data.into_vec(),
            ..Packet::default()
        }))
    }
}

/// Places by the usual order of WAVE, for codecs and containers that state none.
pub(crate) fn wave_channels(n: usize) -> Channels {
    use Position as P;
    let front = P::FRONT_LEFT | P::FRONT_RIGHT;
    let back = P::REAR_LEFT | P::REAR_RIGHT;
    match n {
        1 => Channels::Positioned(P::FRONT_CENTER),
        2 => Channels::Positioned(front),
        3 => Channels::Positioned(front | P::FRONT_CENTER),
        4 => Channels::Positioned(front | back),
        5 => Channels::Positioned(front | P::FRONT_CENTER | back),
        6 => Channels::Positioned(front | P::FRONT_CENTER | P::LFE1 | back),
        n => Channels::Discrete(u16::try_from(n).unwrap_or(u16::MAX)),
    }
}
