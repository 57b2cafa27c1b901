//! Apple's Core Audio Format (specification 1.0).

use std::io::{self, BufReader};

use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::behind::behind;
use crate::error::AudioErrorKind;
use crate::fixed_packets::FixedPackets;
use crate::ima4::{BLOCK_BYTES, BLOCK_FRAMES};
use crate::layout::{ChannelLayout, Speaker};
use crate::lookahead::Lookahead;
use crate::packets::{Packet, PacketSource, PacketStream, SourceError, Track};
use crate::pcm::SampleFormat;
use crate::riff::check_shape;
use crate::sniff::{joined_file, unsupported};
use crate::source::Media;
use crate::stream::{BlockSource, Spec};

/// The chunks that matter.
#[derive(Default)]
struct Chunks {
    description: Option<Description>,
    /// Where the sound begins, and its length if that is stated.
    data: Option<(u64, Option<u64>)>,
    packets: Option<PacketTable>,
    cookie: Vec<u8>,
    layout: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Description {
    rate: u32,
    format: [u8; 4],
    flags: u32,
    bytes_per_packet: u32,
    frames_per_packet: u32,
    channels: usize,
    bits: u32,
}

struct PacketTable {
    valid_frames: i64,
    priming: i64,
    sizes: Vec<u8>,
}

const MAX_CHUNKS: u32 = 100_000;
/// Setup data and layouts are small; a packet table takes two bytes a packet.
const MAX_SMALL: u64 = 64 << 10;
const MAX_TABLE: u64 = 64 << 20;
/// The longest packet of any codec here.
const MAX_PACKET: u64 = 1 << 20;

fn malformed(reason: impl Into<String>) -> AudioErrorKind {
    AudioErrorKind::malformed("CAF", reason)
}

pub(crate) fn open(mut media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let chunks = scan(&mut media).map_err(AudioErrorKind::Read)?;
    let Some(description) = chunks.description.clone() else {
        return Err(malformed("it ends before its description chunk (desc)"));
    };
    check_shape("CAF", description.rate, description.channels)?;
    let Some((offset, declared)) = chunks.data else {
        return Err(malformed("it ends before its data chunk"));
    };
    let mut media = media.window(offset, u64::MAX).map_err(AudioErrorKind::Read)?;
    if let Some(format) = sample_format(&description)? {
        let layout = layout(&chunks.layout, description.channels);
        let spec = Spec { sample_rate: description.rate, layout };
        return Ok(crate::wav::pcm_stream(media, format, spec, declared, crate::chunks::Chunks::Caf));
    }
    let left_out = behind(&mut media, declared.unwrap_or(u64::MAX), crate::chunks::Chunks::Caf)
        .map_err(AudioErrorKind::Read)?;
    media.rewind().map_err(AudioErrorKind::Read)?;
    let (source, mut track) = compressed(media, description, declared, chunks)?;
    track.left_out = left_out;
    Ok(Box::new(PacketStream::new("CAF", source, track)?))
}

fn scan(media: &mut Media) -> io::Result<Chunks> {
    let mut chunks = Chunks::default();
    let mut at = 8u64;
    for _ in 0..MAX_CHUNKS {
        let mut head = [0u8; 12];
        if media.read_at(at, &mut head)? < 12 {
            break;
        }
        if joined_file(&head).is_some() {
            break;
        }
        let size = head[4..].iter().fold(0u64, |v, &b| v << 8 | u64::from(b));
        let mut body = |most: u64| -> io::Result<Vec<u8>> {
            let left = media.len().saturating_sub(at + 12);
            let mut body = vec![0u8; size.min(most).min(left) as usize];
            let n = media.read_at(at + 12, &mut body)?;
            body.truncate(n);
            Ok(body)
        };
        match &head[..4] {
            b"desc" => chunks.description = Description::parse(&body(MAX_SMALL)?),
            b"kuki" => chunks.cookie = body(MAX_SMALL)?,
            b"chan" => chunks.layout = body(MAX_SMALL)?,
            b"pakt" => chunks.packets = PacketTable::parse(body(MAX_TABLE)?),
            b"data" => {
                // The edit count comes first. A length of -1 is "to the end", and so is 0 of a file that broke off.
                let declared = Some(size).filter(|&s| s > 4 && s < 1 << 62).map(|s| s - 4);
                chunks.data = Some((at + 16, declared));
                if declared.is_none() {
                    break;
                }
            }
            _ => {}
        }
        at = at.saturating_add(12).saturating_add(size);
    }
    Ok(chunks)
}

impl Description {
    fn parse(b: &[u8]) -> Option<Description> {
        let word = |at: usize| b.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let rate = f64::from_be_bytes(b.get(0..8)?.try_into().ok()?);
        Some(Description {
            // Not a number and out of bounds become 0, which is refused by name.
            rate: if (1.0..=4e9).contains(&rate) { rate.round() as u32 } else { 0 },
            format: b.get(8..12)?.try_into().ok()?,
            flags: word(12)?,
            bytes_per_packet: word(16)?,
            frames_per_packet: word(20)?,
            channels: usize::try_from(word(24)?).unwrap_or(usize::MAX),
            bits: word(28)?,
        })
    }
}

impl PacketTable {
    fn parse(b: Vec<u8>) -> Option<PacketTable> {
        let valid_frames = i64::from_be_bytes(b.get(8..16)?.try_into().ok()?);
        let priming = i32::from_be_bytes(b.get(16..20)?.try_into().ok()?);
        let sizes = b.get(24..)?.to_vec();
        Some(PacketTable { valid_frames, priming: i64::from(priming), sizes })
    }
}

/// The sample format, if the sound is not compressed.
fn sample_format(d: &Description) -> Result<Option<SampleFormat>, AudioErrorKind> {
    use SampleFormat::*;
    let format = match &d.format {
        b"lpcm" => {
            let bytes = d.bytes_per_packet as usize / d.channels.max(1);
            let (float, little) = (d.flags & 1 != 0, d.flags & 2 != 0);
            match (float, little, bytes) {
                (false, _, 1) => S8,
                (false, false, 2) => S16Be,
                (false, true, 2) => S16Le,
                (false, false, 3) => S24Be,
                (false, true, 3) => S24Le,
                (false, false, 4) => S32Be,
                (false, true, 4) => S32Le,
                (true, false, 4) => F32Be,
                (true, true, 4) => F32Le,
                (true, false, 8) => F64Be,
                (true, true, 8) => F64Le,
                _ => {
                    let reason = format!("PCM of {} bits in packets of {} bytes", d.bits, d.bytes_per_packet);
                    return Err(malformed(reason));
                }
            }
        }
        b"ulaw" => MuLaw,
        b"alaw" => ALaw,
        _ => return Ok(None),
    };
    Ok(Some(format))
}

/// The channel layout chunk, for the tags in common use; any other says nothing.
fn layout(chunk: &[u8], channels: usize) -> ChannelLayout {
    use Speaker::*;
    let word =
        |at: usize| chunk.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    let places = match (word(0) >> 16, channels) {
        (1, _) => return ChannelLayout::from_wave_mask(word(4), channels),
        (121, 6) => vec![FrontLeft, FrontRight, FrontCenter, Lfe, BackLeft, BackRight],
        (122, 6) => vec![FrontLeft, FrontRight, BackLeft, BackRight, FrontCenter, Lfe],
        (123, 6) => vec![FrontLeft, FrontCenter, FrontRight, BackLeft, BackRight, Lfe],
        (124, 6) => vec![FrontCenter, FrontLeft, FrontRight, BackLeft, BackRight, Lfe],
        (_, 1..=2) => return ChannelLayout::default_for(channels),
        _ => return ChannelLayout::discrete(channels),
    };
    ChannelLayout::from_speakers(places)
}

fn compressed(
    mut media: Media,
    d: Description,
    declared: Option<u64>,
    chunks: Chunks,
) -> Result<(Box<dyn PacketSource>, Track), AudioErrorKind> {
    let (codec, name) = codec(&d.format)?;
    let mut params = AudioCodecParameters::new();
    params
        .for_codec(codec)
        .with_sample_rate(d.rate)
        .with_channels(crate::container::wave_channels(d.channels));
    let extra = match extra_data(codec, &chunks.cookie) {
        None if codec == CODEC_ID_FLAC => Some(flac_setup(&mut media, &d)?),
        extra => extra,
    };
    if let Some(extra) = extra {
        params.with_extra_data(extra.into());
    }
    let mut track = Track::new(params, name);
    if let Some(table) = chunks.packets.as_ref().filter(|t| t.priming >= 0 && t.valid_frames > 0) {
        let end = table.priming.saturating_add(table.valid_frames);
        track.drop.push(i64::MIN..table.priming);
        if codec != CODEC_ID_OPUS || opus_agrees(&mut media, &d).map_err(AudioErrorKind::Read)? {
            track.drop.push(end..i64::MAX);
        }
        // Not a warning if it ends earlier: some writers count whole packets, and missing bytes are noticed anyway.
    }
    let source: Box<dyn PacketSource> = if codec == CODEC_ID_ADPCM_IMA_QT {
        let bytes = BLOCK_BYTES * d.channels;
        Box::new(FixedPackets::new(Box::new(BufReader::new(media)), bytes, BLOCK_FRAMES as u64, declared))
    } else if d.bytes_per_packet > 0 {
        if u64::from(d.bytes_per_packet) > MAX_PACKET {
            return Err(malformed(format!("packets of {} bytes", d.bytes_per_packet)));
        }
        let (bytes, frames) = (d.bytes_per_packet as usize, u64::from(d.frames_per_packet));
        Box::new(FixedPackets::new(Box::new(BufReader::new(media)), bytes, frames, declared))
    } else {
        let table = chunks.packets.ok_or_else(|| malformed("its packet table (pakt) is missing"))?;
        let input = Lookahead::new(media).map_err(AudioErrorKind::Read)?;
        Box::new(TablePackets {
            input,
            table: table.sizes,
            at_byte: 0,
            at: 0,
            frames: u64::from(d.frames_per_packet),
            opus: codec == CODEC_ID_OPUS,
        })
    };
    Ok((source, track))
}

/// Whether the samples of a packet that the description states are those of the first packet: if not, the count of all
/// samples is as wrong.
fn opus_agrees(media: &mut Media, d: &Description) -> io::Result<bool> {
    let mut head = [0u8; 2];
    media.read_at(0, &mut head)?;
    media.rewind()?;
    Ok(d.frames_per_packet == 0
        || crate::opus::packet_duration(&head) == Some(u64::from(d.frames_per_packet)))
}

/// The setup data of FLAC that has none, as ffmpeg writes it: from the first frame.
fn flac_setup(media: &mut Media, d: &Description) -> Result<Vec<u8>, AudioErrorKind> {
    let mut head = [0u8; 4];
    media.read_at(0, &mut head).and_then(|_| media.rewind()).map_err(AudioErrorKind::Read)?;
    crate::flac::stream_info(&head, d.rate, d.channels)
        .ok_or_else(|| unsupported("CAF with FLAC that has no setup data (no kuki chunk)"))
}

fn codec(format: &[u8; 4]) -> Result<(AudioCodecId, &'static str), AudioErrorKind> {
    Ok(match format {
        b"ima4" => (CODEC_ID_ADPCM_IMA_QT, "IMA ADPCM"),
        b"aac " => (CODEC_ID_AAC, "AAC"),
        b"alac" => (CODEC_ID_ALAC, "ALAC"),
        b"flac" => (CODEC_ID_FLAC, "FLAC"),
        b"opus" => (CODEC_ID_OPUS, "Opus"),
        b".mp1" => (CODEC_ID_MP1, "MP1"),
        b".mp2" => (CODEC_ID_MP2, "MP2"),
        b".mp3" => (CODEC_ID_MP3, "MP3"),
        other => {
            let name = match other {
                b"aach" => "HE-AAC".to_owned(),
                b"aacp" => "HE-AAC v2".to_owned(),
                b"aacl" | b"aace" | b"aacf" => "AAC-LD or AAC-ELD".to_owned(),
                b"ac-3" => "AC-3 (Dolby Digital)".to_owned(),
                b"ec-3" => "E-AC-3 (Dolby Digital Plus)".to_owned(),
                b"samr" | b"sawb" => "AMR".to_owned(),
                b"ilbc" => "iLBC".to_owned(),
                b"agsm" => "GSM 6.10".to_owned(),
                b"MAC3" | b"MAC6" => "MACE".to_owned(),
                b"QDMC" | b"QDM2" => "QDesign Music".to_owned(),
                b"Qclp" => "QCELP".to_owned(),
                other => format!("the format {:?}", String::from_utf8_lossy(other)),
            };
            return Err(unsupported(&format!("CAF with {name}")));
        }
    })
}

/// The codec's own setup data out of the cookie, which wraps them in various ways.
fn extra_data(codec: AudioCodecId, cookie: &[u8]) -> Option<Vec<u8>> {
    match codec {
        // Within an elementary stream descriptor: tag 5, a length of up to four bytes, the data.
        CODEC_ID_AAC => {
            let decoder = cookie.iter().position(|&b| b == 0x04)?;
            let mut at = decoder + cookie.get(decoder..)?.iter().position(|&b| b == 0x05)? + 1;
            let mut len = 0usize;
            for _ in 0..4 {
                let b = *cookie.get(at)?;
                at += 1;
                len = len << 7 | usize::from(b & 0x7f);
                if b & 0x80 == 0 {
                    break;
                }
            }
            cookie.get(at..at + len).map(<[u8]>::to_vec)
        }
        // Old writers put "frma" and "alac" boxes around it.
        CODEC_ID_ALAC if cookie.get(4..8) == Some(b"frma") => cookie.get(24..).map(<[u8]>::to_vec),
        // A dfLa box or its content: the STREAMINFO block follows its own four-byte head.
        CODEC_ID_FLAC => {
            let at = cookie.windows(4).position(|w| w[0] & 0x7f == 0 && w[1..] == [0, 0, 34])?;
            cookie.get(at + 4..at + 38).map(<[u8]>::to_vec)
        }
        CODEC_ID_OPUS => cookie.starts_with(b"OpusHead").then(|| cookie.to_vec()),
        _ => (!cookie.is_empty()).then(|| cookie.to_vec()),
    }
}

/// Packets whose lengths stand in the packet table.
struct TablePackets {
    input: Lookahead,
    table: Vec<u8>,
    at_byte: usize,
    at: i64,
    /// Samples of a packet; 0: they too stand in the table.
    frames: u64,
    opus: bool,
}

impl TablePackets {
    /// A number of seven bits a byte, the most significant first.
    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for _ in 0..9 {
            let b = *self.table.get(self.at_byte)?;
            self.at_byte += 1;
            value = value << 7 | u64::from(b & 0x7f);
            if b & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl PacketSource for TablePackets {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let Some(size) = self.number() else { return Ok(None) };
        let frames = if self.frames > 0 { self.frames } else { self.number().unwrap_or(0) };
        let at = self.at;
        self.at = self.at.saturating_add_unsigned(frames.min(1 << 32));
        if size == 0 {
            // The table may be longer than what it counts.
            return if self.input.at_end().map_err(SourceError::Read)? {
                Ok(None)
            } else {
                Err(SourceError::Damaged)
            };
        }
        if size > MAX_PACKET {
            return Err(SourceError::Broken("its packet table is damaged here".into()));
        }
        let data = self.input.read(size as usize).map_err(SourceError::Read)?;
        if (data.len() as u64) < size {
            return Err(SourceError::Truncated("the end of the file is missing".into()));
        }
        // A packet of Opus says itself how long it is; what the description says of all of them may be wrong.
        if self.opus {
            let duration = crate::opus::packet_duration(&data).unwrap_or(0);
            return Ok(Some(Packet { data, at: None, duration, ..Packet::default() }));
        }
        Ok(Some(Packet { data, at: Some(at), duration: frames.min(1 << 20), ..Packet::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies() {
        // An elementary stream descriptor with an AudioSpecificConfig of two bytes.
        let esds =
            [3u8, 25, 0, 0, 0, 4, 17, 0x40, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2, 0x12, 0x10, 6, 1, 2];
        assert_eq!(extra_data(CODEC_ID_AAC, &esds), Some(vec![0x12, 0x10]));
        assert_eq!(extra_data(CODEC_ID_AAC, &esds[..22]), None);
        assert_eq!(extra_data(CODEC_ID_AAC, &[]), None);
        let mut alac = vec![0, 0, 0, 12];
        alac.extend(b"frmaalac\0\0\0\x24alac\0\0\0\0");
        alac.extend([9; 24]);
        assert_eq!(extra_data(CODEC_ID_ALAC, &alac), Some(vec![9; 24]));
        assert_eq!(extra_data(CODEC_ID_ALAC, &[9; 24]), Some(vec![9; 24]));
    }

    #[test]
    fn layouts() {
        assert_eq!(layout(&[0, 1, 0, 0, 0, 0, 0, 0x3f], 6), ChannelLayout::default_for(6));
        assert_eq!(layout(&[0, 124, 0, 6, 0, 0, 0, 0], 6).speakers()[0], Speaker::FrontCenter);
        assert_eq!(layout(&[], 6), ChannelLayout::discrete(6));
        assert_eq!(layout(&[], 1), ChannelLayout::mono());
    }
}
