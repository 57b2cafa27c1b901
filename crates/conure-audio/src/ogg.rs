//! Ogg (RFC 3533) with Vorbis, Opus (RFC 7845) and FLAC.
//!
//! The granule position of a page is the time at its end; with the packets' own lengths that gives the time at its
//! beginning, so that a lost page leaves a hole of the right length. Pages are numbered from the one with the headers on:
//! that tells a file whose first pages of sound are lost from one that was cut out of a longer stream, which begins at 0.

use std::collections::VecDeque;

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_FLAC, CODEC_ID_OPUS, CODEC_ID_VORBIS};

use crate::error::{AudioErrorKind, joined};
use crate::lookahead::Lookahead;
use crate::ogg_page::{Page, next_page};
use crate::opus::{OpusHead, packet_duration};
use crate::packets::{MAX_GAP, Packet, PacketSource, SourceError, Track};
use crate::sniff::{Format, joined_file, unsupported};
use crate::source::Media;
use crate::vorbis_headers::VorbisBlocks;

/// The longest packet that is put together from pages: setup headers with pictures in them are a few megabytes.
const MAX_PACKET: usize = 64 << 20;

/// Streams of a file that are kept account of.
const MAX_STREAMS: usize = 1000;
/// A page is taken for a repetition if its number is among so many last ones, and its time is not later.
const MAX_REPEAT: u32 = 1000;

/// The codec of a logical stream, by its first packet.
enum Codec {
    Vorbis { headers: Vec<Vec<u8>>, blocks: Option<VorbisBlocks> },
    Opus { tags: bool },
    Flac { rate: u32 },
}

impl Codec {
    /// The codec, or the name of one that is not read. `None`: not sound.
    fn identify(packet: &[u8]) -> Option<Result<Codec, &'static str>> {
        let names: [(&[u8], &str); 4] = [
            (b"Speex   ", "Speex"),
            (b"CELT    ", "CELT"),
            (b"PCM     ", "PCM"),
            (b"\x01audio", "an old codec"),
        ];
        if packet.starts_with(b"\x01vorbis") {
            return Some(Ok(Codec::Vorbis { headers: Vec::new(), blocks: None }));
        }
        if packet.starts_with(b"OpusHead") {
            return Some(Ok(Codec::Opus { tags: false }));
        }
        if packet.starts_with(b"\x7fFLAC") {
            return Some(Ok(Codec::Flac { rate: 0 }));
        }
        names.iter().find(|(magic, _)| packet.starts_with(magic)).map(|(_, name)| Err(*name))
    }
}

/// The chosen stream of an Ogg file.
pub(crate) struct Ogg {
    input: Lookahead,
    serial: u32,
    codec: Codec,
    params: AudioCodecParameters,
    headers_done: bool,
    /// The number and the granule position of the last page.
    sequence: Option<(u32, i64)>,
    /// Streams that began as they should; bounded.
    serials: Vec<u32>,
    /// There were pages of a stream whose beginning is missing.
    orphans: bool,
    /// Where the last page ends.
    page_end: u64,
    /// Something unreadable stood before the last page.
    skipped: bool,
    /// A packet whose end is on a later page.
    partial: Vec<u8>,
    queue: VecDeque<Packet>,
    /// The time at the end of what was queued.
    position: Option<i64>,
    pre_skip: i64,
    /// The last page had the mark of the end.
    ended: bool,
    /// A packet of sound where a header should have been.
    early: Option<Vec<u8>>,
    /// The stream that follows in a chained file.
    following: Option<Page>,
    /// A decoder must forget what came before the next packet.
    discontinuity: bool,
}

fn malformed(reason: &str) -> AudioErrorKind {
    AudioErrorKind::malformed("Ogg", reason)
}

impl Ogg {
    /// Finds the first stream that can be decoded and reads its headers.
    pub(crate) fn open(media: Media) -> Result<(Ogg, Track), AudioErrorKind> {
        let mut input = Lookahead::new(media).map_err(AudioErrorKind::Read)?;
        let mut other = None;
        let mut serials = Vec::new();
        let mut seen = 0u32;
        loop {
            let Some((page, _)) = next_page(&mut input).map_err(AudioErrorKind::Read)? else {
                return Err(match other {
                    Some(name) => unsupported(&format!("Ogg with {name}")),
                    None if seen == 0 => malformed("it has no whole page"),
                    None => AudioErrorKind::NoAudioTrack { container: "Ogg".into() },
                });
            };
            seen += 1;
            if !page.first {
                // Streams begin before all else. A file cut out of a longer one has no beginning.
                if seen == 1 {
                    return Err(malformed("its beginning with the codec's headers is missing"));
                }
                continue;
            }
            if serials.len() < MAX_STREAMS {
                serials.push(page.serial);
            }
            let packet = page.body.get(..page.pieces.first().copied().unwrap_or(0)).unwrap_or_default();
            match Codec::identify(packet) {
                Some(Ok(codec)) => {
                    let mut ogg = Ogg::start(input, page.serial, codec);
                    ogg.serials = serials;
                    ogg.page(page).map_err(|e| e.into_kind("Ogg"))?;
                    let track = ogg.read_headers().map_err(|e| e.into_kind("Ogg"))?;
                    return Ok((ogg, track));
                }
                Some(Err(name)) => other = other.or(Some(name)),
                None => {}
            }
        }
    }

    fn start(input: Lookahead, serial: u32, codec: Codec) -> Ogg {
        Ogg {
            input,
            serial,
            codec,
            params: AudioCodecParameters::new(),
            headers_done: false,
            sequence: None,
            serials: Vec::new(),
            orphans: false,
            page_end: 0,
            skipped: false,
            partial: Vec::new(),
            queue: VecDeque::new(),
            position: None,
            pre_skip: 0,
            ended: false,
            early: None,
            following: None,
            discontinuity: false,
        }
    }

    /// Reads until the headers are complete and the first packets of sound are there.
    fn read_headers(&mut self) -> Result<Track, SourceError> {
        while self.queue.is_empty() && !self.ended {
            if !self.read_page()? {
                break;
            }
        }
        if !self.headers_done {
            return Err(SourceError::Broken("it ends within its headers".into()));
        }
        let first = self.queue.front();
        let start = first.and_then(|p| p.at).unwrap_or(0);
        let rate = self.params.sample_rate.unwrap_or(48_000);
        // The packet stands behind a gap. A long one without damage is the beginning of a recording of a live stream.
        let missing = first.is_some_and(|p| p.reset && p.at.is_some_and(|at| at > 0))
            && (self.skipped || start < i64::from(rate) * i64::from(MAX_GAP));
        let start = if missing { 0 } else { start };
        let name = match self.codec {
            Codec::Vorbis { .. } => "Vorbis",
            Codec::Opus { .. } => "Opus",
            Codec::Flac { .. } => "FLAC",
        };
        // A stream that begins before time 0 begins with what is not to be heard.
        let begin = if self.pre_skip > 0 { start.saturating_add(self.pre_skip) } else { 0 };
        let mut track = Track::new(self.params.clone(), name);
        track.drop = std::iter::once(i64::MIN..begin).collect();
        // Some writers' granule positions are a few samples off.
        track.tolerance = i64::from(rate / 50);
        track.start = missing.then_some(start);
        Ok(track)
    }

    /// Reads one page of the chosen stream. False at the end of the file.
    fn read_page(&mut self) -> Result<bool, SourceError> {
        let Some((page, skipped)) = next_page(&mut self.input).map_err(SourceError::Read)? else {
            return Ok(false);
        };
        self.page_end = self.input.position();
        if skipped {
            self.partial.clear();
            self.discontinuity = true;
            self.skipped = true;
        }
        // Streams side by side all begin before any sound; one that begins later follows in a chain.
        if page.first && (self.ended || self.position.is_some()) {
            self.following = Some(page);
            return Ok(false);
        }
        if page.first && self.serials.len() < MAX_STREAMS {
            self.serials.push(page.serial);
        }
        self.orphans |= !self.serials.contains(&page.serial) && self.serials.len() < MAX_STREAMS;
        if page.serial == self.serial {
            self.page(page)?;
        }
        Ok(true)
    }

    fn page(&mut self, page: Page) -> Result<(), SourceError> {
        if let Some((sequence, granule)) = self.sequence {
            // A page that was there before, twice in the file.
            if sequence.wrapping_sub(page.sequence) < MAX_REPEAT && page.granule <= granule && !page.first {
                self.orphans |= self.ended && sequence != page.sequence;
                return Ok(());
            }
            if sequence.wrapping_add(1) != page.sequence {
                self.partial.clear();
                self.discontinuity = true;
            }
        }
        self.sequence = Some((page.sequence, page.granule));
        if !page.continued {
            self.partial.clear();
        }
        // The rest of a packet whose beginning is lost.
        let mut orphan = page.continued && self.partial.is_empty();
        let count = page.pieces.len();
        let mut at = 0;
        let mut finished = Vec::new();
        for (i, &length) in page.pieces.iter().enumerate() {
            let piece = page.body.get(at..at + length).unwrap_or_default();
            at += length;
            if std::mem::take(&mut orphan) {
                continue;
            }
            if self.partial.len() + piece.len() > MAX_PACKET {
                self.partial.clear();
                continue;
            }
            self.partial.extend_from_slice(piece);
            if !(page.unfinished && i + 1 == count) {
                finished.push(std::mem::take(&mut self.partial));
            }
        }
        self.ended |= page.last;
        let mut sound = Vec::new();
        for packet in finished {
            if self.headers_done {
                sound.push(packet);
            } else {
                self.header(packet)?;
                sound.extend(self.early.take());
            }
        }
        self.queue_page(sound, page.granule, page.last);
        Ok(())
    }

    fn header(&mut self, packet: Vec<u8>) -> Result<(), SourceError> {
        let broken = |why: &str| SourceError::Broken(why.to_owned());
        match &mut self.codec {
            Codec::Vorbis { headers, blocks } => {
                let kind = [1u8, 3, 5][headers.len().min(2)];
                if packet.first() != Some(&kind) || packet.get(1..7) != Some(b"vorbis") {
                    return Err(broken("a Vorbis header is missing"));
                }
                headers.push(packet);
                if let [identification, _, setup] = headers.as_slice() {
                    let parsed = VorbisBlocks::parse(identification, setup);
                    let parsed = parsed.ok_or_else(|| broken("its Vorbis headers are damaged"))?;
                    self.params.for_codec(CODEC_ID_VORBIS).with_sample_rate(parsed.rate);
                    self.params.with_extra_data([identification.as_slice(), setup].concat().into());
                    *blocks = Some(parsed);
                    self.headers_done = true;
                }
            }
            Codec::Opus { tags } => {
                if *tags {
                    // The page with the remarks may be the one that is lost.
                    self.headers_done = true;
                    self.early = (!packet.starts_with(b"OpusTags")).then_some(packet);
                } else {
                    let head =
                        OpusHead::parse(&packet).ok_or_else(|| broken("its Opus header is damaged"))?;
                    self.pre_skip = i64::from(head.pre_skip);
                    self.params
                        .for_codec(CODEC_ID_OPUS)
                        .with_sample_rate(48_000)
                        .with_extra_data(packet.into());
                    *tags = true;
                }
            }
            Codec::Flac { rate } => {
                if *rate == 0 {
                    // Magic number, version, count of headers, "fLaC", then the STREAMINFO block with its own head.
                    let info = packet.get(17..51).ok_or_else(|| broken("its FLAC header is cut short"))?;
                    *rate = u32::from(info[10]) << 12 | u32::from(info[11]) << 4 | u32::from(info[12] >> 4);
                    if *rate == 0 {
                        return Err(broken("its FLAC header states no sample rate"));
                    }
                    self.params.for_codec(CODEC_ID_FLAC).with_sample_rate(*rate).with_extra_data(info.into());
                    // Its further headers are told from frames by their first byte, see `queue_page`.
                    self.headers_done = true;
                }
            }
        }
        Ok(())
    }

    fn duration(&mut self, packet: &[u8]) -> Option<u64> {
        match &mut self.codec {
            Codec::Opus { .. } => packet_duration(packet),
            Codec::Vorbis { blocks, .. } => blocks.as_mut().and_then(|b| b.duration(packet)),
            Codec::Flac { .. } => flac_block_size(packet),
        }
    }

    /// Gives the packets that end on one page their times.
    fn queue_page(&mut self, packets: Vec<Vec<u8>>, granule: i64, last: bool) {
        if self.discontinuity
            && let Codec::Vorbis { blocks: Some(blocks), .. } = &mut self.codec
        {
            blocks.reset();
        }
        let flac = matches!(self.codec, Codec::Flac { .. });
        let mut page: Vec<Packet> = Vec::new();
        let mut total = 0u64;
        for data in packets {
            if flac && data.first() != Some(&0xff) {
                continue;
            }
            let duration = self.duration(&data).unwrap_or(0);
            total += duration;
            page.push(Packet { data, duration, ..Packet::default() });
        }
        if page.is_empty() {
            return;
        }
        let length = i64::try_from(total).unwrap_or(i64::MAX);
        let counted = granule.saturating_sub(length);
        let start = match self.position {
            // The end may be cut short, so the last page's own time says nothing about its beginning.
            Some(position) if granule < 0 || (last && !self.discontinuity) => position,
            // The first page: before 0 only as far as the codec means it; a short last page begins at 0.
            None if granule < 0 || (last && counted < 0) => 0,
            None if counted < 0 && matches!(self.codec, Codec::Opus { .. } | Codec::Flac { .. }) => 0,
            _ => counted,
        };
        let mut at = start;
        for packet in &mut page {
            packet.at = Some(at);
            at = at.saturating_add_unsigned(packet.duration);
            if last && granule >= 0 && at > granule {
                let beyond = at.abs_diff(granule.max(start));
                packet.trim.1 = beyond.min(packet.duration);
            }
        }
        if let Some(first) = page.first_mut() {
            first.reset = std::mem::take(&mut self.discontinuity);
        }
        self.position = Some(at);
        self.queue.extend(page);
    }

    /// What to say at the end of the file.
    fn end(&mut self) -> Result<Option<Packet>, SourceError> {
        const ORPHANS: &str =
            "pages of another stream follow, whose beginning is damaged; they were left out";
        const CUT: &str = "the end of the file is missing (no mark of the end)";
        if self.orphans || !self.ended {
            let why = if self.orphans { ORPHANS } else { CUT };
            return Err(SourceError::Truncated(why.into()));
        }
        self.input.seek(self.page_end).map_err(SourceError::Read)?;
        let Some(left) = self.input.more_than_tags().map_err(SourceError::Read)? else {
            return Ok(None);
        };
        let tail = self.input.peek(32).map_err(SourceError::Read)?;
        Err(SourceError::Truncated(match joined_file(tail) {
            Some(name) if name != Format::Ogg.name() => joined(name, Some(left)),
            _ => format!("what follows the end of the stream is damaged or no Ogg ({left} bytes)"),
        }))
    }

    /// Goes over to the stream that follows in a chained file.
    fn chain(&mut self, page: Page) -> Result<Track, SourceError> {
        let packet = page.body.get(..page.pieces.first().copied().unwrap_or(0)).unwrap_or_default();
        let Some(Ok(codec)) = Codec::identify(packet) else {
            return Err(SourceError::Broken("another kind of stream follows here, which is not read".into()));
        };
        if self.serials.len() < MAX_STREAMS {
            self.serials.push(page.serial);
        }
        self.serial = page.serial;
        self.codec = codec;
        self.params = AudioCodecParameters::new();
        self.headers_done = false;
        self.sequence = None;
        self.partial.clear();
        self.position = None;
        self.pre_skip = 0;
        self.ended = false;
        self.discontinuity = false;
        self.skipped = false;
        self.page(page)?;
        self.read_headers()
    }
}

impl PacketSource for Ogg {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        loop {
            if let Some(packet) = self.queue.pop_front() {
                return Ok(Some(packet));
            }
            if let Some(page) = self.following.take() {
                let track = self.chain(page)?;
                return Err(SourceError::NewStream(Box::new(track)));
            }
            if !self.read_page()? && self.following.is_none() {
                return self.end();
            }
        }
    }
}

/// The number of samples in a FLAC frame, from its header (RFC 9639, 9.1).
fn flac_block_size(frame: &[u8]) -> Option<u64> {
    if *frame.first()? != 0xff || *frame.get(1)? & 0xfe != 0xf8 {
        return None;
    }
    let code = u32::from(*frame.get(2)? >> 4);
    // The coded number takes as many bytes as its first one has leading ones.
    let coded = frame.get(4)?.leading_ones().max(1) as usize;
    match code {
        1 => Some(192),
        2..=5 => Some(144 << code),
        6 => Some(u64::from(*frame.get(4 + coded)?) + 1),
        7 => Some((u64::from(*frame.get(4 + coded)?) << 8 | u64::from(*frame.get(5 + coded)?)) + 1),
        8..=15 => Some(1 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flac_block_sizes() {
        for (frame, size) in [
            (&[0xffu8, 0xf8, 0xc9, 0x18, 0x00, 0xc2][..], Some(4096)),
            (&[0xff, 0xf8, 0x19, 0x18, 0x00], Some(192)),
            (&[0xff, 0xf8, 0x29, 0x18, 0x00], Some(576)),
            (&[0xff, 0xf8, 0x69, 0x18, 0x00, 0x7f], Some(128)),
            (&[0xff, 0xf8, 0x79, 0x18, 0xc4, 0x80, 0x01, 0xff], Some(512)),
            (&[0xff, 0xf8, 0x09, 0x18, 0x00], None),
            (&[0x84, 0, 0, 0], None),
            (&[], None),
        ] {
            assert_eq!(flac_block_size(frame), size, "{frame:02x?}");
        }
    }
}
