//! Looking inside a model: `conure graph`, `bench` and `profile`.

use super::{ComputeArgs, DecoderArg, values};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A value of `--part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartArg {
    /// The encoder with its heads
    Encoder,
    /// The predictor of a transducer, one step
    Predictor,
    /// The joint of a transducer, one step
    Joint,
}

/// `conure graph`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure graph embedded -o encoder.svg\n  \
    conure graph embedded --bind T=1000 -o encoder.json\n  \
    conure graph embedded --passes -o rewritten.svg\n  \
    conure graph embedded --part joint -o joint.dot\n  \
    conure graph embedded --memory\n  \
    conure graph gemma.gguf --bind T=512,R=1 -o gemma.svg\n\n\
    Symbols: T mel frames (100 a second), B items of a batch; of a language model, T new tokens of each of B sequences, R rows of \
    logits. Boxes show op, path, weights and the shape of the result; \
    a dashed frame is run tile by tile.")]
pub struct GraphArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Where to draw it: a name that ends in .svg, .dot or .json
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["placement", "memory"])]
    pub output: Option<PathBuf>,

    /// Which graph of a speech model [default: encoder]
    #[arg(long, value_enum, value_name = "PART")]
    pub part: Option<PartArg>,

    /// Show numbers for symbols, such as T=1000; may be given several times
    #[arg(long, value_name = "SYMBOL=N", value_delimiter = ',', value_parser = values::binding)]
    pub bind: Vec<(char, usize)>,

    /// As with this window of local attention
    #[arg(long, value_name = "W", value_parser = values::count, allow_negative_numbers = true)]
    pub local_attention: Option<usize>,

    /// Draw the graph after the rewrites that a run does, rather than as the model built it; so does --without-pass
    #[arg(long)]
    pub passes: bool,

    /// Print which nodes the device runs, in how many pieces, and why not the rest; show it in the drawing
    #[arg(long)]
    pub placement: bool,

    /// Print the memory that intermediates take for some lengths or that of --bind T=N, of one recording or --bind B=N; of
    /// speech in full and in local attention
    #[arg(long)]
    pub memory: bool,

    /// What it would run on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// How a recording is recognised while that is measured.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Which head of the model decodes
    #[arg(long, value_enum, default_value = "auto", value_name = "DECODER")]
    pub decoder: DecoderArg,

    /// Let attention see only so many frames of 80 ms to each side
    #[arg(long, value_name = "W", value_parser = values::count, allow_negative_numbers = true)]
    pub local_attention: Option<usize>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// What it runs on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// What a language model reads while it is measured.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Language models")]
pub struct LoadArgs {
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "512", value_parser = values::count, allow_negative_numbers = true)]
    pub prompt_tokens: usize,

    /// Tokens that are read one by one after it
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::count, allow_negative_numbers = true)]
    pub tokens: usize,
}

/// `conure bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    conure bench embedded speech.wav\n  \
    conure bench parakeet.gguf speech.wav --threads 1 --runs 20 --json\n  \
    conure bench gemma.gguf --prompt-tokens 512 --tokens 64 --precision fast\n  \
    conure bench roofline\n  \
    conure bench step embedded\n  \
    conure bench startup embedded --device openvino:CPU\n\n\
    The first run packs weights and plans; the others are what a program sees that keeps its model.")]
pub struct BenchArgs {
    /// Something else than a recording.
    #[command(subcommand)]
    pub what: Option<BenchCommand>,

    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL", required = true)]
    pub model: Option<PathBuf>,

    /// The audio file to recognise; none for a language model
    #[arg(value_name = "AUDIO")]
    pub audio: Option<PathBuf>,

    /// What a language model reads.
    #[command(flatten)]
    pub load: LoadArgs,

    /// Runs that are timed, after the first
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::count, allow_negative_numbers = true)]
    pub runs: usize,

    /// How it is recognised.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// What `conure bench` measures besides recordings.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The machine: rates of products with f32, f16 and q8_0 weights and in int8, and of reading memory
    Roofline(RooflineArgs),
    /// Convolutions written as im2col and products, as they are and fused
    Conv(super::BenchConvArgs),
    /// A whole step of a model's TDT decoder on one thread (joint, decision, predictor); with --batch, decoding of clips
    /// together and one by one
    Step(StepArgs),
    /// A program's start, from nothing and from the cache of compiled models
    Startup(StartupArgs),
    /// Memory over many recordings of random lengths
    Lengths(LengthsArgs),
}

/// `conure bench lengths`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  conure bench lengths embedded --device openvino:CPU --runs 300\n\n\
    Noise of random lengths is recognised, one recording after another. `slope_mb` is by how much resident memory grows in \
    100 recordings, fitted to the second half of them: the first half warms up.")]
pub struct LengthsArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Recordings
    #[arg(long, value_name = "N", default_value = "2000", value_parser = values::count, allow_negative_numbers = true)]
    pub runs: usize,

    /// The longest recording
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = values::some_seconds, allow_negative_numbers = true)]
    pub longest: f64,

    /// How it is recognised.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// `conure bench startup`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  conure bench startup embedded --device openvino:CPU --json\n\n\
    Two programs in a row, each from its start to the recognition of a second of silence: the first with an empty cache of \
    compiled models, the second with what the first left. `ratio` is the median of the turns' ratios.")]
pub struct StartupArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Turns
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::count)]
    pub runs: usize,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// Start once, in this process, and say what that took
    #[arg(long, hide = true)]
    pub once: bool,

    /// What it runs on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// `conure bench roofline`.
#[derive(Debug, Args)]
pub struct RooflineArgs {
    /// Threads to compute with [default and most: as many as the process may use]
    #[arg(short = 't', long, value_name = "N", env = "CONURE_THREADS", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `conure bench step`.
#[derive(Debug, Args)]
pub struct StepArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Decode so many clips together and one by one instead, in turns, on all threads
    #[arg(long, value_name = "CLIPS", conflicts_with = "steps", value_parser = values::count)]
    pub batch: Option<usize>,

    /// With --batch: encoder frames of each clip, 80 ms of audio each
    #[arg(long, value_name = "N", default_value = "125", requires = "batch", value_parser = values::count)]
    pub frames: usize,

    /// With --batch: turns that are timed
    #[arg(long, value_name = "N", default_value = "5", requires = "batch", value_parser = values::count)]
    pub turns: usize,

    /// With --batch: threads to compute with [default and most: as many as the process may use]
    #[arg(short = 't', long, value_name = "N", env = "CONURE_THREADS", value_parser = values::threads)]
    pub threads: Option<usize>,

    /// Steps that are timed, after as many that are not
    #[arg(long, value_name = "N", default_value = "10000", value_parser = values::count, allow_negative_numbers = true)]
    pub steps: usize,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `conure profile`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure profile embedded speech.wav\n  \
    conure profile parakeet.gguf speech.wav --threads 1 --by node\n  \
    conure profile parakeet.gguf speech.wav --trace trace.json\n  \
    conure profile gemma.gguf --precision fast --by op\n  \
    conure profile embedded speech.wav --device openvino:CPU --by kernel,device-layer\n\n\
    Operations are nominal, bytes the least that must move. `of peak` is the greater of the parts reached of the machine's \
    f32 product rate and of its memory bandwidth (`conure bench roofline`); it is more than 100 % where data \
    stays in caches, and where rows are kept from earlier runs, which count as computed. What a device runs in a piece has no \
    operations here.")]
pub struct ProfileArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The audio file to recognise; none for a language model
    #[arg(value_name = "AUDIO")]
    pub audio: Option<PathBuf>,

    /// What a language model reads.
    #[command(flatten)]
    pub load: LoadArgs,

    /// Rows of the table
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_value = "op,layer,kernel")]
    pub by: Vec<ByArg>,

    /// Write every step for Chrome's trace viewer or Perfetto
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,

    /// How it is recognised.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// A value of `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// A row per op, the longest first
    Op,
    /// A row per layer
    Layer,
    /// A row per node
    Node,
    /// A row per kernel of a device that runs the model in pieces, as OpenVINO does, the longest first
    Kernel,
    /// A row per layer of such a device, with its kernel
    DeviceLayer,
}
