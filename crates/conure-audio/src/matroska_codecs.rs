//! Track entries and codec names of Matroska (RFC 9559 and its registry), and what decoders need to know.

use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::ebml::{children, float, unsigned};
use crate::error::AudioErrorKind;
use crate::sniff::unsupported;

/// Bytes that are the same at the front of every frame and left out there; more are no header.
const MAX_STRIPPED: usize = 16;

/// A sound track as its entry describes it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) kind: u64,
    pub(crate) codec: String,
    pub(crate) private: Vec<u8>,
    pub(crate) rate: f64,
    pub(crate) channels: u64,
    pub(crate) bits: u64,
    /// In nanoseconds.
    pub(crate) delay: u64,
    pub(crate) default: bool,
    /// Bytes that were taken off the front of every frame.
    pub(crate) stripped: Vec<u8>,
    /// Compressed with zlib and the like, or encrypted.
    pub(crate) encoded: bool,
}

impl Entry {
    pub(crate) fn parse(data: &[u8]) -> Entry {
        let mut entry = Entry { rate: 8000.0, channels: 1, default: true, ..Entry::default() };
        for (id, content) in children(data) {
            match id {
                0xd7 => entry.number = unsigned(content),
                0x83 => entry.kind = unsigned(content),
                0x86 => {
                    let text = content.split(|&b| b == 0).next().unwrap_or_default();
                    entry.codec = String::from_utf8_lossy(text).into_owned();
                }
                0x63a2 => entry.private = content.to_vec(),
                0x56aa => entry.delay = unsigned(content),
                0x88 => entry.default = unsigned(content) != 0,
                0xe1 => {
                    for (id, content) in children(content) {
                        match id {
                            0xb5 => entry.rate = float(content),
                            0x9f => entry.channels = unsigned(content),
                            0x6264 => entry.bits = unsigned(content),
                            _ => {}
                        }
                    }
                }
                0x6d80 => entry.encodings(content),
                _ => {}
            }
        }
        entry
    }

    fn encodings(&mut self, data: &[u8]) {
        for (_, encoding) in children(data).filter(|(id, _)| *id == 0x6240) {
            let find =
                |data, wanted| children(data).find(|(id, _)| *id == wanted).map(|(_, content)| content);
            let compression: Option<&[u8]> = find(encoding, 0x5034);
            // Algorithm 3 takes the same bytes off the front of every frame; the others would need a decompressor.
            match compression.map(|c| (find(c, 0x4254).map_or(0, unsigned), find(c, 0x4255))) {
                Some((3, Some(bytes))) if bytes.len() <= MAX_STRIPPED => self.stripped = bytes.to_vec(),
                _ => self.encoded = true,
            }
        }
    }
}

/// The entries of a list of tracks.
pub(crate) fn entries(list: &[u8]) -> Vec<Entry> {
    children(list).filter(|(id, _)| *id == 0xae).map(|(_, c)| Entry::parse(c)).collect()
}

/// Decoder parameters of a track and its codec's name.
pub(crate) fn codec_parameters(entry: &Entry) -> Result<(AudioCodecParameters, String), AudioErrorKind> {
    let mut params = AudioCodecParameters::new();
    let rate = entry.rate.round();
    let channels = u32::try_from(entry.channels).unwrap_or(u32::MAX);
    if !(1.0..=4_000_000.0).contains(&rate) || channels == 0 || channels > 64 {
        let reason = format!("its sound track claims {rate} Hz and {channels} channels");
        return Err(AudioErrorKind::malformed("Matroska/WebM", reason));
    }
    params.with_sample_rate(rate as u32).with_channels(crate::container::wave_channels(channels as usize));
    let damaged =
        |what: &str| AudioErrorKind::malformed("Matroska/WebM", format!("its {what} setup data are damaged"));
    let private = entry.private.as_slice();
    let codec = entry.codec.as_str();
    let name = match codec {
        "A_OPUS" => {
            params.for_codec(CODEC_ID_OPUS).with_sample_rate(48_000);
            if !private.is_empty() {
                params.with_extra_data(private.into());
            }
            "Opus"
        }
        "A_VORBIS" => {
            let headers = xiph_headers(private).ok_or_else(|| damaged("Vorbis"))?;
            params.for_codec(CODEC_ID_VORBIS).with_extra_data(headers.into());
            "Vorbis"
        }
        "A_FLAC" => {
            // "fLaC", then the STREAMINFO block with its head.
            let info =
                private.strip_prefix(b"fLaC").and_then(|p| p.get(4..38)).ok_or_else(|| damaged("FLAC"))?;
            params.for_codec(CODEC_ID_FLAC).with_extra_data(info.into());
            "FLAC"
        }
        "A_ALAC" => {
            params.for_codec(CODEC_ID_ALAC).with_extra_data(private.into());
            "ALAC"
        }
        "A_MPEG/L3" => simple(&mut params, CODEC_ID_MP3, "MP3"),
        "A_MPEG/L2" => simple(&mut params, CODEC_ID_MP2, "MP2"),
        "A_MPEG/L1" => simple(&mut params, CODEC_ID_MP1, "MP1"),
        "A_PCM/INT/LIT" | "A_PCM/INT/BIG" | "A_PCM/FLOAT/IEEE" => pcm(entry, &mut params)?,
        "A_MS/ACM" => acm(private, &mut params)?,
        _ if codec.starts_with("A_AAC") => {
            params.for_codec(CODEC_ID_AAC);
            if private.len() >= 2 {
                params.with_extra_data(private.into());
            }
            "AAC"
        }
        _ => return Err(unsupported(&format!("Matroska with {}", other_name(codec)))),
    };
    Ok((params, name.to_owned()))
}

fn simple(params: &mut AudioCodecParameters, codec: AudioCodecId, name: &'static str) -> &'static str {
    params.for_codec(codec);
    name
}

fn pcm(entry: &Entry, params: &mut AudioCodecParameters) -> Result<&'static str, AudioErrorKind> {
    let float = entry.codec.ends_with("IEEE");
    let big = entry.codec.ends_with("BIG");
    let codec = match (float, big, entry.bits) {
        (true, _, 32) => CODEC_ID_PCM_F32LE,
        (true, _, 64) => CODEC_ID_PCM_F64LE,
        (false, _, 8) => CODEC_ID_PCM_U8,
        (false, false, 16) => CODEC_ID_PCM_S16LE,
        (false, true, 16) => CODEC_ID_PCM_S16BE,
        (false, false, 24) => CODEC_ID_PCM_S24LE,
        (false, true, 24) => CODEC_ID_PCM_S24BE,
        (false, false, 32) => CODEC_ID_PCM_S32LE,
        (false, true, 32) => CODEC_ID_PCM_S32BE,
        (.., bits) => {
            let reason = format!("its sound track has PCM samples of {bits} bits");
            return Err(AudioErrorKind::malformed("Matroska/WebM", reason));
        }
    };
    set_pcm(params, codec, entry.bits as u32);
    Ok("PCM")
}

/// A packet of PCM is a few milliseconds; the decoder wants to know its greatest length beforehand. `bits` are those of
/// a decoded sample: 16 for A-law and mu-law.
pub(crate) fn set_pcm(params: &mut AudioCodecParameters, codec: AudioCodecId, bits: u32) {
    params.for_codec(codec).with_bits_per_sample(bits).with_bits_per_coded_sample(bits);
    params.with_max_frames_per_packet(1 << 16);
}

/// Codecs of Windows: the setup data are a WAVEFORMATEX.
fn acm(private: &[u8], params: &mut AudioCodecParameters) -> Result<&'static str, AudioErrorKind> {
    let u16_at = |at: usize| private.get(at..at + 2).map_or(0, |b| u16::from(b[0]) | u16::from(b[1]) << 8);
    let bits = u32::from(u16_at(14));
    match (u16_at(0), bits) {
        (6, _) => {
            set_pcm(params, CODEC_ID_PCM_ALAW, 16);
            Ok("A-law")
        }
        (7, _) => {
            set_pcm(params, CODEC_ID_PCM_MULAW, 16);
            Ok("mu-law")
        }
        (1, 8 | 16 | 24 | 32) => {
            let codec = match bits {
                8 => CODEC_ID_PCM_U8,
                16 => CODEC_ID_PCM_S16LE,
                24 => CODEC_ID_PCM_S24LE,
                _ => CODEC_ID_PCM_S32LE,
            };
            set_pcm(params, codec, bits);
            Ok("PCM")
        }
        (0x55, _) => Ok(simple(params, CODEC_ID_MP3, "MP3")),
        (0x50, _) => Ok(simple(params, CODEC_ID_MP2, "MP2")),
        (tag, _) => Err(unsupported(&format!("Matroska with {}", crate::riff::tag_name(tag)))),
    }
}

/// Names of codecs that are not read.
fn other_name(codec: &str) -> String {
    let starts = [
        ("A_AC3", "AC-3 (Dolby Digital)"),
        ("A_EAC3", "E-AC-3 (Dolby Digital Plus)"),
        ("A_DTS", "DTS"),
        ("A_TRUEHD", "TrueHD"),
        ("A_MLP", "MLP"),
        ("A_WAVPACK4", "WavPack"),
        ("A_TTA1", "TTA (True Audio)"),
        ("A_REAL/", "RealAudio"),
        ("A_QUICKTIME", "a QuickTime codec"),
        ("A_ATRAC", "ATRAC"),
        ("A_MPC", "Musepack"),
    ];
    match starts.iter().find(|(start, _)| codec.starts_with(start)) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("the codec {codec:?}"),
    }
}

/// The three Vorbis headers, laced as Xiph does it: the first and the last, joined.
fn xiph_headers(private: &[u8]) -> Option<Vec<u8>> {
    let (&count, mut rest) = private.split_first()?;
    if count != 2 {
        return None;
    }
    let mut sizes = [0usize; 2];
    for size in &mut sizes {
        loop {
            let (&b, next) = rest.split_first()?;
            rest = next;
            *size += usize::from(b);
            if b < 255 {
                break;
            }
        }
    }
    let (identification, rest) = rest.split_at_checked(sizes[0])?;
    let setup = rest.get(sizes[1]..)?;
    Some([identification, setup].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_a_row() {
        assert_eq!(xiph_headers(&[2, 1, 2, 7, 8, 8, 9, 9]), Some(vec![7, 9, 9]));
        assert_eq!(xiph_headers(&[2, 1, 200, 7]), None);
        assert_eq!(xiph_headers(&[1, 1]), None);
        assert_eq!(xiph_headers(&[]), None);
    }
}
