//! `conure listen`: words as they are spoken into a microphone, or into what stands for one.

use super::model;
use super::stream::{Live, Screen};
use super::transcribe::announce;
use crate::args::{ListenArgs, LiveFormatArg, PaceArg};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::shown;
use conure::audio::RawSpec;
use conure::{AudioOptions, AudioSource, DecodeOptions, SpeechModel, StreamOptions};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Samples of a block of a played file at 16 kHz: 10 ms, as sound cards give them.
const BLOCK: usize = 160;

/// A running input: raw samples as they come.
pub(super) struct Source {
    pub name: String,
    /// What the samples are.
    pub spec: String,
    pub reader: Box<dyn Read + Send>,
    /// When the first was spoken, where they come as fast as they are spoken.
    pub since: Option<Instant>,
}

/// Hears the microphone, or a file in its place.
///
/// # Errors
/// A model that cannot be loaded or cannot stream; no microphone.
pub fn run(args: &ListenArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let model = model::load(args.model.as_deref(), &args.compute)?;
    let options = StreamOptions {
        look_ahead: args.look_ahead,
        language: args.language.clone(),
        ..StreamOptions::default()
    };
    let source = match &args.input {
        Some(path) => played(&model, path, args.pace)?,
        None => microphone(args.microphone.as_deref())?,
    };
    if !args.quiet {
        announce(&model, model::is_embedded(args.model.as_deref()));
        crate::output::note(&format!("listening to {}; Ctrl-C ends it", source.name));
    }
    let raw: RawSpec =
        source.spec.parse().map_err(|_| Failure::new("cannot use this microphone").reason(source.spec))?;
    let decode = DecodeOptions { raw: Some(raw), max_seconds: f64::INFINITY, ..DecodeOptions::default() };
    let audio = AudioOptions { decode, duration: args.duration, ..AudioOptions::default() };
    let json = args.output_format == Some(LiveFormatArg::Json);
    let mut screen = Screen::new(json, args.output_format == Some(LiveFormatArg::Txt));
    let live = Live { name: source.name.clone(), quiet: args.quiet, since: source.since };
    let source = AudioSource::reader(source.name, interrupt.ends(source.reader));
    live.hear(&model, source, &audio, options, &mut screen, interrupt)?;
    Ok(Exit::Success)
}

/// The microphone of this name, or the system's: from the sound card where that is built in and there is one, else from a recorder.
fn microphone(name: Option<&str>) -> Result<Source, Failure> {
    #[cfg(feature = "microphone")]
    let source = super::sound_card::open(name).or_else(|why| super::microphone::open(name).map_err(|_| why));
    #[cfg(not(feature = "microphone"))]
    let source = super::microphone::open(name);
    source
}

/// A file as a microphone would give it.
fn played(model: &SpeechModel, path: &Path, pace: PaceArg) -> Result<Source, Failure> {
    let recording = model
        .read(AudioSource::path(path), &AudioOptions::default())
        .map_err(|e| model::failed(format!("cannot read {}", shown(path)), e))?;
    let rate = recording.sample_rate;
    let begun = (pace == PaceArg::Real).then(Instant::now);
    let player = Player { samples: recording.samples, at: 0, rate, begun, rest: Vec::new() };
    Ok(Source { name: shown(path), spec: format!("f32le:{rate}:1"), reader: Box::new(player), since: begun })
}

/// Gives samples no earlier than they were spoken.
struct Player {
    samples: Vec<f32>,
    at: usize,
    rate: u32,
    /// When the first was spoken; `None`: there is no hurry.
    begun: Option<Instant>,
    /// Bytes of a block that are not given yet.
    rest: Vec<u8>,
}

impl Read for Player {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let end = (self.at + BLOCK).min(self.samples.len());
            self.rest = self.samples[self.at..end].iter().flat_map(|s| s.to_le_bytes()).collect();
            self.at = end;
            if let Some(begun) = self.begun {
                let spoken = begun + Duration::from_secs_f64(end as f64 / f64::from(self.rate));
                std::thread::sleep(spoken.saturating_duration_since(Instant::now()));
            }
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_player_gives_every_sample_and_none_early() {
        let samples: Vec<f32> = (0..1_000).map(|i| i as f32).collect();
        let begun = Instant::now();
        let mut player =
            Player { samples: samples.clone(), at: 0, rate: 16_000, begun: Some(begun), rest: Vec::new() };
        let mut bytes = Vec::new();
        player.read_to_end(&mut bytes).unwrap();
        assert!(begun.elapsed() >= Duration::from_micros(62_500));
        let back: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(back, samples);
    }
}
