//! `conure listen`: its options.

use super::{ComputeArgs, values};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A value of `--pace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PaceArg {
    /// As fast as it was spoken, as a microphone would give it
    Real,
    /// As fast as it is heard
    Fast,
}

/// A value of `--output-format` of what is heard live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LiveFormatArg {
    /// The bare text, a line per utterance
    Txt,
    /// A JSON object per line
    Json,
}

/// `conure listen`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure listen -m realtime.gguf\n  \
    conure listen -m realtime.gguf --input speech.wav\n\n\
    A streaming model, such as parakeet_realtime_eou_120m, is fastest. Ctrl-C ends it. The microphone is recorded with\n\
    arecord (alsa-utils), parec (PulseAudio, PipeWire) or rec (SoX), whichever is there.")]
pub struct ListenArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "MODEL", env = "CONURE_MODEL")]
    pub model: Option<PathBuf>,

    /// Hear this file as if it were spoken into the microphone
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// How fast a file of --input is played
    #[arg(long, value_enum, value_name = "PACE", default_value = "real", requires = "input")]
    pub pace: PaceArg,

    /// The microphone, as arecord (-D) or parec (-d) calls it [default: the system's]
    #[arg(long, value_name = "NAME", conflicts_with = "input")]
    pub microphone: Option<String>,

    /// Stop after so much: seconds or hours:minutes:seconds
    #[arg(long, value_name = "TIME", value_parser = values::some_seconds, allow_negative_numbers = true)]
    pub duration: Option<f64>,

    /// How words are given [default: a line that grows on a terminal, else json]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub output_format: Option<LiveFormatArg>,

    /// Frames of 80 ms that the model waits for before it decides [default: as the model was trained first]
    #[arg(long, value_name = "N", env = "CONURE_LOOK_AHEAD", value_parser = values::any_count)]
    pub look_ahead: Option<usize>,

    /// Language of the speech, for models that are told one
    #[arg(short, long, value_name = "LANG", env = "CONURE_LANGUAGE")]
    pub language: Option<String>,

    /// Only errors and warnings on standard error
    #[arg(short, long, env = "CONURE_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,

    /// What it runs on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
