//! Where the samples of an MP4 track lie: the tables of the movie box (ISO 14496-12, 8.6 and 8.7), and the fragments
//! that follow it in files written piece by piece (8.8).

use std::collections::VecDeque;

use crate::mp4::{BoxHead, MovieTrack, be32, be64, scale};
use crate::mp4_entry::{Packing, SoundEntry};
use crate::packets::{Packet, PacketSource, SourceError};
use crate::source::Media;

/// The longest sample that is read: half a minute of uncompressed surround sound.
const MAX_SAMPLE: u64 = 16 << 20;

const CUT: &str = "the end of the file is missing";

/// A table of one line can point at the same bytes without end: more than this many times the file is not read. Edits
/// and shared samples of real files repeat a part of it at most.
const MAX_REPEATS: u64 = 4;

/// How many bytes may be read of a file.
fn budget(media: &Media) -> u64 {
    media.len().saturating_mul(MAX_REPEATS)
}

/// Reads one sample and takes it off the budget.
fn read(media: &mut Media, budget: &mut u64, at: u64, size: u64) -> Result<Vec<u8>, SourceError> {
    if size == 0 || size > MAX_SAMPLE {
        return Err(SourceError::Damaged);
    }
    let left = media.len().saturating_sub(at);
    if size > left {
        return Err(SourceError::Truncated(CUT.into()));
    }
    *budget = budget
        .checked_sub(size)
        .ok_or_else(|| SourceError::Broken("its index points at the same bytes again and again".into()))?;
    let mut data = vec![0; size as usize];
    let n = media.read_at(at, &mut data).map_err(SourceError::Read)?;
    data.truncate(n);
    Ok(data)
}

/// Samples by the tables, without the file.
pub(crate) struct TableSamples {
    track: MovieTrack,
    packing: Packing,
    rate: u32,
    /// The next chunk, and what is left of the current one.
    chunk: u32,
    left: u64,
    position: u64,
    /// The next sample.
    sample: u64,
    /// The entry of `stsc` that is in force, and that of `stts` with what is left of it.
    run: usize,
    times: (usize, u32),
    /// Time in media ticks.
    ticks: u64,
}

impl TableSamples {
    pub(crate) fn new(track: &MovieTrack, entry: &SoundEntry, rate: u32) -> TableSamples {
        // Where the tables count whole packets of a codec, and not samples of sound, those are samples like any other.
        let counts_packets = be32(&track.stts, 8).is_some_and(|length| length > 1);
        let packing = match entry.packing {
            Packing::Chunks { frames, .. } if frames > 1 && counts_packets => Packing::Samples,
            packing => packing,
        };
        TableSamples {
            track: track.clone(),
            packing,
            rate,
            chunk: 0,
            left: 0,
            position: 0,
            sample: 0,
            run: 0,
            times: (0, 0),
            ticks: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunk_position(0).is_none()
    }

    /// The length of the track in samples.
    pub(crate) fn end(&self) -> i64 {
        let pairs = self.track.stts.get(4..).unwrap_or_default().as_chunks::<8>().0;
        let count = be32(&self.track.stts, 0).unwrap_or(0) as usize;
        let ticks: u128 = pairs
            .iter()
            .take(count)
            .filter_map(|p| Some(u128::from(be32(p, 0)?) * u128::from(be32(p, 4)?)))
            .fold(0, u128::saturating_add);
        scale(i128::try_from(ticks).unwrap_or(i128::MAX), self.rate, self.track.timescale)
    }

    pub(crate) fn with_media(self, media: Media) -> TableSource {
        let budget = budget(&media);
        TableSource { table: self, media, budget }
    }

    fn chunk_position(&self, n: u32) -> Option<u64> {
        if n >= be32(&self.track.chunks, 0)? {
            return None;
        }
        let n = n as usize;
        if self.track.wide_chunks {
            be64(&self.track.chunks, 4 + 8 * n)
        } else {
            be32(&self.track.chunks, 4 + 4 * n).map(u64::from)
        }
    }

    /// Goes to the next chunk; false at the end.
    fn next_chunk(&mut self) -> bool {
        let Some(position) = self.chunk_position(self.chunk) else { return false };
        let first = |run: usize| be32(&self.track.stsc, 4 + 12 * run);
        let count = be32(&self.track.stsc, 0).unwrap_or(0) as usize;
        // Chunks are counted from 1 there.
        while self.run + 1 < count && first(self.run + 1).is_some_and(|f| f <= self.chunk + 1) {
            self.run += 1;
        }
        self.left = u64::from(be32(&self.track.stsc, 8 + 12 * self.run).unwrap_or(0));
        self.position = position;
        self.chunk += 1;
        true
    }

    /// The size of a sample; `None` behind the last one.
    fn size(&self, n: u64) -> Option<u64> {
        let table = &self.track.stsz;
        let (common, count) = (be32(table, 0)?, be32(table, 4)?);
        if n >= u64::from(count) {
            return None;
        }
        if common > 0 {
            return Some(u64::from(common));
        }
        let n = usize::try_from(n).ok()?;
        match self.track.size_bits {
            4 => table.get(8 + n / 2).map(|b| u64::from(if n % 2 == 0 { b >> 4 } else { b & 15 })),
            8 => table.get(8 + n).map(|&b| u64::from(b)),
            16 => table.get(8 + 2 * n..10 + 2 * n).map(|b| u64::from(b[0]) << 8 | u64::from(b[1])),
            _ => be32(table, 8 + 4 * n).map(u64::from),
        }
    }

    /// The length in ticks of the next sample.
    fn duration(&mut self) -> u32 {
        loop {
            let (entry, used) = self.times;
            let at = 4 + 8 * entry;
            let Some((count, length)) = be32(&self.track.stts, at).zip(be32(&self.track.stts, at + 4)) else {
                return 0;
            };
            if used < count {
                self.times.1 += 1;
                return length;
            }
            self.times = (entry + 1, 0);
        }
    }
}

/// Samples by the tables.
pub(crate) struct TableSource {
    table: TableSamples,
    media: Media,
    /// Bytes that may still be read.
    budget: u64,
}

impl TableSource {
    fn next_sample(&mut self) -> Result<Option<Packet>, SourceError> {
        let table = &mut self.table;
        let Some(size) = table.size(table.sample) else { return Ok(None) };
        let at = scale(i128::from(table.ticks), table.rate, table.track.timescale);
        let ticks = table.duration();
        let duration = scale(i128::from(ticks), table.rate, table.track.timescale).max(0) as u64;
        let position = table.position;
        table.sample += 1;
        table.left -= 1;
        table.ticks = table.ticks.saturating_add(u64::from(ticks));
        table.position = table.position.saturating_add(size);
        let data = read(&mut self.media, &mut self.budget, position, size)?;
        Ok(Some(Packet { data, at: Some(at), duration, ..Packet::default() }))
    }

    /// A piece of the current chunk of back-to-back samples.
    fn next_piece(&mut self, bytes: usize, frames: u64, most: u64) -> Result<Option<Packet>, SourceError> {
        let table = &mut self.table;
        let units = (table.left / frames).min(most);
        if units == 0 {
            // A chunk of fewer samples than one packet holds.
            table.left = 0;
            return Err(SourceError::Damaged);
        }
        let (position, mut size) = (table.position, units * bytes as u64);
        let at = i64::try_from(table.sample).unwrap_or(i64::MAX);
        table.left -= units * frames;
        table.sample = table.sample.saturating_add(units * frames);
        table.position = table.position.saturating_add(size);
        let left = self.media.len().saturating_sub(position);
        if size > left {
            // The whole samples that are left.
            size = left - left % bytes as u64;
            table.left = 0;
            table.chunk = u32::MAX;
            if size == 0 {
                return Err(SourceError::Truncated(CUT.into()));
            }
        }
        let data = read(&mut self.media, &mut self.budget, position, size)?;
        let duration = size / bytes as u64 * frames;
        Ok(Some(Packet { data, at: Some(at), duration, ..Packet::default() }))
    }
}

impl PacketSource for TableSource {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        // Empty chunks are passed over, but not without end.
        while self.table.left == 0 {
            if !self.table.next_chunk() {
                return Ok(None);
            }
        }
        match self.table.packing {
            Packing::Samples => self.next_sample(),
            Packing::Chunks { bytes, frames, most } => self.next_piece(bytes, frames, most),
        }
    }
}

/// A `trun` box whose samples are given one at a time: what a file claims to hold takes no memory.
#[derive(Debug, Default)]
struct Run {
    /// The box without its header fields: a record of `width` bytes for each sample.
    records: Vec<u8>,
    flags: u32,
    width: usize,
    /// The next sample, and how many there are.
    next: u32,
    count: u32,
    /// Length in ticks and size of samples that do not state theirs.
    defaults: (u32, u32),
    /// Where its data begin and when, if that is not where and when the run before it ended.
    position: Option<u64>,
    ticks: Option<u64>,
}

impl Run {
    /// The run of a `trun` box; `base` is what its offset counts from.
    fn parse(run: &[u8], base: u64, defaults: (u32, u32)) -> Option<Run> {
        let (flags, mut count) = (be32(run, 0)?, be32(run, 4)?);
        let mut at = 8;
        let mut position = None;
        if flags & 0x1 != 0 {
            let offset = be32(run, at)? as i32;
            position = Some(base.saturating_add_signed(i64::from(offset)));
            at += 4;
        }
        if flags & 0x4 != 0 {
            at += 4;
        }
        let width = 4 * [0x100u32, 0x200, 0x400, 0x800].iter().filter(|&&bit| flags & bit != 0).count();
        let records = run.get(at..).unwrap_or_default();
        if let Some(whole) = records.len().checked_div(width) {
            count = count.min(u32::try_from(whole).unwrap_or(u32::MAX));
        }
        let records = records.to_vec();
        Some(Run { records, flags, width, next: 0, count, defaults, position, ticks: None })
    }

    /// Length in ticks and size of the next sample.
    fn next_sample(&mut self) -> Option<(u32, u32)> {
        if self.next >= self.count {
            return None;
        }
        let (mut length, mut size) = self.defaults;
        let mut field = self.next as usize * self.width;
        if self.flags & 0x100 != 0 {
            length = be32(&self.records, field)?;
            field += 4;
        }
        if self.flags & 0x200 != 0 {
            size = be32(&self.records, field)?;
        }
        self.next += 1;
        Some((length, size))
    }
}

/// Samples in movie fragments, read one fragment after the other.
pub(crate) struct Fragments {
    media: Media,
    /// Bytes that may still be read.
    budget: u64,
    track: u32,
    timescale: u32,
    rate: u32,
    defaults: (u32, u32),
    /// The next box of the file.
    at: u64,
    runs: VecDeque<Run>,
    /// The place and the time at which the sample before ended.
    position: u64,
    ticks: u64,
}

/// The description of a fragment is a few kilobytes.
const MAX_FRAGMENT: u64 = 16 << 20;

impl Fragments {
    pub(crate) fn new(media: Media, track: &MovieTrack, rate: u32) -> Fragments {
        Fragments {
            budget: budget(&media),
            media,
            track: track.id,
            timescale: track.timescale,
            rate,
            defaults: track.fragment_defaults,
            at: 0,
            runs: VecDeque::new(),
            position: 0,
            ticks: 0,
        }
    }

    /// Goes to the next fragment; false at the end of the file.
    fn next_fragment(&mut self) -> Result<bool, SourceError> {
        loop {
            let end = self.media.len();
            if self.at >= end {
                return Ok(false);
            }
            let head = BoxHead::read(&mut self.media, self.at).map_err(SourceError::Read)?;
            let Some(head) = head else {
                self.at = end;
                return Err(SourceError::Truncated(CUT.into()));
            };
            let start = self.at;
            self.at = head.size.map_or(end, |s| start.saturating_add(s));
            if &head.kind == b"moof" {
                let size = self.at.saturating_sub(start + head.header).min(MAX_FRAGMENT);
                let left = end.saturating_sub(start + head.header);
                let mut body = vec![0; size.min(left) as usize];
                let n = self.media.read_at(start + head.header, &mut body).map_err(SourceError::Read)?;
                if (n as u64) < size {
                    self.at = end;
                    return Err(SourceError::Truncated(CUT.into()));
                }
                self.fragment(&body, start);
                return Ok(true);
            }
            if self.at > end {
                self.at = end;
                return Err(SourceError::Truncated(CUT.into()));
            }
        }
    }

    /// Queues the runs of a moof box that begins at `start`.
    fn fragment(&mut self, body: &[u8], start: u64) {
        for traf in children(body, b"traf") {
            let Some(header) = children(traf, b"tfhd").next() else { continue };
            if be32(header, 4) != Some(self.track) {
                continue;
            }
            let flags = be32(header, 0).unwrap_or(0);
            let mut at = 8;
            let mut optional = |bit: u32, width: usize| {
                let here = at;
                let there = flags & bit != 0;
                at += if there { width } else { 0 };
                there.then_some(here)
            };
            let base = optional(0x1, 8).and_then(|i| be64(header, i)).unwrap_or(start);
            optional(0x2, 4);
            let length = optional(0x8, 4).and_then(|i| be32(header, i)).unwrap_or(self.defaults.0);
            let size = optional(0x10, 4).and_then(|i| be32(header, i)).unwrap_or(self.defaults.1);
            let mut ticks = children(traf, b"tfdt").next().and_then(|time| {
                if time.first() == Some(&1) { be64(time, 4) } else { be32(time, 4).map(u64::from) }
            });
            let mut position = Some(base);
            for run in children(traf, b"trun") {
                let Some(mut run) = Run::parse(run, base, (length, size)) else { continue };
                run.position = run.position.or(position.take());
                run.ticks = ticks.take();
                self.runs.push_back(run);
            }
        }
    }

    /// The next sample of the queued runs: where it lies, its size, when it begins and its length in ticks.
    fn next_queued(&mut self) -> Option<(u64, u64, u64, u32)> {
        while let Some(run) = self.runs.front_mut() {
            self.position = run.position.take().unwrap_or(self.position);
            self.ticks = run.ticks.take().unwrap_or(self.ticks);
            let sample = run.next_sample();
            // Samples without records of their own must at least fit into the file.
            let fits = |size: u32| run.width > 0 || (size > 0 && self.position <= self.media.len());
            let Some((length, size)) = sample.filter(|&(_, size)| fits(size)) else {
                self.runs.pop_front();
                continue;
            };
            let found = (self.position, u64::from(size), self.ticks, length);
            self.position = self.position.saturating_add(u64::from(size));
            self.ticks = self.ticks.saturating_add(u64::from(length));
            return Some(found);
        }
        None
    }
}

/// The contents of the boxes of one kind, side by side in `data`.
fn children<'a>(mut data: &'a [u8], kind: &'static [u8; 4]) -> impl Iterator<Item = &'a [u8]> {
    std::iter::from_fn(move || {
        loop {
            let (size, found) = (be32(data, 0)? as usize, data.get(4..8)?);
            let content = data.get(8..size)?;
            let wanted = found == kind;
            data = data.get(size..)?;
            if wanted {
                return Some(content);
            }
        }
    })
}

impl PacketSource for Fragments {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        loop {
            if let Some((position, size, ticks, length)) = self.next_queued() {
                let at = scale(i128::from(ticks), self.rate, self.timescale);
                let duration = scale(i128::from(length), self.rate, self.timescale).max(0) as u64;
                let data = read(&mut self.media, &mut self.budget, position, size)?;
                return Ok(Some(Packet { data, at: Some(at), duration, ..Packet::default() }));
            }
            if !self.next_fragment()? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphonia::core::codecs::audio::AudioCodecParameters;

    fn words(w: &[u32]) -> Vec<u8> {
        w.iter().flat_map(|v| v.to_be_bytes()).collect()
    }

    fn source(track: &MovieTrack, packing: Packing, len: usize) -> TableSource {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let media =
            crate::source::AudioSource::bytes("x", bytes).open(1 << 30).unwrap().into_media().unwrap();
        let entry = SoundEntry { params: AudioCodecParameters::new(), name: String::new(), packing };
        TableSamples::new(track, &entry, 1000).with_media(media)
    }

    #[test]
    fn tables() {
        // Chunks of 2, 2 and 1 samples at 10, 50 and 100; sizes 1 to 5; lengths 100, 100, then 50 each.
        let track = MovieTrack {
            timescale: 1000,
            stts: words(&[2, 2, 100, 3, 50]),
            stsc: words(&[2, 1, 2, 1, 3, 1, 1]),
            stsz: words(&[0, 5, 1, 2, 3, 4, 5]),
            size_bits: 32,
            chunks: words(&[3, 10, 50, 100]),
            ..MovieTrack::default()
        };
        let mut s = source(&track, Packing::Samples, 103);
        assert_eq!(s.table.end(), 350);
        for (first, len, at, duration) in
            [(10u8, 1, 0, 100), (11, 2, 100, 100), (50, 3, 200, 50), (53, 4, 250, 50)]
        {
            let p = s.next_packet().unwrap().unwrap();
            assert_eq!((p.data[0], p.data.len(), p.at, p.duration), (first, len, Some(at), duration));
        }
        assert!(matches!(s.next_packet(), Err(SourceError::Truncated(_))));
        let mut s = source(&track, Packing::Chunks { bytes: 4, frames: 1, most: 8 }, 103);
        for (first, len, at) in [(10u8, 8, 0), (50, 8, 2)] {
            let p = s.next_packet().unwrap().unwrap();
            assert_eq!((p.data[0], p.data.len(), p.at), (first, len, Some(at)));
        }
        assert!(matches!(s.next_packet(), Err(SourceError::Truncated(_))));
    }

    #[test]
    fn the_same_bytes_are_not_read_without_end() {
        let mut chunks = words(&[1000]);
        chunks.resize(4 + 4 * 1000, 0);
        let track = MovieTrack {
            timescale: 1000,
            stts: words(&[1, u32::MAX, 20]),
            stsc: words(&[1, 1, 1, 1]),
            stsz: words(&[100, u32::MAX]),
            size_bits: 32,
            chunks,
            ..MovieTrack::default()
        };
        let mut s = source(&track, Packing::Samples, 100);
        for _ in 0..MAX_REPEATS {
            assert_eq!(s.next_packet().unwrap().unwrap().data.len(), 100);
        }
        assert!(matches!(s.next_packet(), Err(SourceError::Broken(_))));
    }

    #[test]
    fn runs_give_no_more_than_their_records() {
        let run = |flags: u32, count: u32, rest: &[u32]| {
            Run::parse(&[words(&[flags, count]), words(rest)].concat(), 100, (10, 20)).unwrap()
        };
        let all = |mut run: Run| std::iter::from_fn(|| run.next_sample()).collect::<Vec<_>>();
        assert_eq!(all(run(0x301, 2, &[8, 1, 2, 3, 4])), [(1, 2), (3, 4)]);
        assert_eq!(run(0x301, 2, &[8, 1, 2, 3, 4]).position, Some(108));
        // Records of other things than lengths and sizes count as well.
        assert_eq!(all(run(0x404, u32::MAX, &[0, 7, 7])), [(10, 20); 2]);
        assert_eq!(all(run(0xf00, u32::MAX, &[1, 2, 3, 4, 5])), [(1, 2)]);
        assert_eq!(all(run(0xf00, 9, &[])), []);
        // Without records, the file's length bounds them, one at a time.
        assert_eq!(run(0, u32::MAX, &[]).next_sample(), Some((10, 20)));
    }

    #[test]
    fn tables_that_lie_end() {
        let track = MovieTrack {
            timescale: 0,
            stts: words(&[u32::MAX, u32::MAX, u32::MAX, 0, 0]),
            stsc: words(&[u32::MAX, u32::MAX, u32::MAX, 1]),
            stsz: words(&[1, u32::MAX]),
            size_bits: 32,
            chunks: words(&[u32::MAX, 0, 90]),
            ..MovieTrack::default()
        };
        for packing in [Packing::Samples, Packing::Chunks { bytes: 34, frames: 64, most: 128 }] {
            let mut s = source(&track, packing, 100);
            let mut n = 0;
            while let Ok(Some(_)) = s.next_packet() {
                n += 1;
            }
            assert!(n <= 100, "{n}");
        }
    }
}
