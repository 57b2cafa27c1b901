//! `conure transcribe` of many inputs: in batches, in the order asked for, going on after a fault and after a stop.

use super::model;
use super::transcribe::{self, Job, Prepared};
use crate::args::TranscribeArgs;
use crate::failure::{Exit, Failure};
use crate::inputs::{Input, Inputs};
use crate::interrupt::Interrupt;
use crate::manifest::{Answers, Entry};
use crate::output::{note, shown, to_stdout, warning};
use crate::progress::{JobProgress, Progress};
use crate::targets::Targets;
use conure::format::OutputFormat;
use conure::{FilesEvent, Transcript};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Failures that the summary names; the rest it counts.
const NAMED: usize = 20;

/// Transcribes all inputs.
///
/// # Errors
/// What keeps all of them from being transcribed; an interruption, before which all that was complete is written.
pub fn run(
    args: &TranscribeArgs,
    interrupt: &Interrupt,
    job: Prepared,
    inputs: Inputs,
) -> Result<Exit, Failure> {
    let Inputs { list, failures } = inputs;
    let total = list.len() + failures.len();
    let mut tally = Tally::default();
    for failure in failures {
        failure.print();
        tally.failed.push(failure.summary());
    }
    let answers = match &args.many.output_manifest {
        Some(path) => {
            let begun = Answers::begin(path, &list, args.many.resume);
            Some(begun.map_err(|e| Failure::new(format!("cannot write {}", shown(path))).because(e))?)
        }
        None => None,
    };
    let has = |index: usize| answers.as_ref().map_or_else(|| is_done(&job.targets, index), |a| a.has(index));
    let todo: Vec<usize> = (0..list.len()).filter(|&i| !args.many.resume || !has(i)).collect();
    tally.skipped = list.len() - todo.len();
    if !todo.is_empty() {
        let job = job.load(args)?;
        let progress = Progress::new(args, todo.len());
        let mut many = Many {
            args,
            job: &job,
            list: &list,
            todo: &todo,
            bar: progress.job(),
            interrupt,
            answers,
            held: BTreeMap::new(),
            told: 0,
            tally,
        };
        let done = many.all(&progress);
        many.bar.end();
        let Many { answers: rest, tally: counted, .. } = many;
        done?;
        return finish(args, total, rest, &counted);
    }
    finish(args, total, answers, &tally)
}

/// Whether an earlier run wrote all outputs of an input. Files take their names when they are complete.
fn is_done(targets: &Targets, index: usize) -> bool {
    let whole = |format: OutputFormat, path: &Path| match format {
        // Another program may have left half of one.
        OutputFormat::Json => {
            std::fs::read(path).is_ok_and(|bytes| serde_json::from_slice::<Transcript>(&bytes).is_ok())
        }
        _ => path.is_file(),
    };
    match targets {
        Targets::Stdout(_) => false,
        Targets::Files(files) => {
            files.get(index).is_some_and(|files| files.iter().all(|(format, path)| whole(*format, path)))
        }
    }
}

/// What became of the inputs.
#[derive(Debug, Default)]
struct Tally {
    done: usize,
    /// Done by an earlier run.
    skipped: usize,
    /// Names and reasons.
    failed: Vec<String>,
    /// Seconds of audio.
    audio: f64,
    /// Seconds of work.
    took: f64,
}

/// Says what became of all, and puts the answers to a manifest in place.
fn finish(
    args: &TranscribeArgs,
    total: usize,
    answers: Option<Answers>,
    tally: &Tally,
) -> Result<Exit, Failure> {
    if let (Some(answers), Some(path)) = (answers, &args.many.output_manifest) {
        answers.finish().map_err(|e| Failure::new(format!("cannot write {}", shown(path))).because(e))?;
    }
    let Tally { done, skipped, failed, audio, took } = tally;
    if !args.quiet {
        let earlier = if *skipped > 0 { format!(", {skipped} done before") } else { String::new() };
        let audio_text = if *audio < 3600.0 {
            format!("{:.1} minutes", audio / 60.0)
        } else {
            format!("{:.2} hours", audio / 3600.0)
        };
        let rate = audio / took.max(f64::MIN_POSITIVE);
        note(&format!(
            "{done} of {total} files transcribed{earlier}, {} failed: {audio_text} of audio in {took:.1} s, \
             {rate:.1} times as fast as speech",
            failed.len()
        ));
    }
    if failed.is_empty() {
        return Ok(Exit::Success);
    }
    let mut text = format!("{} of {total} files failed:", failed.len());
    failed.iter().take(NAMED).for_each(|line| text.push_str(&format!("\n  {line}")));
    if failed.len() > NAMED {
        text.push_str(&format!("\n  and {} more, named above", failed.len() - NAMED));
    }
    warning(&text);
    Ok(Exit::Failed)
}

/// The work on many inputs.
struct Many<'a> {
    args: &'a TranscribeArgs,
    job: &'a Job,
    list: &'a [Input],
    /// Those of the list that are to be done, in order.
    todo: &'a [usize],
    bar: JobProgress,
    interrupt: &'a Interrupt,
    answers: Option<Answers>,
    /// What goes to standard output and waits for those before it; `None`: it failed and gives nothing.
    held: BTreeMap<usize, Option<Held>>,
    /// How many of `todo` were told on standard output.
    told: usize,
    tally: Tally,
}

enum Held {
    Transcript(Box<Transcript>),
    Line(String),
}

impl Many<'_> {
    /// All that is to do: files in a row together, pipes by themselves.
    fn all(&mut self, progress: &Progress) -> Result<(), Failure> {
        let begun = Instant::now();
        let farewell = self.bar.clone();
        self.interrupt.before_leaving(move || farewell.end());
        let todo = self.todo;
        let result = todo
            .chunk_by(|&a, &b| [a, b].iter().all(|&i| self.list[i].is_file() && self.fault(i).is_none()))
            .map(|run| run.to_vec())
            .collect::<Vec<_>>()
            .iter()
            .try_for_each(|run| match run.as_slice() {
                &[one] => match self.fault(one) {
                    Some(why) => {
                        let failure = Failure::new("cannot use a line of the manifest").reason(why);
                        self.settle(one, Err(failure))
                    }
                    None if self.list[one].is_file() => self.files(run),
                    None => self.pipe(one, progress),
                },
                run => self.files(run),
            });
        self.tally.took = begun.elapsed().as_secs_f64();
        if self.interrupt.requested() {
            let stopped = Failure::interrupted();
            let lasting = self.args.output.output_dir.is_some() || self.args.many.output_manifest.is_some();
            return Err(if lasting {
                let done = self.tally.done + self.tally.skipped;
                stopped
                    .reason(format!("{done} of {} are done", self.list.len()))
                    .advice("the same command with --resume goes on from there")
            } else {
                stopped
            });
        }
        match result {
            // Nobody reads standard output any more: the rest has nobody to go to.
            Ok(()) | Err(None) => Ok(()),
            Err(Some(failure)) => Err(failure),
        }
    }

    /// Why a line of a manifest names nothing, if so.
    fn fault(&self, index: usize) -> Option<&str> {
        self.list[index].entry.as_ref().and_then(Entry::fault)
    }

    /// Files, recognised in batches.
    fn files(&mut self, run: &[usize]) -> Result<(), Option<Failure>> {
        let clips: Vec<_> = run.iter().map(|&i| self.list[i].clip(&self.job.audio)).collect();
        let mut options = self.job.options.clone();
        options.recognise.progress = self.bar.watcher();
        let mut stop = None;
        let (job, interrupt) = (self.job, self.interrupt);
        let result = job.model.transcribe_files(&clips, &options, |event| {
            let settled = match event {
                FilesEvent::Begun(files) => {
                    let names: Vec<(usize, String)> =
                        files.iter().map(|&i| (run[i], shown(&self.list[run[i]].path))).collect();
                    self.bar.begun(names.iter().map(|(i, name)| (*i, name.as_str())));
                    Ok(())
                }
                FilesEvent::Done(i, result) => {
                    let failed = |error| transcribe::failed(&self.list[run[i]].path, error);
                    self.settle(run[i], result.map_err(failed))
                }
            };
            match settled {
                Ok(()) if !interrupt.requested() => ControlFlow::Continue(()),
                Ok(()) => ControlFlow::Break(()),
                Err(why) => {
                    stop = Some(why);
                    ControlFlow::Break(())
                }
            }
        });
        match (stop, result) {
            (Some(why), _) => Err(why),
            (None, Err(error)) => Err(Some(model::failed("cannot transcribe", error))),
            (None, Ok(())) => Ok(()),
        }
    }

    /// An input that can be read once only, by itself.
    fn pipe(&mut self, index: usize, progress: &Progress) -> Result<(), Option<Failure>> {
        let job = self.job;
        let done = job.each(&self.list[index], self.interrupt, progress, index).map_err(Some)?;
        self.settle(index, done)
    }

    /// Writes what became of an input, or keeps it until its turn comes. `Err(None)`: nobody reads any more.
    fn settle(&mut self, index: usize, done: Result<Transcript, Failure>) -> Result<(), Option<Failure>> {
        let name = shown(&self.list[index].path);
        let written = done.and_then(|transcript| {
            self.bar.aside(|| self.job.announce_result(&name, &transcript, self.args.quiet));
            if matches!(self.job.targets, Targets::Files(_)) {
                self.job.write(index, &transcript)?;
            }
            Ok(transcript)
        });
        let summary = written.as_ref().err().map(Failure::summary);
        match &written {
            Ok(transcript) => {
                self.tally.done += 1;
                self.tally.audio += transcript.duration;
                self.bar.settled(&name, Ok(transcript.duration));
            }
            Err(failure) => {
                let summary = summary.as_deref().unwrap_or_default();
                self.tally.failed.push(format!("{name}: {summary}"));
                self.bar.settled(&name, Err(summary));
                self.bar.aside(|| failure.print());
            }
        }
        let held = match &self.list[index].entry {
            Some(entry) => {
                let heard = written.as_ref().map_err(|_| summary.as_deref().unwrap_or_default());
                Some(Held::Line(entry.answer(heard, self.args.output.word_timestamps)))
            }
            None => written.ok().map(|t| Held::Transcript(Box::new(t))),
        };
        self.hold(index, held, summary.is_none())
    }

    fn hold(&mut self, index: usize, held: Option<Held>, heard: bool) -> Result<(), Option<Failure>> {
        match (&mut self.answers, held) {
            (Some(answers), Some(Held::Line(line))) => {
                let failed = |e| Failure::new("cannot write the answers to the manifest").because(e);
                answers.push(index, line, heard).map_err(|e| Some(failed(e)))
            }
            (None, held) if matches!(self.job.targets, Targets::Stdout(_)) => {
                self.held.insert(index, held);
                self.tell()
            }
            _ => Ok(()),
        }
    }

    /// Puts out what is held and whose turn it is.
    fn tell(&mut self) -> Result<(), Option<Failure>> {
        while let Some(next) =
            self.todo.get(self.told).and_then(|i| self.held.remove(i).map(|held| (*i, held)))
        {
            self.told += 1;
            let read = match next {
                (_, None) => continue,
                (index, Some(Held::Transcript(transcript))) => self.job.write(index, &transcript),
                (_, Some(Held::Line(line))) => to_stdout(|out| writeln!(out, "{line}")),
            };
            if !read.map_err(Some)? {
                return Err(None);
            }
        }
        Ok(())
    }
}
