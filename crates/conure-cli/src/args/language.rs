//! The commands for language models: their options.

use super::{ComputeArgs, values};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where text comes from.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false, id = "text")]
pub struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,

    /// A file with the text, UTF-8; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Element type of the keys and values that a session keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheArg {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 16-bit floats of the range of f32
    Bf16,
    /// 8-bit integers in blocks of 32 with a scale each
    #[value(name = "q8_0", alias = "q8-0")]
    Q8_0,
}

/// What a session keeps, and how much.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Context")]
pub struct ContextArgs {
    /// Tokens that there is room for, prompt and answer together [default: what the model was trained for, up to 2 GiB]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true)]
    pub context: Option<usize>,

    /// Element type of the keys and values that are kept
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f16")]
    pub cache: CacheArg,

    /// Where an answer fills the context, keep the first N tokens, forget the earlier half of the others, and go on
    #[arg(long, value_name = "N", value_parser = values::any_count, allow_negative_numbers = true)]
    pub context_shift: Option<usize>,
}

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Choice of tokens")]
pub struct SamplingArgs {
    /// The higher, the more surprising; 0 always takes the likeliest token
    #[arg(long, value_name = "X", default_value = "0.8", value_parser = values::temperature, allow_negative_numbers = true)]
    pub temperature: f32,

    /// Choose among so many of the likeliest tokens; 0: among all
    #[arg(long, value_name = "N", default_value = "40", value_parser = values::any_count, allow_negative_numbers = true)]
    pub top_k: usize,

    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value = "0.95", value_parser = values::part, allow_negative_numbers = true)]
    pub top_p: f32,

    /// Choose among tokens that have at least this part of the likeliest one's probability
    #[arg(long, value_name = "P", default_value = "0.05", value_parser = values::part, allow_negative_numbers = true)]
    pub min_p: f32,

    /// Divide the logits of tokens that occurred among the last 64; 1: do not
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::repetition, allow_negative_numbers = true)]
    pub repetition_penalty: f32,

    /// Subtract from a token's logit for each time it occurred among the last 64
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::penalty, allow_negative_numbers = true)]
    pub frequency_penalty: f32,

    /// Subtract from a token's logit if it occurred among the last 64
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::penalty, allow_negative_numbers = true)]
    pub presence_penalty: f32,

    /// Where the random numbers begin: the same gives the same text [default: anywhere]
    #[arg(long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

/// What a text must be.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Form of the text (in builds with the feature grammar)")]
#[group(multiple = false, id = "form")]
pub struct GrammarArgs {
    /// JSON that this JSON schema describes: the schema itself, or a file with it
    #[arg(long, value_name = "SCHEMA|FILE")]
    pub json_schema: Option<String>,

    /// What the grammar in this file derives from `start`; llguidance's variant of Lark
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,

    /// What this regular expression matches
    #[arg(long, value_name = "PATTERN")]
    pub regex: Option<String>,
}

/// `conure generate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    conure generate -m gemma.gguf -p \"The capital of France is\" --max-tokens 20 --temperature 0\n  \
    conure generate -m gemma.gguf -f prompt.txt --json")]
pub struct GenerateArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,

    /// What to continue.
    #[command(flatten)]
    pub text: TextArgs,

    /// The most tokens [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = values::any_count, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,

    /// A text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Go on when the model ends
    #[arg(long)]
    pub ignore_eos: bool,

    /// What the text must be.
    #[command(flatten)]
    pub grammar: GrammarArgs,

    /// As JSON: prompt_ids, ids, text, logprobs, finish, seed, timings
    #[arg(long)]
    pub json: bool,

    /// With --json: probabilities, and those of so many of the likeliest tokens besides
    #[arg(long, value_name = "N", requires = "json", value_parser = values::any_count, allow_negative_numbers = true)]
    pub logprobs: Option<usize>,

    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// What the session keeps.
    #[command(flatten)]
    pub context: ContextArgs,

    /// Compute options.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// `conure chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is a message. /system TEXT sets what the model is to be, /reset forgets the chat, /save FILE \
    writes it as JSON, /quit or the end of the input ends it. Ctrl-C ends an answer.\n\nExamples:\n  \
    conure chat -m gemma.gguf\n  \
    conure chat -m gemma.gguf --chat-template gemma --system \"Answer in one sentence.\""
)]
pub struct ChatArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,

    /// What the model is to be
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Use this template instead of the file's: gemma, chatml, llama3, or a file with one in Jinja
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,

    /// The most tokens of an answer
    #[arg(short = 'n', long, value_name = "N", value_parser = values::any_count, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,

    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// What the session keeps.
    #[command(flatten)]
    pub context: ContextArgs,

    /// Compute options.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// `conure tokenize`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  conure tokenize -m gemma.gguf -p \"Hello, world\"")]
pub struct TokenizeArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,

    /// What to cut into tokens.
    #[command(flatten)]
    pub text: TextArgs,

    /// Find signs for the model, such as <end_of_turn>, in the text
    #[arg(long)]
    pub special: bool,

    /// Leave out the signs that texts of this model begin and end with
    #[arg(long)]
    pub plain: bool,

    /// As JSON: ids, pieces
    #[arg(long)]
    pub json: bool,
}

/// `conure perplexity`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  conure perplexity -m gemma.gguf -f book.txt")]
pub struct PerplexityArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,

    /// The text, a UTF-8 file; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,

    /// Tokens that are read at a time, of which the second half is scored
    #[arg(long, value_name = "N", default_value = "512", value_parser = values::count, allow_negative_numbers = true)]
    pub chunk: usize,

    /// As JSON: perplexity, error, tokens, chunks
    #[arg(long)]
    pub json: bool,

    /// Element type of the keys and values that are kept
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f16")]
    pub cache: CacheArg,

    /// Compute options.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
