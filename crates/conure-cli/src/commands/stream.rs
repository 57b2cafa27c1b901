//! `conure transcribe --stream`: words as they are spoken.

use super::model;
use super::transcribe::{announce, audio_options, live_source};
use crate::args::TranscribeArgs;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::{note, shown, to_stdout, warning};
use console::Term;
use conure::format::OutputFormat;
use conure::{AudioOptions, AudioSource, EndKind, SpeechModel, StreamOptions, StreamUpdate, Word};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Hears one input as it comes.
///
/// # Errors
/// A model that cannot be loaded or cannot stream, an input that cannot be read.
pub fn run(args: &TranscribeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let inputs = args.inputs();
    let Some(input) = inputs.first() else { return Ok(Exit::Success) };
    let model = model::load(args.model.as_deref(), &args.compute)?;
    if !args.quiet {
        announce(&model, model::is_embedded(args.model.as_deref()));
    }
    let options = StreamOptions {
        look_ahead: args.live.look_ahead,
        language: args.recognition.language.clone(),
        tight_words: args.recognition.tight_words,
        window: args.recognition.window,
        ..StreamOptions::default()
    };
    let json = args.formats().first() == Some(&OutputFormat::Json);
    let mut screen = Screen::new(json, args.output.no_timestamps);
    let live = Live { name: shown(input), quiet: args.quiet, since: None };
    live.hear(&model, live_source(input, interrupt)?, &audio_options(args), options, &mut screen, interrupt)?;
    // What was heard is told; that it is not all of it, to those who look at how the program ended.
    if interrupt.requested() { Err(Failure::interrupted()) } else { Ok(Exit::Success) }
}

/// An input that is heard as it comes.
pub struct Live {
    /// What messages call it.
    pub name: String,
    /// Whether nothing is to be said of how it went.
    pub quiet: bool,
    /// When its first sample was there, where they come as fast as they are spoken.
    pub since: Option<Instant>,
}

impl Live {
    /// Hears it to its end, or until the user has enough: with the first Ctrl-C it ends there, and what was said until then is
    /// told like the end of any other.
    ///
    /// # Errors
    /// A model that cannot stream, an input that cannot be read.
    pub fn hear(
        &self,
        model: &SpeechModel,
        source: AudioSource,
        audio: &AudioOptions,
        options: StreamOptions,
        screen: &mut Screen,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        interrupt.ends_work_only();
        let audio = AudioOptions { end: Some(interrupt.flag().clone()), ..audio.clone() };
        let (mut computing, mut chunk) = (Duration::ZERO, 0.0);
        let (mut late, mut first) = (Vec::new(), None);
        let mut failure = None;
        let result = model.listen(source, &audio, options, |update, stream| {
            (computing, chunk) = (stream.computing(), stream.latency());
            let heard = self.since.map(|since| since.elapsed().as_secs_f64());
            late.extend(heard.into_iter().flat_map(|now| update.words.iter().map(move |w| now - w.end)));
            let shown = update.words.first().or(update.partial.first());
            first = first.or_else(|| heard.zip(shown).map(|(now, word)| now - word.start));
            match screen.show(update) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        screen.close()?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let what = || format!("cannot transcribe {}", self.name);
        let heard = result.map_err(|error| model::failed(what(), error))?;
        for text in &heard.warnings {
            warning(&format!("{}: {text}", self.name));
        }
        if !self.quiet && heard.seconds > 0.0 {
            note(&how_it_went(&self.name, heard.seconds, computing, chunk, late, first));
        }
        Ok(())
    }
}

/// How fast a stream was heard and how late its words came: measured where it came as fast as it was spoken, the first also from its
/// beginning to where something of it was shown.
fn how_it_went(
    name: &str,
    seconds: f64,
    computing: Duration,
    chunk: f64,
    mut late: Vec<f64>,
    first: Option<f64>,
) -> String {
    let per_second = computing.as_secs_f64() / seconds;
    let rate = 1.0 / per_second.max(f64::MIN_POSITIVE);
    late.sort_by(f64::total_cmp);
    let measured = match (late.get(late.len() / 2), late.last()) {
        (Some(median), Some(most)) => {
            let first =
                first.map_or(String::new(), |s| format!("; the first was shown {s:.2} s after it began"));
            format!("words came {median:.2} s after they were spoken, at most {most:.2} s{first}")
        }
        _ => format!("words come up to {:.2} s after they are spoken", chunk * (1.0 + per_second)),
    };
    format!("{name}: {seconds:.2} s of audio, {rate:.1} times as fast as speech; {measured}")
}

/// Where words appear.
pub enum Screen {
    /// A line that is redrawn until its utterance ends.
    Line { term: Term, said: String, drawn: bool },
    /// A JSON object per line, for programs.
    Json,
    /// Text only: words as they are complete, a line per utterance.
    Text { column: bool },
}

impl Screen {
    /// For programs, for text alone, or as suits where standard output leads.
    pub fn new(json: bool, text: bool) -> Screen {
        if json {
            Screen::Json
        } else if text {
            Screen::Text { column: false }
        } else if std::io::stdout().is_terminal() {
            Screen::Line { term: Term::stdout(), said: String::new(), drawn: false }
        } else {
            Screen::Json
        }
    }

    /// Shows what is new; `false`: nobody reads any more.
    fn show(&mut self, update: &StreamUpdate) -> Result<bool, Failure> {
        match self {
            Screen::Line { term, said, drawn } => to_stdout(|_| line(term, said, drawn, update)),
            Screen::Json => to_stdout(|out| events(update).iter().try_for_each(|e| writeln!(out, "{e}"))),
            Screen::Text { column } => to_stdout(|out| {
                for piece in pieces(update) {
                    match piece {
                        Some(word) => {
                            write!(out, "{}{}", if *column { " " } else { "" }, word.word)?;
                            *column = true;
                        }
                        None if std::mem::take(column) => writeln!(out)?,
                        None => {}
                    }
                }
                Ok(())
            }),
        }
    }

    /// Ends the last line: on a terminal it is now shown whole.
    fn close(&mut self) -> Result<(), Failure> {
        match self {
            Screen::Line { term, said, drawn: true } => to_stdout(|_| {
                term.clear_line()?;
                if said.is_empty() { Ok(()) } else { term.write_line(said) }
            })?,
            Screen::Text { column: true } => to_stdout(|out| writeln!(out))?,
            _ => true,
        };
        Ok(())
    }
}

/// The words of an update in order, with `None` where an utterance ends or speech pauses.
fn pieces(update: &StreamUpdate) -> Vec<Option<&Word>> {
    let mut pieces = Vec::new();
    let mut ends = update.ends.iter().filter(|e| e.kind != EndKind::Backchannel).peekable();
    for (i, word) in update.words.iter().enumerate() {
        while ends.next_if(|e| e.words <= i).is_some() {
            pieces.push(None);
        }
        pieces.push(Some(word));
    }
    pieces.extend(ends.map(|_| None));
    pieces
}

/// What of `text` fits into a line: its end.
fn tail(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(length - columns.saturating_sub(1)).collect();
    format!("…{kept}")
}

fn line(term: &Term, said: &mut String, drawn: &mut bool, update: &StreamUpdate) -> std::io::Result<()> {
    if std::mem::replace(drawn, true) {
        term.clear_line()?;
    }
    for piece in pieces(update) {
        match piece {
            Some(word) => {
                if !said.is_empty() {
                    said.push(' ');
                }
                said.push_str(&word.word);
            }
            None if !said.is_empty() => {
                term.write_line(said)?;
                said.clear();
            }
            None => {}
        }
    }
    let growing: String = update.partial.iter().map(|p| format!(" {}", p.word)).collect();
    let columns = usize::from(term.size().1).saturating_sub(2).max(8);
    term.write_str(&tail(format!("{said}{growing}").trim_start(), columns))?;
    term.flush()
}

/// An update as JSON objects.
fn events(update: &StreamUpdate) -> Vec<Value> {
    let mut events = Vec::new();
    let mut shown = 0;
    let mut words_until = |events: &mut Vec<Value>, until: usize| {
        let until = until.min(update.words.len());
        if shown < until {
            let words = &update.words[shown..until];
            events.push(json!({"event": "words", "words": words}));
            shown = until;
        }
    };
    for end in &update.ends {
        words_until(&mut events, end.words);
        let of = match end.kind {
            EndKind::Utterance => "utterance",
            EndKind::Backchannel => "backchannel",
            EndKind::Pause => "pause",
        };
        events.push(json!({"event": "end", "of": of, "time": (end.time * 1e3).round() / 1e3}));
    }
    words_until(&mut events, usize::MAX);
    // Also none, where words that were told turned out not to be.
    if !update.partial.is_empty() || events.is_empty() {
        events.push(json!({"event": "partial", "words": update.partial}));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use conure::StreamEnd;

    fn update(words: &[&str], ends: &[usize], partial: &[&str]) -> StreamUpdate {
        let word = |text: &&str| Word { word: (*text).to_owned(), start: 1.0, end: 1.5, confidence: 0.5 };
        let end = |&words: &usize| StreamEnd { kind: EndKind::Utterance, frame: 20, time: 1.6, words };
        StreamUpdate {
            words: words.iter().map(word).collect(),
            ends: ends.iter().map(end).collect(),
            partial: partial.iter().map(word).collect(),
            ..StreamUpdate::default()
        }
    }

    #[test]
    fn words_and_ends_come_in_the_order_of_speech() {
        let events = events(&update(&["a", "b", "c"], &[2], &["d", "e"]));
        let kinds: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["words", "end", "words", "partial"]);
        assert_eq!(events[0]["words"].as_array().unwrap().len(), 2);
        assert_eq!((events[1]["of"].as_str(), events[1]["time"].as_f64()), (Some("utterance"), Some(1.6)));
        assert_eq!(events[3]["words"][1]["word"], "e");

        let update = update(&["a", "b"], &[0, 1, 2], &[]);
        let order: Vec<&str> =
            pieces(&update).iter().map(|piece| piece.map_or("|", |w| w.word.as_str())).collect();
        assert_eq!(order, ["|", "a", "|", "b", "|"]);
    }

    #[test]
    fn what_was_measured_is_said() {
        let second = Duration::from_millis(500);
        let told = how_it_went("a", 10.0, second, 0.16, Vec::new(), None);
        assert_eq!(
            told,
            "a: 10.00 s of audio, 20.0 times as fast as speech; words come up to 0.17 s after they are spoken"
        );
        let told = how_it_went("a", 10.0, second, 0.16, vec![0.5, 0.25, 0.75], Some(0.4));
        let expected = "; words came 0.50 s after they were spoken, at most 0.75 s; the first was shown 0.40 s after it began";
        assert!(told.ends_with(expected), "{told}");
    }

    #[test]
    fn a_long_line_shows_its_end() {
        assert_eq!(tail("short", 10), "short");
        assert_eq!(tail("äbcdefgh", 5), "…efgh");
    }
}
