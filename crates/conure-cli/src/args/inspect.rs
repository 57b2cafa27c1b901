//! `conure graph`: looking inside a model.

use super::{ComputeArgs, values};
use clap::{Args, ValueEnum};
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
    conure graph embedded --memory\n\n\
    Symbols: T mel frames (100 a second), B items of a batch. Boxes show op, path, weights and the shape of the result; \
    a dashed frame is run tile by tile.")]
pub struct GraphArgs {
    /// The model, a GGUF file; `embedded` is the one in the program
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Where to draw it: a name that ends in .svg, .dot or .json
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["placement", "memory"])]
    pub output: Option<PathBuf>,

    /// Which graph
    #[arg(long, value_enum, value_name = "PART", default_value = "encoder")]
    pub part: PartArg,

    /// Show numbers for symbols, such as T=1000; may be given several times
    #[arg(long, value_name = "SYMBOL=N", value_delimiter = ',', value_parser = values::binding)]
    pub bind: Vec<(char, usize)>,

    /// As with this window of local attention
    #[arg(long, value_name = "W", value_parser = values::count)]
    pub local_attention: Option<usize>,

    /// Draw the graph after the rewrites that a run does, rather than as the model built it; so does --without-pass
    #[arg(long)]
    pub passes: bool,

    /// Print which nodes the device runs, in how many pieces, and why not the rest; show it in the drawing
    #[arg(long)]
    pub placement: bool,

    /// Print the memory that intermediates take, in full and in local attention, for some lengths or that of --bind T=N
    #[arg(long)]
    pub memory: bool,

    /// What it would run on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
