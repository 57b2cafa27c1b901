//! Where transcripts go: standard output, or a file per input and format.

use crate::failure::Failure;
use crate::inputs::Input;
use crate::output::{Inputs, shown};
use conure::format::OutputFormat;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where transcripts go.
#[derive(Debug, PartialEq)]
pub enum Targets {
    /// To standard output, in this format.
    Stdout(OutputFormat),
    /// Of each input, in order: formats and files.
    Files(Vec<Vec<(OutputFormat, PathBuf)>>),
}

/// Decides where the transcripts of `inputs` go, and makes the folder. `read` is all that is read, the inputs among it.
///
/// # Errors
/// Two inputs that would be written to one file, an input that would be overwritten, a folder that cannot be made.
pub fn targets(
    inputs: &[Input],
    dir: Option<&Path>,
    formats: &[OutputFormat],
    read: &Inputs,
) -> Result<Targets, Failure> {
    let Some(dir) = dir else {
        return Ok(Targets::Stdout(formats.first().copied().unwrap_or(OutputFormat::Txt)));
    };
    let names = names(inputs)?;
    std::fs::create_dir_all(dir)
        .map_err(|e| Failure::new(format!("cannot make the folder {}", shown(dir))).because(e))?;
    let file = |name: &Path, format: OutputFormat| {
        let mut file = name.as_os_str().to_owned();
        file.push(".");
        file.push(format.name());
        (format, dir.join(file))
    };
    let files: Vec<Vec<_>> =
        names.iter().map(|name| formats.iter().map(|f| file(name, *f)).collect()).collect();
    for (_, path) in files.iter().flatten() {
        read.spare(path, "give another --output-dir")?;
    }
    Ok(Targets::Files(files))
}

/// A name for each input's files, in the folder that it has in the one asked for: its own without extension, or with it
/// where two would be the same.
fn names(inputs: &[Input]) -> Result<Vec<PathBuf>, Failure> {
    let stem = |name: &Path| name.with_file_name(name.file_stem().unwrap_or(name.as_os_str()));
    let mut stems: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for input in inputs {
        *stems.entry(stem(&input.name)).or_default() += 1;
    }
    let name = |input: &Input| {
        let stem = stem(&input.name);
        if stems.get(&stem) == Some(&1) { stem } else { input.name.clone() }
    };
    let names: Vec<PathBuf> = inputs.iter().map(name).collect();
    let mut seen: BTreeMap<&Path, &Path> = BTreeMap::new();
    for (name, input) in names.iter().zip(inputs) {
        if let Some(other) = seen.insert(name, &input.path) {
            return Err(Failure::usage(format!(
                "{} and {} would be written to the same file",
                shown(other),
                shown(&input.path)
            ))
            .advice("transcribe them with an --output-dir of their own"));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(list: &[(&str, &str)]) -> Vec<Input> {
        let input =
            |&(path, name): &(&str, &str)| Input { path: path.into(), name: name.into(), entry: None };
        list.iter().map(input).collect()
    }

    #[test]
    fn names_are_short_and_never_the_same() {
        for (list, expected) in [
            (&[("a.wav", "a.wav")][..], Some(&["a"][..])),
            (
                &[("x/a.wav", "a.wav"), ("b.tar.gz", "b.tar.gz"), ("-", "stdin")],
                Some(&["a", "b.tar", "stdin"]),
            ),
            (&[("a.wav", "a.wav"), ("a.mp3", "a.mp3"), ("c", "c")], Some(&["a.wav", "a.mp3", "c"])),
            (&[("x/a.wav", "a.wav"), ("y/a.wav", "a.wav")], None),
            (&[("a.wav", "a.wav"), ("a.wav", "a.wav")], None),
            (&[(".hidden", ".hidden"), ("..", "audio")], Some(&[".hidden", "audio"])),
            (&[("d/x/a.wav", "x/a.wav"), ("d/y/a.wav", "y/a.wav")], Some(&["x/a", "y/a"])),
            (&[("d/x/a.wav", "x/a.wav"), ("d/x/a.ogg", "x/a.ogg")], Some(&["x/a.wav", "x/a.ogg"])),
            (&[("d/x/a.wav", "x/a.wav"), ("e/x/a.wav", "x/a.wav")], None),
        ] {
            let found = names(&inputs(list)).ok();
            let expected = expected.map(|list| list.iter().map(PathBuf::from).collect::<Vec<_>>());
            assert_eq!(found, expected, "{list:?}");
        }
    }

    #[test]
    fn an_input_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("a.json");
        std::fs::write(&input, "x").unwrap();
        let inputs = inputs(&[(input.to_str().unwrap(), "a.json")]);
        let read = Inputs::default().with("an input", &input);
        assert!(targets(&inputs, Some(dir.path()), &[OutputFormat::Json], &read).is_err());
        let files = targets(&inputs, Some(dir.path()), &[OutputFormat::Txt], &read).unwrap();
        assert_eq!(files, Targets::Files(vec![vec![(OutputFormat::Txt, dir.path().join("a.txt"))]]));
        assert_eq!(
            targets(&inputs, None, &[OutputFormat::Srt], &read).unwrap(),
            Targets::Stdout(OutputFormat::Srt)
        );
    }
}
