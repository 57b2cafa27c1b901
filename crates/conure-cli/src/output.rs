//! The two ways out of the program: results to standard output, everything else to standard error.

use crate::failure::Failure;
use conure::NewFile;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes results to standard output.
///
/// A reader that has gone (`conure ... | head -1`) is no error: the rest of the output has nobody to go to.
///
/// # Errors
/// Any other failure of `write` or of standard output. `Ok(false)`: the reader has gone.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<bool, Failure> {
    let mut out = BufWriter::new(Stdout(io::stdout().lock()));
    match write(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
            // What is still in the buffer must not be tried again when it is dropped.
            let _ = out.into_parts();
            Ok(false)
        }
        Err(e) => {
            let _ = out.into_parts();
            Err(Failure::new("cannot write to standard output").because(e))
        }
    }
}

/// Standard output. Where the program was started without one, the runtime has put `/dev/null` there: what is written would be lost.
struct Stdout(io::StdoutLock<'static>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if conure::stdout_was_closed() {
            return Err(io::Error::other("it is closed"));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Refuses to work for nothing, where all results go to standard output.
///
/// # Errors
/// If that is closed.
pub fn need_stdout() -> Result<(), Failure> {
    match conure::stdout_was_closed() {
        true => Err(Failure::new("cannot write to standard output").reason("it is closed")),
        false => Ok(()),
    }
}

/// Writes `path` through a file beside it, so that it is there whole or not at all.
///
/// # Errors
/// What `write` or the file system says.
pub fn to_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(NewFile::create(path)?);
    write(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.publish()
}

/// As [`to_file`], with a message that names the file.
///
/// # Errors
/// What `write` or the file system says.
pub fn save(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    to_file(path, write).map_err(|e| Failure::new(format!("cannot write {}", shown(path))).because(e))
}

/// The files that a command reads, so that none of them is written over.
#[derive(Debug, Default)]
pub struct Inputs(Vec<(PathBuf, &'static str)>);

impl Inputs {
    /// Adds a file, with what it is for messages: `the model`. What is not there (or is no file) can take no harm.
    pub fn with(mut self, what: &'static str, path: impl AsRef<Path>) -> Inputs {
        if let Ok(path) = path.as_ref().canonicalize() {
            self.0.push((path, what));
        }
        self
    }

    /// Adds a file if there is one.
    pub fn and(self, what: &'static str, path: Option<impl AsRef<Path>>) -> Inputs {
        match path {
            Some(path) => self.with(what, path),
            None => self,
        }
    }

    /// Refuses an output that is one of them.
    ///
    /// # Errors
    /// Which one it is.
    pub fn spare(&self, output: &Path, advice: &'static str) -> Result<(), Failure> {
        let Ok(real) = output.canonicalize() else { return Ok(()) };
        match self.0.iter().find(|(path, _)| *path == real) {
            Some((_, what)) => {
                Err(Failure::usage(format!("{} is {what} and would be overwritten", shown(output)))
                    .advice(advice))
            }
            None => Ok(()),
        }
    }
}

/// Whether colours are wanted on standard error.
pub fn colours() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    io::stderr().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// A line on standard error. If that is closed there is nobody to tell.
pub fn to_stderr(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// `word:` in colour, then the text.
pub fn labelled(label: &str, colour: u8, text: &str) -> String {
    if colours() { format!("\x1b[1;{colour}m{label}:\x1b[0m {text}") } else { format!("{label}: {text}") }
}

/// Whether notes are wanted.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From here on there are no notes: `--quiet` leaves errors and warnings.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Something good to know.
pub fn note(text: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        to_stderr(&labelled("note", 36, text));
    }
}

/// Something that may have cost words.
pub fn warning(text: &str) {
    to_stderr(&labelled("warning", 33, text));
}

/// A path for messages: what could break the line or the terminal is escaped.
pub fn shown(path: &Path) -> String {
    clean(&path.display().to_string()).replace('\n', "\\n")
}

/// Characters that make a terminal show text in another order than it has.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text for messages, its control characters escaped.
pub fn clean(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = (c.is_control() && c != '\n') || is_direction_mark(c);
            let plain = (!escaped).then_some(c);
            plain.into_iter().chain(escaped.then(|| c.escape_debug()).into_iter().flatten())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        to_file(&path, |out| out.write_all(b"one")).unwrap();
        let failed = to_file(&path, |out| {
            out.write_all(b"two")?;
            Err(io::Error::other("no"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_read_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let [model, other, link] = ["m.gguf", "n.gguf", "link"].map(|name| dir.path().join(name));
        std::fs::write(&model, "").unwrap();
        std::os::unix::fs::symlink(&model, &link).unwrap();
        let inputs =
            Inputs::default().with("the model", &link).and("an input", None::<&Path>).with("gone", &other);
        for (output, ok) in
            [(&model, false), (&link, false), (&dir.path().join("./m.gguf"), false), (&other, true)]
        {
            assert_eq!(inputs.spare(output, "").is_ok(), ok, "{}", output.display());
        }
    }

    #[test]
    fn hostile_names_stay_readable() {
        assert_eq!(clean("a\u{1b}[31m\tb ü"), "a\\u{1b}[31m\\tb ü");
        assert_eq!(shown(Path::new("x\u{7}.wav")), "x\\u{7}.wav");
        assert_eq!(shown(Path::new("a\nerror: b\u{202e}.wav")), "a\\nerror: b\\u{202e}.wav");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_written_through_and_pipes_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        to_file(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&real).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        let error = to_file(dir.path(), |out| out.write_all(b"new")).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        let long = dir.path().join("x".repeat(255));
        to_file(&long, |out| out.write_all(b"new")).unwrap();
    }
}
