//! Matroska and WebM (RFC 9559), also as live encoders write them: without lengths, and cut off anywhere.
//!
//! Only what sound needs is read. Damage is jumped over to the next block or cluster, whose own time stamp tells how
//! much is missing; at the end the length that the header states tells it.

use std::collections::VecDeque;
use std::io;

use symphonia::core::codecs::audio::AudioCodecParameters;

use crate::ebml::{Head, MAX_HEAD, children, float, signed, unsigned, vint};
use crate::error::{AudioErrorKind, joined};
use crate::lookahead::Lookahead;
use crate::matroska_codecs::{Entry, codec_parameters, entries};
use crate::matroska_ids::{KNOWN, MAX_FOUND, id, is_block};
use crate::matroska_lacing::unlace;
use crate::opus::packet_duration;
use crate::packets::{Packet, PacketSource, SourceError, Track};
use crate::sniff::{joined_file, unsupported};
use crate::source::Media;

/// Track lists and blocks of sound are smaller than this; larger ones are not sound.
const MAX_BODY: u64 = 16 << 20;

/// The chosen track of a Matroska file.
pub(crate) struct Matroska {
    input: Lookahead,
    /// Nanoseconds of a tick.
    tick: u64,
    cluster: Option<u64>,
    entry: Entry,
    /// The numbers of all tracks.
    tracks: Vec<u64>,
    rate: u32,
    opus: bool,
    /// The time stamp of the last packet given.
    last: Option<i64>,
    queue: VecDeque<Packet>,
    damaged: bool,
    /// Where the segment should end, if it says so, and the cluster.
    end: Option<u64>,
    cluster_end: u64,
    /// The length in ticks that the header states.
    duration: f64,
    /// Another file begins, whose tracks were not read yet.
    another: bool,
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
            tracks: Vec::new(),
            rate: 0,
            opus: false,
            last: None,
            queue: VecDeque::new(),
            damaged: false,
            end: None,
            cluster_end: u64::MAX,
            duration: 0.0,
            another: false,
            finished: false,
            stopped: None,
        };
        let entries = file.read_tracks().map_err(|e| e.into_kind("Matroska/WebM"))?;
        let mut track = file.take_track(&entries)?;
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
        // The first time stamp says where the sound begins, unless it is damaged.
        if let Some(mut first) = file.queue.pop_front() {
            file.check_time(&mut first);
            file.queue.push_front(first);
        }
        let first = file.queue.front();
        let missing = first.is_some_and(|p| p.reset);
        let start = first.filter(|_| !missing).and_then(|p| p.at).unwrap_or(0);
        let delay = file.samples(i128::from(file.entry.delay));
        track.drop = std::iter::once(i64::MIN..start.saturating_add(delay)).collect();
        track.start = missing.then_some(0);
        // Of several tracks one may last longer than the others.
        if entries.len() == 1 {
            track.end = file.stated_end();
        }
        Ok((file, track))
    }

    /// Chooses the track that is read from here on.
    fn take_track(&mut self, entries: &[Entry]) -> Result<Track, AudioErrorKind> {
        let (entry, params, name) = choose(entries)?;
        self.rate = params.sample_rate.unwrap_or(48_000);
        self.opus = name == "Opus";
        self.entry = entry;
        self.last = None;
        self.tracks = entries.iter().map(|e| e.number).collect();
        let mut track = Track::new(params, name);
        let sound: Vec<u64> = entries.iter().filter(|e| e.kind == 2).map(|e| e.number).collect();
        track.choose(sound.iter().position(|&n| n == self.entry.number).unwrap_or(0), sound.len());
        track.drop = std::iter::once(i64::MIN..self.samples(i128::from(self.entry.delay))).collect();
        // Time stamps are in milliseconds, and live encoders' jitter by tens of them.
        track.tolerance = i64::from(self.rate) * 60 / 1000;
        Ok(track)
    }

    /// The place of the end by the header, less what writers round and estimate.
    fn stated_end(&self) -> Option<i64> {
        const ROUNDED: f64 = 0.25;
        let seconds = self.duration * self.tick as f64 / 1e9 - ROUNDED;
        (seconds > 0.0 && seconds < 1e7).then(|| (seconds * f64::from(self.rate)) as i64)
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
        if self.end.is_some_and(|end| self.input.position() >= end) {
            self.behind()?;
            return Ok(None);
        }
        // An element of an unknown kind is passed over if a known one follows. In a cluster it would be small: those beside
        // clusters have numbers of four bytes.
        let likely = |id, size| self.cluster.is_none() || id > 0x0fff_ffff || size <= 64;
        if let Some(Head { id, size: Some(size), len }) = head
            && likely(id, size)
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
        self.resync()
    }

    /// What follows the segment and is no Matroska: padding and tags, or another file.
    fn behind(&mut self) -> io::Result<()> {
        if let Some(left) = self.input.more_than_tags()? {
            let what = joined_file(self.input.peek(32)?).map(|name| joined(name, Some(left)));
            let why = what.unwrap_or_else(|| format!("{left} bytes that are no Matroska follow the sound"));
            self.stopped = Some(SourceError::Truncated(why));
        }
        self.input.skip(u64::MAX)
    }

    /// Goes over damage to the next cluster or block of the chosen track.
    fn resync(&mut self) -> io::Result<Option<Head>> {
        self.damaged = true;
        loop {
            self.input.consume(1);
            let window = self.input.peek(MAX_FOUND as usize + 2 * MAX_HEAD)?;
            let first = |b: &u8| matches!(b, 0x1f | 0xa0 | 0xa3);
            let Some(at) = window.iter().position(first) else {
                if window.is_empty() {
                    return Ok(None);
                }
                let len = window.len();
                self.input.consume(len);
                continue;
            };
            self.input.consume(at);
            let number = self.entry.number;
            let window = self.input.peek(MAX_FOUND as usize + 2 * MAX_HEAD)?;
            if let Some(head) = Head::parse(window)
                && (head.id == id::CLUSTER || is_block(head, window, number))
            {
                return Ok(Some(head));
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
                    return Ok(entries(&content));
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
                    _ if self.damaged => {
                        Err(SourceError::Truncated("the rest of the file is damaged".into()))
                    }
                    Some(end) if end > self.input.position() => {
                        Err(SourceError::Truncated("the end of the file is missing".into()))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether a known number is really the head of an element, and not damaged or within one.
    fn plausible(&mut self, head: Head) -> Result<bool, SourceError> {
        let at = self.input.position();
        let end = at.saturating_add(head.len as u64).saturating_add(head.size.unwrap_or(0));
        let fits = end <= self.cluster_end || at >= self.cluster_end;
        let small = head.size.is_some_and(|size| size <= 8);
        Ok(match head.id {
            id::EBML | id::SEGMENT | id::CLUSTER => true,
            id::TIMESTAMP => fits && small && self.cluster.is_none(),
            id::POSITION | id::PREV_SIZE | id::CRC32 => fits && small,
            id::SIMPLE_BLOCK => {
                let number = self.number(head)?;
                fits && self.tracks.iter().any(|&track| number == Some(track))
            }
            _ => fits,
        })
    }

    fn visit(&mut self, head: Head) -> Result<(), SourceError> {
        if !self.plausible(head)? {
            // What it finds is met again as the next element.
            return self.resync().map(|_| ()).map_err(SourceError::Read);
        }
        match head.id {
            id::SEGMENT => {
                self.input.consume(head.len);
                self.another = !self.entry.codec.is_empty();
                self.cluster_end = u64::MAX;
                self.end = head.size.map(|s| self.input.position().saturating_add(s));
            }
            id::CLUSTER => {
                self.input.consume(head.len);
                self.cluster = None;
                // One that reaches out of its segment has a damaged length itself.
                let end = self.input.position().saturating_add(head.size.unwrap_or(u64::MAX));
                let most = self.end.unwrap_or(u64::MAX).min(self.input.position() + self.input.left());
                self.cluster_end = if end <= most { end } else { u64::MAX };
            }
            id::INFO => {
                let content = self.content(head)?;
                let duration =
                    children(&content).find(|(id, _)| *id == 0x4489).map_or(0.0, |(_, c)| float(c));
                self.duration = if duration.is_finite() { duration } else { 0.0 };
                let scale = children(&content).find(|(id, _)| *id == 0x002a_d7b1).map(|(_, c)| unsigned(c));
                // 0 would stop time; a tick of more than a minute is as wrong.
                self.tick = scale.filter(|s| (1..=60_000_000_000).contains(s)).unwrap_or(1_000_000);
            }
            id::TRACKS if std::mem::take(&mut self.another) => {
                let content = self.content(head)?;
                let track = self.take_track(&entries(&content)).map_err(|e| {
                    SourceError::Broken(format!("what is joined to the end of this file is not decoded: {e}"))
                })?;
                return Err(SourceError::NewStream(Box::new(track)));
            }
            id::TIMESTAMP => {
                let content = self.content(head)?;
                self.cluster = Some(unsigned(&content));
            }
            id::SIMPLE_BLOCK if self.number(head)? == Some(self.entry.number) => {
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

    /// The track of the simple block here.
    fn number(&mut self, head: Head) -> Result<Option<u64>, SourceError> {
        let bytes = self.input.peek(head.len + 8).map_err(SourceError::Read)?;
        Ok(bytes.get(head.len..).and_then(vint).and_then(|(n, _)| n).filter(|_| head.size.is_some()))
    }

    /// Takes the frames out of a block.
    fn block(&mut self, data: &[u8], discard: i64) {
        let Some((Some(number), n)) = vint(data) else { return };
        let (Some(time), Some(&flags), Some(body)) = (data.get(n..n + 2), data.get(n + 2), data.get(n + 3..))
        else {
            return;
        };
        // Three bits that are always 0 (RFC 9559, 10.1): damage.
        if flags & 0x70 != 0 {
            self.damaged = true;
            return;
        }
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
            // No codec has frames of no bytes.
            if frame.is_empty() {
                continue;
            }
            let data = [self.entry.stripped.as_slice(), frame].concat();
            let duration = if self.opus { packet_duration(&data).unwrap_or(0) } else { 0 };
            let last = i + 1 == count;
            let trim = if last && discard > 0 { self.samples(i128::from(discard)).max(0) as u64 } else { 0 };
            let damage = std::mem::take(&mut self.damaged);
            self.queue.push_back(Packet {
                data,
                at: at.filter(|_| i == 0),
                duration,
                trim: (0, trim),
                reset: damage,
                damage,
            });
        }
    }
}

impl Matroska {
    /// Time goes forward: a time stamp behind the one before it, or far ahead of it and of the next one, is damaged, and
    /// the packet stands where the one before it ends.
    fn check_time(&mut self, packet: &mut Packet) {
        let Some(at) = packet.at else { return };
        let behind = self.last.is_some_and(|last| at < last);
        let ahead = at > self.last.unwrap_or(0).saturating_add(i64::from(self.rate));
        if behind || (ahead && self.next_time().is_some_and(|next| next < at)) {
            packet.at = None;
        } else {
            self.last = Some(at);
        }
    }

    /// The time stamp of the packets that follow.
    fn next_time(&mut self) -> Option<i64> {
        while self.queue.iter().all(|p| p.at.is_none()) {
            if self.finished || self.stopped.is_some() {
                return None;
            }
            self.stopped = self.element().err();
        }
        self.queue.iter().find_map(|p| p.at)
    }
}

impl PacketSource for Matroska {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        loop {
            if let Some(mut packet) = self.queue.pop_front() {
                self.check_time(&mut packet);
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
