//! Log-mel features as NeMo computes them.
//!
//! The rules are those of `AudioToMelSpectrogramPreprocessor` in NeMo 3.0.0 at inference, the GGUF keys
//! `parakeet.preprocessor.*` hold the numbers:
//!
//! 1. pre-emphasis `y[0] = x[0]`, `y[n] = x[n] - a x[n-1]`;
//! 2. frames of `win_length` samples every `hop_length`, frame `t` centred on sample `t * hop_length`, zeros (not
//!    a reflection) beyond both ends;
//! 3. a window centred in `n_fft`, real FFT, `|X|^mag_power`, the mel filterbank, `ln(mel + guard)`;
//! 4. `per_feature`: each mel channel less its mean, over its deviation (`N - 1`) plus 1e-5, both over the valid
//!    frames; frames that are not valid are 0 in either case.
//!
//! `S` samples give `floor(S / hop) + 1` frames, of which the first `floor(S / hop)` are valid: the last frame is
//! centred on the end of the audio, and NeMo since 2.5 masks it.
//!
//! [`LogMel::frames_into`] does steps 1 to 3 for any range of frames and reads only the samples under them, so that
//! a stream, or several threads, can share it; [`LogMel::compute`] is all four steps.

use std::ops::Range;
use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{RealFftPlanner, RealToComplex};

use crate::mel_filterbank::{Filterbank, hann_symmetric, slaney};

/// What is subtracted from and divided out of the log-mel channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// Each mel channel to zero mean and unit deviation over the valid frames (GGUF value `per_feature`).
    PerFeature,
    /// Nothing (any other GGUF value, `NA` in the streaming checkpoints).
    None,
}

/// The numbers of a log-mel front end; the GGUF keys are `parakeet.preprocessor.<field>`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogMelConfig {
    /// Samples per second of the audio that [`LogMel::compute`] gets.
    pub sample_rate: u32,
    /// Length of the FFT in samples; the filterbank has `n_fft / 2 + 1` bins.
    pub n_fft: usize,
    /// Length of the analysis window in samples, at most `n_fft`.
    pub win_length: usize,
    /// Samples from one frame to the next.
    pub hop_length: usize,
    /// Mel channels.
    pub n_mels: usize,
    /// Pre-emphasis coefficient (`preemph`); 0 turns it off.
    pub preemphasis: f32,
    /// Exponent of the magnitude before the filterbank.
    pub mag_power: f32,
    /// Added before the logarithm.
    pub log_zero_guard: f32,
    /// Normalisation over time.
    pub normalize: Normalize,
}

impl LogMelConfig {
    /// The front end that every Parakeet checkpoint uses: 16 kHz, 25 ms windows every 10 ms, FFT of 512,
    /// pre-emphasis 0.97, power spectrum, guard 2^-24.
    pub fn parakeet(n_mels: usize, normalize: Normalize) -> Self {
        LogMelConfig {
            sample_rate: 16_000,
            n_fft: 512,
            win_length: 400,
            hop_length: 160,
            n_mels,
            preemphasis: 0.97,
            mag_power: 2.0,
            log_zero_guard: (-24f32).exp2(),
            normalize,
        }
    }

    fn check(&self) -> Result<(), LogMelError> {
        let limit = |what: &'static str, got: usize, low: usize, high: usize| {
            if (low..=high).contains(&got) {
                Ok(())
            } else {
                Err(LogMelError::OutOfRange { what, got, low, high })
            }
        };
        limit("sample_rate", self.sample_rate as usize, 1, 1_000_000)?;
        limit("n_fft", self.n_fft, 2, 1 << 16)?;
        limit("win_length", self.win_length, 1, self.n_fft)?;
        limit("hop_length", self.hop_length, 1, 1 << 20)?;
        limit("n_mels", self.n_mels, 1, 4096)?;
        for (what, value) in [
            ("preemphasis", self.preemphasis),
            ("mag_power", self.mag_power),
            ("log_zero_guard", self.log_zero_guard),
        ] {
            if !value.is_finite() {
                return Err(LogMelError::NotFinite { what });
            }
        }
        Ok(())
    }
}

/// Why a log-mel front end cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogMelError {
    /// A number of the configuration is outside what the front end supports.
    #[error("log-mel: {what} is {got}, expected {low} to {high}; check the model file's preprocessor keys")]
    OutOfRange {
        /// Field of [`LogMelConfig`].
        what: &'static str,
        /// Value found.
        got: usize,
        /// Smallest value allowed.
        low: usize,
        /// Largest value allowed.
        high: usize,
    },
    /// A number of the configuration, the filterbank or the window is NaN or infinite.
    #[error("log-mel: {what} holds a value that is not finite; the model file is damaged")]
    NotFinite {
        /// Field or buffer.
        what: &'static str,
    },
    /// A buffer from the model file has another length than the configuration asks for.
    #[error(
        "log-mel: {what} has {got} values, expected {expected}; the model file's tensors and keys disagree"
    )]
    Length {
        /// `filterbank` or `window`.
        what: &'static str,
        /// Values found.
        got: usize,
        /// Values expected.
        expected: usize,
    },
}

/// Features of one clip, frames first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Features {
    /// `[T, n_mels]`, row-major.
    pub data: Vec<f32>,
    /// T: `floor(S / hop_length) + 1`.
    pub frames: usize,
    /// Frames that carry audio: `floor(S / hop_length)`. Rows from here on are 0.
    pub valid: usize,
    /// Mel channels.
    pub n_mels: usize,
}

impl Features {
    /// Row `t`, `[n_mels]`; empty beyond the last frame.
    pub fn frame(&self, t: usize) -> &[f32] {
        t.checked_mul(self.n_mels)
            .and_then(|at| self.data.get(at..at.checked_add(self.n_mels)?))
            .unwrap_or(&[])
    }
}

/// Work space of [`LogMel::frames_into`]: one per thread.
#[derive(Debug, Clone)]
pub struct Scratch {
    time: Vec<f32>,
    spectrum: Vec<Complex32>,
    fft: Vec<Complex32>,
    power: Vec<f32>,
    mean: Vec<f64>,
    scale: Vec<f64>,
}

/// A log-mel front end: configuration, window, filterbank and FFT plan. Shareable between threads.
#[derive(Clone)]
pub struct LogMel {
    config: LogMelConfig,
    window: Vec<f32>,
    filterbank: Filterbank,
    fft: Arc<dyn RealToComplex<f32>>,
}

impl std::fmt::Debug for LogMel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMel").field("config", &self.config).finish_non_exhaustive()
    }
}

impl LogMel {
    /// A front end with the buffers of a model file.
    ///
    /// `filterbank` is `[n_mels, n_fft / 2 + 1]` row-major (tensor `preprocessor.featurizer.fb`), `window` is
    /// `[win_length]` (`preprocessor.featurizer.window`).
    ///
    /// # Errors
    /// A number outside its range, a buffer of the wrong length, or values that are not finite.
    pub fn new(config: LogMelConfig, filterbank: &[f32], window: &[f32]) -> Result<Self, LogMelError> {
        config.check()?;
        let bins = config.n_fft / 2 + 1;
        let lengths = [
            ("filterbank", filterbank, config.n_mels.saturating_mul(bins)),
            ("window", window, config.win_length),
        ];
        for (what, values, expected) in lengths {
            if values.len() != expected {
                return Err(LogMelError::Length { what, got: values.len(), expected });
            }
            if !values.iter().all(|v| v.is_finite()) {
                return Err(LogMelError::NotFinite { what });
            }
        }
        Ok(LogMel {
            fft: RealFftPlanner::new().plan_fft_forward(config.n_fft),
            window: window.to_vec(),
            filterbank: Filterbank::from_dense(filterbank, bins),
            config,
        })
    }

    /// A front end whose buffers are computed: librosa's Slaney mel scale from 0 to half the sample rate with area
    /// normalisation, and a symmetric Hann window. Hugging Face checkpoints do not store them.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn slaney(config: LogMelConfig) -> Result<Self, LogMelError> {
        config.check()?;
        let filterbank = slaney(config.sample_rate, config.n_fft, config.n_mels);
        let window = hann_symmetric(config.win_length);
        LogMel::new(config, &filterbank, &window)
    }

    /// The numbers this front end was made from.
    pub fn config(&self) -> &LogMelConfig {
        &self.config
    }

    /// Frames that `samples` samples give, of which all but the last are valid.
    pub fn frame_count(&self, samples: usize) -> usize {
        samples / self.config.hop_length + 1
    }

    /// Samples that frame `t` reads: those of them below 0 or beyond the audio count as 0. A stream may emit frame
    /// `t` as soon as it holds the samples up to the end of this range.
    pub fn samples_of_frame(&self, t: usize) -> Range<i64> {
        let offset = self.config.n_fft / 2 - (self.config.n_fft - self.config.win_length) / 2;
        let start = t as i64 * self.config.hop_length as i64 - offset as i64;
        start..start + self.config.win_length as i64
    }

    /// Work space for [`frames_into`](Self::frames_into).
    pub fn scratch(&self) -> Scratch {
        Scratch {
            time: self.fft.make_input_vec(),
            spectrum: self.fft.make_output_vec(),
            fft: self.fft.make_scratch_vec(),
            power: vec![0.0; self.config.n_fft / 2 + 1],
            mean: vec![0.0; self.config.n_mels],
            scale: vec![0.0; self.config.n_mels],
        }
    }

    /// Features of a clip: mono samples in -1..1 at the configured rate.
    pub fn compute(&self, samples: &[f32]) -> Features {
        let mut features = Features::default();
        self.compute_into(samples, &mut features, &mut self.scratch());
        features
    }

    /// As [`compute`](Self::compute), into the caller's buffers: nothing is allocated once `features` has held as
    /// many frames.
    pub fn compute_into(&self, samples: &[f32], features: &mut Features, scratch: &mut Scratch) {
        let n_mels = self.config.n_mels;
        features.frames = self.frame_count(samples.len());
        features.valid = features.frames - 1;
        features.n_mels = n_mels;
        features.data.clear();
        features.data.resize(features.frames * n_mels, 0.0);
        let valid = &mut features.data[..features.valid * n_mels];
        self.frames_into(samples, 0, 0, valid, scratch);
        if self.config.normalize == Normalize::PerFeature {
            normalize_per_feature(valid, &mut scratch.mean, &mut scratch.scale);
        }
    }

    /// Log-mel of consecutive frames before any normalisation, into `out` (`[frames, n_mels]` row-major; its length
    /// says how many).
    ///
    /// `samples` is a piece of the audio that begins at sample `origin` and holds all that the frames read (see
    /// [`samples_of_frame`](Self::samples_of_frame)) and, for pre-emphasis, the sample before; what lies outside the
    /// piece counts as 0.
    pub fn frames_into(
        &self,
        samples: &[f32],
        origin: usize,
        first: usize,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        for (i, row) in out.chunks_exact_mut(self.config.n_mels).enumerate() {
            let start = self.samples_of_frame(first + i).start - origin as i64;
            self.window_frame(samples, start, &mut scratch.time);
            // the three buffers come from this plan, whose only errors are wrong lengths
            let transformed =
                self.fft.process_with_scratch(&mut scratch.time, &mut scratch.spectrum, &mut scratch.fft);
            debug_assert!(transformed.is_ok());
            self.power(&scratch.spectrum, &mut scratch.power);
            self.filterbank.apply(&scratch.power, row);
            for value in row {
                *value = (*value + self.config.log_zero_guard).ln();
            }
        }
    }

    /// Pre-emphasised, windowed samples `start..start + win_length` (relative to `samples`) into the middle of
    /// `time`, zeros elsewhere.
    fn window_frame(&self, samples: &[f32], start: i64, time: &mut [f32]) {
        time.fill(0.0);
        let left = (self.config.n_fft - self.config.win_length) / 2;
        // window taps that fall on samples
        let from = start.saturating_neg().clamp(0, self.window.len() as i64) as usize;
        let to = (samples.len() as i64 - start).clamp(from as i64, self.window.len() as i64) as usize;
        if from >= to {
            return;
        }
        let at = (start + from as i64) as usize;
        let taps = &self.window[from..to];
        let out = &mut time[left + from..left + to];
        let x = &samples[at..at + taps.len()];
        let a = self.config.preemphasis;
        // sample 0 of the audio is kept as it is
        let before = if at > 0 { samples[at - 1] } else { 0.0 };
        out[0] = (x[0] - a * before) * taps[0];
        for i in 1..taps.len() {
            out[i] = (x[i] - a * x[i - 1]) * taps[i];
        }
    }

    fn power(&self, spectrum: &[Complex32], power: &mut [f32]) {
        let exponent = self.config.mag_power;
        for (p, x) in power.iter_mut().zip(spectrum) {
            let square = x.re * x.re + x.im * x.im;
            *p = if exponent == 2.0 { square } else { square.sqrt().powf(exponent) };
        }
    }
}

/// NeMo's `per_feature` over all rows of `data` (`[frames, n_mels]`): deviation with `N - 1`, plus 1e-5; a single
/// frame becomes 0. Sums are in f64: in f32 they move the encoder of a minute of speech by more than 1e-3.
/// `mean` and `scale` are work space of `n_mels`.
fn normalize_per_feature(data: &mut [f32], mean: &mut [f64], scale: &mut [f64]) {
    let n_mels = mean.len();
    let frames = (data.len() / n_mels) as f64;
    if frames < 1.0 {
        return;
    }
    mean.fill(0.0);
    scale.fill(0.0);
    for row in data.chunks_exact(n_mels) {
        for (sum, value) in mean.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }
    mean.iter_mut().for_each(|sum| *sum /= frames);
    for row in data.chunks_exact(n_mels) {
        for ((sum, value), mean) in scale.iter_mut().zip(row).zip(mean.iter()) {
            let d = f64::from(*value) - mean;
            *sum += d * d;
        }
    }
    for sum in scale.iter_mut() {
        let deviation = if frames > 1.0 { (*sum / (frames - 1.0)).sqrt() } else { 0.0 };
        *sum = 1.0 / (deviation + 1e-5);
    }
    for row in data.chunks_exact_mut(n_mels) {
        for ((value, mean), scale) in row.iter_mut().zip(mean.iter()).zip(scale.iter()) {
            *value = ((f64::from(*value) - mean) * scale) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;
    use safetensors::SafeTensors;
    use std::path::PathBuf;

    fn data(path: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
    }

    /// The samples of a 16-bit mono WAV with a plain 44-byte header.
    fn speech() -> Vec<f32> {
        let bytes = std::fs::read(data("audio/speech.wav")).unwrap();
        assert_eq!(&bytes[36..40], b"data");
        bytes[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
    }

    /// Largest difference from a golden `[1, n_mels, T]` over the first `valid` frames, and over the frames after.
    fn compare(features: &Features, goldens: &str, name: &str) -> (f32, f32) {
        let bytes = std::fs::read(data(&format!("oracle/{goldens}.goldens.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let golden = tensors.tensor(name).unwrap();
        let (mels, frames) = (golden.shape()[1], golden.shape()[2]);
        assert_eq!(mels, features.n_mels);
        let want: Vec<f32> =
            golden.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let (mut valid, mut padding) = (0f32, 0f32);
        for t in 0..frames.min(features.frames) {
            for (m, got) in features.frame(t).iter().enumerate() {
                let worst = if t < features.valid { &mut valid } else { &mut padding };
                *worst = worst.max((got - want[m * frames + t]).abs());
            }
        }
        (valid, padding)
    }

    #[test]
    fn equals_nemo_on_speech() {
        let samples = speech();
        assert_eq!(samples.len(), 118_960);
        // exact f64 arithmetic itself differs from NeMo by 1.7e-4 (normalised)
        for (goldens, name, n_mels, normalize, bound) in [
            ("ctc80", "speech.mel", 80, Normalize::PerFeature, 5e-4),
            ("ctc80", "speech.mel_unnormalized", 80, Normalize::None, 3e-4),
            ("tdt128", "speech.mel", 128, Normalize::PerFeature, 5e-4),
            ("stream_eou128", "speech.mel", 128, Normalize::None, 3e-4),
            ("prompt128", "speech.mel", 128, Normalize::None, 3e-4),
        ] {
            let log_mel = LogMel::slaney(LogMelConfig::parakeet(n_mels, normalize)).unwrap();
            let features = log_mel.compute(&samples);
            assert_eq!((features.frames, features.valid), (744, 743));
            let (valid, padding) = compare(&features, goldens, name);
            assert!(valid < bound, "{goldens} {name}: {valid:e}");
            assert_eq!(padding, 0.0, "{goldens} {name}: frames beyond the valid ones are 0");
        }
    }

    /// The trained model carries its filterbank and window rounded to f16, which moves the features by 0.3: the
    /// buffers of the file must be used.
    #[test]
    fn equals_nemo_with_the_buffers_of_the_trained_model() {
        let round = |v: Vec<f32>| v.iter().map(|w| half::f16::from_f32(*w).to_f32()).collect::<Vec<f32>>();
        let filterbank = round(slaney(16_000, 512, 80));
        let window = round(hann_symmetric(400));
        for (name, normalize, bound) in
            [("mel", Normalize::PerFeature, 5e-4), ("mel_unnormalized", Normalize::None, 3e-4)]
        {
            let log_mel = LogMel::new(LogMelConfig::parakeet(80, normalize), &filterbank, &window).unwrap();
            let (valid, _) = compare(&log_mel.compute(&speech()), "trained", name);
            assert!(valid < bound, "{name}: {valid:e}");
        }
    }

    /// A batch item shorter than its batch is the item alone.
    #[test]
    fn equals_nemo_on_a_batch() {
        let speech = speech();
        let items =
            [speech.clone(), speech[16_000..69_333].to_vec(), [&speech[..], &speech[..40_000]].concat()];
        let log_mel = LogMel::slaney(LogMelConfig::parakeet(80, Normalize::PerFeature)).unwrap();
        let bytes = std::fs::read(data("oracle/ctc80.goldens.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let golden = tensors.tensor("batch.mel").unwrap();
        let frames = golden.shape()[2];
        let at = |i: usize| f32::from_le_bytes(golden.data()[i * 4..i * 4 + 4].try_into().unwrap());
        for (item, (samples, valid)) in items.iter().zip([743, 333, 993]).enumerate() {
            let features = log_mel.compute(samples);
            assert_eq!(features.valid, valid);
            for t in 0..valid {
                for (m, got) in features.frame(t).iter().enumerate() {
                    let want = at((item * 80 + m) * frames + t);
                    assert!((got - want).abs() < 5e-4, "item {item} frame {t} mel {m}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn computed_buffers_are_those_of_nemo_checkpoints() {
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(data("mel/slaney.json")).unwrap()).unwrap();
        let bits = |v: &serde_json::Value| f32::from_bits(v.as_u64().unwrap() as u32);
        for n_mels in [80, 128] {
            let dense = slaney(16_000, 512, n_mels);
            let mut want = vec![0f32; n_mels * 257];
            for (m, row) in json[format!("fb{n_mels}")].as_array().unwrap().iter().enumerate() {
                let first = row[0].as_u64().unwrap() as usize;
                for (i, w) in row[1].as_array().unwrap().iter().enumerate() {
                    want[m * 257 + first + i] = bits(w);
                }
            }
            let worst = dense.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst <= 2e-9, "fb{n_mels}: {worst:e}");
        }
        let window: Vec<f32> = json["window"].as_array().unwrap().iter().map(bits).collect();
        let worst = hann_symmetric(400).iter().zip(&window).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst <= 2e-7, "window: {worst:e}");
    }

    #[test]
    fn any_range_of_any_piece_gives_the_same_frames() {
        let samples = speech();
        let log_mel = LogMel::slaney(LogMelConfig::parakeet(80, Normalize::None)).unwrap();
        let whole = log_mel.compute(&samples);
        let mut scratch = log_mel.scratch();
        for (first, frames) in [(0, 1), (0, 9), (1, 3), (2, 16), (100, 7), (740, 3)] {
            let start = log_mel.samples_of_frame(first).start - 1;
            let end = log_mel.samples_of_frame(first + frames - 1).end;
            let origin = start.max(0) as usize;
            let piece = &samples[origin..(end as usize).min(samples.len())];
            let mut rows = vec![0f32; frames * 80];
            log_mel.frames_into(piece, origin, first, &mut rows, &mut scratch);
            assert_eq!(rows, whole.data[first * 80..(first + frames) * 80], "frames {first}+{frames}");
        }
    }

    #[test]
    fn every_short_length_gives_finite_features() {
        let samples = speech();
        let mut features = Features::default();
        for normalize in [Normalize::PerFeature, Normalize::None] {
            let log_mel = LogMel::slaney(LogMelConfig::parakeet(80, normalize)).unwrap();
            let mut scratch = log_mel.scratch();
            for length in 0..=2000 {
                log_mel.compute_into(&samples[20_000..20_000 + length], &mut features, &mut scratch);
                assert_eq!((features.frames, features.valid), (length / 160 + 1, length / 160));
                assert_eq!(features.data.len(), features.frames * 80);
                assert!(features.data.iter().all(|v| v.is_finite()), "{length} samples");
                assert!(features.data[features.valid * 80..].iter().all(|v| *v == 0.0));
            }
        }
    }

    #[test]
    fn silence_and_full_scale_give_finite_features() {
        let log_mel = LogMel::slaney(LogMelConfig::parakeet(80, Normalize::PerFeature)).unwrap();
        let square: Vec<f32> = (0..16_000).map(|i| if i / 40 % 2 == 0 { 1.0 } else { -1.0 }).collect();
        for samples in [vec![0f32; 16_000], vec![1f32; 16_000], square] {
            let features = log_mel.compute(&samples);
            assert!(features.data.iter().all(|v| v.is_finite()));
        }
    }

    #[test]
    fn one_valid_frame_normalises_to_zero() {
        let log_mel = LogMel::slaney(LogMelConfig::parakeet(80, Normalize::PerFeature)).unwrap();
        let features = log_mel.compute(&speech()[20_000..20_200]);
        assert_eq!((features.frames, features.valid), (2, 1));
        assert!(features.data.iter().all(|v| *v == 0.0));
    }

    #[test]
    fn wrong_numbers_are_errors_that_name_the_field() {
        let good = || LogMelConfig::parakeet(80, Normalize::None);
        let mut dead = vec![0f32; 80 * 257];
        let window = vec![1f32; 400];
        for (change, says) in [
            (
                Box::new(|c: &mut LogMelConfig| c.hop_length = 0) as Box<dyn Fn(&mut LogMelConfig)>,
                "hop_length is 0",
            ),
            (Box::new(|c| c.n_fft = 1 << 30), "n_fft"),
            (Box::new(|c| c.win_length = 513), "win_length is 513, expected 1 to 512"),
            (Box::new(|c| c.n_mels = 0), "n_mels"),
            (Box::new(|c| c.preemphasis = f32::NAN), "preemphasis"),
        ] {
            let mut config = good();
            change(&mut config);
            let error = LogMel::slaney(config).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let error = LogMel::new(good(), &dead[1..], &window).unwrap_err();
        assert_eq!(error, LogMelError::Length { what: "filterbank", got: 80 * 257 - 1, expected: 80 * 257 });
        dead[7] = f32::INFINITY;
        assert_eq!(
            LogMel::new(good(), &dead, &window).unwrap_err(),
            LogMelError::NotFinite { what: "filterbank" }
        );
    }

    #[test]
    fn an_odd_transform_and_a_magnitude_spectrum_work() {
        let mut config = LogMelConfig::parakeet(40, Normalize::None);
        (config.n_fft, config.win_length, config.mag_power) = (401, 401, 1.0);
        let features = LogMel::slaney(config).unwrap().compute(&speech()[..16_000]);
        assert_eq!(features.data.len(), 101 * 40);
        assert!(features.data.iter().all(|v| v.is_finite()));
    }
}
