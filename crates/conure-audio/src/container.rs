//! Containers that Symphonia takes apart, and the decoders in use.

use std::io;
use std::sync::LazyLock;

use symphonia::core::audio::{ChannelLabel, Channels, Position};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{
    AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions, CODEC_ID_NULL_AUDIO,
};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader, Track as SymphoniaTrack};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::formats::{FlacReader, IsoMp4Reader};

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

/// Codec names for messages, and whether they are read.
fn codec_name(id: AudioCodecId) -> (&'static str, bool) {
    match id {
        CODEC_ID_MP1 => ("MP1", true),
        CODEC_ID_MP2 => ("MP2", true),
        CODEC_ID_MP3 => ("MP3", true),
        CODEC_ID_AAC => ("AAC", true),
        CODEC_ID_ALAC => ("ALAC", true),
        CODEC_ID_FLAC => ("FLAC", true),
        CODEC_ID_VORBIS => ("Vorbis", true),
        CODEC_ID_OPUS => ("Opus", true),
        CODEC_ID_ADPCM_MS => ("Microsoft ADPCM", true),
        CODEC_ID_ADPCM_IMA_WAV | CODEC_ID_ADPCM_IMA_QT => ("IMA ADPCM", true),
        CODEC_ID_PCM_ALAW => ("A-law", true),
        CODEC_ID_PCM_MULAW => ("mu-law", true),
        CODEC_ID_ADPCM_G722 | CODEC_ID_ADPCM_G726 | CODEC_ID_ADPCM_G726LE => ("G.72x", false),
        CODEC_ID_SPEEX => ("Speex", false),
        CODEC_ID_MUSEPACK => ("Musepack", false),
        CODEC_ID_AC3 => ("AC-3 (Dolby Digital)", false),
        CODEC_ID_EAC3 => ("E-AC-3 (Dolby Digital Plus)", false),
        CODEC_ID_AC4 => ("AC-4 (Dolby)", false),
        CODEC_ID_DCA => ("DTS", false),
        CODEC_ID_WMA => ("WMA (Windows Media Audio)", false),
        CODEC_ID_RA10 | CODEC_ID_RA20 | CODEC_ID_SIPR | CODEC_ID_COOK | CODEC_ID_RALF => ("RealAudio", false),
        CODEC_ID_WAVPACK => ("WavPack", false),
        CODEC_ID_MONKEYS_AUDIO => ("APE (Monkey's Audio)", false),
        CODEC_ID_TTA => ("TTA (True Audio)", false),
        CODEC_ID_TRUEHD => ("TrueHD", false),
        id if CODECS.get_audio_decoder(id).is_some() => ("PCM", true),
        _ => ("an unknown codec", false),
    }
}

/// Refuses, by name, what the decoders cannot do.
pub(crate) fn check_supported(track: &Track) -> Result<(), AudioErrorKind> {
    let params = &track.params;
    if params.codec != CODEC_ID_AAC {
        return Ok(());
    }
    if let Some(config) = params.extra_data.as_deref().and_then(crate::aac_config::AacConfig::parse) {
        if let Some(name) = config.unsupported_name() {
            return Err(unsupported(&name));
        }
    }
    Ok(())
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

/// Opens anything but WAV and AU.
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
        _ => open_symphonia(media, format)?,
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
    let track = Track { params, codec: "AAC".into(), drop: Vec::new(), tolerance: 0, end: None };
    Ok(Box::new(PacketStream::new("AAC", Box::new(frames), track)?))
}

fn open_symphonia(mut media: Media, format: Format) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let movie = match format {
        Format::Mp4 => crate::mp4::Movie::scan(&mut media).map_err(AudioErrorKind::Read)?,
        _ => crate::mp4::Movie::default(),
    };
    media.rewind().map_err(AudioErrorKind::Read)?;
    let reader = guard(move || make_reader(media, format));
    let reader = match reader {
        Ok(Ok(reader)) => reader,
        Ok(Err(e)) => return Err(reader_error(format, &e)),
        Err(_) => return Err(AudioErrorKind::malformed(format.name(), "its headers are damaged")),
    };
    let (id, track) = choose_track(reader.as_ref(), format, &movie)?;
    let source = SymphoniaSource { reader, id, format, movie, scale: Scale::of(&track), errors: 0 };
    Ok(Box::new(PacketStream::new(format.name(), Box::new(source), track.track)?))
}

fn make_reader(media: Media, format: Format) -> Result<Box<dyn FormatReader>, SymphoniaError> {
    let mut stream = MediaSourceStream::new(Box::new(media), Default::default());
    let options = FormatOptions::default();
    Ok(match format {
        Format::Flac => Box::new(FlacReader::try_new(stream, options)?),
        Format::Mp4 => {
            // The reader expects to stand behind the marker it was found by, 4 bytes into the file.
            io::Read::read_exact(&mut stream, &mut [0; 4])?;
            Box::new(IsoMp4Reader::try_new(stream, options)?)
        }
        _ => return Err(SymphoniaError::Unsupported("read elsewhere")),
    })
}

fn reader_error(format: Format, error: &SymphoniaError) -> AudioErrorKind {
    match error {
        SymphoniaError::IoError(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
            AudioErrorKind::malformed(format.name(), format!("its headers cannot be read: {e}"))
        }
        SymphoniaError::IoError(_) => AudioErrorKind::malformed(format.name(), "it ends within its headers"),
        other => AudioErrorKind::malformed(format.name(), other.to_string()),
    }
}

/// A chosen track and how its times are counted.
struct Chosen {
    track: Track,
    /// Seconds of a tick, as a fraction.
    tick: (u32, u32),
}

fn choose_track(
    reader: &dyn FormatReader,
    format: Format,
    movie: &crate::mp4::Movie,
) -> Result<(u32, Chosen), AudioErrorKind> {
    let audio = |t: &&SymphoniaTrack| matches!(t.codec_params, Some(CodecParameters::Audio(_)));
    let tracks: Vec<&SymphoniaTrack> = reader.tracks().iter().filter(audio).collect();
    let params = |t: &SymphoniaTrack| t.codec_params.as_ref().and_then(|p| p.audio()).cloned();
    let readable = tracks.iter().find(|t| params(t).is_some_and(|p| codec_name(p.codec).1));
    let Some(track) = readable else {
        // No readable track: name the first unreadable one.
        if let Some(name) = movie.codec_name() {
            return Err(unsupported(&format!("{} with {name}", format.name())));
        }
        return Err(match tracks.first().and_then(|t| params(t)) {
            Some(p) if p.codec != CODEC_ID_NULL_AUDIO => {
                unsupported(&format!("{} with {}", format.name(), codec_name(p.codec).0))
            }
            Some(_) => unsupported(&format!("{} with an unknown codec", format.name())),
            None => AudioErrorKind::NoAudioTrack { container: format.name().to_owned() },
        });
    };
    let params = params(track).unwrap_or_default();
    let rate = params.sample_rate.filter(|&r| r > 0).unwrap_or(48_000);
    let tick = track.time_base.map_or((1, rate), |t| (t.numer.get(), t.denom.get()));
    let exact = u64::from(tick.0) * u64::from(rate) == u64::from(tick.1);
    let mut drop = Vec::new();
    if format == Format::Mp4 {
        drop = movie.drop(track.id, rate);
    }
    let chosen = Chosen {
        track: Track {
            codec: codec_name(params.codec).0.to_owned(),
            drop,
            // Millisecond time stamps jitter; live encoders' by more.
            tolerance: if exact { 0 } else { i64::from(rate) * 60 / 1000 },
            end: match format {
                Format::Flac | Format::Mp4 => track.num_frames.and_then(|n| i64::try_from(n).ok()),
                _ => None,
            },
            params,
        },
        tick,
    };
    Ok((track.id, chosen))
}

/// Turns ticks into samples.
#[derive(Debug, Clone, Copy)]
struct Scale {
    numer: i128,
    denom: i128,
}

impl Scale {
    fn of(chosen: &Chosen) -> Scale {
        let rate = chosen.track.params.sample_rate.filter(|&r| r > 0).unwrap_or(48_000);
        Scale { numer: i128::from(chosen.tick.0) * i128::from(rate), denom: i128::from(chosen.tick.1.max(1)) }
    }

    fn samples(self, ticks: i128) -> i64 {
        let n = ticks * self.numer;
        let rounded = (n + n.signum() * self.denom / 2) / self.denom;
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }
}

struct SymphoniaSource {
    reader: Box<dyn FormatReader>,
    id: u32,
    format: Format,
    movie: crate::mp4::Movie,
    scale: Scale,
    errors: u32,
}

/// After this many errors of the container in a row the rest is given up.
const MAX_ERRORS: u32 = 1000;

impl PacketSource for SymphoniaSource {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        loop {
            match self.reader.next_packet() {
                Ok(None) => return Ok(None),
                Ok(Some(packet)) if packet.track_id != self.id => self.errors = 0,
                Ok(Some(packet)) => {
                    self.errors = 0;
                    let ticks = |n: u64| u64::try_from(self.scale.samples(i128::from(n))).unwrap_or(0);
                    return Ok(Some(Packet {
                        at: Some(self.scale.samples(i128::from(packet.pts.get()))),
                        duration: ticks(packet.block_dur().get()),
                        trim: (ticks(packet.trim_start.get()), ticks(packet.trim_end.get())),
                        data: packet.data.into_vec(),
                        reset: false,
                    }));
                }
                Err(SymphoniaError::IoError(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(SourceError::Truncated("the end of the file is missing".into()));
                }
                Err(SymphoniaError::IoError(e)) if e.kind() == io::ErrorKind::InvalidInput => {
                    return Err(SourceError::Broken("the file is damaged here".into()));
                }
                Err(SymphoniaError::IoError(e)) => return Err(SourceError::Read(e)),
                Err(SymphoniaError::ResetRequired) => {
                    let (id, chosen) = choose_track(self.reader.as_ref(), self.format, &self.movie)
                        .map_err(|e| SourceError::Broken(e.to_string()))?;
                    self.id = id;
                    self.scale = Scale::of(&chosen);
                    return Err(SourceError::NewStream(Box::new(chosen.track)));
                }
                Err(SymphoniaError::DecodeError(why)) => {
                    self.errors += 1;
                    if self.errors > MAX_ERRORS {
                        return Err(SourceError::Broken("the file is damaged here".into()));
                    }
                    return Err(SourceError::Damaged(why.to_owned()));
                }
                Err(e) => return Err(SourceError::Broken(e.to_string())),
            }
        }
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
