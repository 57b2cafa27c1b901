//! Bare streams of frames without a container: MPEG audio (MP1, MP2, MP3; ISO 11172-3, 13818-3) and AAC in ADTS
//! (ISO 14496-3 annex 1.A.3).
//!
//! Where bytes are damaged, the reader finds the next pair of consecutive frame headers and says how many frames the
//! bytes in between would have held, so that silence can stand for them and later times stay right. Where frames of
//! another rate or with other channels go on, as when advertisements were put into a podcast, another stream begins.

use std::io;

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_AAC, CODEC_ID_MP1, CODEC_ID_MP2, CODEC_ID_MP3};

use crate::lookahead::Lookahead;
use crate::packets::{Packet, PacketSource, SourceError, Track};
use crate::sniff::{frames_in_a_row, joined_file};
use crate::source::Media;

/// A frame header of a bare stream.
pub(crate) trait FrameHeader: Copy + Send {
    /// Bytes that `parse` needs.
    const LEN: usize;
    /// The header at the beginning of `data`, if there is a valid one.
    fn parse(data: &[u8]) -> Option<Self>;
    /// The frame's length in bytes, header included; at least `LEN`.
    fn size(&self) -> usize;
    /// Samples of each channel that the frame decodes to.
    fn samples(&self) -> u32;
    /// Whether both can belong to one stream.
    fn same_stream(&self, other: &Self) -> bool;
    /// Bytes of the header that the decoder does not get.
    fn strip(&self) -> usize;
    /// The format's name.
    fn name(&self) -> &'static str;
    /// The track that begins with this frame, and whether the frame is not sound but a tag. `left`: bytes from here on.
    fn track(&self, frame: &[u8], left: u64) -> (Track, bool);
}

/// MPEG audio layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    One,
    Two,
    Three,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MpegHeader {
    /// MPEG-1, not 2 or 2.5.
    mpeg1: bool,
    pub(crate) layer: Layer,
    pub(crate) rate: u32,
    pub(crate) channels: u16,
    size: usize,
}

/// Bit rates in kbit/s by index 1 to 14 (ISO 11172-3 table 2.4.2.3 and 13818-3).
const KBITS_V1: [[u16; 14]; 3] = [
    [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
    [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
    [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
];
const KBITS_V2: [[u16; 14]; 3] = [
    [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
    [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
];

impl FrameHeader for MpegHeader {
    const LEN: usize = 4;

    fn parse(data: &[u8]) -> Option<MpegHeader> {
        let b: [u8; 4] = data.get(..4)?.try_into().ok()?;
        if b[0] != 0xff || b[1] & 0xe0 != 0xe0 {
            return None;
        }
        let (version, layer) = (b[1] >> 3 & 3, b[1] >> 1 & 3);
        let layer = match layer {
            3 => Layer::One,
            2 => Layer::Two,
            1 => Layer::Three,
            _ => return None,
        };
        let mpeg1 = version == 3;
        let base = *[44_100u32, 48_000, 32_000].get(usize::from(b[2] >> 2 & 3))?;
        let rate = match version {
            3 => base,
            2 => base / 2,
            0 => base / 4,
            _ => return None,
        };
        // Index 0 is "free format", which no decoder in use here knows.
        let index = usize::from(b[2] >> 4).checked_sub(1)?;
        let table = if mpeg1 { &KBITS_V1 } else { &KBITS_V2 };
        let bits = u32::from(*table.get(layer as usize)?.get(index)?) * 1000;
        let padding = u32::from(b[2] >> 1 & 1);
        let size = match layer {
            Layer::One => (12 * bits / rate + padding) * 4,
            Layer::Two => 144 * bits / rate + padding,
            Layer::Three => (if mpeg1 { 144 } else { 72 }) * bits / rate + padding,
        };
        let channels = if b[3] >> 6 == 3 { 1 } else { 2 };
        Some(MpegHeader { mpeg1, layer, rate, channels, size: size as usize })
    }

    fn size(&self) -> usize {
        self.size.max(Self::LEN)
    }

    fn samples(&self) -> u32 {
        match (self.layer, self.mpeg1) {
            (Layer::One, _) => 384,
            (Layer::Three, false) => 576,
            _ => 1152,
        }
    }

    fn same_stream(&self, other: &MpegHeader) -> bool {
        (self.mpeg1, self.layer, self.rate, self.channels)
            == (other.mpeg1, other.layer, other.rate, other.channels)
    }

    fn strip(&self) -> usize {
        0
    }

    fn name(&self) -> &'static str {
        "MPEG audio"
    }

    fn track(&self, frame: &[u8], left: u64) -> (Track, bool) {
        let (codec, name) = match self.layer {
            Layer::One => (CODEC_ID_MP1, "MP1"),
            Layer::Two => (CODEC_ID_MP2, "MP2"),
            Layer::Three => (CODEC_ID_MP3, "MP3"),
        };
        let mut params = AudioCodecParameters::new();
        params
            .for_codec(codec)
            .with_sample_rate(self.rate)
            .with_channels(crate::container::wave_channels(usize::from(self.channels)));
        let mut track = Track::new(params, name);
        let Some(tag) = info_tag(self, frame) else { return (track, false) };
        let samples = i64::from(self.samples());
        // A count that the file cannot hold is not believed.
        let plausible = |n: &u32| u64::from(*n).saturating_mul(24) <= left;
        let total = tag.frames.filter(plausible).map(|n| i64::from(n) * samples);
        if let Some((delay, padding)) = tag.delay_padding {
            // 528 + 1: the delay of the decoder's own filter bank, which the encoder's numbers do not count.
            track.drop.push(i64::MIN..i64::from(delay) + 529);
            track.drop.extend(total.map(|end| end - i64::from(padding) + 529..end));
        }
        track.end = total;
        (track, true)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdtsHeader {
    /// MPEG-4 audio object type minus 1.
    pub(crate) profile: u8,
    pub(crate) rate_index: u8,
    pub(crate) channel_config: u8,
    size: usize,
    blocks: u8,
    crc: bool,
}

impl FrameHeader for AdtsHeader {
    const LEN: usize = 7;

    fn parse(data: &[u8]) -> Option<AdtsHeader> {
        let b: [u8; 7] = data.get(..7)?.try_into().ok()?;
        if b[0] != 0xff || b[1] & 0xf6 != 0xf0 {
            return None;
        }
        let size = usize::from(b[3] & 3) << 11 | usize::from(b[4]) << 3 | usize::from(b[5] >> 5);
        let header = AdtsHeader {
            profile: b[2] >> 6,
            rate_index: b[2] >> 2 & 0x0f,
            channel_config: (b[2] & 1) << 2 | b[3] >> 6,
            size,
            blocks: b[6] & 3,
            crc: b[1] & 1 == 0,
        };
        (header.rate_index <= 12 && size > header.strip()).then_some(header)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn samples(&self) -> u32 {
        1024 * (u32::from(self.blocks) + 1)
    }

    fn same_stream(&self, other: &AdtsHeader) -> bool {
        (self.profile, self.rate_index, self.channel_config)
            == (other.profile, other.rate_index, other.channel_config)
    }

    fn strip(&self) -> usize {
        if self.crc { 9 } else { 7 }
    }

    fn name(&self) -> &'static str {
        "AAC in ADTS"
    }

    fn track(&self, _: &[u8], _: u64) -> (Track, bool) {
        // An AudioSpecificConfig (ISO 14496-3 1.6.2.1): object type, rate index, channel configuration, three zero bits.
        let config = u16::from(self.profile + 1) << 11
            | u16::from(self.rate_index) << 7
            | u16::from(self.channel_config) << 3;
        let mut params = AudioCodecParameters::new();
        params.for_codec(CODEC_ID_AAC).with_extra_data(Box::new(config.to_be_bytes()));
        if let Some(&rate) = crate::aac_config::RATES.get(usize::from(self.rate_index)) {
            params.with_sample_rate(rate);
        }
        (Track::new(params, "AAC"), false)
    }
}

/// What an encoder's tag in the first MP3 frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InfoTag {
    /// Frames that follow the tag's own.
    pub(crate) frames: Option<u32>,
    /// Samples that the encoder put before and behind the music.
    pub(crate) delay_padding: Option<(u32, u32)>,
}

/// The Xing, Info or VBRI tag in an MP3 frame.
pub(crate) fn info_tag(header: &MpegHeader, frame: &[u8]) -> Option<InfoTag> {
    if header.layer != Layer::Three {
        return None;
    }
    let be32 = |at: usize| frame.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    if frame.get(36..40) == Some(b"VBRI") {
        return Some(InfoTag { frames: be32(50), delay_padding: None });
    }
    let side = match (header.mpeg1, header.channels) {
        (true, 2) => 32,
        (true, _) | (false, 2) => 17,
        _ => 9,
    };
    let tag = 4 + side;
    if !matches!(frame.get(tag..tag + 4), Some(b"Xing" | b"Info")) {
        return None;
    }
    let flags = be32(tag + 4)?;
    let mut at = tag + 8;
    let frames = if flags & 1 != 0 { be32(at) } else { None };
    at += [4usize, 4, 100, 4]
        .iter()
        .enumerate()
        .filter(|(i, _)| flags >> i & 1 == 1)
        .map(|(_, n)| n)
        .sum::<usize>();
    let lame = matches!(frame.get(at..at + 4), Some(b"LAME" | b"Lavf" | b"Lavc"));
    let delay_padding = frame
        .get(at + 21..at + 24)
        .filter(|_| lame)
        .map(|b| u32::from(b[0]) << 16 | u32::from(b[1]) << 8 | u32::from(b[2]))
        .map(|v| (v >> 12, v & 0xfff));
    Some(InfoTag { frames, delay_padding })
}

/// Reads frames, over damage and tags.
pub(crate) struct Frames<H> {
    bytes: Lookahead,
    /// The first frame of the stream that is read now.
    first: H,
    /// Frames so far, lost ones included.
    index: u64,
    /// Bytes and number of whole frames so far, for their mean length.
    seen: (u64, u64),
    ended: bool,
}

/// So many frames in a row are another stream and no accident.
const PROOF: usize = 4;
/// The longest frame, of ADTS.
const MAX_FRAME: usize = 8192;
/// A Lyrics3 tag is at most this long.
const MAX_LYRICS: usize = 32 << 10;

impl<H: FrameHeader> Frames<H> {
    /// `media` must begin with a frame (see [`crate::sniff::identify`]).
    pub(crate) fn open(media: Media) -> io::Result<Option<(Frames<H>, Track)>> {
        let mut bytes = Lookahead::new(media)?;
        let Some(first) = H::parse(bytes.peek(H::LEN)?) else { return Ok(None) };
        let mut frames = Frames { bytes, first, index: 0, seen: (0, 0), ended: false };
        let track = frames.begin(first)?;
        Ok(Some((frames, track)))
    }

    /// Goes over to the stream whose first frame stands here.
    fn begin(&mut self, first: H) -> io::Result<Track> {
        (self.first, self.index, self.seen) = (first, 0, (0, 0));
        let left = self.bytes.left();
        let (track, tag) = first.track(self.bytes.peek(first.size())?, left);
        if tag {
            self.bytes.consume(first.size());
        }
        Ok(track)
    }

    fn valid_here(&mut self) -> io::Result<Option<H>> {
        let first = self.first;
        Ok(H::parse(self.bytes.peek(H::LEN)?).filter(|h| h.same_stream(&first)))
    }

    /// The first header of another stream that begins here.
    fn other_here(&mut self) -> io::Result<Option<H>> {
        let Some(header) = H::parse(self.bytes.peek(H::LEN)?) else { return Ok(None) };
        let row = self.bytes.peek(PROOF * MAX_FRAME)?;
        Ok(Some(header).filter(|_| frames_in_a_row::<H>(row, PROOF)))
    }

    /// The length of a tag (ID3v1, ID3v2, APE, Lyrics3) that stands here.
    fn tag_here(&mut self) -> io::Result<Option<u64>> {
        let data = self.bytes.peek(32)?;
        if data.starts_with(b"LYRICSBEGIN") {
            // Its length stands at its end: six digits before the mark "LYRICS200".
            let text = self.bytes.peek(MAX_LYRICS)?;
            let end = text.windows(9).position(|w| w == b"LYRICS200" || w == b"LYRICSEND").unwrap_or(0);
            return Ok(Some(end.max(11) as u64 + 9));
        }
        Ok(crate::sniff::tag_len(data))
    }

    /// Goes to the next place where two consecutive headers stand. Returns the skipped bytes, or `None` at the end.
    fn resync(&mut self) -> io::Result<Option<u64>> {
        let mut skipped = 0u64;
        loop {
            self.bytes.consume(1);
            skipped += 1;
            skipped += self.bytes.skip_to(0xff)?;
            let Some(header) = self.valid_here()? else {
                if self.bytes.at_end()? {
                    return Ok(None);
                }
                if self.other_here()?.is_some() {
                    return Ok(Some(skipped));
                }
                continue;
            };
            let size = header.size();
            let first = self.first;
            let data = self.bytes.peek(size + H::LEN)?;
            let confirmed = match data.get(size..) {
                Some(next) if next.len() >= H::LEN => H::parse(next).is_some_and(|h| h.same_stream(&first)),
                // A last frame that ends exactly with the file.
                Some([]) => data.len() == size,
                _ => false,
            };
            if confirmed {
                return Ok(Some(skipped));
            }
        }
    }

    fn mean_size(&self) -> u64 {
        self.seen.0.checked_div(self.seen.1).filter(|&n| n > 0).unwrap_or(self.first.size() as u64)
    }

    /// The end, with what stands behind the last frame and is no sound of this kind.
    fn end(&mut self, from: u64, joined: Option<&'static str>) -> Result<Option<Packet>, SourceError> {
        self.ended = true;
        let left = self.bytes.position().saturating_sub(from);
        match joined {
            Some(name) => Err(SourceError::Truncated(crate::error::joined(name, Some(left)))),
            // Less than a few frames behind the last one are a remark of some program, or a cut.
            None if left > 4 * self.mean_size() => Err(SourceError::Truncated(format!(
                "the rest of the file is damaged or no {} ({left} bytes)",
                self.first.name()
            ))),
            None => Ok(None),
        }
    }

    /// The header of the next frame and the bytes skipped before it, or what there is instead.
    fn next_header(&mut self) -> io::Result<Result<Option<(H, u64)>, SourceError>> {
        let mut skipped = 0u64;
        loop {
            if self.bytes.at_end()? {
                self.ended = true;
                return Ok(Ok(None));
            }
            if let Some(header) = self.valid_here()? {
                return Ok(Ok(Some((header, skipped))));
            }
            if let Some(tag) = self.tag_here()? {
                self.bytes.skip(tag)?;
                continue;
            }
            if let Some(header) = self.other_here()? {
                let lost = self.frames_in(skipped);
                let mut track = self.begin(header)?;
                self.index = lost;
                track.start = (lost > 0).then_some(0);
                return Ok(Err(SourceError::NewStream(Box::new(track))));
            }
            let from = self.bytes.position();
            let start = self.bytes.peek(4096)?;
            let padding = start.iter().all(|&b| b == 0);
            let joined = joined_file(start);
            if joined.is_some() {
                self.bytes.skip(u64::MAX)?;
                return Ok(self.end(from, joined).map(|_| None));
            }
            match self.resync()? {
                Some(n) => skipped += n,
                None if padding => {
                    self.ended = true;
                    return Ok(Ok(None));
                }
                None => return Ok(self.end(from, None).map(|_| None)),
            }
        }
    }

    /// How many frames stood in so many bytes.
    fn frames_in(&self, bytes: u64) -> u64 {
        // Rounded, not up: a few stray bytes between two frames are not a frame.
        let mean = self.mean_size();
        (bytes + mean / 2) / mean
    }

    fn next_frame(&mut self) -> io::Result<Result<Option<Packet>, SourceError>> {
        if self.ended {
            return Ok(Ok(None));
        }
        let (header, skipped) = match self.next_header()? {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Ok(None)),
            Err(e) => return Ok(Err(e)),
        };
        self.index += self.frames_in(skipped);
        let size = header.size();
        let frame = self.bytes.peek(size)?;
        if frame.len() < size {
            self.ended = true;
            return Ok(Err(SourceError::Truncated("the file ends within a frame".into())));
        }
        let data = frame.get(header.strip()..).unwrap_or_default().to_vec();
        self.bytes.consume(size);
        let samples = u64::from(header.samples());
        let at = self.index.saturating_mul(samples).min(i64::MAX as u64) as i64;
        self.index += 1;
        self.seen = (self.seen.0 + size as u64, self.seen.1 + 1);
        Ok(Ok(Some(Packet { data, at: Some(at), duration: samples, ..Packet::default() })))
    }
}

impl<H: FrameHeader> PacketSource for Frames<H> {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        self.next_frame().unwrap_or_else(|e| Err(SourceError::Read(e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpeg_headers() {
        for (bytes, expected) in [
            ([0xff, 0xfb, 0x90, 0x00], Some((417, 1152, 44_100, 2))), // MPEG-1 layer III, 128 kbit/s
            ([0xff, 0xfb, 0x92, 0xc0], Some((418, 1152, 44_100, 1))), // padded, mono
            ([0xff, 0xf3, 0x80, 0xc0], Some((208, 576, 22_050, 1))),  // MPEG-2 layer III, 64 kbit/s
            ([0xff, 0xe3, 0x18, 0xc0], Some((72, 576, 8_000, 1))),    // MPEG-2.5, 8 kbit/s
            ([0xff, 0xfd, 0xa4, 0x00], Some((576, 1152, 48_000, 2))), // layer II, 192 kbit/s
            ([0xff, 0xff, 0x10, 0x00], Some((32, 384, 44_100, 2))),   // layer I, 32 kbit/s
            ([0xff, 0xeb, 0x90, 0x00], None),                         // reserved version
            ([0xff, 0xf9, 0x90, 0x00], None),                         // layer 0: ADTS
            ([0xff, 0xfb, 0xf0, 0x00], None),                         // bad bit rate
            ([0xff, 0xfb, 0x00, 0x00], None),                         // free format
            ([0xff, 0xfb, 0x9c, 0x00], None),                         // bad rate
        ] {
            let got = MpegHeader::parse(&bytes).map(|h| (h.size(), h.samples(), h.rate, h.channels));
            assert_eq!(got, expected, "{bytes:02x?}");
        }
    }
}
