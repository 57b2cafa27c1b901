//! `conure chat`.

use super::generate::sampling;
use super::{language, model};
use crate::args::ChatArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{clean, note, shown, to_file, to_stdout, warning};
use conure::{
    ChatTemplate, Error, Finish, GenerateOptions, LanguageError, LanguageModel, LanguageSession, Message,
    SessionOptions,
};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;

/// What can be asked for besides talking.
const HELP: &str = "/system TEXT sets what the model is to be, /reset forgets the chat, /save FILE writes it as JSON, \
                    /quit ends it; Ctrl-C ends an answer";

/// A chat under way.
struct Chat<'m> {
    loaded: &'m LanguageModel,
    template: ChatTemplate,
    session: LanguageSession,
    options: GenerateOptions,
    system: Option<String>,
    messages: Vec<Message>,
}

/// Talks until the input ends.
///
/// # Errors
/// If the model, its template or standard output cannot be used. What is wrong with one message is said, and the chat goes
/// on.
pub fn run(args: &ChatArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let loaded = language::load(&args.model, &args.compute)?;
    let template = template(args, &loaded)?;
    let cache = language::cache(args.context.cache);
    let mut session = loaded
        .session(&SessionOptions { context: args.context.context, cache })
        .map_err(|e| model::failed("cannot begin a chat", e))?;
    session.set_cancel(Some(interrupt.flag().clone()));
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        context_shift: args.context.context_shift,
        sampling: sampling(&args.sampling),
        ..GenerateOptions::default()
    };
    let (system, messages) = (args.system.clone(), Vec::new());
    let mut chat = Chat { loaded: &loaded, template, session, options, system, messages };
    interrupt.ends_work_only();
    let talks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if talks {
        note(HELP);
    }
    let mut input = BufReader::new(interrupt.waits(std::io::stdin()));
    loop {
        if talks {
            let _ = write!(std::io::stderr(), "> ").and_then(|()| std::io::stderr().flush());
        }
        let mut line = String::new();
        match input.read_line(&mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(Failure::new("cannot read standard input").because(e)),
        }
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            text if text.starts_with('/') => chat.command(text),
            text => {
                if !chat.say(text, interrupt)? {
                    return Ok(());
                }
            }
        }
        interrupt.forget();
    }
}

/// The template that is asked for, or the file's.
fn template(args: &ChatArgs, loaded: &LanguageModel) -> Result<ChatTemplate, Failure> {
    let Some(wanted) = &args.chat_template else {
        return loaded.chat_template().map_err(|e| {
            Failure::new(format!("cannot chat with {}", shown(&args.model)))
                .because(e)
                .advice("name a template with --chat-template, or use `conure generate`")
        });
    };
    if let Some(known) = ChatTemplate::named(wanted) {
        return Ok(known);
    }
    let fail = || Failure::new(format!("cannot use the chat template {}", clean(wanted)));
    let source = std::fs::read_to_string(wanted).map_err(|e| {
        fail().because(e).advice("known by name are gemma, chatml and llama3; others are files in Jinja")
    })?;
    ChatTemplate::new(&source).map_err(|e| fail().because(e))
}

impl Chat<'_> {
    /// Everything said so far.
    fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// A line that begins with a slash.
    fn command(&mut self, line: &str) {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (name, rest.trim()) {
            ("/system", "") => self.system = None,
            ("/system", text) => self.system = Some(text.to_owned()),
            ("/reset", _) => {
                self.messages.clear();
                self.session.rewind(0);
            }
            ("/save", "") => warning("give a file: /save FILE"),
            ("/save", file) => match self.save(Path::new(file)) {
                Ok(()) => note(&format!("saved to {}", clean(file))),
                Err(e) => warning(&format!("cannot save to {}: {e}", clean(file))),
            },
            _ => note(HELP),
        }
    }

    fn save(&self, path: &Path) -> std::io::Result<()> {
        to_file(path, |out| {
            serde_json::to_writer_pretty(&mut *out, &self.all())?;
            out.write_all(b"\n")
        })
    }

    /// Says something to the model and shows its answer; `false` if nobody listens any more.
    fn say(&mut self, text: &str, interrupt: &Interrupt) -> Result<bool, Failure> {
        self.messages.push(Message::new("user", text));
        let mut answer = String::new();
        let mut finish = None;
        let mut failure: Option<LanguageError> = None;
        let listens = match self.ids() {
            Err(error) => {
                failure = Some(error);
                true
            }
            Ok(ids) => match self.session.generate_ids(&ids, &self.options) {
                Err(error) => {
                    failure = Some(error);
                    true
                }
                Ok(mut generation) => to_stdout(|out| {
                    for piece in generation.by_ref() {
                        match piece {
                            Ok(piece) => {
                                answer.push_str(&piece.text);
                                out.write_all(piece.text.as_bytes())?;
                                out.flush()?;
                            }
                            Err(error) => {
                                failure = Some(error);
                                break;
                            }
                        }
                    }
                    finish = generation.finish();
                    out.write_all(b"\n")
                })?,
            },
        };
        if let Some(error) = failure.filter(|_| !interrupt.requested()) {
            // The message is taken back: the next one may fit where this one did not.
            self.messages.pop();
            model::failed("no answer", Error::from(error)).print();
            return Ok(listens);
        }
        if finish == Some(Finish::ContextFull) {
            warning("the context is full: the answer ends here; /reset begins anew");
        }
        self.messages.push(Message::new("assistant", answer));
        Ok(listens)
    }

    /// The chat as tokens, up to where the answer begins.
    fn ids(&self) -> Result<Vec<u32>, LanguageError> {
        let tokenizer = self.loaded.tokenizer();
        let text = self.template.render(tokenizer, &self.all(), true)?;
        Ok(tokenizer.encode(&text, true, true)?)
    }
}
