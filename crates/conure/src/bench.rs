//! How fast a model is on a recording.

use crate::audio::{Recording, Samples};
use crate::error::Error;
use crate::model::SpeechModel;
use crate::process::{cpu_seconds, peak_memory};
use conure_graph::{Device, Observer, StepDone};
use conure_kernels::Cpu;
use conure_kernels::roofline::Roofline;
use conure_speech::{RecogniseOptions, SpeechError, StageTimes};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The times of some runs, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// The shortest.
    pub min: f64,
    /// As many are shorter as longer.
    pub median: f64,
}

impl Times {
    /// Of these durations; zeros if there are none.
    pub fn of(durations: impl IntoIterator<Item = Duration>) -> Times {
        let mut ms: Vec<f64> = durations.into_iter().map(milliseconds).collect();
        ms.sort_by(f64::total_cmp);
        let Some(&min) = ms.first() else { return Times::default() };
        let middle = ms.len() / 2;
        let median = if ms.len() % 2 == 1 { ms[middle] } else { (ms[middle - 1] + ms[middle]) / 2.0 };
        Times { min, median }
    }
}

/// In which numbers a device computes.
pub(crate) fn precision(device: &Device, cpu: &Cpu) -> String {
    device.precision().unwrap_or_else(|| cpu.precision().name().to_owned())
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// How fast a model is on a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bench {
    /// The model's file.
    pub model: String,
    /// What it ran on.
    pub device: String,
    /// The instruction set of the CPU's kernels.
    pub isa: &'static str,
    /// In which numbers the device computes (`exact`, `fast`, `int8`, `bf16`, `f16`), with `+` between several.
    pub precision: String,
    /// Threads.
    pub threads: usize,
    /// The decoder.
    pub decoder: &'static str,
    /// Seconds of audio.
    pub audio_s: f64,
    /// Tokens that were recognised.
    pub tokens: usize,
    /// Runs that were timed, after the first.
    pub runs: usize,
    /// Loading the model, if the caller says.
    pub load_ms: Option<f64>,
    /// The first run: packs weights and plans, or compiles.
    pub first_ms: f64,
    /// Parts of the model that the device compiled, for all runs together.
    pub compiled: usize,
    /// Parts that it took from its cache.
    pub cached: usize,
    /// Log-mel features.
    pub features_ms: Times,
    /// The encoder.
    pub encoder_ms: Times,
    /// The decoder.
    pub decoder_ms: Times,
    /// From samples to tokens.
    pub total_ms: Times,
    /// Seconds that the processors worked, a run; `None` where the system does not say.
    pub cpu_s: Option<f64>,
    /// Seconds of audio a second, by the median.
    pub rtfx: f64,
    /// The most memory that the process had so far, in 10^6 bytes.
    pub peak_rss_mb: Option<f64>,
    /// Memory of intermediates, in 10^6 bytes.
    pub arena_mb: f64,
    /// The encoder's nominal operations, in 10^9.
    pub encoder_gflop: f64,
    /// These by the encoder's median, in 10^9 a second.
    pub gflops: f64,
    /// The rate of f32 products measured in this process, in 10^9 a second.
    pub roofline_gflops: f64,
    /// The former by the latter.
    pub roofline_fraction: f64,
}

/// How fast clips are decoded together and one by one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchBench {
    /// Clips.
    pub clips: usize,
    /// Encoder frames of each.
    pub frames: usize,
    /// Tokens of all clips.
    pub tokens: usize,
    /// All at once.
    pub together_ms: Times,
    /// One after the other.
    pub alone_ms: Times,
    /// The latter by the former.
    pub ratio: f64,
    /// Whether both gave the same tokens, frames, durations and confidence.
    pub same: bool,
}

/// What this machine can do at most with so many threads, or as many as the process may use.
///
/// # Errors
/// An instruction set that `CONURE_ISA` names and that is not there.
pub fn roofline(threads: Option<usize>) -> Result<Roofline, Error> {
    let cpu = Cpu::detect(threads).map_err(SpeechError::from)?;
    Ok(Roofline::measure(&cpu).map_err(SpeechError::from)?)
}

/// Counts operations.
#[derive(Debug, Default)]
struct Flops(Mutex<f64>);

impl Observer for Flops {
    fn step(&self, step: &StepDone<'_>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += step.flops();
    }
}

impl SpeechModel {
    /// Recognises a recording once to warm up and then `runs` times, at least once, with the time of every stage.
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`].
    pub fn bench(
        &self,
        recording: &Recording,
        options: &RecogniseOptions,
        runs: usize,
    ) -> Result<Bench, Error> {
        let samples = Samples::mono(&recording.samples, recording.sample_rate).at(self.sample_rate())?;
        let recogniser = self.recogniser();
        let begun = Instant::now();
        let (recognition, _) = recogniser.measure(&samples, options, None)?;
        let first_ms = milliseconds(begun.elapsed());
        let encoder_gflop = self.encoder_flops(&samples, options)? * 1e-9;
        let cpu_before = cpu_seconds();
        let runs = runs.max(1);
        let mut times: Vec<StageTimes> = Vec::with_capacity(runs);
        for _ in 0..runs {
            times.push(recogniser.measure(&samples, options, None)?.1);
        }
        let cpu_s = cpu_seconds().zip(cpu_before).map(|(after, before)| (after - before) / runs as f64);
        let peak_rss_mb = peak_memory().map(|bytes| bytes as f64 * 1e-6);
        let roofline = Roofline::measure(recogniser.cpu()).map_err(SpeechError::from)?;
        let (encoder_ms, total_ms) =
            (Times::of(times.iter().map(|t| t.encoder)), Times::of(times.iter().map(StageTimes::total)));
        let audio_s = samples.len() as f64 / f64::from(self.sample_rate());
        let gflops = encoder_gflop / (encoder_ms.median * 1e-3);
        Ok(Bench {
            model: self.info().file.clone(),
            device: recogniser.device().name().to_owned(),
            isa: recogniser.cpu().isa().name(),
            precision: precision(recogniser.device(), recogniser.cpu()),
            threads: recogniser.cpu().threads().count(),
            decoder: recognition.head.name(),
            audio_s,
            tokens: recognition.tokens.len(),
            runs,
            load_ms: None,
            first_ms,
            compiled: self.compilations().compiled,
            cached: self.compilations().cached,
            features_ms: Times::of(times.iter().map(|t| t.features)),
            encoder_ms,
            decoder_ms: Times::of(times.iter().map(|t| t.decoder)),
            total_ms,
            cpu_s,
            rtfx: audio_s / (total_ms.median * 1e-3),
            peak_rss_mb,
            arena_mb: recogniser.arena_bytes() as f64 * 1e-6,
            encoder_gflop,
            gflops,
            roofline_gflops: roofline.f32 * 1e-9,
            roofline_fraction: gflops / (roofline.f32 * 1e-9),
        })
    }

    /// The encoder's nominal operations on a clip.
    fn encoder_flops(&self, samples: &[f32], options: &RecogniseOptions) -> Result<f64, Error> {
        let counter = Arc::new(Flops::default());
        let observer: Arc<dyn Observer> = counter.clone();
        self.recogniser().measure_encoder(samples, options, &observer)?;
        let flops = *counter.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(flops)
    }

    /// How much faster the transducer decodes `clips` clips of `frames` encoder frames (80 ms each) together than one by
    /// one: median of `turns` turns of each, in turn, on an encoder output that is made up.
    ///
    /// # Errors
    /// A model without a transducer.
    pub fn bench_batch(&self, clips: usize, frames: usize, turns: usize) -> Result<BatchBench, Error> {
        let times = self.recogniser().batch_times(clips.max(1), frames.max(1), turns.max(1))?;
        let (together_ms, alone_ms) = (Times::of(times.together), Times::of(times.alone));
        let ratio = alone_ms.median / together_ms.median.max(f64::MIN_POSITIVE);
        Ok(BatchBench { clips, frames, tokens: times.tokens, together_ms, alone_ms, ratio, same: times.same })
    }

    /// The time in microseconds of a whole step of the TDT decoder: joint, decision, predictor; of `steps` steps.
    ///
    /// # Errors
    /// A model without a TDT decoder.
    pub fn bench_step(&self, steps: usize) -> Result<Times, Error> {
        let ms = Times::of(self.recogniser().step_times(steps.max(1))?);
        Ok(Times { min: ms.min * 1e3, median: ms.median * 1e3 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let times = |ms: &[u64]| Times::of(ms.iter().map(|&m| Duration::from_millis(m)));
        for (ms, min, median) in
            [(&[][..], 0.0, 0.0), (&[3], 3.0, 3.0), (&[5, 1, 2], 1.0, 2.0), (&[4, 1, 2, 9], 1.0, 3.0)]
        {
            assert_eq!(times(ms), Times { min, median }, "{ms:?}");
        }
    }
}
