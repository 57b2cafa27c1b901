//! Sample entries of sound tracks in MP4 and QuickTime files: the codec and its setup data.

use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::aac_config::AacConfig;
use crate::container::wave_channels;
use crate::error::AudioErrorKind;
use crate::ima4::{BLOCK_BYTES, BLOCK_FRAMES};
use crate::mp4::be32;
use crate::riff::check_shape;
use crate::sniff::unsupported;

/// How the samples of a track become packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Each is one, of its own size.
    Samples,
    /// They lie back to back in chunks: `frames` samples in `bytes` bytes, `most` such at once.
    Chunks { bytes: usize, frames: u64, most: u64 },
}

/// What a decoder needs to know.
#[derive(Debug, Clone)]
pub(crate) struct SoundEntry {
    pub(crate) params: AudioCodecParameters,
    pub(crate) name: String,
    pub(crate) packing: Packing,
}

/// The fixed part of an entry.
struct Fixed<'a> {
    kind: [u8; 4],
    channels: usize,
    bits: u32,
    rate: u32,
    /// Flags of version 2: 1 float, 2 big endian.
    flags: Option<u32>,
    boxes: &'a [u8],
}

impl<'a> Fixed<'a> {
    fn parse(entry: &'a [u8]) -> Option<Fixed<'a>> {
        // The stated size may be wrong; what is there counts.
        let size = be32(entry, 0).map_or(0, |n| n as usize).clamp(36, entry.len().max(36));
        let entry = entry.get(..size.min(entry.len()))?;
        let u16_at = |at: usize| entry.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        let mut fixed = Fixed {
            kind: entry.get(4..8)?.try_into().ok()?,
            channels: usize::from(u16_at(24)?),
            bits: u32::from(u16_at(26)?),
            // 16.16 fixed point.
            rate: be32(entry, 32)? >> 16,
            flags: None,
            boxes: &[],
        };
        let boxes = match u16_at(16)? {
            0 => 36,
            1 => 52,
            _ => {
                let rate = f64::from_be_bytes(entry.get(40..48)?.try_into().ok()?);
                fixed.rate = if (1.0..=4e9).contains(&rate) { rate.round() as u32 } else { 0 };
                fixed.channels = be32(entry, 48)? as usize;
                fixed.bits = be32(entry, 56)?;
                fixed.flags = be32(entry, 60);
                72
            }
        };
        fixed.boxes = entry.get(boxes..).unwrap_or_default();
        Some(fixed)
    }

    /// The content of a box within the entry, or within the `wave` box that QuickTime puts around them.
    fn child(&self, kind: &[u8; 4]) -> Option<&'a [u8]> {
        find(self.boxes, kind).or_else(|| find(find(self.boxes, b"wave")?, kind))
    }

    fn little_endian(&self) -> bool {
        self.child(b"enda").and_then(|b| b.get(1)).is_some_and(|&b| b == 1)
    }
}

fn find<'a>(mut data: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    while let (Some(size), Some(found)) = (be32(data, 0), data.get(4..8)) {
        let size = if size == 0 { data.len() } else { size as usize };
        let content = data.get(8..size.min(data.len()))?;
        if found == kind {
            return Some(content);
        }
        data = data.get(size..)?;
    }
    None
}

fn malformed(reason: String) -> AudioErrorKind {
    AudioErrorKind::malformed("MP4", reason)
}

impl SoundEntry {
    /// Understands an entry, or says by name why not. `timescale` stands for a rate that does not fit in its field.
    pub(crate) fn parse(entry: &[u8], timescale: u32) -> Result<SoundEntry, AudioErrorKind> {
        let fixed =
            Fixed::parse(entry).ok_or_else(|| malformed("its sample description is cut short".into()))?;
        let rate = if fixed.rate == 0 { timescale } else { fixed.rate };
        let mut params = AudioCodecParameters::new();
        params.with_sample_rate(rate).with_channels(wave_channels(fixed.channels.min(64)));
        let compressed = |params: AudioCodecParameters, name: &str| {
            Ok(SoundEntry { params, name: name.into(), packing: Packing::Samples })
        };
        let missing = |what: &str| malformed(format!("its {what} setup data are missing"));
        match &fixed.kind {
            b"mp4a" => elementary(fixed.child(b"esds").ok_or_else(|| missing("AAC"))?, params),
            b"alac" => {
                let cookie = fixed.child(b"alac").and_then(|b| b.get(4..)).ok_or_else(|| missing("ALAC"))?;
                // The rate is the last number of the cookie; the entry's field is too narrow for some.
                if let Some(rate) = be32(cookie, 20).filter(|&r| r > 0) {
                    params.with_sample_rate(rate);
                }
                params.for_codec(CODEC_ID_ALAC).with_extra_data(cookie.into());
                compressed(params, "ALAC")
            }
            b"Opus" => {
                let head = fixed.child(b"dOps").ok_or_else(|| missing("Opus"))?;
                let extra = [b"OpusHead", head].concat();
                params.for_codec(CODEC_ID_OPUS).with_sample_rate(48_000).with_extra_data(extra.into());
                compressed(params, "Opus")
            }
            b"fLaC" => {
                let info = fixed.child(b"dfLa").and_then(|b| b.get(8..42)).ok_or_else(|| missing("FLAC"))?;
                let rate = u32::from(info[10]) << 12 | u32::from(info[11]) << 4 | u32::from(info[12] >> 4);
                params.for_codec(CODEC_ID_FLAC).with_sample_rate(rate).with_extra_data(info.into());
                compressed(params, "FLAC")
            }
            b".mp3" | b"mp3 " | b"ms\0\x55" => {
                params.for_codec(CODEC_ID_MP3);
                compressed(params, "MP3")
            }
            b"ima4" => {
                check_shape("MP4", rate, fixed.channels)?;
                params.for_codec(CODEC_ID_ADPCM_IMA_QT);
                let packing = Packing::Chunks {
                    bytes: BLOCK_BYTES * fixed.channels,
                    frames: BLOCK_FRAMES as u64,
                    most: 128,
                };
                Ok(SoundEntry { params, name: "IMA ADPCM".into(), packing })
            }
            _ => pcm(&fixed, rate, params),
        }
    }
}

/// MPEG-4 elementary streams (ISO 14496-1): the descriptor tells the codec.
fn elementary(esds: &[u8], mut params: AudioCodecParameters) -> Result<SoundEntry, AudioErrorKind> {
    let (object, config) = descriptor(esds.get(4..).unwrap_or_default())
        .ok_or_else(|| malformed("its elementary stream descriptor is damaged".into()))?;
    let name = match object {
        0x40 | 0x66..=0x68 => {
            params.for_codec(CODEC_ID_AAC);
            if let Some(rate) = AacConfig::parse(&config).and_then(|c| c.rate) {
                params.with_sample_rate(rate);
            }
            if config.len() >= 2 {
                params.with_extra_data(config.into());
            }
            "AAC"
        }
        0x69 | 0x6b => {
            params.for_codec(CODEC_ID_MP3);
            "MP3"
        }
        0xa5 => return Err(unsupported("MP4 with AC-3 (Dolby Digital)")),
        0xa6 => return Err(unsupported("MP4 with E-AC-3 (Dolby Digital Plus)")),
        0xa9..=0xac => return Err(unsupported("MP4 with DTS")),
        0xdd => return Err(unsupported("MP4 with Vorbis")),
        0xe1 => return Err(unsupported("MP4 with QCELP")),
        n => return Err(unsupported(&format!("MP4 with object type {n:#04x}"))),
    };
    Ok(SoundEntry { params, name: name.into(), packing: Packing::Samples })
}

/// The object type and the decoder's own setup data out of an ES descriptor.
fn descriptor(mut data: &[u8]) -> Option<(u8, Vec<u8>)> {
    let mut object = None;
    // Descriptors lie within each other; going into each finds them in order.
    for _ in 0..16 {
        let (&tag, rest) = data.split_first()?;
        let mut len = 0usize;
        let mut at = 0;
        for _ in 0..4 {
            let b = *rest.get(at)?;
            at += 1;
            len = len << 7 | usize::from(b & 0x7f);
            if b & 0x80 == 0 {
                break;
            }
        }
        let content = rest.get(at..)?;
        let skip = match tag {
            3 => {
                let flags = *content.get(2)?;
                let url = if flags & 0x40 != 0 { 1 + usize::from(*content.get(3)?) } else { 0 };
                3 + if flags & 0x80 != 0 { 2 } else { 0 } + url + if flags & 0x20 != 0 { 2 } else { 0 }
            }
            4 => {
                object = content.first().copied();
                13
            }
            5 => return Some((object?, content.get(..len)?.to_vec())),
            // Without setup data, as MP3 is; what follows the decoder's descriptor is of no use here.
            _ => return object.map(|o| (o, Vec::new())),
        };
        let Some(next) = content.get(skip..).filter(|n| !n.is_empty()) else {
            return object.map(|o| (o, Vec::new()));
        };
        data = next;
    }
    None
}

fn pcm(fixed: &Fixed<'_>, rate: u32, mut params: AudioCodecParameters) -> Result<SoundEntry, AudioErrorKind> {
    let little = fixed.little_endian();
    let bits = fixed.bits;
    let integer = |bits: u32, little: bool| match (bits, little) {
        (8, _) => Some(CODEC_ID_PCM_S8),
        (16, true) => Some(CODEC_ID_PCM_S16LE),
        (16, false) => Some(CODEC_ID_PCM_S16BE),
        (24, true) => Some(CODEC_ID_PCM_S24LE),
        (24, false) => Some(CODEC_ID_PCM_S24BE),
        (32, true) => Some(CODEC_ID_PCM_S32LE),
        (32, false) => Some(CODEC_ID_PCM_S32BE),
        _ => None,
    };
    let float = |bits: u32, little: bool| match (bits, little) {
        (32, true) => Some(CODEC_ID_PCM_F32LE),
        (32, false) => Some(CODEC_ID_PCM_F32BE),
        (64, true) => Some(CODEC_ID_PCM_F64LE),
        (64, false) => Some(CODEC_ID_PCM_F64BE),
        _ => None,
    };
    // ISO 23003-5: a byte of flags (1: little endian) and the bits.
    let iso = fixed.child(b"pcmC").and_then(|b| Some((b.get(4)? & 1 != 0, u32::from(*b.get(5)?))));
    let (codec, width): (Option<AudioCodecId>, u32) = match &fixed.kind {
        b"sowt" => (integer(bits, true), bits),
        b"twos" => (integer(bits, false), bits),
        b"raw " => (Some(CODEC_ID_PCM_U8), 8),
        b"NONE" | b"\0\0\0\0" if bits == 8 => (Some(CODEC_ID_PCM_U8), 8),
        b"NONE" | b"\0\0\0\0" => (integer(bits, false), bits),
        b"in24" => (integer(24, little), 24),
        b"in32" => (integer(32, little), 32),
        b"fl32" => (float(32, little), 32),
        b"fl64" => (float(64, little), 64),
        b"ulaw" => (Some(CODEC_ID_PCM_MULAW), 8),
        b"alaw" => (Some(CODEC_ID_PCM_ALAW), 8),
        b"lpcm" => {
            let flags = fixed.flags.unwrap_or(2);
            let little = flags & 2 == 0;
            (if flags & 1 != 0 { float(bits, little) } else { integer(bits, little) }, bits)
        }
        b"ipcm" => iso.map_or((None, 0), |(little, bits)| (integer(bits, little), bits)),
        b"fpcm" => iso.map_or((None, 0), |(little, bits)| (float(bits, little), bits)),
        other => return Err(unsupported(&format!("MP4 with {}", other_name(other)))),
    };
    check_shape("MP4", rate, fixed.channels)?;
    let codec = codec.ok_or_else(|| malformed(format!("PCM samples of {bits} bits")))?;
    let coded = if codec == CODEC_ID_PCM_ALAW || codec == CODEC_ID_PCM_MULAW { 16 } else { width };
    crate::matroska_codecs::set_pcm(&mut params, codec, coded);
    let packing = Packing::Chunks { bytes: width as usize / 8 * fixed.channels, frames: 1, most: 8192 };
    let name = match codec {
        CODEC_ID_PCM_ALAW => "A-law",
        CODEC_ID_PCM_MULAW => "mu-law",
        _ => "PCM",
    };
    Ok(SoundEntry { params, name: name.into(), packing })
}

/// Names of codecs that are not read.
fn other_name(kind: &[u8; 4]) -> String {
    let name = match kind {
        b"ac-3" | b"sac3" => "AC-3 (Dolby Digital)",
        b"ec-3" => "E-AC-3 (Dolby Digital Plus)",
        b"ac-4" => "AC-4 (Dolby)",
        b"samr" | b"sawb" | b"sawp" => "AMR",
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" => "DTS",
        b"mha1" | b"mhm1" => "MPEG-H 3D Audio",
        b"agsm" | b"ms\0\x31" => "GSM 6.10",
        b"QDM2" | b"QDMC" => "QDesign Music",
        b"Qclp" | b"sqcp" => "QCELP",
        b"MAC3" | b"MAC6" => "MACE",
        b"wma " | b"WMA2" => "WMA (Windows Media Audio)",
        b"mlpa" => "TrueHD",
        b"ms\0\x02" => "Microsoft ADPCM",
        b"ms\0\x11" => "IMA ADPCM of Windows",
        b"enca" | b"drms" => "encryption (DRM)",
        other => {
            let text: String = other.iter().map(|&b| char::from(b)).filter(char::is_ascii_graphic).collect();
            return format!("the codec {text:?}");
        }
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors() {
        let aac = [
            3u8, 0x80, 0x80, 0x80, 34, 0, 1, 0, 4, 0x80, 0x80, 0x80, 20, 0x40, 0x15, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 5, 0x80, 0x80, 0x80, 2, 0x12, 0x10, 6, 1, 2,
        ];
        assert_eq!(descriptor(&aac), Some((0x40, vec![0x12, 0x10])));
        // MP3: no setup data.
        let mp3 = [3u8, 21, 0, 1, 0, 4, 13, 0x6b, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 1, 2];
        assert_eq!(descriptor(&mp3), Some((0x6b, vec![])));
        for cut in 0..aac.len() {
            let _ = descriptor(&aac[..cut]);
        }
        assert_eq!(descriptor(&[3; 200]), None);
    }

    fn entry(kind: &[u8; 4], channels: u16, bits: u16, boxes: &[u8]) -> Vec<u8> {
        let mut e = (36 + boxes.len() as u32).to_be_bytes().to_vec();
        e.extend(kind);
        e.extend([0; 16]);
        e.extend(channels.to_be_bytes());
        e.extend(bits.to_be_bytes());
        e.extend([0; 4]);
        e.extend((16_000u32 << 16).to_be_bytes());
        e.extend(boxes);
        e
    }

    #[test]
    fn entries() {
        let enda = b"\0\0\0\x12wave\0\0\0\x0aenda\0\x01";
        for (bytes, codec, packing) in [
            (
                entry(b"sowt", 1, 16, &[]),
                CODEC_ID_PCM_S16LE,
                Packing::Chunks { bytes: 2, frames: 1, most: 8192 },
            ),
            (
                entry(b"in24", 2, 16, &[]),
                CODEC_ID_PCM_S24BE,
                Packing::Chunks { bytes: 6, frames: 1, most: 8192 },
            ),
            (
                entry(b"in24", 2, 16, enda),
                CODEC_ID_PCM_S24LE,
                Packing::Chunks { bytes: 6, frames: 1, most: 8192 },
            ),
            (
                entry(b"ulaw", 1, 16, &[]),
                CODEC_ID_PCM_MULAW,
                Packing::Chunks { bytes: 1, frames: 1, most: 8192 },
            ),
            (
                entry(b"ima4", 2, 16, &[]),
                CODEC_ID_ADPCM_IMA_QT,
                Packing::Chunks { bytes: 68, frames: 64, most: 128 },
            ),
            (entry(b".mp3", 2, 16, &[]), CODEC_ID_MP3, Packing::Samples),
        ] {
            let e = SoundEntry::parse(&bytes, 48_000).unwrap();
            assert_eq!((e.params.codec, e.packing, e.params.sample_rate), (codec, packing, Some(16_000)));
            for cut in 0..bytes.len() {
                let _ = SoundEntry::parse(&bytes[..cut], 48_000);
            }
        }
        for (bytes, word) in [
            (entry(b"ac-3", 2, 16, &[]), "AC-3"),
            (entry(b"samr", 1, 16, &[]), "AMR"),
            (entry(b"zzzz", 1, 16, &[]), "\"zzzz\""),
            (entry(b"twos", 0, 16, &[]), "0 channels"),
            (entry(b"twos", 1, 17, &[]), "17 bits"),
            (entry(b"mp4a", 1, 16, &[]), "missing"),
            (vec![], "cut short"),
        ] {
            let e = SoundEntry::parse(&bytes, 48_000).unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
        }
    }
}
