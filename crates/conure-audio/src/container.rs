//! Which reader and which decoder a format gets.

use std::sync::LazyLock;

use symphonia::core::audio::{ChannelLabel, Channels, Position};
use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error as SymphoniaError;

use crate::elementary::{AdtsHeader, FrameHeader, Frames, MpegHeader};
use crate::error::AudioErrorKind;
use crate::layout::{ChannelLayout, Speaker};
use crate::own_codec::OwnDecoder;
use crate::packets::{PacketStream, Track};
use crate::sniff::{Format, unsupported};
use crate::source::Media;
use crate::stream::BlockSource;

/// The decoders: Symphonia's, and Opus from elsewhere.
static CODECS: LazyLock<CodecRegistry> = LazyLock::new(|| {
    let mut registry = CodecRegistry::new();
    symphonia::default::register_enabled_codecs(&mut registry);
    registry.register_audio_decoder::<OwnDecoder<crate::opus::Opus>>();
    // Symphonia's own forgets the predictor's lower bits at every block.
    registry.register_audio_decoder::<OwnDecoder<crate::ima4::Ima4>>();
    // Symphonia's own takes damaged packets for good ones.
    registry.register_audio_decoder::<crate::alac::CheckedAlac>();
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
        Format::Mpeg => open_frames::<MpegHeader>(media, "MP3", None)?,
        Format::Adts => open_frames::<AdtsHeader>(media, "AAC", None)?,
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
        Format::Flac => crate::flac::open(media)?,
        Format::Mp4 => crate::mp4::open(media)?,
        Format::Wav | Format::Au => crate::wav::open_media(media, format)?,
    };
    Ok((format.name(), source))
}

/// A bare stream of frames, from its own file or out of a WAV, behind which `left_out` stands.
pub(crate) fn open_frames<H: FrameHeader + 'static>(
    media: Media,
    container: &'static str,
    left_out: Option<String>,
) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let (frames, mut track) = Frames::<H>::open(media)
        .map_err(AudioErrorKind::Read)?
        .ok_or_else(|| AudioErrorKind::malformed(container, "it does not begin with a frame"))?;
    track.left_out = left_out;
    Ok(Box::new(PacketStream::new(container, Box::new(frames), track)?))
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
