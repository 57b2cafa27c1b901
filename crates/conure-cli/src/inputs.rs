//! What is to be transcribed: files, folders with all that is in them, and the entries of a manifest.

use crate::args::{TranscribeArgs, is_stdin};
use crate::failure::Failure;
use crate::manifest::{self, Entry};
use crate::output::shown;
use conure::{AudioOptions, FileClip};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// One thing to transcribe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input {
    /// What is read; `-` is standard input.
    pub path: PathBuf,
    /// What its outputs are named after: the name of a file, or its path in the folder that was given.
    pub name: PathBuf,
    /// What a manifest says of it.
    pub entry: Option<Entry>,
}

impl Input {
    /// A file that is named.
    fn file(path: &Path) -> Input {
        let name = match path.file_name() {
            _ if is_stdin(path) => "stdin".into(),
            Some(name) => PathBuf::from(name),
            None => "audio".into(),
        };
        Input { path: path.to_path_buf(), name, entry: None }
    }

    /// Whether it can be read ahead and more than once: no pipe.
    pub fn is_file(&self) -> bool {
        // What is not there is a file too, and fails as one.
        !is_stdin(&self.path) && std::fs::metadata(&self.path).map_or(true, |m| m.is_file() || m.is_dir())
    }

    /// It, read as `audio` says or as its manifest does.
    pub fn clip(&self, audio: &conure::AudioOptions) -> FileClip {
        let mut audio = audio.clone();
        if let Some((offset, duration)) = self.entry.as_ref().and_then(Entry::part) {
            (audio.start, audio.duration) = (offset, duration);
        }
        FileClip { path: self.path.clone(), audio }
    }
}

/// What was found, and what could not be looked at.
#[derive(Debug, Default)]
pub struct Inputs {
    /// In the order asked for; what is in a folder in the order of names.
    pub list: Vec<Input>,
    /// Folders that cannot be read.
    pub failures: Vec<Failure>,
}

/// Everything that the arguments name.
///
/// # Errors
/// A manifest that cannot be read.
pub fn collect(args: &TranscribeArgs) -> Result<Inputs, Failure> {
    let mut inputs = Inputs::default();
    if let Some(manifest) = &args.many.manifest {
        inputs.list = manifest::read(manifest)?;
        return Ok(inputs);
    }
    for path in args.inputs() {
        if args.many.recursive && path.is_dir() {
            let before = inputs.list.len();
            Walk::default().folder(&path, Path::new(""), &mut inputs);
            if inputs.list.len() == before && inputs.failures.is_empty() {
                let failure = Failure::new(format!("nothing to transcribe in {}", shown(&path)));
                inputs.failures.push(failure.reason("no file in it, or in its folders, is audio"));
            }
        } else {
            inputs.list.push(Input::file(&path));
        }
    }
    Ok(inputs)
}

/// The recordings at these paths: files, and all audio in folders.
///
/// # Errors
/// Standard input, which can be read but once; a folder that cannot be read, or has no audio in it.
pub fn recordings(paths: &[PathBuf]) -> Result<Vec<FileClip>, Failure> {
    let mut inputs = Inputs::default();
    for path in paths {
        if is_stdin(path) {
            return Err(Failure::usage(
                "recordings are heard more than once: give files, not standard input",
            ));
        }
        if !path.is_dir() {
            inputs.list.push(Input::file(path));
            continue;
        }
        let before = inputs.list.len();
        Walk::default().folder(path, Path::new(""), &mut inputs);
        if let Some(failure) = inputs.failures.pop() {
            return Err(failure);
        }
        if inputs.list.len() == before {
            let failure = Failure::new(format!("nothing to hear in {}", shown(path)));
            return Err(failure.reason("no file in it, or in its folders, is audio"));
        }
    }
    Ok(inputs.list.iter().map(|input| input.clip(&AudioOptions::default())).collect())
}

/// Extensions of audio files, and of video files whose sound is read.
const EXTENSIONS: [&str; 27] = [
    "wav", "wave", "bwf", "rf64", "w64", "flac", "mp3", "mp2", "mp1", "mpga", "ogg", "oga", "opus", "m4a",
    "m4b", "mp4", "mov", "aac", "aif", "aiff", "aifc", "caf", "mka", "mkv", "webm", "au", "snd",
];

/// Folders seen on the way.
#[derive(Default)]
struct Walk {
    /// By their true paths: a link to a folder that was there before, be it around the link, leads nowhere.
    seen: BTreeSet<PathBuf>,
}

impl Walk {
    /// All audio in `folder`, whose place in the folder asked for is `place`; hidden files and folders are passed over.
    fn folder(&mut self, folder: &Path, place: &Path, inputs: &mut Inputs) {
        let entries = folder.canonicalize().and_then(|path| {
            let new = self.seen.insert(path);
            if new { std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>() } else { Ok(Vec::new()) }
        });
        let mut names: Vec<_> = match entries {
            Ok(entries) => entries.into_iter().map(|e| e.file_name()).collect(),
            Err(error) => {
                let failure = Failure::new(format!("cannot look into the folder {}", shown(folder)));
                inputs.failures.push(failure.because(error));
                return;
            }
        };
        names.sort();
        for name in names.iter().filter(|n| !is_hidden(n)) {
            let (path, place) = (folder.join(name), place.join(name));
            match std::fs::metadata(&path) {
                Ok(about) if about.is_dir() => self.folder(&path, &place, inputs),
                Ok(about) if about.is_file() && is_audio(&path) => {
                    inputs.list.push(Input { path, name: place, entry: None });
                }
                // Pipes, devices, links to nothing, and what is no audio.
                _ => {}
            }
        }
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

/// Whether a file is audio: by its name, else by its first bytes. One that is by its name and not by its content is tried,
/// and fails with the reason.
fn is_audio(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if EXTENSIONS.iter().any(|known| known.eq_ignore_ascii_case(extension)) {
        return true;
    }
    let mut head = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read(&mut head));
    read.is_ok_and(|length| conure::audio::container(&head[..length]).is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn found(folder: &Path) -> Vec<String> {
        let mut inputs = Inputs::default();
        Walk::default().folder(folder, Path::new(""), &mut inputs);
        assert!(inputs.failures.is_empty(), "{:?}", inputs.failures);
        inputs.list.iter().map(|i| i.name.to_str().unwrap().replace('\\', "/")).collect()
    }

    #[test]
    fn a_folder_gives_its_audio_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["b", "b/ü c", ".hidden", "empty"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        for (name, content) in [
            ("z.WAV", "not audio, but called so"),
            ("a.flac", ""),
            ("b/ü c/x.mp3", ""),
            ("b/2.opus", ""),
            ("b/10.opus", ""),
            ("b/notes.txt", "words"),
            ("b/no extension", "RIFF....WAVEfmt "),
            ("b/odd.bin", "OggS"),
            (".hidden/a.wav", ""),
            ("b/.a.wav", ""),
        ] {
            std::fs::write(at(name), content).unwrap();
        }
        let expected =
            ["a.flac", "b/10.opus", "b/2.opus", "b/no extension", "b/odd.bin", "b/ü c/x.mp3", "z.WAV"];
        assert_eq!(found(dir.path()), expected);
    }

    #[cfg(unix)]
    #[test]
    fn links_in_circles_and_to_nothing_end() {
        use std::os::unix::fs::symlink;
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("a")).unwrap();
        std::fs::write(at("a/1.wav"), "").unwrap();
        std::fs::write(other.path().join("2.wav"), "").unwrap();
        symlink(dir.path(), at("a/up")).unwrap();
        symlink(at("a"), at("a/self")).unwrap();
        symlink(other.path(), at("b")).unwrap();
        symlink(at("c"), at("c")).unwrap();
        symlink("/nowhere", at("d.wav")).unwrap();
        assert_eq!(found(dir.path()), ["a/1.wav", "b/2.wav"]);
    }
}
