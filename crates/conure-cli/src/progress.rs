//! Progress on standard error: a bar, JSON lines, or nothing.

use crate::args::TranscribeArgs;
use conure::{OnProgress, Stage};
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// As the arguments say; without a word, a bar where a person watches.
    pub fn new(args: &TranscribeArgs) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let kind = match args.progress {
            Some(kind) => kind,
            None if terminal && !args.quiet => Kind::Bar,
            None => Kind::None,
        };
        Progress { kind, total: args.inputs().len() }
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
                    None => format!("{seconds}, {}", Stage::Reading),
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

    fn event(&self, event: &str, fields: serde_json::Value) {
        if self.0.kind != Kind::Json {
            return;
        }
        let mut line = serde_json::json!({ "event": event, "file": self.0.name });
        if let (Some(line), serde_json::Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        crate::output::to_stderr(&line.to_string());
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
