//! Continuing a prompt, piece by piece.

use crate::error::LanguageError;
use crate::grammar::{Constraint, Grammar};
use crate::model::LanguageModel;
use crate::sampler::{Sampler, Sampling, likeliest, log_probability};
use crate::session::LanguageSession;
use crate::stops::Stops;
use conure_text::TextStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a prompt is continued.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end it; they are not part of what is given out.
    pub stop: Vec<String>,
    /// Whether to go on when the model ends; a text that is complete by its grammar ends all the same.
    pub ignore_end: bool,
    /// What happens where the context is full: `None` ends the text; a number keeps so many of the first tokens, BOS included, forgets
    /// the earlier half of the others, and goes on ([`LanguageSession::shift`]). A prompt must fit all the same.
    pub context_shift: Option<usize>,
    /// What the text must be: no token is chosen that cannot lead there. A text that is complete ends. Limits on tokens and stop
    /// texts may end it before.
    pub grammar: Option<Grammar>,
    /// Whether probabilities are wanted, and of how many of the likeliest tokens besides the chosen one.
    pub logprobs: Option<usize>,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended, or a stop text came.
    Stop,
    /// There were as many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
}

/// One token, and the text that can be shown since it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token; the one that ended it is given out too.
    pub id: u32,
    /// Text; empty while characters are incomplete or a stop text may be coming.
    pub text: String,
    /// The logarithm of its probability, if asked for: the model's, whatever a grammar leaves.
    pub logprob: Option<f32>,
    /// The likeliest tokens with the logarithms of their probabilities, if asked for.
    pub top: Vec<(u32, f32)>,
}

/// What was done, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Tokens of the prompt that this session knew from before.
    pub reused: usize,
    /// Tokens of the prompt that were read.
    pub prompt: usize,
    /// The time that reading them took.
    pub prompt_time: Duration,
    /// Tokens that were chosen.
    pub generated: usize,
    /// The time for all of them but the first, which comes with the prompt.
    pub generate_time: Duration,
    /// How often a full context was shifted.
    pub shifts: usize,
}

/// How one text is continued: what chooses its tokens, and makes text of them.
#[derive(Debug)]
pub(crate) struct Chooser {
    options: GenerateOptions,
    sampler: Sampler,
    stops: Stops,
    text: TextStream,
    constraint: Option<Constraint>,
    /// The logits that a constraint leaves.
    masked: Vec<f32>,
    /// Tokens chosen so far.
    generated: usize,
    pub(crate) finish: Option<Finish>,
}

impl Chooser {
    pub(crate) fn new(model: &LanguageModel, options: &GenerateOptions) -> Result<Chooser, LanguageError> {
        Ok(Chooser {
            constraint: options.grammar.as_ref().map(|g| model.constraint(g)).transpose()?,
            masked: Vec::new(),
            sampler: Sampler::new(&options.sampling)?,
            options: options.clone(),
            stops: Stops::new(&options.stop),
            text: TextStream::default(),
            generated: 0,
            finish: (options.max_tokens == Some(0)).then_some(Finish::Length),
        })
    }

    /// A token that may come after `seen`, and whether a grammar says that the text is complete with it.
    fn next(
        &mut self,
        model: &LanguageModel,
        logits: &[f32],
        seen: &[u32],
    ) -> Result<(u32, bool), LanguageError> {
        let Some(constraint) = &mut self.constraint else {
            return Ok((self.sampler.sample(model.cpu(), logits, seen), false));
        };
        self.masked.clear();
        self.masked.extend_from_slice(logits);
        constraint.mask(&mut self.masked)?;
        let id = self.sampler.sample(model.cpu(), &self.masked, seen);
        Ok((id, constraint.accept(id)?))
    }

    /// The token after `seen`, whose last has these logits; whether there is room for it says `context`.
    ///
    /// # Errors
    /// A grammar that cannot be kept within.
    pub(crate) fn choose(
        &mut self,
        model: &LanguageModel,
        logits: &[f32],
        seen: &[u32],
        context: usize,
    ) -> Result<Piece, LanguageError> {
        let (id, complete) = self.next(model, logits, seen)?;
        let logprob = self.options.logprobs.map(|_| log_probability(logits, id));
        let top = self.options.logprobs.map_or(Vec::new(), |count| likeliest(logits, count));
        self.generated += 1;
        let ended = (complete || !self.options.ignore_end) && model.tokenizer().is_end(id);
        let mut text = if ended { String::new() } else { self.text.push(model.tokenizer(), id) };
        let (shown, stopped) = self.stops.push(text);
        text = shown;
        if ended || stopped || complete {
            self.finish = Some(Finish::Stop);
        } else if self.options.max_tokens.is_some_and(|most| self.generated >= most) {
            self.finish = Some(Finish::Length);
        } else if seen.len() >= context && self.options.context_shift.is_none() {
            self.finish = Some(Finish::ContextFull);
        }
        if self.finish.is_some() && !stopped {
            text.push_str(&self.rest());
        }
        Ok(Piece { id, text, logprob, top })
    }

    /// How many of the first tokens stay where `seen` fills the context and it is to be shifted.
    pub(crate) fn shift_of(&self, seen: &[u32], context: usize) -> Option<usize> {
        self.options.context_shift.filter(|_| seen.len() >= context)
    }

    /// What was held back, at the end.
    fn rest(&mut self) -> String {
        let (mut shown, stopped) = self.stops.push(self.text.finish());
        if !stopped {
            shown.push_str(&self.stops.finish());
        }
        shown
    }
}

/// A continuation in the making: an iterator of pieces.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut LanguageSession,
    model: Arc<LanguageModel>,
    chooser: Chooser,
    /// The token that was chosen last, and is not read yet.
    last: Option<u32>,
    timings: Timings,
}

impl<'s> Generation<'s> {
    pub(crate) fn start(
        session: &'s mut LanguageSession,
        ids: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'s>, LanguageError> {
        let chooser = Chooser::new(session.model(), options)?;
        session.check_shift(options.context_shift)?;
        let begun = Instant::now();
        let reused = session.read_prompt(ids)?;
        let timings = Timings {
            reused,
            prompt: ids.len() - reused,
            prompt_time: begun.elapsed(),
            ..Timings::default()
        };
        let model = session.model().clone();
        Ok(Generation { session, model, chooser, last: None, timings })
    }

    /// Why it ended; `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.chooser.finish
    }

    /// What was done so far, and how long it took.
    pub fn timings(&self) -> Timings {
        Timings { generated: self.chooser.generated, ..self.timings }
    }

    /// Where the random numbers began.
    pub fn seed(&self) -> u64 {
        self.chooser.sampler.seed()
    }

    fn step(&mut self) -> Result<Piece, LanguageError> {
        let begun = Instant::now();
        if let Some(last) = self.last {
            if let Some(keep) = self.chooser.shift_of(self.session.tokens(), self.session.context()) {
                self.session.shift(keep)?;
                self.timings.shifts += 1;
            }
            self.session.read(&[last])?;
        }
        let logits = self.session.logits()?;
        let piece =
            self.chooser.choose(&self.model, logits, self.session.tokens(), self.session.context())?;
        if self.last.replace(piece.id).is_some() {
            self.timings.generate_time += begun.elapsed();
        }
        Ok(piece)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece, LanguageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chooser.finish.is_some() {
            return None;
        }
        let piece = self.step();
        if piece.is_err() {
            self.chooser.finish = Some(Finish::Stop);
        }
        Some(piece)
    }
}
