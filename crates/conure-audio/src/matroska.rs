//! Matroska and WebM (RFC 9559), also as live encoders write them: without lengths, and cut off anywhere.
//!
//! Only what sound needs is read. Damage is jumped over to the next cluster, whose own time stamp tells how much
//! is missing.

use std::collections::VecDeque;
use std::io;

use symphonia::core::codecs::audio::AudioCodecParameters;

use crate::ebml::{Head, children, float, signed, unsigned, vint};
use crate::error::AudioErrorKind;
use crate::lookahead::Lookahead;
use crate::matroska_codecs::codec_parameters;
use crate::opus::packet_duration;
use crate::packets::{Packet, PacketSource, SourceError, Track};
use crate::sniff::unsupported;
use crate::source::Media;

mod id {
    pub(super) const EBML: u32 = 0x1a45_dfa3;
    pub(super) const SEGMENT: u32 = 0x1853_8067;
    pub(super) const SEEK_HEAD: u32 = 0x114d_9b74;
    pub(super) const INFO: u32 = 0x1549_a966;
    pub(super) const TRACKS: u32 = 0x1654_ae6b;
    pub(super) const CLUSTER: u32 = 0x1f43_b675;
    pub(super) const CUES: u32 = 0x1c53_bb6b;
    pub(super) const CHAPTERS: u32 = 0x1043_a770;
    pub(super) const TAGS: u32 = 0x1254_c367;
    pub(super) const ATTACHMENTS: u32 = 0x1941_a469;
    pub(super) const VOID: u32 = 0xec;
    pub(super) const CRC32: u32 = 0xbf;
    pub(super) const TIMESTAMP: u32 = 0xe7;
    pub(super) const SIMPLE_BLOCK: u32 = 0xa3;
    pub(super) const BLOCK_GROUP: u32 = 0xa0;
    pub(super) const BLOCK: u32 = 0xa1;
    pub(super) const DISCARD_PADDING: u32 = 0x75a2;
    pub(super) const POSITION: u32 = 0xa7;
    pub(super) const PREV_SIZE: u32 = 0xab;
    pub(super) const SILENT_TRACKS: u32 = 0x5854;
    pub(super) const ENCRYPTED_BLOCK: u32 = 0xaf;
}

/// All that may stand in a segment or a cluster. Anything else there is damage (or a future element, whose neighbours
/// are in this list).
const KNOWN: [u32; 18] = [
    id::EBML,
    id::SEGMENT,
    id::SEEK_HEAD,
    id::INFO,
    id::TRACKS,
    id::CLUSTER,
    id::CUES,
    id::CHAPTERS,
    id::TAGS,
    id::ATTACHMENTS,
    id::VOID,
    id::CRC32,
    id::TIMESTAMP,
    id::SIMPLE_BLOCK,
    id::BLOCK_GROUP,
    id::POSITION,
    id::PREV_SIZE,
    id::SILENT_TRACKS,
];

/// Track lists and blocks of sound are smaller than this; larger ones are not sound.
const MAX_BODY: u64 = 16 << 20;

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
    delay: u64,
    default: bool,
    /// Bytes that were taken off the front of every frame.
    stripped: Vec<u8>,
    /// Compressed with zlib and the like, or encrypted.
    encoded: bool,
}

impl Entry {
    fn parse(data: &[u8]) -> Entry {
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
                Some((3, Some(bytes))) => self.stripped = bytes.to_vec(),
                _ => self.encoded = true,
            }
        }
    }
}

/// The chosen track of a Matroska file.
pub(crate) struct Matroska {
    input: Lookahead,
    /// Nanoseconds of a tick.
    tick: u64,
    cluster: Option<u64>,
    entry: Entry,
    rate: u32,
    opus: bool,
    queue: VecDeque<Packet>,
    damaged: bool,
    /// Where the segment should end, if it says so.
    end: Option<u64>,
    finished: bool,
    /// What stopped the search for the first sound; said when that is asked for.
    stopped: Option<SourceError>,
}

fn malformed(reason: &str) -> AudioErrorKind {
    AudioErrorKind::malformed("Matroska/WebM", reason)
}

impl Matroska {
    /// Reads up to the first sound.
    pub(crate) fn open(media: Media) -> Result<(Matroska, Track), AudioErrorKind> {
        let input = Lookahead::new(media).map_err(AudioErrorKind::Read)?;
        let mut file = Matroska {
            input,
            tick: 1_000_000,
            cluster: None,
            entry: Entry::default(),
            rate: 0,
            opus: false,
            queue: VecDeque::new(),
            damaged: false,
            end: None,
            finished: false,
            stopped: None,
        };
        let entries = file.read_tracks().map_err(|e| e.into_kind("Matroska/WebM"))?;
        let (entry, params, name) = choose(&entries)?;
        file.rate = params.sample_rate.unwrap_or(48_000);
        file.opus = name == "Opus";
        file.entry = entry;
        while file.queue.is_empty() && !file.finished {
            match file.element() {
                Ok(()) => {}
                Err(SourceError::Read(e)) => return Err(AudioErrorKind::Read(e)),
                Err(e) => {
                    file.stopped = Some(e);
                    break;
                }
            }
        }
        let start = file.queue.front().and_then(|p| p.at).unwrap_or(0);
        let delay = file.samples(i128::from(file.entry.delay));
        let track = Track {
            params,
            codec: name,
            drop: std::iter::once(i64::MIN..start.saturating_add(delay)).collect(),
            // Time stamps are in milliseconds, and live encoders' jitter by tens of them.
            tolerance: i64::from(file.rate) * 60 / 1000,
            end: None,
        };
        Ok((file, track))
    }

    fn samples(&self, nanoseconds: i128) -> i64 {
        let n = nanoseconds.saturating_mul(i128::from(self.rate));
        i64::try_from((n + 500_000_000).div_euclid(1_000_000_000)).unwrap_or(i64::MAX)
    }

    /// The next element's head, jumping over damage. `None` at the end.
    fn head(&mut self) -> io::Result<Option<Head>> {
        let head = Head::peek(&mut self.input)?;
        if head.is_some_and(|h| KNOWN.contains(&h.id)) {
            return Ok(head);
        }
        if self.input.at_end()? {
            return Ok(None);
        }
        // An element of an unknown kind is passed over if a known one follows.
        if let Some(Head { size: Some(size), len, .. }) = head
            && size.saturating_add(len as u64) <= self.input.left()
        {
            let here = self.input.position();
            self.input.skip(size + len as u64)?;
            let next = Head::peek(&mut self.input)?;
            if next.is_some_and(|h| KNOWN.contains(&h.id)) || self.input.at_end()? {
                return Ok(next);
            }
            self.input.seek(here)?;
        }
        self.damaged = true;
        loop {
            self.input.consume(1);
            self.input.skip_to(0x1f)?;
            match Head::peek(&mut self.input)? {
                Some(h) if h.id == id::CLUSTER => return Ok(Some(h)),
                None if self.input.at_end()? => return Ok(None),
                _ => {}
            }
        }
    }

    /// Reads the content of an element; an error if it is cut off.
    fn content(&mut self, head: Head) -> Result<Vec<u8>, SourceError> {
        let size = head.size.unwrap_or(0);
        self.input.consume(head.len);
        if size > MAX_BODY {
            self.input.skip(size).map_err(SourceError::Read)?;
            return Ok(Vec::new());
        }
        let content = self.input.read(size as usize).map_err(SourceError::Read)?;
        if (content.len() as u64) < size {
            self.finished = true;
            return Err(SourceError::Truncated("the end of the file is missing".into()));
        }
        Ok(content)
    }

    /// Goes on to the first cluster and returns the track entries on the way.
    fn read_tracks(&mut self) -> Result<Vec<Entry>, SourceError> {
        loop {
            let Some(head) = self.head().map_err(SourceError::Read)? else {
                return Err(SourceError::Broken("it ends before its list of tracks".into()));
            };
            match head.id {
                id::TRACKS => {
                    let content = self.content(head)?;
                    return Ok(children(&content)
                        .filter(|(id, _)| *id == 0xae)
                        .map(|(_, c)| Entry::parse(c))
                        .collect());
                }
                id::CLUSTER => return Err(SourceError::Broken("its list of tracks is missing".into())),
                _ => self.visit(head)?,
            }
        }
    }

    /// Handles the next element, whatever it is.
    fn element(&mut self) -> Result<(), SourceError> {
        match self.head().map_err(SourceError::Read)? {
            Some(head) => self.visit(head),
            None => {
                self.finished = true;
                match self.end {
                    Some(end) if end > self.input.position() => {
                        Err(SourceError::Truncated("the end of the file is missing".into()))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn visit(&mut self, head: Head) -> Result<(), SourceError> {
        match head.id {
            id::SEGMENT => {
                self.input.consume(head.len);
                self.end = head.size.map(|s| self.input.position().saturating_add(s));
            }
            id::CLUSTER => {
                self.input.consume(head.len);
                self.cluster = None;
            }
            id::INFO => {
                let content = self.content(head)?;
                let scale = children(&content).find(|(id, _)| *id == 0x002a_d7b1).map(|(_, c)| unsigned(c));
                // 0 would stop time; a tick of more than a minute is as wrong.
                self.tick = scale.filter(|s| (1..=60_000_000_000).contains(s)).unwrap_or(1_000_000);
            }
            id::TIMESTAMP => {
                let content = self.content(head)?;
                self.cluster = Some(unsigned(&content));
            }
            id::SIMPLE_BLOCK if self.ours(head)? => {
                let content = self.content(head)?;
                self.block(&content, 0);
            }
            id::BLOCK_GROUP if head.size.is_some() => {
                let content = self.content(head)?;
                let find = |wanted| children(&content).find(|(id, _)| *id == wanted).map(|(_, c)| c);
                let discard = find(id::DISCARD_PADDING).map_or(0, signed);
                match find(id::BLOCK) {
                    Some(block) => self.block(block, discard),
                    None if find(id::ENCRYPTED_BLOCK).is_some() => {
                        return Err(SourceError::Broken("its sound is encrypted".into()));
                    }
                    None => {}
                }
            }
            // The length of these must be known; without one there is nothing to jump to.
            _ => match head.size {
                Some(size) => {
                    self.input.consume(head.len);
                    let left = self.input.left();
                    self.input.skip(size).map_err(SourceError::Read)?;
                    if size > left {
                        self.finished = true;
                        return Err(SourceError::Truncated("the end of the file is missing".into()));
                    }
                }
                None => self.input.consume(head.len),
            },
        }
        Ok(())
    }

    /// Whether the simple block here belongs to the chosen track.
    fn ours(&mut self, head: Head) -> Result<bool, SourceError> {
        let bytes = self.input.peek(head.len + 8).map_err(SourceError::Read)?;
        let number = bytes.get(head.len..).and_then(vint).and_then(|(n, _)| n);
        Ok(number == Some(self.entry.number) && head.size.is_some())
    }

    /// Takes the frames out of a block.
    fn block(&mut self, data: &[u8], discard: i64) {
        let Some((Some(number), n)) = vint(data) else { return };
        let (Some(time), Some(&flags), Some(body)) = (data.get(n..n + 2), data.get(n + 2), data.get(n + 3..))
        else {
            return;
        };
        // A block before its cluster's time stamp has no time; its neighbours tell where it belongs.
        if number != self.entry.number {
            return;
        }
        let relative = i128::from(signed(time));
        let at = self
            .cluster
            .map(|c| self.samples((i128::from(c) + relative).saturating_mul(i128::from(self.tick))));
        let Some(frames) = unlace(flags >> 1 & 3, body) else {
            return;
        };
        let count = frames.len();
        for (i, frame) in frames.into_iter().enumerate() {
            let data = [self.entry.stripped.as_slice(), frame].concat();
            let duration = if self.opus { packet_duration(&data).unwrap_or(0) } else { 0 };
            let last = i + 1 == count;
            let trim = if last && discard > 0 { self.samples(i128::from(discard)).max(0) as u64 } else { 0 };
            let reset = std::mem::take(&mut self.damaged);
            self.queue.push_back(Packet {
                data,
                at: at.filter(|_| i == 0),
                duration,
                trim: (0, trim),
                reset,
            });
        }
    }
}

impl PacketSource for Matroska {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        loop {
            if let Some(packet) = self.queue.pop_front() {
                return Ok(Some(packet));
            }
            if let Some(e) = self.stopped.take() {
                return Err(e);
            }
            if self.finished {
                return Ok(None);
            }
            self.element()?;
        }
    }
}

/// The first sound track that can be decoded, the default one before others.
fn choose(entries: &[Entry]) -> Result<(Entry, AudioCodecParameters, String), AudioErrorKind> {
    let mut sound: Vec<&Entry> = entries.iter().filter(|e| e.kind == 2).collect();
    sound.sort_by_key(|e| !e.default);
    let mut refused = None;
    for entry in sound {
        if entry.encoded {
            refused = refused.or(Some(unsupported("Matroska with compressed or encrypted sound")));
            continue;
        }
        match codec_parameters(entry) {
            Ok((params, name)) => return Ok((entry.clone(), params, name)),
            Err(e) => refused = refused.or(Some(e)),
        }
    }
    match refused {
        Some(e) => Err(e),
        None if entries.is_empty() => Err(malformed("its list of tracks is empty")),
        None => Err(AudioErrorKind::NoAudioTrack { container: "Matroska/WebM".into() }),
    }
}

/// Splits a block into its frames (RFC 9559, 10.3). `None` if the lengths do not fit.
fn unlace(lacing: u8, body: &[u8]) -> Option<Vec<&[u8]>> {
    if lacing == 0 {
        return Some(vec![body]);
    }
    let count = usize::from(*body.first()?) + 1;
    let mut rest = body.get(1..)?;
    let mut sizes: Vec<usize> = Vec::with_capacity(count);
    match lacing {
        1 => {
            for _ in 1..count {
                let mut size = 0;
                loop {
                    let (&b, next) = rest.split_first()?;
                    rest = next;
                    size += usize::from(b);
                    if b < 255 {
                        break;
                    }
                }
                sizes.push(size);
            }
        }
        3 if count > 1 => {
            let (first, n) = vint(rest)?;
            rest = rest.get(n..)?;
            let mut size = i64::try_from(first?).ok()?;
            sizes.push(usize::try_from(size).ok()?);
            for _ in 2..count {
                // The difference to the size before, biased to be unsigned.
                let (difference, n) = vint(rest)?;
                rest = rest.get(n..)?;
                let bias = (1i64 << (7 * n - 1)) - 1;
                size = size.checked_add(i64::try_from(difference?).ok()? - bias)?;
                sizes.push(usize::try_from(size).ok()?);
            }
        }
        2 => sizes = vec![rest.len() / count; count - 1],
        _ => {}
    }
    let mut frames = Vec::with_capacity(count);
    for size in sizes {
        let (frame, next) = rest.split_at_checked(size)?;
        frames.push(frame);
        rest = next;
    }
    frames.push(rest);
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacing() {
        let body = [2u8, 1, 2, 7, 8, 8, 9, 9, 9];
        assert_eq!(unlace(0, &body), Some(vec![&body[..]]));
        assert_eq!(unlace(1, &body), Some(vec![&[7u8][..], &[8, 8], &[9, 9, 9]]));
        assert_eq!(unlace(2, &[1, 7, 7, 8, 8]), Some(vec![&[7u8, 7][..], &[8, 8]]));
        // EBML: the first size 1, then a difference of +1 (0x81 + 63 - 0x80 = 0xc0).
        assert_eq!(unlace(3, &[2, 0x81, 0xc0, 7, 8, 8, 9]), Some(vec![&[7u8][..], &[8, 8], &[9]]));
        assert_eq!(unlace(1, &[2, 200, 2, 7]), None);
        assert_eq!(unlace(3, &[255]), None);
        assert_eq!(unlace(1, &[]), None);
        // A negative size.
        assert_eq!(unlace(3, &[2, 0x81, 0x80, 7]), None);
    }
}
