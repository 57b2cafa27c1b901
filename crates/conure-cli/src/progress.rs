//! Progress on standard error: a bar, JSON lines, or nothing.

use crate::args::TranscribeArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub use crate::args::ProgressArg as Kind;

/// Shows how far the work is.
pub struct Progress {
    kind: Kind,
    total: usize,
}

/// The progress of one file; its display ends when it is dropped.
pub struct FileProgress {
    kind: Kind,
    file: String,
    bar: ProgressBar,
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

    /// Begins file number `index` (from 0), called `file` in messages.
    pub fn file(&self, index: usize, file: &str) -> FileProgress {
        let bar = if self.kind == Kind::Bar {
            let bar = ProgressBar::with_draw_target(Some(self.total as u64), ProgressDrawTarget::stderr());
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {bar:24} {pos}/{len} files {elapsed:>4} {wide_msg}")
            {
                bar.set_style(style);
            }
            bar.set_position(index as u64);
            bar.set_message(file.to_owned());
            bar.enable_steady_tick(std::time::Duration::from_millis(200));
            bar
        } else {
            ProgressBar::hidden()
        };
        let progress = FileProgress { kind: self.kind, file: file.to_owned(), bar };
        progress.event(&serde_json::json!({
            "event": "start", "file": file, "index": index + 1, "total": self.total,
        }));
        progress
    }
}

impl FileProgress {
    /// The file is transcribed: so many seconds of audio.
    pub fn done(self, seconds: f64) {
        self.event(&serde_json::json!({ "event": "done", "file": self.file, "seconds": seconds }));
        self.bar.finish_and_clear();
    }

    /// The file failed.
    pub fn failed(self, reason: &str) {
        self.event(&serde_json::json!({ "event": "failed", "file": self.file, "error": reason }));
        self.bar.finish_and_clear();
    }

    fn event(&self, event: &serde_json::Value) {
        if self.kind == Kind::Json {
            print(event);
        }
    }
}

fn print(event: &serde_json::Value) {
    crate::output::to_stderr(&event.to_string());
}
