//! What all decoders have in common: blocks of samples, bounded and cleaned.

use crate::error::{AudioError, AudioErrorKind, Warning, WarningKind, WarningLog};
use crate::layout::ChannelLayout;

/// Sample rate and channels of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) sample_rate: u32,
    pub(crate) layout: ChannelLayout,
}

/// A decoder of one input.
pub(crate) trait BlockSource: Send {
    /// Appends the next samples, interleaved, to `out`. False at the end; `out` may then still have got samples.
    fn next_block(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind>;
    /// Rate and layout once they are certain: at the latest after the first block.
    fn spec(&self) -> Option<&Spec>;
    /// What the headers say, for inputs that never give a block.
    fn declared_spec(&self) -> Option<Spec>;
    /// The encoding's name.
    fn codec(&self) -> &str;
    /// Samples of each channel in all, as far as headers say; not to be relied upon.
    fn expected_frames(&self) -> Option<u64>;
    /// Samples of each channel in all, where that is certain before they are read.
    fn known_frames(&self) -> Option<u64> {
        None
    }
}

/// Larger samples are damage, not sound: their powers would overflow, and one would cost the whole recording.
const MAX_MAGNITUDE: f32 = 1e6;

/// Audio being decoded, block by block. Made by [`crate::decode::open`].
pub struct AudioStream {
    name: String,
    container: &'static str,
    source: Box<dyn BlockSource>,
    spec: Spec,
    log: WarningLog,
    block: Vec<f32>,
    /// The first block was decoded while opening and not given out yet.
    pending: bool,
    ended: bool,
    frames: u64,
    non_finite: u64,
    max_seconds: f64,
    strict: bool,
}

impl std::fmt::Debug for AudioStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudioStream")
            .field("name", &self.name)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl AudioStream {
    pub(crate) fn new(
        name: String,
        container: &'static str,
        source: Box<dyn BlockSource>,
        options: &crate::decode::DecodeOptions,
    ) -> Result<AudioStream, AudioError> {
        let spec = Spec { sample_rate: 1, layout: ChannelLayout::mono() };
        let mut stream = AudioStream {
            name,
            container,
            source,
            spec,
            log: WarningLog::default(),
            block: Vec::new(),
            pending: false,
            ended: false,
            frames: 0,
            non_finite: 0,
            max_seconds: options.max_seconds,
            strict: options.strict,
        };
        stream.pending = stream.fetch()?;
        Ok(stream)
    }

    /// The input's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The container's name, such as "WAV".
    pub fn container(&self) -> &str {
        self.container
    }

    /// The encoding's name, such as "MP3".
    pub fn codec(&self) -> &str {
        self.source.codec()
    }

    /// Samples a second of each channel, in Hz.
    pub fn sample_rate(&self) -> u32 {
        self.spec.sample_rate
    }

    /// The channels.
    pub fn layout(&self) -> &ChannelLayout {
        &self.spec.layout
    }

    /// The length in seconds as the headers state it, for a progress bar; it may be wrong or missing.
    pub fn expected_seconds(&self) -> Option<f64> {
        self.source.expected_frames().map(|n| n as f64 / f64::from(self.spec.sample_rate.max(1)))
    }

    /// The length in seconds where it is certain already: the bytes of uncompressed sound are there.
    pub fn known_seconds(&self) -> Option<f64> {
        self.source.known_frames().map(|n| n as f64 / f64::from(self.spec.sample_rate.max(1)))
    }

    /// Refuses, before it is read, what will exceed the limit of seconds. `wanted`: so many from the beginning are
    /// going to be read.
    ///
    /// # Errors
    /// [`AudioErrorKind::TooLong`].
    pub fn check_length(&self, wanted: f64) -> Result<(), AudioError> {
        match self.known_seconds() {
            Some(known) if known.min(wanted) > self.max_seconds => {
                Err(AudioError::new(&self.name, AudioErrorKind::TooLong { limit: self.max_seconds }))
            }
            _ => Ok(()),
        }
    }

    /// What was survived so far.
    pub fn warnings(&self) -> &[Warning] {
        self.log.list()
    }

    /// Adds a remark of the caller's to what was survived.
    pub fn remark(&mut self, warning: Warning) {
        self.log.push(warning);
    }

    /// The next block: interleaved samples `[frames, channels]`, at least one frame, full scale -1 to 1, all finite.
    /// `None` at the end.
    ///
    /// # Errors
    /// When reading fails, when the audio exceeds the limit of seconds, or, in strict mode, at damage.
    pub fn next_block(&mut self) -> Result<Option<&[f32]>, AudioError> {
        let have = if self.pending { true } else { self.fetch()? };
        self.pending = false;
        Ok(have.then_some(self.block.as_slice()))
    }

    /// Fills `block`; false at the end.
    fn fetch(&mut self) -> Result<bool, AudioError> {
        self.block.clear();
        while self.block.is_empty() && !self.ended {
            let result = self.source.next_block(&mut self.block, &mut self.log);
            self.ended = !result.map_err(|kind| AudioError::new(&self.name, kind))?;
            self.learn_spec();
        }
        if self.ended && self.frames == 0 && self.block.is_empty() && self.log.list().is_empty() {
            let message = "there is no sound in it (0 samples)".to_owned();
            self.log.push(Warning { kind: WarningKind::Note, message, start: 0.0, end: None });
        }
        self.check()?;
        Ok(!self.block.is_empty())
    }

    fn learn_spec(&mut self) {
        let spec = self.source.spec().cloned();
        if let Some(spec) = spec.or_else(|| self.source.declared_spec().filter(|s| s.layout.channels() > 0)) {
            self.spec = spec;
        }
    }

    fn check(&mut self) -> Result<(), AudioError> {
        let channels = self.spec.layout.channels().max(1);
        let start = self.frames as f64 / f64::from(self.spec.sample_rate.max(1));
        let mut bad = 0u64;
        for sample in &mut self.block {
            // NaN is no number that this holds for.
            let sound = sample.abs() <= MAX_MAGNITUDE;
            if !sound {
                *sample = 0.0;
                bad += 1;
            }
        }
        self.frames += (self.block.len() / channels) as u64;
        let end = self.frames as f64 / f64::from(self.spec.sample_rate.max(1));
        if bad > 0 {
            self.non_finite += bad;
            let message = "samples that are no sound (NaN, infinite or beyond a million times full scale) are taken as 0".to_owned();
            self.log.push(Warning { kind: WarningKind::NonFinite, message, start, end: Some(end) });
        }
        if end > self.max_seconds {
            return Err(AudioError::new(&self.name, AudioErrorKind::TooLong { limit: self.max_seconds }));
        }
        match self.log.first_damage() {
            Some(warning) if self.strict => {
                Err(AudioError::new(&self.name, AudioErrorKind::Damaged(warning.clone())))
            }
            _ => Ok(()),
        }
    }

    /// Decodes all that is left.
    ///
    /// # Errors
    /// As [`AudioStream::next_block`].
    pub fn into_audio(mut self) -> Result<Audio, AudioError> {
        let mut samples = Vec::new();
        while let Some(block) = self.next_block()? {
            samples.extend_from_slice(block);
        }
        Ok(Audio {
            samples,
            sample_rate: self.spec.sample_rate,
            layout: self.spec.layout,
            warnings: self.log.into_list(),
        })
    }
}

/// A whole decoded clip.
#[derive(Debug, Clone)]
pub struct Audio {
    /// Interleaved `[frames, channels]`, full scale -1 to 1, all finite.
    pub samples: Vec<f32>,
    /// Samples a second of each channel, in Hz.
    pub sample_rate: u32,
    /// The channels.
    pub layout: ChannelLayout,
    /// What was survived.
    pub warnings: Vec<Warning>,
}

impl Audio {
    /// How many channels; at least 1.
    pub fn channels(&self) -> usize {
        self.layout.channels().max(1)
    }

    /// Samples of each channel.
    pub fn frames(&self) -> usize {
        self.samples.len() / self.channels()
    }

    /// The length in seconds.
    pub fn duration(&self) -> f64 {
        self.frames() as f64 / f64::from(self.sample_rate)
    }

    /// One channel of it, as [`crate::downmix`] makes it.
    ///
    /// # Errors
    /// [`AudioErrorKind::NoSuchChannel`].
    pub fn mono(&self, mix: crate::downmix::Mix) -> Result<Vec<f32>, AudioErrorKind> {
        let downmix = crate::downmix::Downmix::new(&self.layout, mix)?;
        let mut out = Vec::with_capacity(self.frames());
        downmix.apply(&self.samples, &mut out);
        Ok(out)
    }
}
