//! Files that are there whole or not at all: written beside their place, and moved there when all is on the disk.
//!
//! The part is called `.conure.PROCESS-NUMBER.part` and locked while it is written. A process that is killed leaves it behind;
//! the next that writes into the same folder removes it, if no process has that number and nobody holds the lock: a process
//! of another container or machine may have a number that is free here.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Links that are followed one after the other; more are taken for a ring.
const MOST_LINKS: usize = 40;

/// A file on its way to its name. Dropped before [`NewFile::publish`], it leaves what was there as it was, and nothing of itself.
#[derive(Debug)]
pub struct NewFile {
    target: PathBuf,
    part: PathBuf,
    file: File,
    published: bool,
}

impl NewFile {
    /// Begins the file that is to be at `path`. Links are written through, as by every other program, also one to a file that is not
    /// there yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something that is no regular file is there; links in a ring; what the file system says.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let target = through_links(path)?;
        // A device or a pipe would be replaced by a file.
        if fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
            let kind = io::ErrorKind::AlreadyExists;
            return Err(io::Error::new(kind, "it is there and is no regular file"));
        }
        remove_abandoned(folder_of(&target));
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            // Short, so that a name of the longest length that file systems take has a part file too.
            let part = target.with_file_name(format!(".conure.{}-{number}.part", std::process::id()));
            match File::options().write(true).create_new(true).open(&part) {
                Ok(file) => {
                    // Where locks are not to be had, the process' number alone says whose it is.
                    let _ = file.try_lock();
                    return Ok(NewFile { target, part, file, published: false });
                }
                // Left by a process of the same number.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(about_folder(error, path, &target)),
            }
        }
    }

    /// Moves it to its name, all of it on the disk.
    ///
    /// # Errors
    /// What the file system says; the part is gone then.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.part, &self.target)?;
        self.published = true;
        // Makes the new name last a power cut, where folders can be synchronised. The file is whole either way.
        #[cfg(unix)]
        let _ = File::open(folder_of(&self.target)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // There is an error on its way to the caller already.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// The file that `path` means when all links are followed, also one that is not there.
fn through_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        if let Ok(real) = fs::canonicalize(&path) {
            return Ok(real);
        }
        match fs::read_link(&path) {
            Ok(next) => path = folder_of(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("its links go on without end"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The error with the place that a link names, where that is the fault.
fn about_folder(error: io::Error, path: &Path, target: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink()) {
        let what = format!("it is a link to {}, whose folder is not there", target.display());
        return io::Error::new(io::ErrorKind::NotFound, what);
    }
    error
}

/// Removes parts that processes left which are gone. Once for a folder: many files may go to it.
fn remove_abandoned(folder: &Path) {
    static SEEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.get_or_insert_default().insert(folder.to_owned()) {
        return;
    }
    drop(seen);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(process) = name.to_str().and_then(process_of)
            && is_gone(process)
            // A pipe would not open.
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The process that wrote the part of this name; `None` if it is no part.
fn process_of(name: &str) -> Option<u32> {
    let numbers = name.strip_prefix(".conure.")?.strip_suffix(".part")?;
    let (process, number) = numbers.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Whether no process has this number. Where that cannot be seen, the lock alone decides.
fn is_gone(process: u32) -> bool {
    process != std::process::id()
        && !(Path::new("/proc/self").exists() && Path::new(&format!("/proc/{process}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut file = NewFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.publish()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write(&path, "one").unwrap();
        let mut half = NewFile::create(&path).unwrap();
        half.write_all(b"tw").unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        drop(half);
        assert_eq!((fs::read_to_string(&path).unwrap(), names(dir.path())), ("one".into(), vec!["a".into()]));
        let error = write(dir.path(), "x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        write(&dir.path().join("x".repeat(255)), "x").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_are_written_through_also_where_nothing_is_yet() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("below")).unwrap();
        for (link, to) in [
            ("one", "below/new"),
            ("two", "one"),
            ("nowhere", "gone/new"),
            ("ring", "gnir"),
            ("gnir", "ring"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        for link in ["two", "one"] {
            write(&at(link), link).unwrap();
            assert_eq!(fs::read_to_string(at("below/new")).unwrap(), link);
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
        }
        for (link, part) in [("nowhere", "gone/new, whose folder is not there"), ("ring", "without end")] {
            let error = write(&at(link), "x").unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_a_process_left_that_is_gone_is_removed_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let part = |process: u32, number: u32| format!(".conure.{process}-{number}.part");
        let (dead, locked, alive) = (part(gone, 0), part(gone, 1), part(1, 0));
        for name in [&dead, &locked, &alive, ".conure.part", ".other.1-0.part"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        let held = File::open(dir.path().join(&locked)).unwrap();
        held.lock().unwrap();
        write(&dir.path().join("a"), "x").unwrap();
        let left = names(dir.path());
        assert!(!left.contains(&dead), "{left:?}");
        for name in [locked.as_str(), alive.as_str(), ".conure.part", ".other.1-0.part", "a"] {
            assert!(left.iter().any(|n| n == name), "{name}: {left:?}");
        }
    }
}
