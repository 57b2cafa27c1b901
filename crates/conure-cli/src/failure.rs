//! What went wrong, for a person: what, why, and what to try.

use crate::output::{clean, labelled, to_stderr};
use std::error::Error;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Success,
    /// Something failed.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// Interrupted by the user.
    Interrupted,
}

impl Exit {
    /// The code that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Interrupted => 130,
        }
    }
}

/// A failure: what, because of what, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    what: String,
    because: Vec<String>,
    advice: Option<String>,
    exit: Exit,
}

impl Failure {
    /// Something failed.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), because: Vec::new(), advice: None, exit: Exit::Failed }
    }

    /// The command line makes no sense.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, ..Failure::new(what) }
    }

    /// The user stopped it.
    pub fn interrupted() -> Failure {
        Failure { exit: Exit::Interrupted, ..Failure::new("interrupted") }
    }

    /// Adds an error and what caused it. Of errors that repeat their cause in their own text, the text is kept once, and
    /// a name that this failure already names is not named again.
    pub fn because(mut self, error: impl Error + 'static) -> Failure {
        let mut next: Option<&dyn Error> = Some(&error);
        while let Some(error) = next {
            let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            if io == Some(std::io::ErrorKind::NotFound) && self.advice.is_none() {
                self.advice = Some(look_for_it());
            }
            let text = without_name(&error.to_string(), &self.what).to_owned();
            if !self.because.iter().any(|b| b.contains(&text)) {
                self.because.push(text);
            }
            next = error.source();
        }
        self
    }

    /// Adds a reason in words.
    pub fn reason(mut self, reason: impl Into<String>) -> Failure {
        self.because.push(reason.into());
        self
    }

    /// What to try.
    pub fn advice(mut self, advice: impl Into<String>) -> Failure {
        self.advice = Some(advice.into());
        self
    }

    /// How the program ends if this is all that happened.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The reasons on one line, or what failed if there are none.
    pub fn summary(&self) -> String {
        let parts =
            if self.because.is_empty() { std::slice::from_ref(&self.what) } else { &self.because[..] };
        clean(&parts.join(": ")).replace('\n', " ")
    }

    fn lines(&self) -> Vec<(&'static str, &str)> {
        let reasons = self.because.iter().map(|b| ("because", b.as_str()));
        std::iter::once(("error", self.what.as_str()))
            .chain(reasons)
            .chain(self.advice.iter().map(|a| ("try", a.as_str())))
            .collect()
    }

    /// Prints it on standard error.
    pub fn print(&self) {
        for (label, text) in self.lines() {
            let (indent, colour) = match label {
                "error" => ("", 31),
                "try" => ("  ", 32),
                _ => ("  ", 33),
            };
            let text = clean(text).replace('\n', "\n    ");
            to_stderr(&format!("{indent}{}", labelled(label, colour, &text)));
        }
    }
}

/// What to do about a name that nothing has.
fn look_for_it() -> String {
    match std::env::current_dir() {
        Ok(folder) => {
            format!("check the name; names without a / before them are looked for in {}", folder.display())
        }
        Err(_) => "check the name".to_owned(),
    }
}

/// `text` without a `NAME: ` before it, if `what` ends with that name.
fn without_name<'a>(text: &'a str, what: &str) -> &'a str {
    let named = |&(at, _): &(usize, &str)| at > 0 && what.ends_with(&text[..at]);
    text.match_indices(": ").find(named).map_or(text, |(at, separator)| &text[at + separator.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Chain(&'static str, Option<Box<Chain>>);

    impl fmt::Display for Chain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Chain {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|e| &**e as _)
        }
    }

    #[test]
    fn causes_come_once_each() {
        let inner = || Some(Box::new(Chain("no such file", None)));
        for (error, expected) in [
            (Chain("cannot open", inner()), vec!["cannot open", "no such file"]),
            (Chain("cannot open: no such file", inner()), vec!["cannot open: no such file"]),
            (Chain("plain", None), vec!["plain"]),
        ] {
            assert_eq!(Failure::new("x").because(error).because, expected);
        }
    }

    #[test]
    fn a_name_comes_once() {
        for (text, what, expected) in [
            ("a.wav: empty", "cannot transcribe a.wav", "empty"),
            ("a: b.wav: empty", "cannot transcribe a: b.wav", "empty"),
            ("b.wav: empty", "cannot transcribe a.wav", "b.wav: empty"),
            (": x", "cannot", ": x"),
            ("plain", "cannot", "plain"),
        ] {
            assert_eq!(without_name(text, what), expected);
        }
    }

    #[test]
    fn all_is_printed_in_order() {
        let failure = Failure::new("what").reason("why").advice("this");
        assert_eq!(failure.lines(), [("error", "what"), ("because", "why"), ("try", "this")]);
        assert_eq!(failure.summary(), "why");
        assert_eq!((failure.exit(), Failure::usage("x").exit().code()), (Exit::Failed, 2));
        assert_eq!(Failure::interrupted().exit().code(), 130);
    }
}
