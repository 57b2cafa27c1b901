//! What Symphonia does not tell about an MP4 file: the edit lists, which say how much of a track is an encoder's delay
//! and padding (ISO 14496-12, 8.6.6), Apple's iTunSMPB remark that older files have instead, and the names of codecs
//! that it does not know.

use std::io;
use std::ops::Range;

use crate::source::Media;

/// The sound tracks of a movie, as far as they were understood. Never an error: without it nothing is trimmed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Movie {
    /// Movie ticks a second.
    timescale: u32,
    tracks: Vec<MovieTrack>,
    /// Encoder delay by iTunSMPB, in samples, and the true length.
    itunes: Option<(u64, u64)>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct MovieTrack {
    id: u32,
    /// Media ticks a second.
    timescale: u32,
    sound: bool,
    /// The four characters of the sample entry.
    codec: [u8; 4],
    /// (length in movie ticks, start in media ticks or -1 for an empty edit)
    edits: Vec<(u64, i64)>,
}

/// No movie nests deeper, has more boxes, or needs more of a box than this.
const MAX_DEPTH: u32 = 8;
const MAX_BOXES: u32 = 20_000;
const MAX_BODY: u64 = 64 << 10;

struct Scanner<'a> {
    media: &'a mut Media,
    boxes: u32,
    movie: Movie,
}

impl Movie {
    /// Walks the boxes of a file.
    pub(crate) fn scan(media: &mut Media) -> io::Result<Movie> {
        let end = media.len();
        let mut scanner = Scanner { media, boxes: 0, movie: Movie::default() };
        scanner.walk(0, end, 0)?;
        Ok(scanner.movie)
    }

    /// The codec of the first sound track, by its four characters, if it is a known one.
    pub(crate) fn codec_name(&self) -> Option<String> {
        let track = self.tracks.iter().find(|t| t.sound)?;
        let name = match &track.codec {
            b"ac-3" => "AC-3 (Dolby Digital)",
            b"ec-3" => "E-AC-3 (Dolby Digital Plus)",
            b"ac-4" => "AC-4 (Dolby)",
            b"samr" | b"sawb" | b"sawp" => "AMR",
            b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" => "DTS",
            b"mha1" | b"mhm1" => "MPEG-H 3D Audio",
            b"agsm" => "GSM 6.10",
            b"QDM2" | b"QDMC" => "QDesign Music",
            b"Qclp" | b"sqcp" => "QCELP",
            b"MAC3" | b"MAC6" => "MACE",
            b"wma " | b"WMA2" => "WMA (Windows Media Audio)",
            b"mlpa" => "TrueHD",
            b"enca" | b"drms" => "encryption (DRM)",
            [0, ..] => return None,
            // Those that are read; an error about them is another one.
            b"mp4a" | b"alac" | b"Opus" | b"fLaC" | b".mp3" | b"lpcm" | b"sowt" | b"twos" => return None,
            other => {
                let text: String =
                    other.iter().map(|&b| char::from(b)).filter(|c| c.is_ascii_graphic()).collect();
                return Some(format!("the codec {text:?}"));
            }
        };
        Some(name.to_owned())
    }

    /// The parts of a track's time line, in samples at `rate`, that are not meant to be heard.
    pub(crate) fn drop(&self, track: u32, rate: u32) -> Vec<Range<i64>> {
        let track = self.tracks.iter().find(|t| t.id == track);
        let edits = track.map(|t| t.edits.as_slice()).unwrap_or_default();
        let scale = track.map_or(0, |t| t.timescale);
        let samples = |n: i128, per: u32| {
            let per = i128::from(per.max(1));
            i64::try_from((n * i128::from(rate) + per / 2) / per).unwrap_or(i64::MAX)
        };
        let mut heard: Vec<Range<i64>> = Vec::new();
        for &(length, start) in edits.iter().filter(|e| e.1 >= 0) {
            let start = samples(i128::from(start), scale);
            let length = samples(i128::from(length), self.timescale);
            // Length 0 is "to the end", in files written piece by piece.
            heard.push(start..if length == 0 { i64::MAX } else { start.saturating_add(length) });
        }
        heard.sort_by_key(|r| r.start);
        if let (true, Some((delay, length))) = (heard.iter().all(|r| r.start == 0), self.itunes) {
            let start = i64::try_from(delay).unwrap_or(0);
            let length = i64::try_from(length).unwrap_or(0);
            heard = vec![start..if length == 0 { i64::MAX } else { start.saturating_add(length) }];
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

impl Scanner<'_> {
    fn body(&mut self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let len = end.saturating_sub(start).min(MAX_BODY) as usize;
        let mut body = vec![0; len];
        let n = self.media.read_at(start, &mut body)?;
        body.truncate(n);
        Ok(body)
    }

    /// Visits the boxes between two positions.
    fn walk(&mut self, mut at: u64, end: u64, depth: u32) -> io::Result<()> {
        while at.saturating_add(8) <= end && self.boxes < MAX_BOXES {
            self.boxes += 1;
            let mut head = [0u8; 16];
            let n = self.media.read_at(at, &mut head)?;
            let Some((size, kind)) = head.get(..n).and_then(|h| Some((be32(h, 0)?, h.get(4..8)?))) else {
                return Ok(());
            };
            let kind: [u8; 4] = kind.try_into().unwrap_or_default();
            let (header, size) = match size {
                0 => (8, end - at),
                1 => (16, be64(&head, 8).unwrap_or(0)),
                n => (8, u64::from(n)),
            };
            if size < header {
                return Ok(());
            }
            let next = at.saturating_add(size).min(end);
            self.visit(kind, at + header, next, depth)?;
            at = next;
        }
        Ok(())
    }

    fn visit(&mut self, kind: [u8; 4], start: u64, end: u64, depth: u32) -> io::Result<()> {
        match &kind {
            b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" | b"edts" | b"udta" | b"ilst" | b"----"
                if depth < MAX_DEPTH =>
            {
                if &kind == b"trak" {
                    self.movie.tracks.push(MovieTrack::default());
                }
                if &kind == b"----" { self.remark(start, end) } else { self.walk(start, end, depth + 1) }
            }
            // A full box: four bytes of version and flags before the boxes inside (QuickTime's has none).
            b"meta" if depth < MAX_DEPTH => {
                let body = self.body(start, end.min(start + 8))?;
                let skip = if body.get(4..8) == Some(b"hdlr") { 0 } else { 4 };
                self.walk(start + skip, end, depth + 1)
            }
            b"mvhd" | b"tkhd" | b"mdhd" | b"hdlr" | b"stsd" | b"elst" => {
                let body = self.body(start, end)?;
                self.leaf(kind, &body);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn leaf(&mut self, kind: [u8; 4], b: &[u8]) {
        let long = b.first() == Some(&1);
        if &kind == b"mvhd" {
            self.movie.timescale = be32(b, if long { 20 } else { 12 }).unwrap_or(0);
        }
        let Some(track) = self.movie.tracks.last_mut() else { return };
        match &kind {
            b"tkhd" => track.id = be32(b, if long { 20 } else { 12 }).unwrap_or(0),
            b"mdhd" => track.timescale = be32(b, if long { 20 } else { 12 }).unwrap_or(0),
            // The first hdlr of a track is its media's; one in meta comes later.
            b"hdlr" => track.sound |= b.get(8..12) == Some(b"soun"),
            b"stsd" => track.codec = b.get(12..16).and_then(|c| c.try_into().ok()).unwrap_or_default(),
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
        let body = self.body(start, end)?;
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

fn be32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn be64(b: &[u8], at: usize) -> Option<u64> {
    b.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn movie(edits: Vec<(u64, i64)>, itunes: Option<(u64, u64)>) -> Movie {
        let track = MovieTrack { id: 1, timescale: 48_000, sound: true, codec: *b"mp4a", edits };
        Movie { timescale: 1000, tracks: vec![track], itunes }
    }

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
            assert_eq!(movie(edits.clone(), itunes).drop(1, 48_000), expected, "{edits:?} {itunes:?}");
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
            assert_eq!(movie.drop(1, 48_000), vec![]);
        }
    }
}
