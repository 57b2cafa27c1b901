//! Opus for Symphonia: the pure-Rust decoder of RFC 6716 behind the codec registry.

use opus_decoder::{OpusDecoder, OpusMultistreamDecoder};
use symphonia::core::audio::{
    AsGenericAudioBufferRef, AudioBuffer, AudioMut, AudioSpec, Channels, GenericAudioBufferRef, Position,
};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{
    AudioCodecParameters, AudioDecoder, AudioDecoderOptions, FinalizeResult,
};
use symphonia::core::codecs::registry::{RegisterableAudioDecoder, SupportedAudioCodec};
use symphonia::core::errors::{Error, Result};
use symphonia::core::packet::PacketRef;

/// Opus always decodes to this rate; what the header calls "input rate" is only a remark.
const RATE: u32 = 48_000;
/// The longest packet: 120 ms.
const MAX_FRAMES: usize = 5_760;

const INFO: CodecInfo = CodecInfo { short_name: "opus", long_name: "Opus", profiles: &[] };

/// The identification header (RFC 7845, 5.1), as Ogg and Matroska carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpusHead {
    pub(crate) channels: usize,
    pub(crate) pre_skip: u16,
    /// Decibels in Q7.8 to be applied to the output.
    pub(crate) gain: i16,
    family: u8,
    streams: usize,
    coupled: usize,
    mapping: Vec<u8>,
}

impl OpusHead {
    pub(crate) fn parse(data: &[u8]) -> Option<OpusHead> {
        let d = data.strip_prefix(b"OpusHead")?;
        // MP4's dOps box has the same fields in big endian, and version 0 (Opus in ISOBMFF, 4.3.2); Ogg has version 1.
        let little = *d.first()? != 0;
        let u16_at = |at: usize| {
            let b: [u8; 2] = d.get(at..at + 2)?.try_into().ok()?;
            Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
        };
        let channels = usize::from(*d.get(1)?);
        let (pre_skip, gain, family) = (u16_at(2)?, u16_at(8)? as i16, *d.get(10)?);
        if channels == 0 {
            return None;
        }
        let (streams, coupled, mapping) = match family {
            0 if channels <= 2 => (1, channels - 1, vec![0, 1]),
            0 => return None,
            _ => (usize::from(*d.get(11)?), usize::from(*d.get(12)?), d.get(13..13 + channels)?.to_vec()),
        };
        Some(OpusHead { channels, pre_skip, gain, family, streams, coupled, mapping })
    }

    /// For each output channel, in the order of Symphonia's buffers, its channel in the stream. Family 1 has
    /// the order of Vorbis (5.1 is L C R Ls Rs LFE), which differs from the order by position.
    fn order(&self) -> (Channels, Vec<usize>) {
        use Position as P;
        let (l, r, c) = (P::FRONT_LEFT, P::FRONT_RIGHT, P::FRONT_CENTER);
        let (bl, br, sl, sr) = (P::REAR_LEFT, P::REAR_RIGHT, P::SIDE_LEFT, P::SIDE_RIGHT);
        let vorbis: &[P] = match (self.family, self.channels) {
            (0 | 1, 1) => &[c],
            (0 | 1, 2) => &[l, r],
            (1, 3) => &[l, c, r],
            (1, 4) => &[l, r, bl, br],
            (1, 5) => &[l, c, r, bl, br],
            (1, 6) => &[l, c, r, bl, br, P::LFE1],
            (1, 7) => &[l, c, r, sl, sr, P::REAR_CENTER, P::LFE1],
            (1, 8) => &[l, c, r, sl, sr, bl, br, P::LFE1],
            _ => {
                return (Channels::Discrete(self.channels as u16), (0..self.channels).collect());
            }
        };
        let mut order: Vec<usize> = (0..vorbis.len()).collect();
        order.sort_by_key(|&i| vorbis.get(i).map_or(0, |p| p.bits()));
        let all = vorbis.iter().fold(P::empty(), |a, p| a | *p);
        (Channels::Positioned(all), order)
    }
}

enum Inner {
    Single(Box<OpusDecoder>),
    Multi(Box<OpusMultistreamDecoder>),
}

/// Decodes Opus packets of Ogg, Matroska/WebM and MP4.
pub(crate) struct OpusAudioDecoder {
    params: AudioCodecParameters,
    inner: Inner,
    channels: usize,
    order: Vec<usize>,
    gain: f32,
    interleaved: Vec<f32>,
    buffer: AudioBuffer<f32>,
}

fn invalid(e: opus_decoder::OpusError) -> Error {
    match e {
        opus_decoder::OpusError::InvalidArgument(what) => Error::Unsupported(what),
        _ => Error::DecodeError("opus: invalid packet"),
    }
}

impl OpusAudioDecoder {
    fn new(params: &AudioCodecParameters) -> Result<OpusAudioDecoder> {
        let head = match params.extra_data.as_deref() {
            Some(data) => OpusHead::parse(data).ok_or(Error::DecodeError("opus: invalid header"))?,
            // Matroska files without CodecPrivate exist; stereo decodes any Opus packet.
            None => {
                let channels = params.channels.as_ref().map_or(2, Channels::count).clamp(1, 2);
                OpusHead {
                    channels,
                    pre_skip: 0,
                    gain: 0,
                    family: 0,
                    streams: 1,
                    coupled: channels - 1,
                    mapping: vec![0, 1],
                }
            }
        };
        let (channels, order) = head.order();
        let inner = if head.family == 0 {
            Inner::Single(Box::new(OpusDecoder::new(RATE, head.channels).map_err(invalid)?))
        } else {
            let mapping = head.mapping.as_slice();
            Inner::Multi(Box::new(
                OpusMultistreamDecoder::new(RATE, head.channels, head.streams, head.coupled, mapping)
                    .map_err(invalid)?,
            ))
        };
        let mut params = params.clone();
        params.with_sample_rate(RATE).with_channels(channels.clone());
        Ok(OpusAudioDecoder {
            params,
            inner,
            channels: head.channels,
            order,
            gain: 10f32.powf(f32::from(head.gain) / (20.0 * 256.0)),
            interleaved: vec![0.0; MAX_FRAMES * head.channels],
            buffer: AudioBuffer::new(AudioSpec::new(RATE, channels), MAX_FRAMES),
        })
    }

    fn decode_packet(&mut self, data: &[u8]) -> Result<()> {
        self.buffer.clear();
        if data.is_empty() {
            return Err(Error::DecodeError("opus: empty packet"));
        }
        let frames = match &mut self.inner {
            Inner::Single(d) => d.decode_float(data, &mut self.interleaved, false),
            Inner::Multi(d) => d.decode_float(data, &mut self.interleaved, false),
        }
        .map_err(invalid)?
        .min(MAX_FRAMES);
        self.buffer.render_uninit(Some(frames));
        for (plane, &channel) in self.order.iter().enumerate() {
            let Some(plane) = self.buffer.plane_mut(plane) else { continue };
            let samples = self.interleaved.iter().skip(channel).step_by(self.channels);
            for (out, sample) in plane.iter_mut().zip(samples) {
                *out = sample * self.gain;
            }
        }
        Ok(())
    }
}

impl AudioDecoder for OpusAudioDecoder {
    fn reset(&mut self) {
        match &mut self.inner {
            Inner::Single(d) => d.reset(),
            Inner::Multi(d) => d.reset(),
        }
    }

    fn codec_info(&self) -> &CodecInfo {
        &INFO
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        &self.params
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Result<GenericAudioBufferRef<'_>> {
        if let Err(e) = self.decode_packet(packet.data) {
            self.buffer.clear();
            return Err(e);
        }
        Ok(self.buffer.as_generic_audio_buffer_ref())
    }

    fn finalize(&mut self) -> FinalizeResult {
        FinalizeResult::default()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.buffer.as_generic_audio_buffer_ref()
    }
}

impl RegisterableAudioDecoder for OpusAudioDecoder {
    fn try_registry_new(
        params: &AudioCodecParameters,
        _options: &AudioDecoderOptions,
    ) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(OpusAudioDecoder::new(params)?))
    }

    fn supported_codecs() -> &'static [SupportedAudioCodec] {
        &[SupportedAudioCodec { id: CODEC_ID_OPUS, info: INFO }]
    }
}
