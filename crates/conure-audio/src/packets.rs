//! From packets to samples: decoding, trimming, gaps and damage, one for all containers.
//!
//! Every packet may carry its place on the track's time line. A hole in that line becomes silence of the same length,
//! and so does a packet that cannot be decoded: what follows keeps its time. Silence is only put in once something
//! good follows, and its amount is bounded, so that a false time stamp cannot make hours of it.

use std::ops::Range;

use symphonia::core::codecs::audio::AudioDecoder;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::conform::Conform;
use crate::error::{AudioErrorKind, Warning, WarningKind, WarningLog};
use crate::guard::guard;
use crate::layout::ChannelLayout;
use crate::pcm::{MAX_RATE, MIN_RATE};
use crate::stream::{BlockSource, Spec};
pub(crate) use crate::track::{Packet, PacketSource, SourceError, Track};

/// Silence for gaps is bounded: one gap, and all of them, in seconds.
pub(crate) const MAX_GAP: u32 = 600;
const MAX_SILENCE: f64 = 1800.0;
/// So many changes of rate or layout are told; a stream that changes all the time is not told of at every packet.
const MAX_CHANGES: u32 = 8;
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
    /// What the packets have now, and how often that changed.
    current: Option<Spec>,
    changes: u32,
    /// Makes the current rate the one that was told.
    conform: Option<Conform>,
    /// The place of the next sample on the time line.
    next: Option<i64>,
    /// Samples given out.
    position: u64,
    /// Undecodable samples that no good packet has followed yet.
    pending_loss: u64,
    failures: u32,
    panics: u32,
    /// Seconds of silence put in so far.
    silence: f64,
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
            current: None,
            changes: 0,
            conform: None,
            next: None,
            position: 0,
            pending_loss: 0,
            failures: 0,
            panics: 0,
            silence: 0.0,
            scratch: Vec::new(),
            format: format.to_owned(),
            ended: false,
        })
    }

    /// Seconds of samples as the packets count them.
    fn seconds(&self, samples: u64) -> f64 {
        let rate = self.current.as_ref().map(|s| s.sample_rate).or(self.track.params.sample_rate);
        samples as f64 / f64::from(rate.unwrap_or(1).max(1))
    }

    fn warn(&self, log: &mut WarningLog, kind: WarningKind, message: String, samples: Option<u64>) {
        let start = self.spec.as_ref().map_or(0.0, |s| self.position as f64 / f64::from(s.sample_rate));
        let end = samples.map(|n| start + self.seconds(n));
        log.push(Warning { kind, message, start, end });
    }

    /// Puts silence where `gap` samples are missing.
    fn fill(&mut self, gap: u64, why: &str, out: &mut Vec<f32>, log: &mut WarningLog) {
        let Some(channels) = self.spec.as_ref().map(|s| s.layout.channels()) else { return };
        let seconds = self.seconds(gap);
        if seconds > f64::from(MAX_GAP) || self.silence + seconds > MAX_SILENCE {
            let message = format!(
                "{why}; the missing time is said to be {seconds:.0} s, which is not believed: later times may be early"
            );
            self.warn(log, WarningKind::LostUnknown, message, None);
            return;
        }
        self.warn(log, WarningKind::LostSpan, format!("{why}; silence stands for it"), Some(gap));
        self.silence += seconds;
        let before = out.len();
        match &mut self.conform {
            Some(conform) => conform.push_silence(gap, out),
            None => out.resize(before + gap as usize * channels, 0.0),
        }
        self.position += ((out.len() - before) / channels) as u64;
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
            self.next = self.track.start.or(packet.at);
        }
        let Some(spec) = self.decode(packet)? else {
            self.lost(packet.duration);
            return Ok(());
        };
        if !self.accept(&spec, out, log)? {
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
        let gap = match packet_at {
            Some(at) if at > expected => i64::try_from(self.track.kept(expected, at)).unwrap_or(i64::MAX),
            Some(_) => 0,
            None => i64::try_from(self.pending_loss).unwrap_or(i64::MAX),
        };
        if gap > self.track.tolerance || (self.pending_loss > 0 && gap > 0) {
            let why = if self.pending_loss > 0 { "a part could not be decoded" } else { "a part is missing" };
            self.fill(gap as u64, why, out, log);
        } else if packet.damage {
            self.warn(log, WarningKind::LostSpan, "the file is damaged here".into(), Some(packet.duration));
        }
        self.pending_loss = 0;
        // Within the tolerance, the samples say the time, not the packet.
        let at = match self.next {
            Some(next) if (at - next).abs() <= self.track.tolerance => next,
            _ => at,
        };
        self.emit(at, decoded, packet.trim, &spec, out);
        self.next = Some(at.saturating_add_unsigned(decoded as u64));
        Ok(())
    }

    /// Whether a decoded packet can go on as what the caller was told; sees to it that it does.
    fn accept(
        &mut self,
        spec: &Spec,
        out: &mut Vec<f32>,
        log: &mut WarningLog,
    ) -> Result<bool, AudioErrorKind> {
        if self.current.as_ref() == Some(spec) {
            return Ok(true);
        }
        let channels = spec.layout.channels();
        let possible = (1..=ChannelLayout::MAX_CHANNELS).contains(&channels)
            && (MIN_RATE..=MAX_RATE).contains(&spec.sample_rate);
        let Some(told) = self.spec.clone() else {
            if !possible {
                let reason = format!("{} Hz with {channels} channels", spec.sample_rate);
                return Err(AudioErrorKind::malformed(&self.format, reason));
            }
            self.spec = Some(spec.clone());
            self.current = Some(spec.clone());
            return Ok(true);
        };
        if !possible {
            self.lost(0);
            return Ok(false);
        }
        self.note_change(spec, log);
        if self.conform.as_ref().map_or(told.sample_rate, Conform::rate) != spec.sample_rate {
            self.flush(out);
            if told.sample_rate != spec.sample_rate {
                self.conform = Conform::new(spec.sample_rate, told.sample_rate, told.layout.channels());
            }
        }
        self.current = Some(spec.clone());
        Ok(true)
    }

    /// Says that rate or layout change; all is decoded, so it is no damage.
    fn note_change(&mut self, spec: &Spec, log: &mut WarningLog) {
        let Some(before) = &self.current else { return };
        self.changes += 1;
        if self.changes > MAX_CHANGES {
            return;
        }
        let told = self.spec.as_ref().unwrap_or(before);
        let mut message = String::new();
        if before.sample_rate != spec.sample_rate {
            message = format!(
                "the sample rate changes from {} to {} Hz (all is given at {} Hz)",
                before.sample_rate, spec.sample_rate, told.sample_rate
            );
        }
        if before.layout != spec.layout {
            let and = if message.is_empty() { "" } else { ", " };
            message = format!("{message}{and}the layout changes from {} to {}", before.layout, spec.layout);
        }
        self.warn(log, WarningKind::Note, message, None);
    }

    /// Gives out what the change of rate holds back.
    fn flush(&mut self, out: &mut Vec<f32>) {
        let channels = self.spec.as_ref().map_or(1, |s| s.layout.channels().max(1));
        if let Some(conform) = self.conform.take() {
            let before = out.len();
            conform.finish(out);
            self.position += ((out.len() - before) / channels) as u64;
        }
    }

    /// Gives out what `scratch` holds, without the trimmed parts, in the layout and at the rate the caller was told.
    fn emit(&mut self, at: i64, decoded: usize, trim: (u64, u64), spec: &Spec, out: &mut Vec<f32>) {
        let Some(told) = self.spec.clone() else { return };
        let (from, to) = (told.layout.channels(), spec.layout.channels());
        let begin = usize::try_from(trim.0).unwrap_or(usize::MAX).min(decoded);
        let end = decoded.saturating_sub(usize::try_from(trim.1).unwrap_or(usize::MAX)).max(begin);
        let mut kept: Vec<Range<usize>> = std::iter::once(begin..end).collect();
        for drop in &self.track.drop {
            let clamp = |p: i64| p.saturating_sub(at).clamp(begin as i64, end as i64) as usize;
            let (a, b) = (clamp(drop.start), clamp(drop.end));
            kept = kept.into_iter().flat_map(|k| [k.start..a.min(k.end), b.max(k.start)..k.end]).collect();
        }
        let before = out.len();
        for range in kept.into_iter().filter(|k| k.start < k.end) {
            let samples = self.scratch.get(range.start * to..range.end * to).unwrap_or_default();
            let relaid = (from != to).then(|| {
                let mut relaid = Vec::with_capacity(range.len() * from);
                crate::downmix::relayout(samples, &spec.layout, &told.layout, &mut relaid);
                relaid
            });
            let samples = relaid.as_deref().unwrap_or(samples);
            match &mut self.conform {
                Some(conform) => conform.push(samples, out),
                None => out.extend_from_slice(samples),
            }
        }
        self.position += ((out.len() - before) / from.max(1)) as u64;
    }

    /// The source is at its end, for the reason given if it is not a regular one.
    fn finish(
        &mut self,
        broken: Option<String>,
        out: &mut Vec<f32>,
        log: &mut WarningLog,
    ) -> Result<(), AudioErrorKind> {
        self.ended = true;
        self.flush(out);
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
        if let Some(message) = self.track.left_out.take() {
            self.warn(log, WarningKind::LostUnknown, message, None);
        }
        Ok(())
    }

    /// One packet, or the end. Returns false at the end.
    fn step(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        if self.ended {
            return Ok(false);
        }
        if self.failures >= MAX_FAILURES {
            self.finish(Some("too many packets in a row cannot be decoded".into()), out, log)?;
            return Ok(false);
        }
        let source = &mut self.source;
        match guard(|| source.next_packet()) {
            Ok(Ok(Some(packet))) => self.take(&packet, out, log)?,
            Ok(Ok(None)) => self.finish(None, out, log)?,
            Ok(Err(SourceError::Read(e))) => return Err(AudioErrorKind::Read(e)),
            Ok(Err(SourceError::Damaged)) => self.lost(0),
            Ok(Err(SourceError::Truncated(why) | SourceError::Broken(why))) => {
                self.finish(Some(why), out, log)?
            }
            Ok(Err(SourceError::NewStream(track))) => self.go_over(*track, out, log)?,
            Err(_) => self.finish(Some("the file is damaged here".into()), out, log)?,
        }
        Ok(!self.ended)
    }

    /// Goes over to another stream of the same file.
    fn go_over(
        &mut self,
        track: Track,
        out: &mut Vec<f32>,
        log: &mut WarningLog,
    ) -> Result<(), AudioErrorKind> {
        let missing = self.track.end.map_or(0, |end| end.saturating_sub(self.next.unwrap_or(0)));
        if missing > self.track.tolerance.max(1) || self.pending_loss > 0 {
            let message = "the end of this part of the file is missing".to_owned();
            self.warn(log, WarningKind::LostUnknown, message, None);
        }
        match make_decoder(&self.format, &track) {
            Ok(decoder) => self.decoder = decoder,
            Err(e) => {
                return self.finish(Some(format!("what follows here cannot be decoded: {e}")), out, log);
            }
        }
        self.track = track;
        self.next = None;
        self.pending_loss = 0;
        Ok(())
    }
}

impl BlockSource for PacketStream {
    fn next_block(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        if let Some(message) = self.track.chosen.take() {
            self.warn(log, WarningKind::Note, message, None);
        }
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
