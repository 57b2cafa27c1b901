//! NeMo manifests: a JSON object per line that names a recording, or a part of one.

use crate::args::is_stdin;
use crate::failure::Failure;
use crate::inputs::Input;
use crate::output::shown;
use conure::Transcript;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Longest line: what is longer is no manifest.
const LINE: u64 = 1 << 20;

/// A line of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The object as it was written, its closing brace left out.
    open: String,
    /// What names it again: path, offset and duration.
    key: String,
    offset: Option<f64>,
    duration: Option<f64>,
    /// Why it names nothing.
    fault: Option<String>,
}

impl Entry {
    /// Why it names nothing to transcribe, if so.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// A line that is no entry: it is answered with the reason, behind what it says if that is an object.
    fn faulty(line: &str, number: usize, reason: String) -> Entry {
        let object = serde_json::from_str::<Map<String, Value>>(line).is_ok_and(|fields| !fields.is_empty());
        let open = if object { line.to_owned() } else { format!("{{\"line\": {number}}}") };
        let open = open.strip_suffix('}').unwrap_or(&open).trim_end().to_owned();
        Entry { key: open.clone(), open, fault: Some(format!("line {number}: {reason}")), ..Entry::default() }
    }

    /// Where the part begins and how long it is. A duration without an offset is that of the whole file, which is read to
    /// its end.
    pub fn part(&self) -> Option<(f64, Option<f64>)> {
        self.offset.map(|offset| (offset, self.duration))
    }

    fn parse(line: &str) -> Result<(Entry, PathBuf), String> {
        let fields: Map<String, Value> = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let path = fields.get("audio_filepath").and_then(Value::as_str).filter(|p| !p.is_empty());
        let path = PathBuf::from(path.ok_or("it has no \"audio_filepath\"")?);
        let seconds = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|s| *s >= 0.0 && s.is_finite()) {
                Some(seconds) => Ok(Some(seconds)),
                None => Err(format!("its {name:?} is {value}, expected seconds")),
            },
        };
        let (offset, duration) = (seconds("offset")?, seconds("duration")?);
        let count = fields.len();
        let (key, kept) = key(fields);
        // What an earlier run added is not given a second time; the rest is kept as it is written, to the last digit.
        let open = if kept < count { key.clone() } else { line.trim().to_owned() };
        let open = open.strip_suffix('}').unwrap_or(&open).trim_end().to_owned();
        Ok((Entry { open, key, offset, duration, fault: None }, path))
    }

    /// The line with what the model heard, or why it heard nothing.
    pub fn answer(&self, heard: Result<&Transcript, &str>, words: bool) -> String {
        let mut added = Map::new();
        match heard {
            Ok(transcript) => {
                added.insert("pred_text".into(), transcript.text.clone().into());
                if words {
                    let list = transcript.segments.iter().flat_map(|s| &s.words);
                    added.insert("words".into(), json!(list.collect::<Vec<_>>()));
                }
            }
            Err(reason) => {
                added.insert("error".into(), reason.into());
            }
        }
        let added = Value::Object(added).to_string();
        format!("{}, {}", self.open, added.strip_prefix('{').unwrap_or(&added))
    }
}

/// What names an entry, the same in the manifest and in the line that answers it: all its fields but those that answers add. And
/// how many they are.
fn key(mut fields: Map<String, Value>) -> (String, usize) {
    fields.retain(|name, _| !["pred_text", "error", "words"].contains(&name.as_str()));
    let count = fields.len();
    (Value::Object(fields).to_string(), count)
}

/// The entries of the manifest at `path`, or on standard input (`-`). Relative paths count from the manifest's folder. A line that is
/// none is one with a fault.
///
/// # Errors
/// A file that cannot be read, or in which no line is an entry; the first line that is not, by its number.
pub fn read(path: &Path) -> Result<Vec<Input>, Failure> {
    let fail = || Failure::new(format!("cannot read the manifest {}", shown(path)));
    let (reader, folder): (Box<dyn Read>, &Path) = if is_stdin(path) {
        (Box::new(io::stdin()), Path::new(""))
    } else {
        let file = File::open(path).map_err(|e| fail().because(e))?;
        (Box::new(file), path.parent().unwrap_or(Path::new("")))
    };
    entries(BufReader::new(reader), folder).map_err(|reason| fail().reason(reason).advice(
        "each line is a JSON object such as {\"audio_filepath\": \"speech.wav\", \"duration\": 7.4, \"text\": \"\"}",
    ))
}

fn entries(mut reader: impl BufRead, folder: &Path) -> Result<Vec<Input>, String> {
    let mut list = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let length = (&mut reader).take(LINE).read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
        if length == 0 {
            break;
        }
        let at = |what: String| format!("line {number}: {what}");
        if length as u64 == LINE {
            return Err(at("it is longer than a megabyte".into()));
        }
        let text = std::str::from_utf8(&line).map_err(|_| at("it is not UTF-8".into()))?;
        // Windows programs begin files with a mark.
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        let (entry, path) = match Entry::parse(text) {
            Ok((entry, name)) => (entry, name),
            Err(reason) => (Entry::faulty(text, number, reason), PathBuf::from(format!("line {number}"))),
        };
        let name = path.clone();
        list.push(Input { path: folder.join(path), name, entry: Some(entry) });
    }
    // Not one entry: this is another file than was meant.
    let faults: Vec<Option<&str>> = list.iter().map(|i| i.entry.as_ref().and_then(Entry::fault)).collect();
    match faults.first() {
        Some(Some(first)) if faults.iter().all(Option::is_some) => Err((*first).to_owned()),
        _ => Ok(list),
    }
}

/// Where the answers to a manifest that go to `path` are kept until all are there.
pub fn journal(path: &Path) -> PathBuf {
    let mut journal = path.as_os_str().to_owned();
    journal.push(".part");
    PathBuf::from(journal)
}

/// The answers to a manifest on their way to a file. Each is kept in a journal beside it (`FILE.part`) as soon as it is there,
/// so that a run that was stopped can be taken up again; the file itself is written when all are there, in order.
pub struct Answers {
    path: PathBuf,
    journal: PathBuf,
    file: File,
    lines: Vec<Option<String>>,
}

impl Answers {
    /// Begins the answers to these inputs, that are to go to `path`; with `resume`, those that an earlier run left are taken over.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin(path: &Path, inputs: &[Input], resume: bool) -> io::Result<Answers> {
        let journal = journal(path);
        let mut lines = vec![None; inputs.len()];
        // What a run left that was stopped, and what one made that was not.
        let read = |path: &Path| if resume && path.exists() { std::fs::read(path) } else { Ok(Vec::new()) };
        let (begun, whole) = (read(&journal)?, read(path)?);
        let mut kept: HashMap<String, Vec<String>> = HashMap::new();
        // The last line may have been on its way when the run stopped: it is no JSON then.
        for line in begun.split(|b| *b == b'\n').rev().chain(whole.split(|b| *b == b'\n').rev()) {
            let fields: Option<Map<String, Value>> = serde_json::from_slice(line).ok();
            if let Some(fields) = fields.filter(|f| f.contains_key("pred_text")) {
                kept.entry(key(fields).0).or_default().push(String::from_utf8_lossy(line).trim().to_owned());
            }
        }
        for (line, input) in lines.iter_mut().zip(inputs) {
            *line = input.entry.as_ref().and_then(|e| kept.get_mut(&e.key)).and_then(Vec::pop);
        }
        let file =
            File::options().create(true).append(resume).write(true).truncate(!resume).open(&journal)?;
        let mut answers = Answers { path: path.to_path_buf(), journal, file, lines };
        if !begun.is_empty() && !begun.ends_with(b"\n") {
            answers.file.write_all(b"\n")?;
        }
        Ok(answers)
    }

    /// Whether an earlier run answered this input.
    pub fn has(&self, index: usize) -> bool {
        self.lines.get(index).is_some_and(Option::is_some)
    }

    /// Adds the answer to an input. One that says why there is none is tried again when the work is taken up again.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn push(&mut self, index: usize, line: String, heard: bool) -> io::Result<()> {
        if heard {
            // In one piece, so that what stops the program leaves no half line but by a fault of the machine.
            self.file.write_all(format!("{line}\n").as_bytes())?;
        }
        if let Some(place) = self.lines.get_mut(index) {
            *place = Some(line);
        }
        Ok(())
    }

    /// All that can be answered is: the file takes its name.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn finish(self) -> io::Result<()> {
        crate::output::to_file(&self.path, |out| {
            self.lines.iter().flatten().try_for_each(|line| writeln!(out, "{line}"))
        })?;
        std::fs::remove_file(&self.journal)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn transcript(text: &str) -> Transcript {
        Transcript { text: text.into(), ..Transcript::default() }
    }

    #[test]
    fn entries_keep_what_they_are_given() {
        let lines = "\u{feff}{\"audio_filepath\": \"a b.wav\", \"duration\": 7.50, \"text\": \"x\", \"n\": 1e2}\n\n\
            {\"audio_filepath\":\"/abs/ü.flac\",\"offset\":1.5,\"duration\":2,\"pred_text\":\"old\",\"error\":\"o\"}\r\n";
        let list = entries(lines.as_bytes(), Path::new("in")).unwrap();
        assert_eq!(list[0].path, Path::new("in/a b.wav"));
        assert_eq!(list[1].path, Path::new("/abs/ü.flac"));
        let entry = |i: usize| list[i].entry.clone().unwrap();
        assert_eq!((entry(0).part(), entry(1).part()), (None, Some((1.5, Some(2.0)))));
        assert_eq!(
            entry(0).answer(Ok(&transcript("a \"b\"")), false),
            r#"{"audio_filepath": "a b.wav", "duration": 7.50, "text": "x", "n": 1e2, "pred_text":"a \"b\""}"#
        );
        let failed: Value = serde_json::from_str(&entry(1).answer(Err("no"), true)).unwrap();
        let expected = json!({"audio_filepath": "/abs/ü.flac", "offset": 1.5, "duration": 2, "error": "no"});
        assert_eq!(failed, expected);
    }

    #[test]
    fn a_line_that_is_no_entry_is_named() {
        for (lines, part) in [
            ("words\n[1]", "line 1: "),
            ("[1]", "line 1: "),
            ("{\"audio\": \"a\"}", "audio_filepath"),
            ("{\"audio_filepath\": 3}", "audio_filepath"),
            ("{\"audio_filepath\": \"a\", \"offset\": -1}", "\"offset\" is -1"),
            ("{\"audio_filepath\": \"a\", \"duration\": \"x\"}", "\"duration\""),
        ] {
            let error = entries(lines.as_bytes(), Path::new("")).unwrap_err();
            assert!(error.contains(part), "{lines}: {error}");
        }
        // Beside lines that are entries it is answered for itself.
        let lines = "{\"audio_filepath\": \"a\"}\n[1]\n{\"text\": \"b\", \"n\": 1.0}\n{}\n{\"audio_filepath\": \"c\"}";
        let list = entries(lines.as_bytes(), Path::new("")).unwrap();
        let entries_of: Vec<&Entry> = list.iter().filter_map(|i| i.entry.as_ref()).collect();
        assert_eq!(
            entries_of.iter().map(|e| e.fault().is_some()).collect::<Vec<_>>(),
            [false, true, true, true, false]
        );
        for (entry, line) in [
            (1, r#"{"line": 2, "error":"x"}"#),
            (2, r#"{"text": "b", "n": 1.0, "error":"x"}"#),
            (3, r#"{"line": 4, "error":"x"}"#),
        ] {
            assert_eq!(entries_of[entry].answer(Err("x"), false), line);
        }
        let long = format!("{{\"audio_filepath\": \"{}\"}}", "x".repeat(LINE as usize));
        assert!(entries(long.as_bytes(), Path::new("")).unwrap_err().contains("megabyte"));
        assert!(entries(&b"\xff\xfe"[..], Path::new("")).unwrap_err().contains("UTF-8"));
        assert!(entries(&b""[..], Path::new("")).unwrap().is_empty());
    }

    #[test]
    fn answers_are_taken_up_again_where_they_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let line = |i: usize| format!("{{\"audio_filepath\": \"{}.wav\", \"offset\": {i}}}\n", i % 2);
        let list = entries((0..4).map(line).collect::<String>().as_bytes(), Path::new("")).unwrap();
        let answer = |i: usize| list[i].entry.as_ref().unwrap().answer(Ok(&transcript("t")), false);
        let mut first = Answers::begin(&path, &list, true).unwrap();
        first.push(2, answer(2), true).unwrap();
        first.push(0, "{\"error\": \"x\"}".into(), false).unwrap();
        first.file.write_all(b"{\"audio_filepath\": \"1.wav\", \"off").unwrap();
        drop(first);
        assert!(!path.exists());
        let mut second = Answers::begin(&path, &list, true).unwrap();
        assert_eq!([0, 1, 2, 3].map(|i| second.has(i)), [false, false, true, false]);
        for i in [3, 0, 1] {
            second.push(i, answer(i), true).unwrap();
        }
        drop(second);
        let third = Answers::begin(&path, &list, true).unwrap();
        assert!((0..4).all(|i| third.has(i)));
        third.finish().unwrap();
        let expected: String = (0..4).map(|i| answer(i) + "\n").collect();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // What is asked for is another line, though of the same sound.
        let other =
            entries(&b"{\"audio_filepath\": \"0.wav\", \"offset\": 0, \"speaker\": 2}"[..], Path::new(""));
        assert!(!Answers::begin(&path, &other.unwrap(), true).unwrap().has(0));
        // Without being told to resume, all begins anew; what is complete is taken over too.
        assert!((0..4).all(|i| Answers::begin(&path, &list, true).unwrap().has(i)));
        assert!(!Answers::begin(&path, &list, false).unwrap().has(0));
    }
}
