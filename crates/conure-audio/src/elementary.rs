//! Bare streams of frames without a container: MPEG audio (MP1, MP2, MP3; ISO 11172-3, 13818-3) and AAC in ADTS
//! (ISO 14496-3 annex 1.A.3).
//!
//! Where bytes are damaged, the reader finds the next pair of consecutive frame headers and says how many frames the
//! bytes in between would have held, so that silence can stand for them and later times stay right.

use std::io;

use crate::lookahead::Lookahead;
use crate::packets::{Packet, PacketSource, SourceError};
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
    first: H,
    /// Frames so far, lost ones included.
    index: u64,
    /// Bytes and number of whole frames so far, for their mean length.
    seen: (u64, u64),
    /// Frames of the tag at the beginning, for the warning about a cut end.
    ended: bool,
}

impl<H: FrameHeader> Frames<H> {
    /// `media` must begin with a frame (see [`crate::sniff::identify`]).
    pub(crate) fn new(media: Media) -> io::Result<Option<Frames<H>>> {
        let mut bytes = Lookahead::new(media)?;
        let first = H::parse(bytes.peek(H::LEN)?);
        Ok(first.map(|first| Frames { bytes, first, index: 0, seen: (0, 0), ended: false }))
    }

    pub(crate) fn first(&self) -> &H {
        &self.first
    }

    /// The whole first frame, without taking it.
    pub(crate) fn peek_first(&mut self) -> io::Result<&[u8]> {
        self.bytes.peek(self.first.size())
    }

    /// Takes the first frame away, which is not sound but a tag.
    pub(crate) fn skip_first(&mut self) {
        self.bytes.consume(self.first.size());
    }

    fn valid_here(&mut self) -> io::Result<Option<H>> {
        let first = self.first;
        Ok(H::parse(self.bytes.peek(H::LEN)?).filter(|h| h.same_stream(&first)))
    }

    /// The length of a tag (ID3v1, ID3v2, APE, Lyrics3) that stands here.
    fn tag_here(&mut self) -> io::Result<Option<u64>> {
        let data = self.bytes.peek(32)?;
        if data.starts_with(b"TAG") {
            return Ok(Some(128));
        }
        if data.starts_with(b"APETAGEX") {
            let size = data.get(12..16).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
            return Ok(Some(u64::from(size) + 32));
        }
        Ok(crate::sniff::id3v2_len(data))
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

    fn next_frame(&mut self) -> io::Result<Result<Option<Packet>, SourceError>> {
        if self.ended {
            return Ok(Ok(None));
        }
        let mut skipped = 0u64;
        let header = loop {
            if self.bytes.at_end()? {
                self.ended = true;
                return Ok(Ok(None));
            }
            if let Some(header) = self.valid_here()? {
                break header;
            }
            if let Some(tag) = self.tag_here()? {
                self.bytes.skip(tag)?;
                continue;
            }
            match self.resync()? {
                Some(n) => skipped += n,
                None => {
                    self.ended = true;
                    return Ok(Ok(None));
                }
            }
        };
        // Rounded, not up: a few stray bytes between two frames are not a frame.
        let mean = self.mean_size();
        self.index += (skipped + mean / 2) / mean;
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
