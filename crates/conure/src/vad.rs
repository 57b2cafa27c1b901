//! Where in a recording somebody speaks.

use crate::audio::{AudioOptions, AudioSource, Blocks, Warning};
use crate::error::Error;
use crate::model::{LoadOptions, hardware, open};
use conure_audio::vad::{FRAME_SECONDS, SpanOptions, padded, speech};
use conure_speech::{SileroVad, SpeechError, Vad};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The rate at which recordings are searched for speech, in Hz.
const RATE: u32 = 16_000;

/// How speech is searched for.
#[derive(Clone, Debug)]
pub struct DetectOptions {
    /// How spans are made of probabilities.
    pub spans: SpanOptions,
    /// Seconds by which spans are made longer at both ends.
    pub pad: f64,
    /// Ends the search soon after it is set.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for DetectOptions {
    /// 32 ms before and after speech, a frame.
    fn default() -> DetectOptions {
        DetectOptions { spans: SpanOptions::default(), pad: FRAME_SECONDS, cancel: None }
    }
}

/// A span of speech, in seconds from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Where it begins.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
}

/// What was found in a recording.
#[derive(Clone, Debug)]
pub struct Detected {
    /// The spans of speech, in order.
    pub spans: Vec<Span>,
    /// How likely speech is, for every frame.
    pub probabilities: Vec<f32>,
    /// Seconds of a frame.
    pub frame_seconds: f64,
    /// Where in the file the audio begins, in seconds.
    pub start: f64,
    /// Seconds of audio.
    pub duration: f64,
    /// What the reader had to say: parts that are damaged or missing.
    pub warnings: Vec<Warning>,
}

/// Silero's model in the GGUF file at `path`, as `conure convert` makes it of the package's file.
///
/// One thread is enough for it: of `options` the device and how the file is read are used.
///
/// # Errors
/// A file that cannot be read or holds another model; a device that is not there.
pub fn load_vad(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Vad, Error> {
    let path = path.as_ref();
    let file = Arc::new(open(path, options)?);
    let (device, cpu) = hardware(&LoadOptions { threads: Some(1), ..options.clone() })?;
    let passes = options.passes.for_device(&device);
    let vad = SileroVad::load(file, &path.display().to_string(), device, cpu, &passes)?;
    Ok(Vad::Silero(Arc::new(vad)))
}

/// Searches a recording for speech. Only a little of it is in memory at a time.
///
/// ```
/// use conure::{AudioSource, Vad, detect_speech};
///
/// # fn main() -> Result<(), conure::Error> {
/// # let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
/// let found = detect_speech(&Vad::Energy, AudioSource::path(clip), &Default::default(), &Default::default())?;
/// for span in &found.spans {
///     println!("{:.2} to {:.2}", span.start, span.end);
/// }
/// # assert!(!found.spans.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What cannot be read; a model that cannot be run; cancellation.
pub fn detect_speech(
    vad: &Vad,
    source: AudioSource,
    audio: &AudioOptions,
    options: &DetectOptions,
) -> Result<Detected, Error> {
    let mut blocks = Blocks::open(source, RATE, audio)?;
    let mut detector = vad.detector(RATE)?;
    let (mut samples, mut probabilities, mut count) = (Vec::new(), Vec::new(), 0usize);
    loop {
        if options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(SpeechError::Cancelled.into());
        }
        samples.clear();
        let more = blocks.next(&mut samples)?;
        count += samples.len();
        detector.push(&samples, &mut probabilities)?;
        if !more {
            break;
        }
    }
    detector.finish(&mut probabilities)?;
    let (start, duration) = (blocks.start(), count as f64 / f64::from(RATE));
    let found = speech(&probabilities, &options.spans);
    let pad = (options.pad.max(0.0) / FRAME_SECONDS).round() as usize;
    let seconds = |frame: usize| start + (frame as f64 * FRAME_SECONDS).min(duration);
    let span = |s: std::ops::Range<usize>| Span { start: seconds(s.start), end: seconds(s.end) };
    let spans = padded(&found, pad, probabilities.len()).into_iter().map(span).collect();
    let warnings = blocks.warnings().to_vec();
    Ok(Detected { spans, probabilities, frame_seconds: FRAME_SECONDS, start, duration, warnings })
}
