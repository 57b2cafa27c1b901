//! `conure transcribe`.

use super::{many, model};
use crate::args::{InputArgs, TranscribeArgs, is_stdin};
use crate::failure::{Exit, Failure};
use crate::inputs::{self, Input};
use crate::interrupt::Interrupt;
use crate::output::{Inputs, need_stdout, note, shown, to_file, to_stdout, warning};
use crate::progress::{FileProgress, Progress};
use crate::targets::{Targets, targets};
use conure::audio::Mix;
use conure::format::{self, FormatOptions, OutputFormat};
use conure::{
    AudioOptions, AudioSource, DecodeOptions, RecogniseOptions, SpeechModel, TranscribeOptions, Transcript,
};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Most seconds of a line behind its times where nothing else is asked for.
const LINE_SECONDS: f64 = 15.0;

/// Transcribes every file; one that fails does not stop the others.
///
/// # Errors
/// What keeps all files from being transcribed: a model that cannot be loaded, arguments that make no sense.
pub fn run(args: &TranscribeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    args.check().map_err(Failure::usage)?;
    if args.output.output_dir.is_none() && args.many.output_manifest.is_none() {
        need_stdout()?;
    }
    if args.inputs().iter().any(|i| is_stdin(i)) {
        refuse_terminal()?;
    }
    if args.live.stream {
        return super::stream::run(args, interrupt);
    }
    let inputs = inputs::collect(args)?;
    args.check_count(inputs.list.len()).map_err(Failure::usage)?;
    let formats = args.formats();
    let read = read(args, &inputs.list);
    if let Some(path) = &args.many.output_manifest {
        for path in [path, &crate::manifest::journal(path)] {
            read.spare(path, "give another name with --output-manifest")?;
        }
    }
    if let Some(idle) = args.idle().filter(|_| !args.quiet) {
        note(&idle);
    }
    let job = Prepared {
        targets: targets(&inputs.list, args.output.output_dir.as_deref(), &formats, &read)?,
        audio: audio_options(args),
        options: transcribe_options(args, interrupt)?,
        format: format_options(args),
    };
    if inputs.list.len() == 1
        && inputs.failures.is_empty()
        && !args.many.resume
        && args.many.manifest.is_none()
    {
        return one(args, interrupt, job, &inputs.list[0]);
    }
    many::run(args, interrupt, job, inputs)
}

/// All files that the work reads.
fn read(args: &TranscribeArgs, inputs: &[Input]) -> Inputs {
    let model = args.model.as_ref().filter(|_| !model::is_embedded(args.model.as_deref()));
    let vad = args.recognition.vad.as_ref().and_then(|v| v.model());
    inputs
        .iter()
        .fold(Inputs::default(), |read, input| read.with("an input", &input.path))
        .and("the model", model)
        .and("the model for --vad", vad)
        .and("the list of --hot-words", args.search.hot_words.as_ref())
        .and("the --manifest", args.many.manifest.as_ref())
}

/// Transcribes one input.
fn one(args: &TranscribeArgs, interrupt: &Interrupt, job: Prepared, input: &Input) -> Result<Exit, Failure> {
    let job = job.load(args)?;
    let progress = Progress::new(args, 1);
    match job.each(input, interrupt, &progress, 0)? {
        Ok(transcript) => {
            job.announce_result(&shown(&input.path), &transcript, args.quiet);
            job.write(0, &transcript)?;
            Ok(Exit::Success)
        }
        Err(failure) => {
            failure.print();
            Ok(failure.exit())
        }
    }
}

/// What the arguments come to, without a model yet.
pub(super) struct Prepared {
    pub audio: AudioOptions,
    pub options: TranscribeOptions,
    pub format: FormatOptions,
    pub targets: Targets,
}

impl Prepared {
    /// Loads the model and says so.
    ///
    /// # Errors
    /// A model that cannot be loaded, or cannot do what was asked for.
    pub fn load(self, args: &TranscribeArgs) -> Result<Job, Failure> {
        let model = model::load(args.model.as_deref(), &args.compute)?;
        // What the model cannot do it can do for no file: said once, before the work.
        let (recogniser, wanted) = (model.recogniser(), &self.options.recognise);
        recogniser
            .head(wanted.decoder)
            .and_then(|_| recogniser.language(wanted))
            .map_err(|error| Failure::new("the model cannot do what was asked for").because(error))?;
        if !args.quiet {
            announce(&model, model::is_embedded(args.model.as_deref()));
        }
        let Prepared { audio, mut options, format, targets } = self;
        options.recognise.search = args.search.search(&model)?;
        Ok(Job { model, audio, options, format, targets })
    }
}

/// What is the same for every file.
pub(super) struct Job {
    pub model: SpeechModel,
    pub audio: AudioOptions,
    pub options: TranscribeOptions,
    pub format: FormatOptions,
    pub targets: Targets,
}

impl Job {
    /// Transcribes an input by itself, which may be a pipe, with a progress of its own.
    ///
    /// # Errors
    /// The inner one is that of the input; the outer one an interruption.
    pub fn each(
        &self,
        input: &Input,
        interrupt: &Interrupt,
        progress: &Progress,
        index: usize,
    ) -> Result<Result<Transcript, Failure>, Failure> {
        let shown = shown(&input.path);
        let bar = progress.file(index, &shown);
        let farewell = bar.clone();
        interrupt.before_leaving(move || farewell.failed("interrupted"));
        let done = model::contained(&format!("cannot transcribe {shown}"), || {
            self.transcribe(&input.path, interrupt, &bar)
        });
        if interrupt.requested() {
            // Whatever it says: a read that was cut short is no fault of the file.
            bar.failed("interrupted");
            return Err(Failure::interrupted());
        }
        // The bar goes before anything is printed.
        match &done {
            Ok(transcript) => bar.done(transcript.duration),
            Err(failure) => bar.failed(&failure.summary()),
        }
        Ok(done)
    }

    fn transcribe(
        &self,
        input: &Path,
        interrupt: &Interrupt,
        bar: &FileProgress,
    ) -> Result<Transcript, Failure> {
        let mut options = self.options.clone();
        options.recognise.progress = bar.watcher();
        self.model
            .transcribe_file(source(input, interrupt)?, &self.audio, &options)
            .map_err(|error| failed(input, error))
    }

    /// Says what there is to say about a transcript.
    pub fn announce_result(&self, shown: &str, transcript: &Transcript, quiet: bool) {
        for text in &transcript.warnings {
            warning(&format!("{shown}: {text}"));
        }
        if transcript.text.is_empty() && !quiet {
            note(&format!("{shown}: no words in {:.2} s of audio", transcript.duration));
        }
    }

    /// Writes a transcript where it belongs. `false`: nobody reads standard output any more.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, index: usize, transcript: &Transcript) -> Result<bool, Failure> {
        let files = match &self.targets {
            Targets::Stdout(format) => {
                return to_stdout(|out| format::write(transcript, *format, &self.format, out));
            }
            Targets::Files(files) => files.get(index).map(Vec::as_slice).unwrap_or_default(),
        };
        for (format, path) in files {
            let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            folder
                .and_then(|()| to_file(path, |out| format::write(transcript, *format, &self.format, out)))
                .map_err(|e| {
                    Failure::new(format!("cannot write {}", crate::output::shown(path))).because(e)
                })?;
        }
        Ok(true)
    }
}

/// Why an input was not transcribed.
pub(super) fn failed(input: &Path, error: conure::Error) -> Failure {
    let failure = model::failed(format!("cannot transcribe {}", shown(input)), error);
    if input.is_dir() { failure.advice("--recursive transcribes what is in a folder") } else { failure }
}

/// What an input is read from.
///
/// # Errors
/// If it is standard input and a person types there.
pub fn source(input: &Path, interrupt: &Interrupt) -> Result<AudioSource, Failure> {
    source_through(input, |pipe| Box::new(interrupt.waits(pipe)))
}

/// The same for what is heard as it comes: a pipe ends with the first Ctrl-C.
///
/// # Errors
/// As [`source`].
pub fn live_source(input: &Path, interrupt: &Interrupt) -> Result<AudioSource, Failure> {
    source_through(input, |pipe| Box::new(interrupt.ends(pipe)))
}

type Reader = Box<dyn Read + Send>;

fn source_through(input: &Path, guard: impl FnOnce(Reader) -> Reader) -> Result<AudioSource, Failure> {
    if is_stdin(input) {
        refuse_terminal()?;
        return Ok(AudioSource::reader("standard input", guard(Box::new(std::io::stdin()))));
    }
    // A pipe with a name, which is opened when it is read: opening it waits for its writer.
    let is_pipe = std::fs::metadata(input).is_ok_and(|m| !m.is_file() && !m.is_dir());
    if is_pipe {
        let pipe = Pipe { path: input.to_path_buf(), file: None };
        return Ok(AudioSource::reader(shown(input), guard(Box::new(pipe))));
    }
    Ok(AudioSource::path(input))
}

/// A file that is opened by the first read.
struct Pipe {
    path: PathBuf,
    file: Option<File>,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        file.read(buffer)
    }
}

/// Nobody types audio.
fn refuse_terminal() -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("standard input is a terminal")
        .advice("pipe audio into it: ffmpeg -i FILE -f wav - | conure transcribe -"))
}

pub(super) fn audio_options(args: &TranscribeArgs) -> AudioOptions {
    AudioOptions { speakers: args.recognition.speakers.is_some(), ..input_options(&args.input) }
}

/// How an input is read.
pub(super) fn input_options(input: &InputArgs) -> AudioOptions {
    AudioOptions {
        decode: DecodeOptions { raw: input.raw, strict: input.strict, ..DecodeOptions::default() },
        mix: input.channel.map_or(Mix::All, Mix::Channel),
        start: input.start.unwrap_or(0.0),
        duration: input.duration,
        ..AudioOptions::default()
    }
}

fn transcribe_options(args: &TranscribeArgs, interrupt: &Interrupt) -> Result<TranscribeOptions, Failure> {
    let recognition = &args.recognition;
    Ok(TranscribeOptions {
        recognise: RecogniseOptions {
            decoder: recognition.decoder.decoder(),
            language: recognition.language.clone().filter(|l| !l.is_empty()),
            local_attention: recognition.local_attention,
            cancel: Some(interrupt.flag().clone()),
            ..RecogniseOptions::default()
        },
        tokens: args.output.tokens,
        tight_words: recognition.tight_words,
        segment_gap: recognition.silence_gap,
        segments: recognition.segments.rule(),
        max_words: args.output.max_words,
        max_duration: args.output.max_duration,
        window: recognition.window,
        vad: recognition.vad.as_ref().map(super::vad::detector).transpose()?,
    })
}

fn format_options(args: &TranscribeArgs) -> FormatOptions {
    let output = &args.output;
    let watched = output.output_dir.is_none() && std::io::stdout().is_terminal();
    let timestamps = output.timestamps || output.word_timestamps || (watched && !output.no_timestamps);
    let txt_only = args.formats() == [OutputFormat::Txt];
    let unlimited = output.max_words.is_none() && output.max_duration.is_none();
    FormatOptions {
        timestamps,
        max_words: if output.word_timestamps { Some(1) } else { output.max_words },
        // A text without punctuation is one segment: behind its times it would be one endless line.
        max_duration: if timestamps && txt_only && unlimited {
            Some(LINE_SECONDS)
        } else {
            output.max_duration
        },
        max_line_width: output.max_line_width,
        max_lines: output.max_lines,
        highlight_words: output.highlight_words,
    }
}

/// Says which model runs on what, and for the embedded one how to get a better one.
pub(super) fn announce(model: &SpeechModel, embedded: bool) {
    let (info, cpu) = (model.info(), model.recogniser().cpu());
    let types: Vec<&str> = info.dtypes.keys().map(String::as_str).collect();
    note(&format!(
        "{} ({}; weights {}) on {} ({}, {} threads)",
        crate::output::clean(info.name.as_deref().unwrap_or(&info.file)),
        info.decoders.join(", "),
        types.join(" and "),
        model.recogniser().device().name(),
        cpu.isa(),
        cpu.threads().count(),
    ));
    if embedded {
        note(
            "no model was named, so the small English one in the program is used. It is for first steps, and\n  \
             not a good general recogniser. For a full-size one, download the .nemo file of an NVIDIA Parakeet\n  \
             model, such as nvidia/parakeet-tdt-0.6b-v2 on Hugging Face, and convert it once:\n    \
             conure convert parakeet-tdt-0.6b-v2.nemo parakeet.gguf\n    \
             conure transcribe -m parakeet.gguf FILE",
        );
    }
}
