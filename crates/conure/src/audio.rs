//! Recordings as a model takes them: one channel, at the model's sample rate.

use crate::error::Error;
use conure_audio::balance::Balance;
use conure_audio::decode::{AudioStream, DecodeOptions, open};
use conure_audio::downmix::Downmix;
use conure_audio::error::AudioError;
use conure_audio::resample::Resampler;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use conure_audio::decode::{Warning, container};
pub use conure_audio::downmix::Mix;
pub use conure_audio::pcm::RawSpec;
pub use conure_audio::source::AudioSource;

/// Samples that a program has, with the rate that they were taken at: there is no default, since a wrong one gives no
/// error, only nonsense.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// Interleaved samples in -1 ..= 1.
    pub data: &'a [f32],
    /// Samples per second of each channel.
    pub sample_rate: u32,
    /// Channels; they are averaged.
    pub channels: usize,
}

impl<'a> Samples<'a> {
    /// One channel.
    pub fn mono(data: &'a [f32], sample_rate: u32) -> Samples<'a> {
        Samples { data, sample_rate, channels: 1 }
    }

    /// Channels in turn.
    pub fn interleaved(data: &'a [f32], sample_rate: u32, channels: usize) -> Samples<'a> {
        Samples { data, sample_rate, channels }
    }

    /// One channel at `rate`.
    ///
    /// # Errors
    /// [`Error::Samples`]: no channels, a part of a frame at the end, a rate that cannot be.
    pub(crate) fn at(&self, rate: u32) -> Result<Vec<f32>, Error> {
        if self.channels == 0 || !self.data.len().is_multiple_of(self.channels) {
            return Err(Error::Samples(format!(
                "{} samples are no whole number of frames of {} channels",
                self.data.len(),
                self.channels
            )));
        }
        let mono: Vec<f32> = match self.channels {
            1 => self.data.iter().map(|s| finite(*s)).collect(),
            n => self
                .data
                .chunks_exact(n)
                .map(|f| f.iter().map(|s| finite(*s)).sum::<f32>() / n as f32)
                .collect(),
        };
        conure_audio::resample::resample(&mono, self.sample_rate, rate)
            .map_err(|e| Error::Samples(e.to_string()))
    }
}

/// A sample that is no number, or whose power overflows, would make every result one: it counts as silence.
fn finite(sample: f32) -> f32 {
    if sample.abs() <= 1e6 { sample } else { 0.0 }
}

/// How a recording is read.
#[derive(Clone, Debug, Default)]
pub struct AudioOptions {
    /// How it is decoded.
    pub decode: DecodeOptions,
    /// Which channel is taken; all together by default.
    pub mix: Mix,
    /// Whether each channel is a speaker, who is transcribed alone; then `mix` does not count.
    pub speakers: bool,
    /// Seconds from its start at which to begin.
    pub start: f64,
    /// Seconds to take; `None`: to the end.
    pub duration: Option<f64>,
    /// Once this is set, what was read until then is all: for sources that would never end by themselves.
    pub end: Option<Arc<AtomicBool>>,
}

/// A recording ready for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// What messages call it.
    pub name: String,
    /// One channel in -1 ..= 1.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
    /// Seconds from the start of the file at which `samples` begin.
    pub start: f64,
    /// What the reader had to say: parts that are damaged or missing.
    pub warnings: Vec<Warning>,
}

impl Recording {
    /// Length of `samples` in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }
}

/// Containers that may truly hold no sound, and that say so.
const EMPTY_IS_VALID: [&str; 5] = ["WAV", "AU", "AIFF", "CAF", "FLAC"];

/// Reads a recording as one channel at `sample_rate`. It is decoded, mixed and resampled block by block, so that only
/// the result is ever whole in memory.
///
/// # Errors
/// What cannot be read, by name; a start past the end.
pub fn read(source: AudioSource, sample_rate: u32, options: &AudioOptions) -> Result<Recording, Error> {
    let mut blocks = Blocks::open(source, sample_rate, options)?;
    let mut samples = Vec::new();
    while blocks.next(&mut samples)? {}
    samples.shrink_to_fit();
    let (start, warnings) = (blocks.start(), blocks.warnings().to_vec());
    Ok(Recording { name: blocks.name, samples, sample_rate, start, warnings })
}

/// A source on its way to be one channel at a model's rate, block by block.
pub(crate) struct Blocks {
    pub name: String,
    stream: AudioStream,
    downmix: Downmix,
    /// Whether the mix loses what the channels hold; told once.
    balance: Option<Balance>,
    ended: Option<Arc<AtomicBool>>,
    resampler: Resampler,
    rate: u32,
    sample_rate: u32,
    /// Frames at the source's rate: the first and the last of those wanted, and those read.
    begin: u64,
    end: u64,
    at: u64,
    mono: Vec<f32>,
}

impl Blocks {
    pub fn open(source: AudioSource, sample_rate: u32, options: &AudioOptions) -> Result<Blocks, Error> {
        let stream = open(source, &options.decode)?;
        let wanted = options.duration.map_or(f64::INFINITY, |d| options.start.max(0.0) + d);
        stream.check_length(wanted)?;
        let name = stream.name().to_owned();
        let rate = stream.sample_rate();
        let fail = |kind| Error::Audio(AudioError::new(&name, kind));
        let downmix = Downmix::new(stream.layout(), options.mix).map_err(fail)?;
        let resampler =
            Resampler::new(rate, sample_rate).map_err(|e| Error::Samples(format!("{name}: {e}")))?;
        let frames = |seconds: f64| (seconds.max(0.0) * f64::from(rate)).round() as u64;
        let begin = frames(options.start);
        let end = options.duration.map_or(u64::MAX, |d| begin.saturating_add(frames(d)));
        let balance = Balance::new(&downmix, rate, begin);
        Ok(Blocks {
            name,
            stream,
            downmix,
            balance,
            ended: options.end.clone(),
            resampler,
            rate,
            sample_rate,
            begin,
            end,
            at: 0,
            mono: Vec::new(),
        })
    }

    /// Seconds from the start of the file at which the samples begin.
    pub fn start(&self) -> f64 {
        self.begin as f64 / f64::from(self.rate)
    }

    /// Seconds that will come, as far as the file's header says.
    pub fn expected_seconds(&self) -> Option<f64> {
        let wanted = self.end.saturating_sub(self.begin) as f64 / f64::from(self.rate);
        self.stream.expected_seconds().map(|all| (all - self.start()).clamp(0.0, wanted))
    }

    /// What the reader has to say so far.
    pub fn warnings(&self) -> &[Warning] {
        self.stream.warnings()
    }

    /// Appends the next block to `samples`; `false` at the end, when what the resampler held back is there too.
    pub fn next(&mut self, samples: &mut Vec<f32>) -> Result<bool, Error> {
        let ended = self.ended.as_ref().is_some_and(|ended| ended.load(Ordering::Relaxed));
        let block = if self.at < self.end && !ended { self.stream.next_block()? } else { None };
        let Some(block) = block else {
            if !ended {
                self.check_end()?;
            }
            if let Some(warning) = self.balance.take().and_then(Balance::finish) {
                self.stream.remark(warning);
            }
            self.resampler.finish(samples);
            return Ok(false);
        };
        self.mono.clear();
        self.downmix.apply(block, &mut self.mono);
        let count = self.mono.len() as u64;
        let first = self.begin.saturating_sub(self.at).min(count) as usize;
        let last = (self.end - self.at).min(count) as usize;
        self.at += count;
        let more = self.resampler.output_length(count) as usize + 1;
        samples.try_reserve(more).map_err(|_| Error::Samples(format!(
            "{}: there is no memory for more than {:.0} s of it; transcribe it in parts, with a start and a duration",
            self.name,
            samples.len() as f64 / f64::from(self.sample_rate)
        )))?;
        let wanted = first.min(last)..last;
        if let Some(balance) = &mut self.balance {
            let channels = block.len() / self.mono.len().max(1);
            balance.push(&block[wanted.start * channels..wanted.end * channels], &self.mono[wanted.clone()]);
        }
        self.resampler.push(&self.mono[wanted], samples);
        Ok(true)
    }

    fn check_end(&self) -> Result<(), Error> {
        let Blocks { name, stream, begin, at, rate, .. } = self;
        if *begin > 0 && at <= begin {
            let rate = f64::from(*rate);
            let (seconds, start) = (*at as f64 / rate, *begin as f64 / rate);
            return Err(Error::PastTheEnd { name: name.clone(), seconds, start });
        }
        let damaged = stream.warnings().iter().any(|w| w.kind.is_damage());
        if *at == 0 && (damaged || !EMPTY_IS_VALID.contains(&stream.container())) {
            return Err(Error::Samples(format!(
                "{name}: it looks like {}, but no sound was found in it; it is damaged or incomplete",
                stream.container()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_valid_where_nothing_is_missing() {
        let au = b".snd\0\0\0\x18\0\0\0\0\0\0\0\x03\0\0\x3e\x80\0\0\0\x01".to_vec();
        let empty = read(AudioSource::bytes("x.au", au.clone()), 16_000, &AudioOptions::default()).unwrap();
        assert_eq!((empty.samples.len(), empty.warnings.len()), (0, 1));
        // The same with a length that is not there.
        let mut cut = au;
        cut[11] = 64;
        let e = read(AudioSource::bytes("x.au", cut), 16_000, &AudioOptions::default()).unwrap_err();
        assert!(e.to_string().contains("no sound was found"), "{e}");
    }

    /// A stereo recording of which the channels are opposite is silence when it is mixed, and that is said, of the part that is read.
    #[test]
    fn a_mix_that_cancels_out_is_said() {
        let bytes: Vec<u8> = (0..40_000i32)
            .flat_map(|i| {
                let s = (f64::from(i) * 0.2).sin() * 9000.0;
                [s as i16, -(s as i16)].map(i16::to_le_bytes).concat()
            })
            .collect();
        let mut options = AudioOptions { start: 1.0, duration: Some(2.5), ..AudioOptions::default() };
        options.decode.raw = "s16le:8000:2".parse().ok();
        let read = |options: &AudioOptions| {
            read(AudioSource::bytes("x", bytes.clone()), 16_000, options).unwrap().warnings
        };
        let warnings = read(&options);
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.to_string().contains("--channel 0"), "{warning}");
        assert_eq!((warning.start, warning.end), (1.0, Some(3.5)));
        options.mix = Mix::Channel(1);
        assert!(read(&options).is_empty());
    }

    #[test]
    fn what_is_too_long_is_refused_unless_a_part_is_wanted() {
        let mut options = AudioOptions::default();
        options.decode.raw = "u8:8000:1".parse().ok();
        options.decode.max_seconds = 1.0;
        let source = || AudioSource::bytes("long", vec![128; 80_000]);
        assert!(read(source(), 16_000, &options).unwrap_err().to_string().contains("longer than the limit"));
        options.duration = Some(0.5);
        assert_eq!(read(source(), 16_000, &options).unwrap().samples.len(), 8000);
    }
}
