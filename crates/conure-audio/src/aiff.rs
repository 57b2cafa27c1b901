//! AIFF and AIFF-C (Apple, 1989 and 1991).

use std::io::{self, BufReader};

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_ADPCM_IMA_QT;

use crate::behind::behind;
use crate::chunks::Chunks;
use crate::error::AudioErrorKind;
use crate::fixed_packets::FixedPackets;
use crate::ima4::{BLOCK_BYTES, BLOCK_FRAMES};
use crate::layout::ChannelLayout;
use crate::packets::{PacketStream, Track};
use crate::pcm::SampleFormat;
use crate::riff::check_shape;
use crate::sniff::unsupported;
use crate::source::Media;
use crate::stream::{BlockSource, Spec};

/// The common chunk.
struct Common {
    channels: usize,
    /// Of each channel; packets of 64 for ima4.
    frames: u64,
    bits: u16,
    rate: u32,
    compression: [u8; 4],
}

/// The sound's place in the file.
struct Sound {
    offset: u64,
    declared: Option<u64>,
}

/// More chunks than this are not looked at.
const MAX_CHUNKS: u32 = 100_000;

fn malformed(reason: impl Into<String>) -> AudioErrorKind {
    AudioErrorKind::malformed("AIFF", reason)
}

pub(crate) fn open(mut media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let (common, sound) = scan(&mut media).map_err(AudioErrorKind::Read)?;
    let common = common.ok_or_else(|| malformed("it ends before its common chunk (COMM)"))??;
    let Some(sound) = sound else {
        // Without a sound chunk there may be no sound, and that is allowed.
        return match common.frames {
            0 => pcm(media, &common, &Sound { offset: u64::MAX, declared: Some(0) }),
            _ => Err(malformed("it ends before its sound chunk (SSND)")),
        };
    };
    if &common.compression == b"ima4" { ima4(media, &common, &sound) } else { pcm(media, &common, &sound) }
}

/// Finds the two chunks that matter; they may come in any order.
#[allow(clippy::type_complexity)]
fn scan(media: &mut Media) -> io::Result<(Option<Result<Common, AudioErrorKind>>, Option<Sound>)> {
    let (mut common, mut sound) = (None, None);
    let mut aifc = [0u8; 12];
    media.read_at(0, &mut aifc)?;
    let mut at = 12u64;
    for _ in 0..MAX_CHUNKS {
        let mut head = [0u8; 8];
        if media.read_at(at, &mut head)? < 8 || (common.is_some() && sound.is_some()) {
            break;
        }
        let size = u64::from(u32::from_be_bytes([head[4], head[5], head[6], head[7]]));
        match &head[..4] {
            b"COMM" => {
                let mut body = vec![0u8; size.min(64) as usize];
                let n = media.read_at(at + 8, &mut body)?;
                body.truncate(n);
                common = Some(parse_common(&body, aifc.ends_with(b"AIFC")));
            }
            b"SSND" => {
                let mut body = [0u8; 8];
                let n = media.read_at(at + 8, &mut body)?;
                let skip = u64::from(u32::from_be_bytes([body[0], body[1], body[2], body[3]]));
                // A size of 0 or next to 2^31 or 2^32 was never filled in.
                let placeholder = size <= 8 || (size >= 0x7fff_0000 && size & 0x7fff_0000 == 0x7fff_0000);
                let declared = (!placeholder).then(|| size.saturating_sub(8 + skip));
                sound = Some(Sound { offset: at + 8 + n as u64 + skip, declared });
            }
            _ => {}
        }
        at = at.saturating_add(8 + size + size % 2);
    }
    Ok((common, sound))
}

fn parse_common(b: &[u8], aifc: bool) -> Result<Common, AudioErrorKind> {
    let (Some(channels), Some(frames), Some(bits), Some(rate)) =
        (b.get(0..2), b.get(2..6), b.get(6..8), b.get(8..18))
    else {
        return Err(malformed("its common chunk (COMM) is cut short"));
    };
    let compression = match b.get(18..22) {
        Some(c) if aifc => [c[0], c[1], c[2], c[3]],
        _ => *b"NONE",
    };
    let common = Common {
        channels: usize::from(channels[0]) << 8 | usize::from(channels[1]),
        frames: frames.iter().fold(0, |v, &b| v << 8 | u64::from(b)),
        bits: u16::from_be_bytes([bits[0], bits[1]]),
        rate: extended(rate),
        compression,
    };
    check_shape("AIFF", common.rate, common.channels)?;
    Ok(common)
}

/// An 80-bit float of the 8087, as a whole number of Hz; 0 if it is none.
fn extended(b: &[u8]) -> u32 {
    let exponent = i32::from(b[0] & 0x7f) << 8 | i32::from(b[1]);
    let mantissa = b[2..10].iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
    // The integer bit is explicit: value = mantissa * 2^(exponent - 16383 - 63).
    let shift = 16383 + 63 - exponent;
    if b[0] & 0x80 != 0 || !(32..64).contains(&shift) {
        return 0;
    }
    u32::try_from((mantissa >> (shift - 1)).div_ceil(2)).unwrap_or(0)
}

fn sample_format(common: &Common) -> Result<SampleFormat, AudioErrorKind> {
    use SampleFormat::*;
    let integer = |little: bool| match (common.bits.div_ceil(8), little) {
        (1, _) => Ok(S8),
        (2, false) => Ok(S16Be),
        (3, false) => Ok(S24Be),
        (4, false) => Ok(S32Be),
        (2, true) => Ok(S16Le),
        (3, true) => Ok(S24Le),
        (4, true) => Ok(S32Le),
        _ => Err(malformed(format!("samples of {} bits; expected 1 to 32", common.bits))),
    };
    match &common.compression {
        b"NONE" | b"none" | b"twos" => integer(false),
        b"sowt" => integer(true),
        b"raw " => Ok(U8),
        b"in24" => Ok(S24Be),
        b"in32" => Ok(S32Be),
        b"42ni" => Ok(S24Le),
        b"23ni" => Ok(S32Le),
        b"fl32" | b"FL32" => Ok(F32Be),
        b"fl64" | b"FL64" => Ok(F64Be),
        b"ulaw" | b"ULAW" => Ok(MuLaw),
        b"alaw" | b"ALAW" => Ok(ALaw),
        other => {
            let name = match other {
                b"MAC3" | b"MAC6" => "MACE".to_owned(),
                b"QDMC" | b"QDM2" => "QDesign Music".to_owned(),
                b"GSM " | b"agsm" => "GSM 6.10".to_owned(),
                b"G722" => "G.722".to_owned(),
                b"Qclp" => "QCELP".to_owned(),
                other => format!("the compression {:?}", String::from_utf8_lossy(other)),
            };
            Err(unsupported(&format!("AIFF-C with {name}")))
        }
    }
}

/// AIFF's own order of channels differs from WAVE's from four on; files in the wild follow either, so only the plain
/// ones get places.
fn layout(channels: usize) -> ChannelLayout {
    if channels <= 3 { ChannelLayout::default_for(channels) } else { ChannelLayout::discrete(channels) }
}

fn pcm(media: Media, common: &Common, sound: &Sound) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let format = sample_format(common)?;
    let spec = Spec { sample_rate: common.rate, layout: layout(common.channels) };
    let media = media.window(sound.offset, u64::MAX).map_err(AudioErrorKind::Read)?;
    // Where the sound chunk's length was never filled in, the common chunk may have been.
    let counted = common.frames.saturating_mul((format.bytes() * common.channels) as u64);
    let declared = sound.declared.or((counted > 0 && media.len() == 0).then_some(counted));
    Ok(crate::wav::pcm_stream(media, format, spec, declared, Chunks::Iff))
}

fn ima4(mut media: Media, common: &Common, sound: &Sound) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let mut params = AudioCodecParameters::new();
    params
        .for_codec(CODEC_ID_ADPCM_IMA_QT)
        .with_sample_rate(common.rate)
        .with_channels(crate::container::wave_channels(common.channels));
    let end = sound.declared.map_or(u64::MAX, |n| sound.offset.saturating_add(n));
    let left_out = behind(&mut media, end, Chunks::Iff).map_err(AudioErrorKind::Read)?;
    let media = media.window(sound.offset, u64::MAX).map_err(AudioErrorKind::Read)?;
    let source = FixedPackets::new(
        Box::new(BufReader::new(media)),
        BLOCK_BYTES * common.channels,
        BLOCK_FRAMES as u64,
        sound.declared,
    );
    let mut track = Track::new(params, "IMA ADPCM");
    track.end = i64::try_from(common.frames.saturating_mul(BLOCK_FRAMES as u64)).ok().filter(|&n| n > 0);
    track.left_out = left_out;
    Ok(Box::new(PacketStream::new("AIFF", Box::new(source), track)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (bytes, rate) in [
            ([0x40, 0x0e, 0xac, 0x44, 0, 0, 0, 0, 0, 0], 44_100),
            ([0x40, 0x0e, 0xbb, 0x80, 0, 0, 0, 0, 0, 0], 48_000),
            ([0x40, 0x0b, 0xfa, 0, 0, 0, 0, 0, 0, 0], 8_000),
            ([0x40, 0x0f, 0xbb, 0x80, 0, 0, 0, 0, 0, 0], 96_000),
            ([0x40, 0x0d, 0xad, 0xdd, 0xd1, 0x74, 0x5d, 0x17, 0x45, 0xd1], 22_255), // an old Macintosh: 22254.545
            ([0; 10], 0),
            ([0xff; 10], 0),
            ([0xc0, 0x0e, 0xac, 0x44, 0, 0, 0, 0, 0, 0], 0),
        ] {
            assert_eq!(extended(&bytes), rate, "{bytes:02x?}");
        }
    }
}
