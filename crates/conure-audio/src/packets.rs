//! From packets to samples: decoding, trimming, gaps and damage, one for all containers.
//!
//! Every packet may carry its place on the track's time line. A hole in that line becomes silence of the same length,
//! and so does a packet that cannot be decoded: what follows keeps its time. Silence is only put in once something
//! good follows, and its amount is bounded, so that a false time stamp cannot make hours of it.

use std::io;
use std::ops::Range;

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::error::{AudioErrorKind, Warning, WarningKind, WarningLog};
use crate::guard::guard;
use crate::layout::ChannelLayout;
use crate::pcm::{MAX_RATE, MIN_RATE};
use crate::stream::{BlockSource, Spec};

/// Encoded sound and its place. All times are in samples of one channel.
#[derive(Debug, Default, Clone)]
pub(crate) struct Packet {
    pub(crate) data: Vec<u8>,
    /// Where the first decoded sample belongs.
    pub(crate) at: Option<i64>,
    /// How many samples it should decode to, trimmed ones included; 0 if not known.
    pub(crate) duration: u64,
    /// Decoded samples to leave out at the beginning and at the end.
    pub(crate) trim: (u64, u64),
    /// Something before is missing, so that a decoder should not go on from it.
    pub(crate) reset: bool,
}

/// Why there is no packet.
#[derive(Debug)]
pub(crate) enum SourceError {
    Read(io::Error),
    /// The file ends too early.
    Truncated(String),
    /// This packet is lost, but the next may be read.
    Damaged,
    /// Nothing more can be read.
    Broken(String),
    /// Another stream begins here (chained Ogg), with its own parameters.
    NewStream(Box<Track>),
}

impl SourceError {
    /// As an error about a file that cannot even be opened.
    pub(crate) fn into_kind(self, format: &str) -> AudioErrorKind {
        match self {
            SourceError::Read(e) => AudioErrorKind::Read(e),
            SourceError::Truncated(why) | SourceError::Broken(why) => AudioErrorKind::malformed(format, why),
            SourceError::Damaged | SourceError::NewStream(_) => {
                AudioErrorKind::malformed(format, "it has no sound")
            }
        }
    }
}

/// Yields the packets of one track.
pub(crate) trait PacketSource: Send {
    /// The next packet; `None` at a regular end.
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError>;
}

/// What the decoding of a track needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Track {
    pub(crate) params: AudioCodecParameters,
    /// The codec's name for messages.
    pub(crate) codec: String,
    /// Parts of the time line that are not sound but an encoder's delay and padding.
    pub(crate) drop: Vec<Range<i64>>,
    /// How far a packet's place may be behind what was decoded before it is a gap, in samples.
    pub(crate) tolerance: i64,
    /// The place where the track should end, if a header says so.
    pub(crate) end: Option<i64>,
}

/// Silence for gaps is bounded: one gap, and all of them, in seconds.
const MAX_GAP: i64 = 600;
const MAX_SILENCE: i64 = 1800;
/// After this many undecodable packets in a row the rest is given up.
const MAX_FAILURES: u32 = 20_000;
/// A decoder that panics is made anew this often.
const MAX_PANICS: u32 = 8;

/// Decodes a [`PacketSource`].
pub(crate) struct PacketStream {
    source: Box<dyn PacketSource>,
    decoder: Box<dyn AudioDecoder>,
    track: Track,
    /// What the caller was told; set by the first decoded packet.
    spec: Option<Spec>,
    /// The place of the next sample on the time line.
    next: Option<i64>,
    /// Samples given out.
    position: u64,
    /// Undecodable samples that no good packet has followed yet.
    pending_loss: u64,
    failures: u32,
    panics: u32,
    silence: i64,
    scratch: Vec<f32>,
    format: String,
    ended: bool,
}

impl PacketStream {
    pub(crate) fn new(
        format: &str,
        source: Box<dyn PacketSource>,
        track: Track,
    ) -> Result<PacketStream, AudioErrorKind> {
        let decoder = make_decoder(format, &track)?;
        Ok(PacketStream {
            source,
            decoder,
            track,
            spec: None,
            next: None,
            position: 0,
            pending_loss: 0,
            failures: 0,
            panics: 0,
            silence: 0,
            scratch: Vec::new(),
            format: format.to_owned(),
            ended: false,
        })
    }

    fn rate(&self) -> f64 {
        self.spec.as_ref().map_or(1.0, |s| f64::from(s.sample_rate))
    }

    fn seconds(&self, samples: u64) -> f64 {
        samples as f64 / self.rate()
    }

    fn warn(&self, log: &mut WarningLog, kind: WarningKind, message: String, samples: Option<u64>) {
        let start = self.seconds(self.position);
        let end = samples.map(|n| self.seconds(self.position.saturating_add(n)));
        log.push(Warning { kind, message, start, end });
    }

    /// Puts silence where `gap` samples are missing.
    fn fill(&mut self, gap: u64, why: &str, out: &mut Vec<f32>, log: &mut WarningLog) {
        let Some(spec) = &self.spec else { return };
        let (rate, channels) = (i64::from(spec.sample_rate), spec.layout.channels());
        let wanted = i64::try_from(gap).unwrap_or(i64::MAX);
        if wanted > MAX_GAP * rate || self.silence.saturating_add(wanted) > MAX_SILENCE * rate {
            let message = format!(
                "{why}; the missing time is said to be {:.0} s, which is not believed: later times may be early",
                self.seconds(gap)
            );
            self.warn(log, WarningKind::LostUnknown, message, None);
            return;
        }
        self.warn(log, WarningKind::LostSpan, format!("{why}; silence stands for it"), Some(gap));
        self.silence += wanted;
        out.resize(out.len() + gap as usize * channels, 0.0);
        self.position += gap;
    }

    /// A packet that gave nothing.
    fn lost(&mut self, duration: u64) {
        self.pending_loss = self.pending_loss.saturating_add(duration);
        if let Some(next) = &mut self.next {
            *next = next.saturating_add_unsigned(duration);
        }
        self.failures += 1;
    }

    /// Decodes into `scratch`, interleaved. `None`: the packet is lost.
    fn decode(&mut self, packet: &Packet) -> Result<Option<Spec>, AudioErrorKind> {
        // Without trims: Symphonia's decoders know them in various units, so all are cut off in `emit`.
        let at = Timestamp::from(packet.at.unwrap_or(0));
        let reference = PacketRef::new(0, at, Duration::from(packet.duration), &packet.data);
        let (decoder, scratch) = (&mut self.decoder, &mut self.scratch);
        scratch.clear();
        if packet.reset {
            decoder.reset();
        }
        let decoded = guard(|| match decoder.decode_ref(&reference) {
            Ok(buffer) => {
                buffer.copy_to_vec_interleaved(scratch);
                let spec = buffer.spec();
                Ok(Some(Spec {
                    sample_rate: spec.rate(),
                    layout: crate::container::layout_of(spec.channels()),
                }))
            }
            Err(e) => Err(e),
        });
        match decoded {
            Ok(Ok(spec)) => Ok(spec),
            Ok(Err(SymphoniaError::ResetRequired)) => {
                self.decoder.reset();
                Ok(None)
            }
            Ok(Err(SymphoniaError::Unsupported(what))) if self.position == 0 && self.failures > 8 => {
                Err(AudioErrorKind::malformed(&self.format, format!("{}: {what}", self.track.codec)))
            }
            Ok(Err(_)) => Ok(None),
            // The decoder's state is not to be trusted after a panic.
            Err(_) => {
                self.panics += 1;
                if self.panics > MAX_PANICS {
                    self.failures = MAX_FAILURES;
                } else {
                    self.decoder = make_decoder(&self.format, &self.track)?;
                }
                Ok(None)
            }
        }
    }

    fn take(
        &mut self,
        packet: &Packet,
        out: &mut Vec<f32>,
        log: &mut WarningLog,
    ) -> Result<(), AudioErrorKind> {
        if self.next.is_none() {
            self.next = packet.at;
        }
        let Some(spec) = self.decode(packet)? else {
            self.lost(packet.duration);
            return Ok(());
        };
        if !self.accept(&spec, log)? {
            return Ok(());
        }
        let decoded = self.scratch.len() / spec.layout.channels().max(1);
        if decoded == 0 {
            // A codec's first packet may only prime it; where the second belongs, it says itself.
            if self.position == 0 {
                self.next = None;
            }
            return Ok(());
        }
        self.failures = 0;
        // Times were counted in samples of another rate than the codec has: then they say nothing.
        let trusted = self.track.params.sample_rate.is_none_or(|r| r == spec.sample_rate);
        let packet_at = packet.at.filter(|_| trusted);
        let expected = self.next.unwrap_or(0).saturating_sub_unsigned(self.pending_loss);
        let at = packet_at.or(self.next).unwrap_or(0);
        if self.position > 0 || self.pending_loss > 0 {
            let gap = match packet_at {
                Some(at) => at.saturating_sub(expected),
                None => i64::try_from(self.pending_loss).unwrap_or(i64::MAX),
            };
            if gap > self.track.tolerance || (self.pending_loss > 0 && gap > 0) {
                let why =
                    if self.pending_loss > 0 { "a part could not be decoded" } else { "a part is missing" };
                self.fill(gap as u64, why, out, log);
            }
        }
        self.pending_loss = 0;
        // Within the tolerance, the samples say the time, not the packet.
        let at = match self.next {
            Some(next) if (at - next).abs() <= self.track.tolerance => next,
            _ => at,
        };
        self.emit(at, decoded, packet.trim, &spec, out, log);
        self.next = Some(at.saturating_add_unsigned(decoded as u64));
        Ok(())
    }

    /// Whether a decoded packet can go on as what the caller was told.
    fn accept(&mut self, spec: &Spec, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        let Some(told) = &self.spec else {
            if spec.layout.channels() == 0
                || spec.layout.channels() > ChannelLayout::MAX_CHANNELS
                || !(MIN_RATE..=MAX_RATE).contains(&spec.sample_rate)
            {
                let reason = format!("{} Hz with {} channels", spec.sample_rate, spec.layout.channels());
                return Err(AudioErrorKind::malformed(&self.format, reason));
            }
            self.spec = Some(spec.clone());
            return Ok(true);
        };
        if told.sample_rate == spec.sample_rate {
            return Ok(true);
        }
        let message = format!(
            "the sample rate changes from {} to {} Hz; the rest is not decoded",
            told.sample_rate, spec.sample_rate
        );
        self.warn(log, WarningKind::LostUnknown, message, None);
        self.ended = true;
        Ok(false)
    }

    /// Gives out what `scratch` holds, without the trimmed parts, in the layout the caller was told.
    fn emit(
        &mut self,
        at: i64,
        decoded: usize,
        trim: (u64, u64),
        spec: &Spec,
        out: &mut Vec<f32>,
        log: &mut WarningLog,
    ) {
        let Some(told) = self.spec.clone() else { return };
        let (from, to) = (told.layout.channels(), spec.layout.channels());
        if from != to {
            let message = format!("the layout changes from {} to {}", told.layout, spec.layout);
            log.push(Warning {
                kind: WarningKind::Note,
                message,
                start: self.seconds(self.position),
                end: None,
            });
        }
        let begin = usize::try_from(trim.0).unwrap_or(usize::MAX).min(decoded);
        let end = decoded.saturating_sub(usize::try_from(trim.1).unwrap_or(usize::MAX)).max(begin);
        let mut kept: Vec<Range<usize>> = std::iter::once(begin..end).collect();
        for drop in &self.track.drop {
            let clamp = |p: i64| p.saturating_sub(at).clamp(begin as i64, end as i64) as usize;
            let (a, b) = (clamp(drop.start), clamp(drop.end));
            kept = kept.into_iter().flat_map(|k| [k.start..a.min(k.end), b.max(k.start)..k.end]).collect();
        }
        for range in kept.into_iter().filter(|k| k.start < k.end) {
            self.position += range.len() as u64;
            let samples = self.scratch.get(range.start * to..range.end * to).unwrap_or_default();
            if from == to {
                out.extend_from_slice(samples);
            } else {
                crate::downmix::relayout(samples, &spec.layout, &told.layout, out);
            }
        }
    }

    /// The source is at its end, for the reason given if it is not a regular one.
    fn finish(&mut self, broken: Option<String>, log: &mut WarningLog) -> Result<(), AudioErrorKind> {
        self.ended = true;
        if self.position == 0 && self.spec.is_none() {
            let lost = self.failures > 0 || broken.is_some();
            if lost || self.track.end.is_some_and(|e| e > 0) {
                let reason = broken
                    .unwrap_or_else(|| format!("none of its {} packets can be decoded", self.track.codec));
                return Err(AudioErrorKind::malformed(&self.format, reason));
            }
        }
        let next = self.next.unwrap_or(0).saturating_sub_unsigned(self.pending_loss);
        let end = self.track.end.map(|e| e.saturating_sub(next)).filter(|&m| m > self.track.tolerance.max(1));
        let missing = end.map_or(self.pending_loss, |m| m.max(0) as u64);
        if let Some(reason) = broken {
            self.warn(log, WarningKind::TruncatedTail, reason, (missing > 0).then_some(missing));
        } else if self.pending_loss > 0 {
            self.warn(
                log,
                WarningKind::TruncatedTail,
                "the end could not be decoded".into(),
                Some(self.pending_loss),
            );
        } else if missing > 0 {
            self.warn(
                log,
                WarningKind::TruncatedTail,
                "the end of the file is missing".into(),
                Some(missing),
            );
        }
        Ok(())
    }

    /// One packet, or the end. Returns false at the end.
    fn step(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        if self.ended {
            return Ok(false);
        }
        if self.failures >= MAX_FAILURES {
            self.finish(Some("too many packets in a row cannot be decoded".into()), log)?;
            return Ok(false);
        }
        let source = &mut self.source;
        match guard(|| source.next_packet()) {
            Ok(Ok(Some(packet))) => self.take(&packet, out, log)?,
            Ok(Ok(None)) => self.finish(None, log)?,
            Ok(Err(SourceError::Read(e))) => return Err(AudioErrorKind::Read(e)),
            Ok(Err(SourceError::Damaged)) => self.lost(0),
            Ok(Err(SourceError::Truncated(why) | SourceError::Broken(why))) => self.finish(Some(why), log)?,
            Ok(Err(SourceError::NewStream(track))) => {
                let missing = self.track.end.map_or(0, |end| end.saturating_sub(self.next.unwrap_or(0)));
                if missing > self.track.tolerance.max(1) {
                    let message = "the end of this part of the file is missing".to_owned();
                    self.warn(log, WarningKind::LostUnknown, message, None);
                }
                self.decoder = make_decoder(&self.format, &track)?;
                self.track = *track;
                self.next = None;
                self.pending_loss = 0;
            }
            Err(_) => self.finish(Some("the file is damaged here".into()), log)?,
        }
        Ok(!self.ended)
    }
}

impl BlockSource for PacketStream {
    fn next_block(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        while out.is_empty() {
            if !self.step(out, log)? {
                return Ok(!out.is_empty());
            }
        }
        Ok(true)
    }

    fn spec(&self) -> Option<&Spec> {
        self.spec.as_ref()
    }

    fn codec(&self) -> &str {
        &self.track.codec
    }

    fn expected_frames(&self) -> Option<u64> {
        let end = self.track.end?;
        let dropped: i64 = self
            .track
            .drop
            .iter()
            .map(|d| d.end.clamp(0, end.max(0)) - d.start.clamp(0, end.max(0)))
            .fold(0, i64::saturating_add);
        u64::try_from(end.saturating_sub(dropped)).ok()
    }

    fn declared_spec(&self) -> Option<Spec> {
        let sample_rate = self.track.params.sample_rate?;
        let layout = crate::container::layout_of(self.track.params.channels.as_ref()?);
        Some(Spec { sample_rate, layout })
    }
}

fn make_decoder(format: &str, track: &Track) -> Result<Box<dyn AudioDecoder>, AudioErrorKind> {
    crate::container::check_supported(track)?;
    match guard(|| crate::container::make_decoder(&track.params)) {
        Ok(Ok(decoder)) => Ok(decoder),
        Ok(Err(e)) => Err(AudioErrorKind::malformed(format, format!("{}: {e}", track.codec))),
        Err(_) => {
            Err(AudioErrorKind::malformed(format, format!("{}: its setup data are damaged", track.codec)))
        }
    }
}
