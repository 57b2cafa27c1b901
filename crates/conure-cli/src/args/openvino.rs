//! What is asked of OpenVINO, and the commands about devices.

use super::values;
use clap::{Args, Subcommand};

/// How OpenVINO deals with memory.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "OpenVINO")]
pub struct OpenVinoArgs {
    /// Spare memory at the cost of time: sets the two options below, unless they are set themselves
    #[arg(long, env = "CONURE_OPENVINO_MEMORY_OPTIMIZE", value_parser = values::switch)]
    pub memory_optimize: bool,

    /// Need less memory while a model is compiled
    #[arg(
        long,
        value_name = "yes|no",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
        env = "CONURE_OPENVINO_REDUCE_COMPILE_MEM",
        value_parser = values::switch
    )]
    pub reduce_compile_mem: Option<bool>,

    /// Give back the memory of weights that the device has copied
    #[arg(
        long,
        value_name = "yes|no",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
        env = "CONURE_OPENVINO_RELEASE_WEIGHTS",
        value_parser = values::switch
    )]
    pub release_weights: Option<bool>,
}

impl OpenVinoArgs {
    /// As the library takes them.
    pub fn memory(&self) -> conure::MemoryOptions {
        conure::MemoryOptions {
            optimize: self.memory_optimize,
            reduce_compile_mem: self.reduce_compile_mem,
            release_weights: self.release_weights,
        }
    }
}

/// `conure devices`.
#[derive(Debug, Args)]
#[command(after_help = "Environment variables for OpenVINO (docs/openvino.md says more):\n  \
    CONURE_OPENVINO_DIR                       where the library is\n  \
    CONURE_OPENVINO_DEVICE                    which device `openvino` means, such as GPU.1\n  \
    CONURE_OPENVINO_PRECISION                 exact, fast, bf16 or f16\n  \
    CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR  where compiled models are kept for the next start, or `off`\n  \
    CONURE_OPENVINO_CACHE_SIZE                how much is kept at most, such as 4G [default: 16G]\n  \
    CONURE_OPENVINO_CACHE_DIR                 a folder for OpenVINO's own cache, used instead\n  \
    CONURE_OPENVINO_MEMORY_OPTIMIZE           as the option of this name\n  \
    CONURE_OPENVINO_REDUCE_COMPILE_MEM        as the option of this name\n  \
    CONURE_OPENVINO_RELEASE_WEIGHTS           as the option of this name\n  \
    CONURE_OPENVINO_SELF_TEST                 0: do not hold compiled models to the CPU device\n  \
    CONURE_OPENVINO_STATEFUL_EXECUTION        1: the device keeps keys and values in states of its own\n  \
    CONURE_OPENVINO_FORCE_STATIC              1: models of fixed lengths, to which runs are padded, as NPUs have anyway\n  \
    CONURE_OPENVINO_PREFILL_CHUNK_SIZE        tokens of a prompt that such a model reads at once [default: 256]\n  \
    CONURE_OPENVINO_DISABLE_KV_SLICE          1: attention looks at the whole cache, filled or not\n  \
    CONURE_OPENVINO_MANUAL_GQA_ATTN           1 or 0: keys and values as they are, or repeated for the heads that share them\n  \
    CONURE_OPENVINO_PROFILING                 1: keep what every kernel takes (`conure profile` always does)\n  \
    CONURE_OPENVINO_DUMP_IR                   a folder for the text of every model that is compiled\n  \
    CONURE_OPENVINO_DEBUG_NODE                names (`conure capture --list`) whose range every run tells")]
pub struct DevicesArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `conure cache`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  conure cache list\n  conure cache clear --json\n\n\
    Compiled models are kept in the user's folder for caches, or where CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR says.")]
pub struct CacheArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: CacheCommand,
}

/// What `conure cache` does.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List them, the one used last first
    List(CacheFormArgs),
    /// Remove all
    Clear(CacheFormArgs),
}

/// How `conure cache` answers.
#[derive(Debug, Args)]
pub struct CacheFormArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}
