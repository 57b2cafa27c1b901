//! The command line: what can be asked for, and the help that says so.

mod bench_conv;
mod inspect;
mod language;
mod listen;
mod openvino;
mod search;
mod transcribe;
mod vad;
pub mod values;

pub use bench_conv::BenchConvArgs;
pub use inspect::{
    BenchArgs, BenchCommand, ByArg, GraphArgs, LengthsArgs, LoadArgs, MeasureArgs, PartArg, ProfileArgs,
    RooflineArgs, StartupArgs, StepArgs,
};
pub use language::{
    CacheArg, ChatArgs, GenerateArgs, GrammarArgs, PerplexityArgs, SamplingArgs, TextArgs, TokenizeArgs,
};
pub use listen::{ListenArgs, LiveFormatArg, PaceArg};
pub use openvino::{CacheArgs, CacheCommand, DevicesArgs, OpenVinoArgs};
pub use search::SearchArgs;
pub use transcribe::{DecoderArg, InputArgs, ProgressArg, TranscribeArgs, is_stdin};
pub use vad::{VadArg, VadArgs};

use crate::failure::Failure;
use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use conure_convert::TargetType;
use std::ffi::OsString;
use std::path::PathBuf;

/// Speech to text with NVIDIA Parakeet models, and language models, from one GGUF file.
#[derive(Debug, Parser)]
#[command(
    name = "conure",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes: 0 all went well, 1 something failed, 2 the command line makes no sense, 130 interrupted.\n\
                  An option beside which a variable is named can also be set by that."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Transcribe audio files
    Transcribe(Box<TranscribeArgs>),
    /// Give words as they are spoken into the microphone
    Listen(Box<ListenArgs>),
    /// Convert a .nemo archive or a Hugging Face folder (Parakeet, language models) to GGUF, or GGUF to another element type
    Convert(ConvertArgs),
    /// Store a GGUF file's weights in a smaller type, and list what that costs
    Quantize(QuantizeArgs),
    /// Show what a model is: architecture, heads, tokenizer, element types, licence
    Info(InfoArgs),
    /// List the devices that can run a model
    Devices(DevicesArgs),
    /// Say where in a recording somebody speaks
    Vad(Box<VadArgs>),
    /// List or remove the compiled models that are kept for the next start
    Cache(CacheArgs),
    /// Save named intermediate results of a model as safetensors
    Capture(CaptureArgs),
    /// Draw a model's graphs, say where they run and what memory they take
    Graph(GraphArgs),
    /// Measure how fast a model is on a recording, or what the machine can do
    Bench(BenchArgs),
    /// Show where the time of a run goes: per op, layer or node
    Profile(ProfileArgs),
    /// Talk with a language model
    Chat(Box<ChatArgs>),
    /// Continue a text with a language model
    Generate(Box<GenerateArgs>),
    /// Show the tokens that a text is for a language model
    Tokenize(TokenizeArgs),
    /// Measure how well a language model foresees a text
    Perplexity(PerplexityArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// Whether only errors and warnings are wanted on standard error.
    pub fn is_quiet(&self) -> bool {
        match self {
            Command::Transcribe(args) => args.quiet,
            Command::Listen(args) => args.quiet,
            Command::Convert(args) => args.quiet,
            Command::Quantize(args) => args.quiet,
            _ => false,
        }
    }
}

/// Which model, and what it runs on.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Compute")]
pub struct ComputeArgs {
    /// Threads to compute with [default and most: as many as the process may use]
    #[arg(short = 't', long, value_name = "N", env = "CONURE_THREADS", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,

    /// Device to compute on: `auto`, or a name that `conure devices` lists [env: CONURE_DEVICE, PARAKEET_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// Leave out a rewrite of the model's graph, or `all` of them; may be given several times. To find faults: results are
    /// the same, only slower
    #[arg(long, value_name = "NAME")]
    pub without_pass: Vec<String>,

    /// How to multiply: `exact` takes weights and activations as they are, `fast` rounds activations to 8 bits where weights
    /// are quantised, `int8` also rounds weights of 8 bits and more, to 8 bits with one scale for each output (on OpenVINO it is
    /// `fast`)
    #[arg(long, value_enum, value_name = "PRECISION", env = "CONURE_PRECISION", default_value = "exact")]
    pub precision: PrecisionArg,

    /// Of devices that compile models.
    #[command(flatten)]
    pub openvino: OpenVinoArgs,
}

impl ComputeArgs {
    /// The rewrites to run.
    ///
    /// # Errors
    /// A name that no pass has.
    pub fn passes(&self) -> Result<conure::Passes, Failure> {
        conure::Passes::without(&self.without_pass).map_err(|e| Failure::usage(e.to_string()))
    }
}

/// How products with weights are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// The weights' values times the activations as they are
    #[default]
    Exact,
    /// Products of bytes where weights are quantised: about twice as fast
    Fast,
    /// Products of bytes, of f32 and f16 weights too, with fewer scales: the fastest
    Int8,
}

impl From<PrecisionArg> for conure::Precision {
    fn from(arg: PrecisionArg) -> conure::Precision {
        match arg {
            PrecisionArg::Exact => conure::Precision::Exact,
            PrecisionArg::Fast => conure::Precision::Fast,
            PrecisionArg::Int8 => conure::Precision::Int8,
        }
    }
}

/// Element type of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightType {
    /// 32-bit floats, as trained
    F32,
    /// 16-bit floats: half the size
    F16,
    /// 16-bit floats of less precision and more range
    Bf16,
    /// 8.5 bits a value: blocks of 32 with a scale each
    #[value(name = "q8_0", alias = "q8-0")]
    Q8_0,
    /// 6.6 bits a value: blocks of 256, scales for each 16
    #[value(name = "q6_k", alias = "q6-k")]
    Q6K,
    /// 5.5 bits a value: blocks of 256, scales and minima for each 32
    #[value(name = "q5_k", alias = "q5-k")]
    Q5K,
    /// 4.5 bits a value: blocks of 256, scales and minima for each 32
    #[value(name = "q4_k", alias = "q4-k")]
    Q4K,
    /// 6 bits a value: blocks of 32 with a scale and a minimum
    #[value(name = "q5_1", alias = "q5-1")]
    Q5_1,
    /// 5.5 bits a value: blocks of 32 with a scale
    #[value(name = "q5_0", alias = "q5-0")]
    Q5_0,
    /// 5 bits a value: blocks of 32 with a scale and a minimum
    #[value(name = "q4_1", alias = "q4-1")]
    Q4_1,
    /// 4.5 bits a value: blocks of 32 with a scale
    #[value(name = "q4_0", alias = "q4-0")]
    Q4_0,
    /// 4.5 bits a value: blocks of 32 with a scale, places in a table
    #[value(name = "iq4_nl", alias = "iq4-nl")]
    Iq4Nl,
    /// 4.25 bits a value: blocks of 32 with a power of two, floats of 4 bits
    #[value(name = "mxfp4")]
    Mxfp4,
}

impl From<WeightType> for TargetType {
    fn from(arg: WeightType) -> TargetType {
        match arg {
            WeightType::F32 => TargetType::F32,
            WeightType::F16 => TargetType::F16,
            WeightType::Bf16 => TargetType::Bf16,
            WeightType::Q8_0 => TargetType::Q8_0,
            WeightType::Q6K => TargetType::Q6K,
            WeightType::Q5K => TargetType::Q5K,
            WeightType::Q4K => TargetType::Q4K,
            WeightType::Q5_1 => TargetType::Q5_1,
            WeightType::Q5_0 => TargetType::Q5_0,
            WeightType::Q4_1 => TargetType::Q4_1,
            WeightType::Q4_0 => TargetType::Q4_0,
            WeightType::Iq4Nl => TargetType::Iq4Nl,
            WeightType::Mxfp4 => TargetType::Mxfp4,
        }
    }
}

/// `conure quantize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure quantize parakeet.gguf parakeet-q8.gguf q8_0\n  \
    conure quantize parakeet.gguf parakeet-q4.gguf q4_k --keep 'joint.*' --keep '*embed*'\n  \
    conure quantize parakeet.gguf for-parakeet-cpp.gguf q6_k --compatible\n  \
    conure quantize parakeet.gguf parakeet-q4.gguf q4_k --calibrate recordings/\n\n\
    The table gives for each tensor its size and the root of its relative squared error. A matrix whose rows do not fill \
    blocks of 256 takes q5_0 instead of q4_k, q5_1 instead of q5_k, q8_0 instead of q6_k; other tensors stay as they are. With \
    --calibrate it also gives the error of the tensor's products with what the model heard, with each weight at its nearest \
    value and as it was stored; some minutes of speech such as the model is to hear are enough.")]
pub struct QuantizeArgs {
    /// The model, a GGUF file
    #[arg(value_name = "IN.gguf")]
    pub input: PathBuf,

    /// The GGUF file to write; an existing one is replaced
    #[arg(value_name = "OUT.gguf")]
    pub output: PathBuf,

    /// Element type of all matrices
    #[arg(value_name = "TYPE", value_enum)]
    pub dtype: WeightType,

    /// Tensors to leave as they are: a name in which `*` stands for any letters and `?` for one; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub keep: Vec<String>,

    /// Recordings, or folders of them, that a speech model hears first, so that weights are rounded as changes the products with
    /// what it hears least; may be given several times
    #[arg(long, value_name = "AUDIO")]
    pub calibrate: Vec<PathBuf>,

    /// Store only those tensors in another type that parakeet.cpp reads so
    #[arg(long)]
    pub compatible: bool,

    /// Threads to encode with [default and most: as many as the process may use]
    #[arg(short = 't', long, value_name = "N", env = "CONURE_THREADS", value_parser = values::threads)]
    pub threads: Option<usize>,

    /// The table as JSON, with all tensors
    #[arg(long)]
    pub json: bool,

    /// Print nothing but errors (and JSON if asked for)
    #[arg(short, long, env = "CONURE_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,
}

/// `conure convert`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure convert parakeet-tdt-0.6b-v2.nemo parakeet.gguf\n  \
    conure convert parakeet-tdt-0.6b-v2.nemo parakeet.gguf --dtype q8_0\n  \
    conure convert ./parakeet-ctc-0.6b/ parakeet.gguf --dtype f16\n\n\
    Nothing in the input is executed. The output appears under its name only when it is complete.")]
pub struct ConvertArgs {
    /// A .nemo archive (or its unpacked folder), a Hugging Face folder (safetensors, configuration, tokenizer), a file of
    /// Silero VAD (ONNX, safetensors), or a GGUF file to store in another type
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The GGUF file to write; an existing one is replaced
    #[arg(value_name = "OUT.gguf")]
    pub output: PathBuf,

    /// Element type of the linear layers' weights; the rest stays f32
    #[arg(long, value_enum, default_value = "f16", value_name = "TYPE", env = "CONURE_DTYPE")]
    pub dtype: WeightType,

    /// Name of the model, written into the file [default: the name of IN without .nemo]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Print nothing but errors
    #[arg(short, long, env = "CONURE_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,
}

/// `conure info`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  conure info\n  conure info parakeet.gguf --json")]
pub struct InfoArgs {
    /// The model, a GGUF file [default: the embedded one]
    #[arg(value_name = "MODEL", env = "CONURE_MODEL")]
    pub model: Option<PathBuf>,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `conure capture`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure capture parakeet.gguf speech.wav --list\n  \
    conure capture parakeet.gguf speech.wav --node log_mel --node encoder -o stages.safetensors\n  \
    conure capture gemma.gguf -p \"The old man\" --node blk.0,logits -o stages.safetensors\n\n\
    Tensors are f32, frames or tokens first: [T, D].")]
pub struct CaptureArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The audio file to run it on; not needed with --list
    #[arg(value_name = "AUDIO", required_unless_present_any = ["list", "prompt", "file"])]
    pub audio: Option<PathBuf>,

    /// The text to run a language model on
    #[arg(short, long, value_name = "TEXT", conflicts_with = "audio")]
    pub prompt: Option<String>,

    /// A file with that text, UTF-8; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["audio", "prompt"])]
    pub file: Option<PathBuf>,

    /// A result to keep, by its name; may be given several times, or several names with commas between them
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', required_unless_present = "list")]
    pub node: Vec<String>,

    /// The safetensors file to write
    #[arg(short, long, value_name = "FILE.safetensors", required_unless_present = "list")]
    pub output: Option<PathBuf>,

    /// List the names that can be kept, and stop
    #[arg(long)]
    pub list: bool,

    /// Compute options.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// `conure completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  conure completions bash > ~/.local/share/bash-completion/completions/conure"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// The command for these arguments, without the environment variables that must not count: those that are set to nothing
/// (`CONURE_MODEL=` is no model, not one without a name), and those of options that contradict one that is given, since
/// what is typed is meant and what is set may be old.
pub fn for_variables(command: clap::Command, given: &[OsString]) -> clap::Command {
    let empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command.mut_subcommands(|sub| {
        let beaten = beaten(&sub, given);
        let strip = |arg: clap::Arg| {
            let dropped = beaten.contains(arg.get_id()) || arg.get_env().is_some_and(empty);
            if dropped { arg.env(None) } else { arg }
        };
        sub.mut_args(strip)
    })
}

/// The environment variable from which a value that is refused comes, if it was not typed.
pub fn blamed_variable(command: &clap::Command, given: &[OsString], error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let long = shown.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let typed = |a: &OsString| {
        let option = a.to_str().and_then(|a| a.strip_prefix("--"));
        option.and_then(|a| a.strip_prefix(long)).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let short = |arg: &clap::Arg| {
        let start = arg.get_short().map(|c| format!("-{c}"));
        start.is_some_and(|s| given.iter().any(|a| a.to_str().is_some_and(|a| a.starts_with(&s))))
    };
    let arg = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .find(|a| a.get_long() == Some(long))?;
    let variable = arg.get_env()?.to_str()?;
    (!given.iter().any(typed) && !short(arg) && std::env::var_os(variable).is_some())
        .then(|| variable.to_owned())
}

/// The options of a command that contradict one among the arguments.
fn beaten(command: &clap::Command, given: &[OsString]) -> Vec<clap::Id> {
    let typed = |arg: &clap::Arg| {
        let Some(long) = arg.get_long() else { return false };
        let mut options =
            given.iter().take_while(|a| *a != "--").filter_map(|a| a.to_str()?.strip_prefix("--"));
        options.any(|a| a == long || a.strip_prefix(long).is_some_and(|rest| rest.starts_with('=')))
    };
    let mut beaten = Vec::new();
    for one in command.get_arguments() {
        for other in command.get_arg_conflicts_with(one) {
            for (arg, contradicted) in [(one, other), (other, one)] {
                if typed(arg) && !typed(contradicted) {
                    beaten.push(contradicted.get_id().clone());
                }
            }
        }
    }
    beaten
}

/// The arguments with `_` in the names of long options read as `-`: tools of this field differ in which they use.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut options = true;
    args.into_iter()
        .map(|arg| {
            options &= arg != "--";
            let Some(name) = arg.to_str().and_then(|a| a.strip_prefix("--")).filter(|_| options) else {
                return arg;
            };
            let (name, value) = name.find('=').map_or((name, ""), |at| name.split_at(at));
            format!("--{}{value}", name.replace('_', "-")).into()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn underscores_in_option_names_are_dashes() {
        for (given, expected) in [
            ("--output_format", "--output-format"),
            ("--output_dir=a_b/c_d", "--output-dir=a_b/c_d"),
            ("a_b", "a_b"),
            ("-m", "-m"),
            ("--a=b=c_d", "--a=b=c_d"),
        ] {
            assert_eq!(normalise([given.into()]), [OsString::from(expected)], "{given}");
        }
        let after = ["--", "--a_b"].map(OsString::from);
        assert_eq!(normalise(after.clone()), after);
    }

    #[test]
    fn every_option_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
