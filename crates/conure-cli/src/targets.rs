//! Where transcripts go: standard output, or a file per input and format.

use crate::args::is_stdin;
use crate::failure::Failure;
use crate::output::shown;
use conure::format::OutputFormat;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where transcripts go.
#[derive(Debug, PartialEq)]
pub enum Targets {
    /// To standard output, in this format.
    Stdout(OutputFormat),
    /// Of each input, in order: formats and files.
    Files(Vec<Vec<(OutputFormat, PathBuf)>>),
}

/// Decides where the transcripts of `inputs` go, and makes the folder.
///
/// # Errors
/// Two inputs that would be written to one file, an input that would be overwritten, a folder that cannot be made.
pub fn targets(inputs: &[PathBuf], dir: Option<&Path>, formats: &[OutputFormat]) -> Result<Targets, Failure> {
    let Some(dir) = dir else {
        return Ok(Targets::Stdout(formats.first().copied().unwrap_or(OutputFormat::Txt)));
    };
    let names = names(inputs)?;
    std::fs::create_dir_all(dir)
        .map_err(|e| Failure::new(format!("cannot make the folder {}", shown(dir))).because(e))?;
    let file = |name: &OsString, format: OutputFormat| {
        let mut file = name.clone();
        file.push(".");
        file.push(format.name());
        (format, dir.join(file))
    };
    let files: Vec<Vec<_>> =
        names.iter().map(|name| formats.iter().map(|f| file(name, *f)).collect()).collect();
    let sources: Vec<PathBuf> = inputs.iter().filter_map(|i| i.canonicalize().ok()).collect();
    for (_, path) in files.iter().flatten() {
        if path.canonicalize().is_ok_and(|p| sources.contains(&p)) {
            return Err(Failure::usage(format!("{} is an input and would be overwritten", shown(path)))
                .advice("give another --output-dir"));
        }
    }
    Ok(Targets::Files(files))
}

/// A name for each input's files: its own without extension, or with it where two would be the same.
fn names(inputs: &[PathBuf]) -> Result<Vec<OsString>, Failure> {
    let whole = |p: &Path| match p.file_name() {
        _ if is_stdin(p) => OsString::from("stdin"),
        Some(name) => name.to_owned(),
        None => OsString::from("audio"),
    };
    let stem = |p: &Path| Path::new(&whole(p)).file_stem().map_or_else(|| whole(p), ToOwned::to_owned);
    let mut stems: BTreeMap<OsString, usize> = BTreeMap::new();
    for input in inputs {
        *stems.entry(stem(input)).or_default() += 1;
    }
    let names: Vec<OsString> =
        inputs.iter().map(|p| if stems.get(&stem(p)) == Some(&1) { stem(p) } else { whole(p) }).collect();
    let mut seen: BTreeMap<&OsString, &Path> = BTreeMap::new();
    for (name, input) in names.iter().zip(inputs) {
        if let Some(other) = seen.insert(name, input) {
            return Err(Failure::usage(format!(
                "{} and {} would be written to the same file",
                shown(other),
                shown(input)
            ))
            .advice("transcribe them with an --output-dir of their own"));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_never_the_same() {
        for (inputs, expected) in [
            (&["a.wav"][..], Some(&["a"][..])),
            (&["x/a.wav", "b.tar.gz", "-"], Some(&["a", "b.tar", "stdin"])),
            (&["a.wav", "a.mp3", "c"], Some(&["a.wav", "a.mp3", "c"])),
            (&["x/a.wav", "y/a.wav"], None),
            (&["a.wav", "a.wav"], None),
            (&[".hidden", ".."], Some(&[".hidden", "audio"])),
        ] {
            let inputs: Vec<PathBuf> = inputs.iter().map(PathBuf::from).collect();
            let found = names(&inputs).ok();
            let expected = expected.map(|list| list.iter().map(OsString::from).collect::<Vec<_>>());
            assert_eq!(found, expected, "{inputs:?}");
        }
    }

    #[test]
    fn an_input_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("a.json");
        std::fs::write(&input, "x").unwrap();
        let inputs = [input];
        assert!(targets(&inputs, Some(dir.path()), &[OutputFormat::Json]).is_err());
        let files = targets(&inputs, Some(dir.path()), &[OutputFormat::Txt]).unwrap();
        assert_eq!(files, Targets::Files(vec![vec![(OutputFormat::Txt, dir.path().join("a.txt"))]]));
        assert_eq!(targets(&inputs, None, &[OutputFormat::Srt]).unwrap(), Targets::Stdout(OutputFormat::Srt));
    }
}
