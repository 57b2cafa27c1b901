//! `conure vad`, and which detector `--vad` names.

use super::transcribe::InputArgs;
use super::values;
use clap::Args;
use std::path::PathBuf;

/// A detector of speech: `energy`, or Silero's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VadArg {
    /// By level.
    Energy,
    /// The GGUF file of Silero's model.
    Model(PathBuf),
}

impl VadArg {
    /// The file of its model.
    pub fn model(&self) -> Option<&PathBuf> {
        match self {
            VadArg::Energy => None,
            VadArg::Model(path) => Some(path),
        }
    }
}

impl std::str::FromStr for VadArg {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<VadArg, Self::Err> {
        Ok(if text == "energy" { VadArg::Energy } else { VadArg::Model(text.into()) })
    }
}

/// `conure vad`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure vad interview.mp3\n  \
    conure vad interview.mp3 --json --probabilities > interview.json\n  \
    conure convert silero_vad_16k_op15.onnx silero.gguf && conure vad interview.mp3 --vad silero.gguf\n\n\
    A line per span of speech: start and end in seconds. silero_vad_16k_op15.onnx is part of the Python package silero-vad, in its \
    folder data.")]
pub struct VadArgs {
    /// The audio file; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// What detects speech: `energy` (by level, no model), or the GGUF file of Silero VAD
    #[arg(long, value_name = "HOW", env = "CONURE_VAD", default_value = "energy")]
    pub vad: VadArg,

    /// As JSON: detector, duration and segments
    #[arg(long)]
    pub json: bool,

    /// Also how likely speech is in every frame of 32 ms: in JSON a list, else lines of time and probability in place of the
    /// spans
    #[arg(long)]
    pub probabilities: bool,

    /// From which probability on speech begins; it ends 0.15 below
    #[arg(long, value_name = "P", default_value = "0.5", value_parser = values::probability, allow_negative_numbers = true)]
    pub threshold: f32,

    /// Shorter speech, in seconds, does not count
    #[arg(long, value_name = "S", default_value = "0.25", value_parser = values::seconds, allow_negative_numbers = true)]
    pub min_speech: f64,

    /// Shorter pauses, in seconds, do not part two spans
    #[arg(long, value_name = "S", default_value = "0.1", value_parser = values::seconds, allow_negative_numbers = true)]
    pub min_silence: f64,

    /// Seconds that spans are made longer by at both ends
    #[arg(long, value_name = "S", default_value = "0.032", value_parser = values::seconds, allow_negative_numbers = true)]
    pub pad: f64,

    /// What is read.
    #[command(flatten)]
    pub input: InputArgs,
}
