//! `conure bench conv`.

use super::values;
use clap::Args;

/// `conure bench conv`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  conure bench conv --json\n  conure bench conv --case whisper --turns 20\n\n\
    Both forms of a case take turns; times are medians, the ratio is the median of the turns' ratios. Both are held to the \
    reference of the f32 form: a result that is off is an error. On OpenVINO a third form is measured, im2col by OpenVINO's operation for patches as an \
    op-by-op lowering has it, where Conure writes slices; its ratio is to the fused form too."
)]
pub struct BenchConvArgs {
    /// Only cases whose name contains this
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,

    /// Turns of each case [default: two seconds of them, at least five]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true)]
    pub turns: Option<usize>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// Threads to compute with [default and most: as many as the process may use]
    #[arg(short = 't', long, value_name = "N", env = "CONURE_THREADS", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,

    /// Device to compute on: `auto`, or a name that `conure devices` lists [env: CONURE_DEVICE, PARAKEET_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}
