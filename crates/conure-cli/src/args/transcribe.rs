//! `conure transcribe`: its options, and which of them make no sense together.

use super::vad::VadArg;
use super::{ComputeArgs, SearchArgs, values};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use conure::audio::RawSpec;
use conure::format::OutputFormat;
use conure::{Decoder, Segmentation};
use std::path::{Path, PathBuf};

/// A value of `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// The text; on a terminal a line per segment behind its times
    Txt,
    /// Everything there is: text, segments, words with times and confidence
    Json,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Start, end (milliseconds) and text, separated by tabs
    Tsv,
    /// Start, end (milliseconds) and text, separated by commas
    Csv,
    /// Every format; needs --output-dir
    All,
}

impl FormatArg {
    fn formats(self) -> Vec<OutputFormat> {
        match self {
            FormatArg::Txt => vec![OutputFormat::Txt],
            FormatArg::Json => vec![OutputFormat::Json],
            FormatArg::Srt => vec![OutputFormat::Srt],
            FormatArg::Vtt => vec![OutputFormat::Vtt],
            FormatArg::Tsv => vec![OutputFormat::Tsv],
            FormatArg::Csv => vec![OutputFormat::Csv],
            FormatArg::All => OutputFormat::ALL.to_vec(),
        }
    }
}

/// A value of `--decoder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecoderArg {
    /// The transducer if the model has one, else CTC
    Auto,
    /// The CTC head
    Ctc,
    /// The RNN-T head
    Rnnt,
    /// The TDT head
    Tdt,
}

impl DecoderArg {
    /// The decoder it means.
    pub fn decoder(self) -> Decoder {
        match self {
            DecoderArg::Auto => Decoder::Auto,
            DecoderArg::Ctc => Decoder::Ctc,
            DecoderArg::Rnnt => Decoder::Rnnt,
            DecoderArg::Tdt => Decoder::Tdt,
        }
    }
}

/// A value of `--segments`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SegmentsArg {
    /// A word with `.`, `?` or `!`, as in NeMo; and a pause of --silence-gap
    Sentence,
    /// A pause, for models that write no punctuation
    Pause,
    /// Nothing: all words are one segment
    All,
}

impl SegmentsArg {
    /// The rule it means.
    pub fn rule(self) -> Segmentation {
        match self {
            SegmentsArg::Sentence => Segmentation::Sentence,
            SegmentsArg::Pause => Segmentation::Pause,
            SegmentsArg::All => Segmentation::Whole,
        }
    }
}

/// A value of `--speakers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeakersArg {
    /// Each channel is one
    Channel,
}

/// A value of `--progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    /// Nothing
    None,
    /// A bar
    Bar,
    /// One JSON object per line
    Json,
}

/// `conure transcribe`.
#[derive(Debug, Args)]
#[command(override_usage = "conure transcribe [OPTIONS] FILE...")]
#[command(after_help = "Examples:\n  \
    conure transcribe speech.wav\n  \
    conure transcribe -m parakeet.gguf interview.mp3 --output-format srt > interview.srt\n  \
    conure transcribe *.flac --output-dir out --output-format json --output-format vtt\n  \
    conure transcribe recordings --recursive --output-dir out --resume\n  \
    conure transcribe --manifest test.jsonl --output-manifest heard.jsonl\n  \
    ffmpeg -i talk.mkv -f wav - | conure transcribe -\n  \
    arecord -f S16_LE -r 16000 -d 5 -t raw | conure transcribe - --raw s16le:16000\n  \
    arecord -f S16_LE -r 16000 -t raw | \
    conure transcribe --stream -m rt.gguf - --raw s16le:16000\n\n\
    Reads WAV, FLAC, MP3, Ogg Vorbis, Opus, AAC and ALAC in M4A/MP4, AIFF, CAF, MKV and WebM, at any rate and with any \
    channels; the format is told by content, not by name. The transcript goes to standard output, everything else to \
    standard error. A file that fails does not stop the others.\n\n\
    Exit codes: 0 all went well, 1 some file failed, 2 the command line makes no sense, 130 interrupted.")]
pub struct TranscribeArgs {
    /// Audio files, and with --recursive folders; `-` is standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["file", "manifest"])]
    pub files: Vec<PathBuf>,

    /// An audio file, as another tool's option calls it
    #[arg(short = 'f', long = "file", value_name = "FILE", hide = true)]
    pub file: Vec<PathBuf>,

    /// The model, a GGUF file [default: the small English one in the program]
    #[arg(short, long, value_name = "MODEL", env = "CONURE_MODEL")]
    pub model: Option<PathBuf>,

    /// Only errors and warnings on standard error
    #[arg(short, long, env = "CONURE_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,

    /// How to show progress on standard error [default: a bar on a terminal, else none]
    #[arg(long, value_enum, value_name = "HOW", env = "CONURE_PROGRESS")]
    pub progress: Option<ProgressArg>,

    /// Hearing as it comes.
    #[command(flatten)]
    pub live: LiveArgs,

    /// Many at once.
    #[command(flatten)]
    pub many: ManyArgs,

    /// What is written.
    #[command(flatten)]
    pub output: OutputArgs,

    /// How speech becomes text.
    #[command(flatten)]
    pub recognition: RecognitionArgs,

    /// How words are searched for.
    #[command(flatten)]
    pub search: SearchArgs,

    /// What is read.
    #[command(flatten)]
    pub input: InputArgs,

    /// What it runs on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Hearing as it comes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Streaming")]
pub struct LiveArgs {
    /// Give words as they are spoken, also of a pipe that never ends: a line that grows on a terminal, else a JSON object
    /// per line; fastest with a streaming model, of others the last 20 s (--window) are heard again and again
    #[arg(long, env = "CONURE_STREAM", value_parser = FalseyValueParser::new())]
    #[arg(conflicts_with_all = ["output_dir", "word_timestamps", "max_words", "max_duration", "highlight_words", "tokens", "silence_gap", "local_attention", "vad"])]
    pub stream: bool,

    /// Frames of 80 ms that a streaming model waits for before it decides: more is better and later [default: as the model
    /// was trained first]
    #[arg(long, value_name = "N", requires = "stream", env = "CONURE_LOOK_AHEAD", value_parser = values::any_count)]
    pub look_ahead: Option<usize>,
}

/// Many at once.
#[derive(Debug, Args)]
#[command(next_help_heading = "Many files")]
pub struct ManyArgs {
    /// Of a folder, all audio in it and in its folders, hidden ones left out; --output-dir gets the same folders
    #[arg(short, long, env = "CONURE_RECURSIVE", value_parser = FalseyValueParser::new(), conflicts_with = "stream")]
    pub recursive: bool,

    /// Transcribe what a NeMo manifest lists: a JSON object per line with audio_filepath and, for a part of a file, offset and
    /// duration; `-` is standard input. Each line is answered by itself with pred_text added
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["files", "file", "recursive", "stream"])]
    #[arg(conflicts_with_all = ["output_dir", "output_format", "start", "duration"])]
    pub manifest: Option<PathBuf>,

    /// Where the answers to a manifest go [default: standard output]
    #[arg(long, value_name = "FILE.jsonl")]
    pub output_manifest: Option<PathBuf>,

    /// Take up a run that was stopped: what has its output already, whole, is passed over
    #[arg(long, env = "CONURE_RESUME", value_parser = FalseyValueParser::new())]
    pub resume: bool,
}

/// What is written, and where.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Format of the transcript; may be given several times with --output-dir
    #[arg(long, value_enum, value_name = "FORMAT", value_delimiter = ',', env = "CONURE_OUTPUT_FORMAT")]
    #[arg(default_value = "txt", hide_default_value = false)]
    pub output_format: Vec<FormatArg>,

    /// Write a file per input and format into this folder, which is made if needed, instead of to standard output
    #[arg(short, long, value_name = "DIR", env = "CONURE_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,

    /// In txt, each segment on a line behind its times, also where that is not the default
    #[arg(long, conflicts_with = "no_timestamps", env = "CONURE_TIMESTAMPS", value_parser = FalseyValueParser::new())]
    pub timestamps: bool,

    /// In txt, the bare text also on a terminal
    #[arg(long, env = "CONURE_NO_TIMESTAMPS", value_parser = FalseyValueParser::new())]
    pub no_timestamps: bool,

    /// A line or subtitle per word (in json, words always have their times)
    #[arg(long, conflicts_with_all = ["max_words", "max_duration"], env = "CONURE_WORD_TIMESTAMPS")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub word_timestamps: bool,

    /// Most words of a segment, line or subtitle
    #[arg(long, value_name = "N", env = "CONURE_MAX_WORDS", value_parser = values::count)]
    pub max_words: Option<usize>,

    /// Most seconds of a segment, line or subtitle; longer ones are cut where speech pauses, or at a comma
    #[arg(long, value_name = "S", env = "CONURE_MAX_DURATION", value_parser = values::some_seconds, allow_negative_numbers = true)]
    pub max_duration: Option<f64>,

    /// In srt and vtt, most characters of a line; longer texts get several lines
    #[arg(long, value_name = "N", env = "CONURE_MAX_LINE_WIDTH", value_parser = values::count)]
    pub max_line_width: Option<usize>,

    /// In srt and vtt, most lines of a subtitle [default: 2]
    #[arg(long, visible_alias = "max-line-count", value_name = "N", requires = "max_line_width")]
    #[arg(env = "CONURE_MAX_LINES", value_parser = values::count)]
    pub max_lines: Option<usize>,

    /// In srt and vtt, underline each word while it is spoken
    #[arg(long, env = "CONURE_HIGHLIGHT_WORDS", value_parser = FalseyValueParser::new())]
    pub highlight_words: bool,

    /// In json, also the tokens with their frames, durations and confidence
    #[arg(long, env = "CONURE_TOKENS", value_parser = FalseyValueParser::new())]
    pub tokens: bool,
}

/// How speech becomes text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recognition")]
pub struct RecognitionArgs {
    /// Which head of the model decodes
    #[arg(long, value_enum, default_value = "auto", value_name = "DECODER", env = "CONURE_DECODER")]
    pub decoder: DecoderArg,

    /// Language of the speech, for models that are told one, such as de or de-DE
    #[arg(short, long, value_name = "LANG", env = "CONURE_LANGUAGE")]
    pub language: Option<String>,

    /// What ends a segment
    #[arg(long, value_enum, default_value = "sentence", value_name = "WHERE", env = "CONURE_SEGMENTS")]
    pub segments: SegmentsArg,

    /// Silence in seconds between two words that ends a segment; without it only `.`, `?` and `!` do, and with --segments pause
    /// half a second
    #[arg(long, value_name = "S", env = "CONURE_SILENCE_GAP", value_parser = values::some_seconds, allow_negative_numbers = true)]
    pub silence_gap: Option<f64>,

    /// Words end where their last token was spoken, not at the end of the pause that NeMo's rule gives them
    #[arg(long, env = "CONURE_TIGHT_WORDS", value_parser = FalseyValueParser::new())]
    pub tight_words: bool,

    /// Let attention see only so many frames of 80 ms to each side; memory then grows slowly with length
    #[arg(long, value_name = "W", env = "CONURE_LOCAL_ATTENTION", value_parser = values::count)]
    pub local_attention: Option<usize>,

    /// Longest piece in seconds that is recognised at once: longer recordings are heard in windows that overlap; 0: everything
    /// at once, as NeMo does, which takes memory and time for it [default: up to 400 s at once, else windows of 60 s]
    #[arg(long, value_name = "S", env = "CONURE_WINDOW", value_parser = values::window, allow_negative_numbers = true)]
    pub window: Option<f64>,

    /// Leave out where nobody speaks, as `energy` (by level) or the GGUF file of Silero VAD says [default: everything is
    /// heard]
    #[arg(long, value_name = "HOW", env = "CONURE_VAD")]
    pub vad: Option<VadArg>,

    /// Tell speakers apart, and say who speaks: each channel is one and is transcribed by itself
    #[arg(long, value_enum, value_name = "HOW", env = "CONURE_SPEAKERS", conflicts_with_all = ["channel", "stream"])]
    pub speakers: Option<SpeakersArg>,
}

/// What is read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub struct InputArgs {
    /// The input has no header and is this: FORMAT:RATE[:CHANNELS], such as s16le:16000:1
    #[arg(long, value_name = "SPEC", env = "CONURE_RAW")]
    pub raw: Option<RawSpec>,

    /// Use this channel only, counted from 0 [default: all channels mixed]
    #[arg(long, value_name = "N", env = "CONURE_CHANNEL", value_parser = values::channel, allow_negative_numbers = true)]
    pub channel: Option<usize>,

    /// Skip so much at the beginning: seconds or hours:minutes:seconds
    #[arg(long, value_name = "TIME", env = "CONURE_START", value_parser = values::seconds, allow_negative_numbers = true)]
    pub start: Option<f64>,

    /// Transcribe only so much: seconds or hours:minutes:seconds
    #[arg(long, value_name = "TIME", env = "CONURE_DURATION", value_parser = values::some_seconds, allow_negative_numbers = true)]
    pub duration: Option<f64>,

    /// A damaged file is an error instead of a warning
    #[arg(long, env = "CONURE_STRICT", value_parser = FalseyValueParser::new())]
    pub strict: bool,
}

impl TranscribeArgs {
    /// Every input, in order.
    pub fn inputs(&self) -> Vec<PathBuf> {
        self.file.iter().chain(&self.files).cloned().collect()
    }

    /// The formats asked for, each once.
    pub fn formats(&self) -> Vec<OutputFormat> {
        let mut formats = Vec::new();
        for format in self.output.output_format.iter().flat_map(|f| f.formats()) {
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
        formats
    }

    /// What makes no sense in this combination, in words with what to do.
    pub fn check(&self) -> Result<(), String> {
        let formats = self.formats();
        let inputs = self.inputs();
        if inputs.iter().filter(|p| is_stdin(p)).count() > 1 {
            return Err("standard input (`-`) can be read only once".to_owned());
        }
        if self.live.stream && inputs.len() > 1 {
            return Err("--stream hears one input".to_owned());
        }
        if self.live.stream && self.recognition.decoder != DecoderArg::Auto {
            return Err("--stream decodes with the model's transducer: leave --decoder out".to_owned());
        }
        if self.live.stream && formats.iter().any(|f| !matches!(f, OutputFormat::Txt | OutputFormat::Json)) {
            return Err("--stream writes txt or json: other formats need the whole transcript".to_owned());
        }
        if self.many.output_manifest.is_some() && self.many.manifest.is_none() {
            return Err("--output-manifest holds the answers to a --manifest: give one".to_owned());
        }
        if self.many.resume && self.output.output_dir.is_none() && self.many.output_manifest.is_none() {
            return Err(
                "--resume looks at the outputs there are: give --output-dir DIR, or with --manifest \
                        --output-manifest FILE"
                    .to_owned(),
            );
        }
        self.search.check()?;
        if self.output.output_dir.is_none() && formats.len() > 1 {
            return Err(
                "several formats do not go to standard output together: give --output-dir DIR".to_owned()
            );
        }
        self.check_count(inputs.len())
    }

    /// What was asked for that the formats asked for do not hold, in words.
    pub fn idle(&self) -> Option<String> {
        let formats = self.formats();
        let holds = |list: &[OutputFormat]| formats.iter().any(|f| list.contains(f));
        let output = &self.output;
        let options = [
            (output.tokens, "--tokens", "json", holds(&[OutputFormat::Json])),
            (
                output.highlight_words,
                "--highlight-words",
                "srt and vtt",
                holds(&[OutputFormat::Srt, OutputFormat::Vtt]),
            ),
        ];
        let (_, option, where_, _) = options.into_iter().find(|(set, .., used)| *set && !used)?;
        Some(format!("{option} changes nothing here: it is for --output-format {where_}"))
    }

    /// What makes no sense with so many inputs.
    pub fn check_count(&self, inputs: usize) -> Result<(), String> {
        match self.formats().first() {
            Some(
                format @ (OutputFormat::Srt | OutputFormat::Vtt | OutputFormat::Tsv | OutputFormat::Csv),
            ) if inputs > 1 && self.output.output_dir.is_none() => {
                Err(format!("{format} holds one transcript: for several files give --output-dir DIR"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether this is standard input.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command, normalise};
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<TranscribeArgs, String> {
        let args = std::iter::once("conure").chain(line.split_whitespace()).map(Into::into);
        match Cli::try_parse_from(normalise(args)).map_err(|e| e.to_string())?.command {
            Command::Transcribe(args) => args.check().map(|()| *args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_understood() {
        let args = parse(
            "transcribe a.wav - -m x.gguf --output_format json,srt --output-format json --output-dir out --decoder ctc \
             -t 3 --language de --local_attention 128 --raw s16le:8000:2 --channel 1 --start 1:00 --duration 2.5 \
             --tokens --max-words 7 --max_duration 3 --highlight-words --strict --quiet --progress json --device cpu",
        )
        .unwrap();
        assert_eq!(args.inputs(), [PathBuf::from("a.wav"), PathBuf::from("-")]);
        assert_eq!(args.formats(), [OutputFormat::Json, OutputFormat::Srt]);
        assert_eq!((args.compute.threads, args.compute.device.as_deref()), (Some(3), Some("cpu")));
        assert_eq!(
            (args.input.start, args.input.duration, args.input.channel),
            (Some(60.0), Some(2.5), Some(1))
        );
        assert_eq!(args.input.raw.map(|r| r.to_string()).as_deref(), Some("s16le:8000:2"));
        assert_eq!(args.recognition.local_attention, Some(128));
        assert!(args.output.tokens && args.output.highlight_words && args.input.strict && args.quiet);
        assert_eq!(parse("transcribe -f a.wav b.wav").unwrap().inputs().len(), 2);
        assert_eq!(parse("transcribe a --output-format all -o x").unwrap().formats().len(), 6);
        assert!(parse("transcribe a -r -o x --resume").unwrap().many.recursive);
        assert!(parse("transcribe --manifest - --output-manifest o --resume").unwrap().inputs().is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, part) in [
            ("transcribe", "FILE"),
            ("transcribe a --output-format pdf", "possible values"),
            ("transcribe a --output-format json --output-format srt", "--output-dir"),
            ("transcribe a b --output-format vtt", "vtt holds one transcript"),
            ("transcribe - -", "only once"),
            ("transcribe a --n-best 3", "--beam"),
            ("transcribe a --hot-word-weight 3", "--hot-words"),
            ("transcribe a --stream --beam 3", "cannot be used with"),
            ("transcribe a --resume", "--output-dir"),
            ("transcribe a --manifest m", "cannot be used with"),
            ("transcribe --manifest m --output-dir o", "cannot be used with"),
            ("transcribe --manifest m --start 3", "cannot be used with"),
            ("transcribe --manifest m --resume", "--output-manifest"),
            ("transcribe a --output-manifest m", "--manifest"),
            ("transcribe a --threads 0", "1 to 1024"),
            ("transcribe a --decoder beam", "possible values"),
            ("transcribe a --raw s16:1:1", "s16le"),
            ("transcribe a --start x", "hours:minutes:seconds"),
            ("transcribe a --duration 0", "more than 0"),
            ("transcribe a --local-attention 0", "from 1 to 1000000000"),
            ("transcribe a --channel -1", "from 0 to"),
            ("transcribe a --stream --output-format srt", "txt or json"),
            ("transcribe a --stream --highlight-words", "cannot be used with"),
            ("transcribe a --stream --decoder ctc", "leave --decoder out"),
            ("transcribe a --timestamps --no-timestamps", "cannot be used with"),
            ("transcribe a --word-timestamps --max-words 3", "cannot be used with"),
            ("transcribe a --nonsense", "--nonsense"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
