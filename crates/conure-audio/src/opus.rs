//! Opus for Symphonia: the pure-Rust decoder of RFC 6716 behind the codec registry.

use ropus::OpusMSDecoder;
use symphonia::core::audio::{AudioBuffer, AudioMut, AudioSpec, Channels, Position};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::registry::SupportedAudioCodec;
use symphonia::core::errors::{Error, Result};

use crate::own_codec::OwnCodec;

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

/// How many samples at 48 kHz a packet decodes to (RFC 6716, 3.1 and 3.2); `None` if it breaks the rules.
pub(crate) fn packet_duration(packet: &[u8]) -> Option<u64> {
    let toc = *packet.first()?;
    let config = toc >> 3;
    let frame: u64 = match config {
        0..12 => [480, 960, 1920, 2880][usize::from(config % 4)],
        12..16 => [480, 960][usize::from(config % 2)],
        _ => [120, 240, 480, 960][usize::from(config % 4)],
    };
    let frames = match toc & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u64::from(*packet.get(1)? & 0x3f),
    };
    Some(frame * frames).filter(|&n| n > 0 && n <= MAX_FRAMES as u64)
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
            0 if channels <= 2 => (1, channels - 1, (0..channels as u8).collect()),
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

/// Decodes Opus packets of Ogg, Matroska/WebM, MP4 and CAF.
pub(crate) struct Opus {
    inner: OpusMSDecoder,
    channels: usize,
    order: Vec<usize>,
    gain: f32,
    interleaved: Vec<i16>,
}

impl OwnCodec for Opus {
    const SUPPORTED: &'static [SupportedAudioCodec] =
        &[SupportedAudioCodec { id: CODEC_ID_OPUS, info: INFO }];

    fn new(params: &AudioCodecParameters) -> Result<(Opus, AudioSpec, usize)> {
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
                    mapping: (0..channels as u8).collect(),
                }
            }
        };
        let (channels, order) = head.order();
        // One stream, mono or stereo, is the simplest case of several.
        let inner = OpusMSDecoder::new(
            RATE as i32,
            head.channels as i32,
            head.streams as i32,
            head.coupled as i32,
            &head.mapping,
        )
        .map_err(|_| Error::DecodeError("opus: impossible channel mapping"))?;
        let opus = Opus {
            inner,
            channels: head.channels,
            order,
            gain: 10f32.powf(f32::from(head.gain) / (20.0 * 256.0)) / 32_768.0,
            interleaved: vec![0; MAX_FRAMES * head.channels],
        };
        Ok((opus, AudioSpec::new(RATE, channels), MAX_FRAMES))
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn decode(&mut self, data: &[u8], buffer: &mut AudioBuffer<f32>) -> Result<()> {
        if data.is_empty() {
            return Err(Error::DecodeError("opus: empty packet"));
        }
        let len = i32::try_from(data.len()).map_err(|_| Error::DecodeError("opus: packet too long"))?;
        let frames = self
            .inner
            .decode(Some(data), len, &mut self.interleaved, MAX_FRAMES as i32, false)
            .map_err(|_| Error::DecodeError("opus: invalid packet"))?;
        let frames = usize::try_from(frames).unwrap_or(0).min(MAX_FRAMES);
        buffer.render_uninit(Some(frames));
        for (plane, &channel) in self.order.iter().enumerate() {
            let Some(plane) = buffer.plane_mut(plane) else { continue };
            let samples = self.interleaved.iter().skip(channel).step_by(self.channels);
            for (out, sample) in plane.iter_mut().zip(samples) {
                *out = f32::from(*sample) * self.gain;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (packet, expected) in [
            (&[0x08u8][..], Some(960)),  // SILK narrowband, 20 ms
            (&[0x18], Some(2880)),       // SILK, 60 ms
            (&[0x79, 0], Some(1920)),    // hybrid, 2 x 20 ms
            (&[0xe0], Some(120)),        // CELT, 2.5 ms
            (&[0xff, 0x03], Some(2880)), // CELT, 3 x 20 ms
            (&[0xff, 0x3f], None),       // 63 x 20 ms is more than 120 ms
            (&[0xff, 0x00], None),
            (&[0xff], None),
            (&[], None),
        ] {
            assert_eq!(packet_duration(packet), expected, "{packet:02x?}");
        }
    }

    #[test]
    fn heads() {
        let ogg = b"OpusHead\x01\x02\x38\x01\x80\xbb\0\0\0\0\0";
        let head = OpusHead::parse(ogg).unwrap();
        assert_eq!((head.channels, head.pre_skip, head.gain), (2, 312, 0));
        let mp4 = b"OpusHead\x00\x01\x01\x38\0\0\xbb\x80\xff\0\0";
        let head = OpusHead::parse(mp4).unwrap();
        assert_eq!((head.channels, head.pre_skip, head.gain), (1, 312, -256));
        let six = b"OpusHead\x01\x06\x38\x01\x80\xbb\0\0\0\0\x01\x04\x02\x00\x04\x01\x02\x03\x05";
        let (channels, order) = OpusHead::parse(six).unwrap().order();
        assert_eq!((channels.count(), order), (6, vec![0, 2, 1, 5, 3, 4]));
        // A mapping that is cut short, no channels, three channels without a mapping.
        assert!(OpusHead::parse(&six[..24]).is_none());
        assert!(OpusHead::parse(b"OpusHead\x01\x00\x38\x01\x80\xbb\0\0\0\0\0").is_none());
        assert!(OpusHead::parse(b"OpusHead\x01\x03\x38\x01\x80\xbb\0\0\0\0\0").is_none());
    }
}
