//! The movie box of MP4 and QuickTime files (ISO 14496-12): which tracks there are, where their samples lie, and which
//! part of them is meant to be heard (edit lists, and Apple's iTunSMPB remark that older files have instead).
//!
//! Also reads QuickTime files without `ftyp`.

use std::io;
use std::ops::Range;

use symphonia::core::codecs::audio::well_known::CODEC_ID_AAC;

use crate::behind::behind;
use crate::chunks::Chunks;
use crate::error::{AudioErrorKind, joined};
use crate::mp4_entry::SoundEntry;
use crate::mp4_samples::{Fragments, TableSamples};
use crate::packets::{PacketSource, PacketStream, Track};
use crate::sniff::Format;
use crate::source::Media;
use crate::stream::BlockSource;

/// A movie as far as sound needs it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Movie {
    /// Movie ticks a second.
    timescale: u32,
    tracks: Vec<MovieTrack>,
    /// Encoder delay by iTunSMPB, in samples, and the true length.
    itunes: Option<(u64, u64)>,
    /// Samples come in fragments too.
    fragmented: bool,
    /// There is a movie box at all.
    found: bool,
    /// What is said of bytes behind the last box, another file or not.
    left_out: Option<String>,
    /// Where the last box ends, if more follows, be it only a tag.
    end: Option<u64>,
}

/// One track: its tables are kept as they are in the file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct MovieTrack {
    pub(crate) id: u32,
    /// Media ticks a second.
    pub(crate) timescale: u32,
    pub(crate) sound: bool,
    /// The first sample entry, with its head.
    pub(crate) entry: Vec<u8>,
    /// (length in movie ticks, start in media ticks or -1 for an empty edit)
    pub(crate) edits: Vec<(u64, i64)>,
    /// Times to samples: pairs of count and length.
    pub(crate) stts: Vec<u8>,
    /// Samples to chunks: first chunk, samples of each, description.
    pub(crate) stsc: Vec<u8>,
    /// One size for all or 0, the count, then a size for each.
    pub(crate) stsz: Vec<u8>,
    /// Bits of a size in an stz2 box; 32 for stsz.
    pub(crate) size_bits: u32,
    /// Positions of chunks, of 4 bytes (stco) or 8 (co64).
    pub(crate) chunks: Vec<u8>,
    pub(crate) wide_chunks: bool,
    /// What fragments assume: length and size of a sample.
    pub(crate) fragment_defaults: (u32, u32),
}

/// No movie nests deeper or has more boxes than this; tables of eight hours of sound are 5 MB.
/// Samples that a lost packet of AAC leaves no gap as small as: packets have 1024.
const LESS_THAN_A_PACKET: i64 = 1023;

const MAX_DEPTH: u32 = 8;
const MAX_BOXES: u32 = 20_000;
const MAX_SMALL: u64 = 64 << 10;
const MAX_TABLE: u64 = 64 << 20;

/// Boxes beside the movie; any other that fits into the file is passed over too.
const KNOWN: [&[u8; 4]; 14] = [
    b"mdat", b"free", b"skip", b"wide", b"pnot", b"udta", b"uuid", b"meta", b"moof", b"mfra", b"sidx",
    b"styp", b"emsg", b"prft",
];

/// The head of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxHead {
    pub(crate) kind: [u8; 4],
    /// Bytes of the head itself.
    pub(crate) header: u64,
    /// Bytes with the head, as stated; `None`: to the end of what it is in.
    pub(crate) size: Option<u64>,
}

impl BoxHead {
    /// The head at a position; `None` if there are fewer than 8 bytes or the size is impossible.
    pub(crate) fn read(media: &mut Media, at: u64) -> io::Result<Option<BoxHead>> {
        let mut b = [0u8; 16];
        let n = media.read_at(at, &mut b)?;
        let Some((size, kind)) = b.get(..n).and_then(|h| Some((be32(h, 0)?, h.get(4..8)?))) else {
            return Ok(None);
        };
        let kind = kind.try_into().unwrap_or_default();
        let (header, size) = match size {
            0 => (8, None),
            1 => (16, Some(be64(&b, 8).unwrap_or(0))),
            n => (8, Some(u64::from(n))),
        };
        Ok(Some(BoxHead { kind, header, size }).filter(|h| h.size.is_none_or(|s| s >= header)))
    }
}

fn malformed(reason: &str) -> AudioErrorKind {
    AudioErrorKind::malformed("MP4", reason)
}

/// Opens the first sound track that can be decoded.
pub(crate) fn open(mut media: Media) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let movie = Movie::scan(&mut media).map_err(AudioErrorKind::Read)?;
    if !movie.found {
        return Err(malformed("its index (moov) is missing; the file is not complete"));
    }
    let mut refused = None;
    for (index, track) in movie.sound().enumerate() {
        match SoundEntry::parse(&track.entry, track.timescale) {
            Ok(entry) => return movie.stream(media, (index, track), entry),
            Err(e) => refused = refused.or(Some(e)),
        }
    }
    Err(refused.unwrap_or_else(|| AudioErrorKind::NoAudioTrack { container: "MP4".into() }))
}

impl Movie {
    /// Finds and reads the movie box, wherever in the file it is.
    pub(crate) fn scan(media: &mut Media) -> io::Result<Movie> {
        let end = media.len();
        let mut scanner = Scanner { media, boxes: 0, movie: Movie::default() };
        scanner.walk(0, end, 0)?;
        Ok(scanner.movie)
    }

    /// The tracks of sound.
    fn sound(&self) -> impl Iterator<Item = &MovieTrack> {
        self.tracks.iter().filter(|t| t.sound)
    }

    fn stream(
        &self,
        media: Media,
        (index, track): (usize, &MovieTrack),
        entry: SoundEntry,
    ) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
        let rate = entry.params.sample_rate.unwrap_or(48_000);
        let table = TableSamples::new(track, &entry, rate);
        let end = table.end();
        // What is no part of the movie would be taken for a damaged one.
        let media = media.window(0, self.end.unwrap_or(u64::MAX)).map_err(AudioErrorKind::Read)?;
        let source: Box<dyn PacketSource> = if self.fragmented && table.is_empty() {
            Box::new(Fragments::new(media, track, rate))
        } else {
            Box::new(table.with_media(media))
        };
        let mut heard = Track::new(entry.params, entry.name.clone());
        heard.drop = self.drop(track, rate);
        heard.tolerance = match track.timescale == rate {
            // Writers of fragments stretch a packet where streams do not begin together; less than a packet is none lost.
            true if self.fragmented && heard.params.codec == CODEC_ID_AAC => LESS_THAN_A_PACKET,
            true => 0,
            // Media ticks that are no samples are rounded, mostly to milliseconds.
            false => i64::from(rate) * 60 / 1000,
        };
        heard.end = (!self.fragmented).then_some(end);
        heard.choose(index, self.sound().count());
        heard.left_out = self.left_out.clone();
        Ok(Box::new(PacketStream::new("MP4", source, heard)?))
    }

    /// The parts of a track's time line, in samples at `rate`, that are not meant to be heard.
    fn drop(&self, track: &MovieTrack, rate: u32) -> Vec<Range<i64>> {
        let samples = |n: i128, per: u32| scale(n, rate, per);
        let mut heard: Vec<Range<i64>> = Vec::new();
        for &(length, start) in track.edits.iter().filter(|e| e.1 >= 0) {
            let start = samples(i128::from(start), track.timescale);
            let length = samples(i128::from(length), self.timescale);
            // Length 0 is "to the end", in files written piece by piece.
            heard.push(start..if length == 0 { i64::MAX } else { start.saturating_add(length) });
        }
        heard.sort_by_key(|r| r.start);
        if let (true, Some((delay, length))) = (heard.iter().all(|r| r.start == 0), self.itunes) {
            let start = i64::try_from(delay).unwrap_or(0);
            let length = i64::try_from(length).unwrap_or(0);
            heard.clear();
            heard.push(start..if length == 0 { i64::MAX } else { start.saturating_add(length) });
        }
        let mut drop = Vec::new();
        let mut from = i64::MIN;
        for range in heard.iter().filter(|r| r.start < r.end) {
            if range.start > from {
                drop.push(from..range.start);
            }
            from = from.max(range.end);
        }
        if from > i64::MIN && from < i64::MAX {
            drop.push(from..i64::MAX);
        }
        drop
    }
}

/// `n` ticks of 1/`per` s in samples at `rate`.
pub(crate) fn scale(n: i128, rate: u32, per: u32) -> i64 {
    let per = i128::from(per.max(1));
    let samples = n.saturating_mul(i128::from(rate)).saturating_add(per / 2).div_euclid(per);
    i64::try_from(samples).unwrap_or(if samples < 0 { i64::MIN } else { i64::MAX })
}

struct Scanner<'a> {
    media: &'a mut Media,
    boxes: u32,
    movie: Movie,
}

impl Scanner<'_> {
    fn body(&mut self, start: u64, end: u64, most: u64) -> io::Result<Vec<u8>> {
        let len = end.min(self.media.len()).saturating_sub(start).min(most) as usize;
        let mut body = vec![0; len];
        let n = self.media.read_at(start, &mut body)?;
        body.truncate(n);
        Ok(body)
    }

    /// Visits the boxes between two positions.
    fn walk(&mut self, mut at: u64, end: u64, depth: u32) -> io::Result<()> {
        let mut data = false;
        while at.saturating_add(8) <= end && self.boxes < MAX_BOXES {
            self.boxes += 1;
            let Some(head) = BoxHead::read(self.media, at)? else { return Ok(()) };
            let next = head.size.map_or(end, |size| at.saturating_add(size).min(end));
            self.visit(head.kind, at + head.header, next, depth)?;
            // Nothing that follows the movie is needed to begin.
            if depth == 0 && &head.kind == b"moov" {
                return self.behind(next, end, data);
            }
            data |= depth == 0 && &head.kind == b"mdat";
            at = next;
        }
        Ok(())
    }

    /// Looks behind the movie for what is no part of it; `data`: its sound stood before it.
    fn behind(&mut self, mut at: u64, end: u64, mut data: bool) -> io::Result<()> {
        // Where a second movie without a head of its own would begin.
        let mut second = None;
        for _ in 0..MAX_BOXES {
            let head =
                BoxHead::read(self.media, at)?.filter(|h| h.kind.iter().all(|b| (0x20..0x7f).contains(b)));
            let kind = head.map_or(*b"    ", |h| h.kind);
            if &kind == b"moov" {
                let at = second.unwrap_or(at);
                self.movie.left_out = Some(joined(Format::Mp4.name(), Some(end - at)));
                self.movie.end = Some(at);
                return Ok(());
            }
            let known = KNOWN.contains(&&kind);
            match head {
                Some(BoxHead { size: Some(size), .. })
                    if &kind != b"ftyp" && size <= end.saturating_sub(at) =>
                {
                    if data && !self.movie.fragmented {
                        second = second.or(Some(at));
                    }
                    data |= &kind == b"mdat";
                    at += size;
                }
                // To the end, or cut off.
                Some(_) if known => return Ok(()),
                _ => {
                    self.movie.left_out = behind(self.media, at, Chunks::None)?;
                    self.movie.end = (at < end).then_some(at);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn visit(&mut self, kind: [u8; 4], start: u64, end: u64, depth: u32) -> io::Result<()> {
        // What is not in the movie is sound, or nothing to us.
        if depth == 0 && &kind != b"moov" {
            return Ok(());
        }
        match &kind {
            b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" | b"edts" | b"udta" | b"ilst" | b"mvex"
                if depth < MAX_DEPTH =>
            {
                match &kind {
                    b"moov" => self.movie.found = true,
                    b"mvex" => self.movie.fragmented = true,
                    b"trak" => self.movie.tracks.push(MovieTrack::default()),
                    _ => {}
                }
                self.walk(start, end, depth + 1)
            }
            b"----" => self.remark(start, end),
            // A full box: four bytes of version and flags before the boxes inside (QuickTime's has none).
            b"meta" if depth < MAX_DEPTH => {
                let body = self.body(start, end, 8)?;
                let skip = if body.get(4..8) == Some(b"hdlr") { 0 } else { 4 };
                self.walk(start + skip, end, depth + 1)
            }
            b"mvhd" | b"tkhd" | b"mdhd" | b"hdlr" | b"stsd" | b"elst" | b"trex" => {
                let body = self.body(start, end, MAX_SMALL)?;
                self.leaf(kind, &body);
                Ok(())
            }
            b"stts" | b"stsc" | b"stsz" | b"stz2" | b"stco" | b"co64" => {
                let sound = self.movie.tracks.last().is_some_and(|t| t.sound);
                let body = if sound { self.body(start + 4, end, MAX_TABLE)? } else { Vec::new() };
                let Some(track) = self.movie.tracks.last_mut() else { return Ok(()) };
                match &kind {
                    b"stts" => track.stts = body,
                    b"stsc" => track.stsc = body,
                    b"stsz" => (track.stsz, track.size_bits) = (body, 32),
                    b"stz2" => {
                        track.size_bits = body.get(3).map_or(32, |&b| u32::from(b));
                        track.stsz = body;
                        // Its first word holds the width where stsz has the common size.
                        track.stsz.iter_mut().take(4).for_each(|b| *b = 0);
                    }
                    _ => (track.chunks, track.wide_chunks) = (body, &kind == b"co64"),
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn leaf(&mut self, kind: [u8; 4], b: &[u8]) {
        let long = b.first() == Some(&1);
        let time = |b: &[u8]| be32(b, if long { 20 } else { 12 }).unwrap_or(0);
        match &kind {
            b"mvhd" => self.movie.timescale = time(b),
            b"trex" => {
                let defaults = be32(b, 12).zip(be32(b, 16));
                let track = self.movie.tracks.iter_mut().find(|t| Some(t.id) == be32(b, 4));
                if let (Some(track), Some(defaults)) = (track, defaults) {
                    track.fragment_defaults = defaults;
                }
            }
            _ => {}
        }
        let Some(track) = self.movie.tracks.last_mut() else { return };
        match &kind {
            b"tkhd" => track.id = time(b),
            b"mdhd" => track.timescale = time(b),
            // The first hdlr of a track is its media's; one in meta comes later.
            b"hdlr" => track.sound |= b.get(8..12) == Some(b"soun"),
            b"stsd" => track.entry = b.get(8..).unwrap_or_default().to_vec(),
            b"elst" => {
                let (entry, count) = (if long { 20 } else { 12 }, be32(b, 4).unwrap_or(0));
                let entries = b.get(8..).unwrap_or_default().chunks_exact(entry).take(count as usize);
                track.edits = entries
                    .filter_map(|e| {
                        if long {
                            Some((be64(e, 0)?, be64(e, 8)? as i64))
                        } else {
                            Some((u64::from(be32(e, 0)?), i64::from(be32(e, 4)? as i32)))
                        }
                    })
                    .collect();
            }
            _ => {}
        }
    }

    /// A `----` item: iTunSMPB is "zeros, delay, padding, length", in hexadecimal.
    fn remark(&mut self, start: u64, end: u64) -> io::Result<()> {
        let body = self.body(start, end, MAX_SMALL)?;
        let Some(at) = body.windows(8).position(|w| w == b"iTunSMPB") else { return Ok(()) };
        let text: String = body
            .get(at + 8..)
            .unwrap_or_default()
            .iter()
            .map(|&b| if b.is_ascii_hexdigit() { char::from(b) } else { ' ' })
            .collect();
        let fields: Vec<&str> = text.split_whitespace().filter(|f| f.len() >= 8).collect();
        let hex = |i: usize| fields.get(i).and_then(|f| u64::from_str_radix(f, 16).ok());
        self.movie.itunes = hex(1).zip(hex(3)).filter(|&(delay, _)| delay < 1 << 20);
        Ok(())
    }
}

pub(crate) fn be32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_be_bytes)
}

pub(crate) fn be64(b: &[u8], at: usize) -> Option<u64> {
    b.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits() {
        let all = i64::MIN..1024;
        for (edits, itunes, expected) in [
            (vec![], None, vec![]),
            (vec![(0, 1024)], None, vec![all.clone()]),
            (vec![(1000, 1024)], None, vec![all.clone(), 49_024..i64::MAX]),
            (vec![(500, -1), (1000, 1024)], None, vec![all.clone(), 49_024..i64::MAX]),
            (vec![(1000, 96_000), (1000, 0)], None, vec![i64::MIN..0, 48_000..96_000, 144_000..i64::MAX]),
            (vec![], Some((2112, 1000)), vec![i64::MIN..2112, 3112..i64::MAX]),
            (vec![(2000, 2112)], Some((1, 1)), vec![i64::MIN..2112, 98_112..i64::MAX]),
        ] {
            let track = MovieTrack { timescale: 48_000, edits: edits.clone(), ..MovieTrack::default() };
            let movie = Movie { timescale: 1000, itunes, ..Movie::default() };
            assert_eq!(movie.drop(&track, 48_000), expected, "{edits:?} {itunes:?}");
        }
    }

    #[test]
    fn hostile_boxes_end() {
        // A box of size 0 within itself, of size 1 with length 0, and a deep nest.
        let mut deep = Vec::new();
        for _ in 0..2000 {
            deep.splice(0..0, [0u8, 0, 0, 0, b'm', b'o', b'o', b'v']);
        }
        for bytes in [
            b"\0\0\0\0moov\0\0\0\0trak\0\0\0\0edts\0\0\0\0elst".to_vec(),
            b"\0\0\0\x01moov\0\0\0\0\0\0\0\0".to_vec(),
            b"\0\0\0\x01moov\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x08free".to_vec(),
            b"\0\0\0\x07moov".to_vec(),
            deep,
        ] {
            let mut media =
                crate::source::AudioSource::bytes("x", bytes).open(1 << 30).unwrap().into_media().unwrap();
            let movie = Movie::scan(&mut media).unwrap();
            assert!(movie.tracks.iter().all(|t| !t.sound));
            assert!(open(media).is_err());
        }
    }
}
