//! Progress on standard error: a bar, JSON lines, or nothing.

use crate::args::TranscribeArgs;
use conure::OnProgress;
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use crate::args::ProgressArg as Kind;

/// Parts of a file that the bar counts.
const PARTS: f64 = 1000.0;

/// Shows how far the work is.
pub struct Progress {
    kind: Kind,
    total: usize,
}

/// The progress of one file; its display ends when it is done or failed.
#[derive(Clone)]
pub struct FileProgress(Arc<File>);

struct File {
    kind: Kind,
    name: String,
    /// Counted from 0.
    index: usize,
    total: usize,
    bar: ProgressBar,
    ended: AtomicBool,
}

impl Progress {
    /// Of so many inputs, as the arguments say; without a word, a bar where a person watches.
    pub fn new(args: &TranscribeArgs, total: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let kind = match args.progress {
            Some(kind) => kind,
            None if terminal && !args.quiet => Kind::Bar,
            None => Kind::None,
        };
        Progress { kind, total }
    }

    /// Begins all of them.
    pub fn job(&self) -> JobProgress {
        let bar = if self.kind == Kind::Bar { bar(self.total) } else { ProgressBar::hidden() };
        let (counts, ended) = (Mutex::default(), AtomicBool::new(false));
        JobProgress(Arc::new(Job { kind: self.kind, total: self.total, bar, counts, ended }))
    }

    /// Begins file number `index` (from 0), called `name` in messages.
    pub fn file(&self, index: usize, name: &str) -> FileProgress {
        let bar = if self.kind == Kind::Bar { bar(self.total) } else { ProgressBar::hidden() };
        let file = FileProgress(Arc::new(File {
            kind: self.kind,
            name: name.to_owned(),
            index,
            total: self.total,
            bar,
            ended: AtomicBool::new(false),
        }));
        file.event("start", serde_json::json!({ "index": index + 1, "total": self.total }));
        file.show(0.0, "");
        file
    }
}

/// The progress of many files that are recognised in batches.
#[derive(Clone)]
pub struct JobProgress(Arc<Job>);

struct Job {
    kind: Kind,
    total: usize,
    bar: ProgressBar,
    counts: Mutex<Counts>,
    ended: AtomicBool,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    done: usize,
    failed: usize,
    /// Seconds of audio that are done.
    seconds: f64,
    /// Files at work.
    batch: usize,
    /// How far those are.
    fraction: f64,
    /// Files that are done, parts of those at work among them; never less than before.
    files: f64,
}

impl JobProgress {
    /// What is told how far the files at work are, all together; `None` if nobody looks.
    pub fn watcher(&self) -> Option<OnProgress> {
        let job = self.clone();
        (self.0.kind != Kind::None).then(|| OnProgress::new(move |progress| job.show(progress.fraction)))
    }

    /// These files, by number (from 0) and name, are at work.
    pub fn begun<'a>(&self, files: impl ExactSizeIterator<Item = (usize, &'a str)>) {
        self.counts().batch = files.len();
        for (index, name) in files {
            let fields = serde_json::json!({ "index": index + 1, "total": self.0.total });
            event(self.0.kind, "start", name, fields);
        }
        self.show(0.0);
    }

    /// A file is transcribed, of so many seconds, or failed.
    pub fn settled(&self, name: &str, result: Result<f64, &str>) {
        let mut counts = self.counts();
        counts.done += 1;
        counts.batch = counts.batch.saturating_sub(1);
        match result {
            Ok(seconds) => counts.seconds += seconds,
            Err(_) => counts.failed += 1,
        }
        drop(counts);
        match result {
            Ok(seconds) => event(self.0.kind, "done", name, serde_json::json!({ "seconds": seconds })),
            Err(error) => event(self.0.kind, "failed", name, serde_json::json!({ "error": error })),
        }
        let fraction = self.counts().fraction;
        self.show(fraction);
    }

    /// Runs `print` while no bar is in its way.
    pub fn aside(&self, print: impl FnOnce()) {
        self.0.bar.suspend(print);
    }

    /// The work is over, done or not.
    pub fn end(&self) {
        if !self.0.ended.swap(true, Ordering::Relaxed) {
            self.0.bar.finish_and_clear();
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Shows how far all is, with the files at work at `fraction`.
    fn show(&self, fraction: f64) {
        let job = &*self.0;
        let counts = {
            let mut counts = self.counts();
            counts.fraction = fraction;
            counts.files = counts.files.max(counts.done as f64 + fraction * counts.batch as f64);
            *counts
        };
        let files = counts.files;
        match job.kind {
            Kind::None => {}
            Kind::Bar => {
                job.bar.set_position((files * PARTS) as u64);
                let failed =
                    if counts.failed > 0 { format!(", {} failed", counts.failed) } else { String::new() };
                let (done, total) = (counts.done, job.total);
                job.bar.set_message(format!(
                    "{done} of {total} files, {} of audio{failed}",
                    clock(counts.seconds)
                ));
            }
            Kind::Json => {
                let line = serde_json::json!({
                    "event": "job",
                    "done": counts.done,
                    "failed": counts.failed,
                    "total": job.total,
                    "seconds": rounded(counts.seconds),
                    "fraction": (files / job.total.max(1) as f64 * 1e4).round() / 1e4,
                });
                crate::output::to_stderr(&line.to_string());
            }
        }
    }
}

/// An event about a file as a line of JSON, if that is how progress is shown.
fn event(kind: Kind, event: &str, file: &str, fields: serde_json::Value) {
    if kind != Kind::Json {
        return;
    }
    let mut line = serde_json::json!({ "event": event, "file": file });
    if let (Some(line), serde_json::Value::Object(fields)) = (line.as_object_mut(), fields) {
        line.extend(fields);
    }
    crate::output::to_stderr(&line.to_string());
}

/// A bar over all files.
fn bar(files: usize) -> ProgressBar {
    let template = "{spinner} {bar:24} {percent:>3} % {elapsed:>4} {wide_msg}";
    let bar = crate::terminal::bar(Some((files as f64 * PARTS) as u64), template);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

impl FileProgress {
    /// What is told how far the file is; `None` if nobody looks.
    pub fn watcher(&self) -> Option<OnProgress> {
        let file = self.clone();
        (self.0.kind != Kind::None).then(|| OnProgress::new(move |progress| file.at(&progress)))
    }

    fn at(&self, progress: &conure::Progress) {
        match self.0.kind {
            Kind::None => {}
            Kind::Bar => {
                let seconds = clock(progress.seconds);
                let text = match progress.total {
                    Some(total) => format!("{seconds} of {}, {}", clock(total), progress.stage),
                    None => format!("{seconds}, {}", progress.stage),
                };
                self.show(progress.fraction, &text);
            }
            Kind::Json => self.event(
                "progress",
                serde_json::json!({
                    "stage": progress.stage.name(),
                    "seconds": rounded(progress.seconds),
                    "duration": progress.total.map(rounded),
                    "fraction": (progress.fraction * 1e4).round() / 1e4,
                }),
            ),
        }
    }

    /// The file is transcribed: so many seconds of audio.
    pub fn done(&self, seconds: f64) {
        self.end("done", serde_json::json!({ "seconds": seconds }));
    }

    /// The file failed.
    pub fn failed(&self, reason: &str) {
        self.end("failed", serde_json::json!({ "error": reason }));
    }

    fn end(&self, event: &str, fields: serde_json::Value) {
        if !self.0.ended.swap(true, Ordering::Relaxed) {
            self.event(event, fields);
            self.0.bar.finish_and_clear();
        }
    }

    /// Shows the bar with the file at `fraction`.
    fn show(&self, fraction: f64, text: &str) {
        let file = &*self.0;
        file.bar.set_position(((file.index as f64 + fraction) * PARTS) as u64);
        let number =
            if file.total > 1 { format!("{}/{} ", file.index + 1, file.total) } else { String::new() };
        file.bar.set_message(format!("{number}{}  {text}", file.name));
    }

    fn event(&self, name: &str, fields: serde_json::Value) {
        event(self.0.kind, name, &self.0.name, fields);
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Seconds as a clock shows them: `7:05`, `1:02:03`.
fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, m, s) => format!("{m}:{s:02}"),
        (h, m, s) => format!("{h}:{m:02}:{s:02}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn clocks() {
        for (seconds, text) in [(0.0, "0:00"), (7.9, "0:07"), (65.0, "1:05"), (3723.4, "1:02:03")] {
            assert_eq!(super::clock(seconds), text);
        }
    }
}
