//! Several texts at once: every step reads one token of each in a single run, so that weights are fetched once for all.

use crate::error::LanguageError;
use crate::generate::{Chooser, Finish, GenerateOptions, Piece};
use crate::model::LanguageModel;
use crate::session::{LanguageSession, shifted, tensor_error, view};
use conure_graph::Session;
use conure_models::decoder::{ROWS, SEQUENCES, TOKENS};
use conure_tensor::Bindings;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a step gave of one text.
#[derive(Debug)]
pub struct BatchPiece {
    /// The number that [`LanguageBatch::add`] gave.
    pub request: u64,
    /// Its next token; `None` of a text that is to have none, or why there is none: these end it.
    pub piece: Result<Option<Piece>, LanguageError>,
    /// Why it ended; `None` while it goes on, or if it failed.
    pub finish: Option<Finish>,
}

/// A prompt that waits for a place.
#[derive(Debug)]
struct Request {
    number: u64,
    ids: Vec<u32>,
    chooser: Chooser,
}

/// A text in the making.
#[derive(Debug)]
struct Sequence {
    number: u64,
    chooser: Chooser,
    /// The tokens whose keys and values are in the cache.
    seen: Vec<u32>,
    /// The token that was chosen last, and is not read yet.
    last: u32,
}

/// Texts that are continued together. Those that end make room for those that wait, between any two tokens. What a text becomes
/// does not depend on what it is together with.
#[derive(Debug)]
pub struct LanguageBatch {
    model: Arc<LanguageModel>,
    /// Reads prompts, one at a time; what the next begins with like the last is not read again.
    prompts: LanguageSession,
    session: Session,
    places: Vec<Option<Sequence>>,
    waiting: VecDeque<Request>,
    next: u64,
    tokens: Vec<i32>,
    at: Vec<i32>,
    wanted: Vec<i32>,
}

impl LanguageBatch {
    pub(crate) fn new(
        model: Arc<LanguageModel>,
        prompts: LanguageSession,
        session: Session,
        places: usize,
    ) -> LanguageBatch {
        LanguageBatch {
            model,
            prompts,
            session,
            places: (0..places).map(|_| None).collect(),
            waiting: VecDeque::new(),
            next: 0,
            tokens: Vec::with_capacity(places),
            at: Vec::with_capacity(places),
            wanted: Vec::with_capacity(places),
        }
    }

    /// Adds a prompt, which begins once there is a place for it; the number that its pieces carry.
    ///
    /// # Errors
    /// No tokens, tokens that the model does not know, more than there is room for; options that make no sense.
    pub fn add(&mut self, ids: &[u32], options: &GenerateOptions) -> Result<u64, LanguageError> {
        let chooser = Chooser::new(&self.model, options)?;
        self.prompts.check_prompt(ids)?;
        self.prompts.check_shift(options.context_shift)?;
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(Request { number, ids: ids.to_vec(), chooser });
        Ok(number)
    }

    /// Ends a text; whether it was there.
    pub fn cancel(&mut self, request: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|r| r.number != request);
        let place = self.places.iter_mut().find(|p| p.as_ref().is_some_and(|s| s.number == request));
        self.waiting.len() < before || place.is_some_and(|p| p.take().is_some())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.places.iter().all(Option::is_none)
    }

    /// One token of every text that is going on, and the first ones of those that find a place.
    ///
    /// # Errors
    /// A run that fails as a whole; the texts are as they were before it.
    pub fn step(&mut self) -> Result<Vec<BatchPiece>, LanguageError> {
        let mut pieces = Vec::new();
        self.decode(&mut pieces)?;
        // Texts of no tokens need no place.
        self.waiting.retain(|r| {
            let finish = r.chooser.finish;
            let ended = finish.map(|_| BatchPiece { request: r.number, piece: Ok(None), finish });
            pieces.extend(ended);
            finish.is_none()
        });
        while let Some(place) = self.places.iter().position(Option::is_none) {
            let Some(request) = self.waiting.pop_front() else { break };
            let number = request.number;
            if let Err(error) = self.begin(place, request, &mut pieces) {
                pieces.push(BatchPiece { request: number, piece: Err(error), finish: None });
            }
        }
        Ok(pieces)
    }

    /// Reads a prompt, keeps its keys and values in `place`, and chooses its first token.
    fn begin(
        &mut self,
        place: usize,
        request: Request,
        pieces: &mut Vec<BatchPiece>,
    ) -> Result<(), LanguageError> {
        let Request { number, ids, mut chooser } = request;
        self.prompts.read_prompt(&ids)?;
        self.session.copy_state_rows(place, self.prompts.graph_session(), ids.len())?;
        let piece = chooser.choose(&self.model, self.prompts.logits()?, &ids, self.prompts.context())?;
        let finish = chooser.finish;
        if finish.is_none() {
            let sequence = Sequence { number, chooser, seen: ids, last: piece.id };
            self.places[place] = Some(sequence);
        }
        pieces.push(BatchPiece { request: number, piece: Ok(Some(piece)), finish });
        Ok(())
    }

    /// Makes room in the texts that fill their context and are to go on: what they keep is read again like a prompt.
    fn shift(&mut self) -> Result<(), LanguageError> {
        for (i, place) in self.places.iter_mut().enumerate() {
            let Some(sequence) = place else { continue };
            if let Some(keep) = sequence.chooser.shift_of(&sequence.seen, self.prompts.context()) {
                let kept = shifted(&sequence.seen, keep);
                if !kept.is_empty() {
                    self.prompts.read_prompt(&kept)?;
                    self.session.copy_state_rows(i, self.prompts.graph_session(), kept.len())?;
                }
                sequence.seen = kept;
            }
        }
        Ok(())
    }

    /// Reads the last token of every text, and chooses the next.
    fn decode(&mut self, pieces: &mut Vec<BatchPiece>) -> Result<(), LanguageError> {
        self.shift()?;
        let Some(last) = self.places.iter().rposition(Option::is_some) else { return Ok(()) };
        let count = last + 1;
        self.tokens.clear();
        self.at.clear();
        self.wanted.clear();
        for (i, place) in self.places.iter().enumerate().take(count) {
            // A free place reads something too, at its beginning, where nothing is kept.
            let (token, at) = place.as_ref().map_or((0, 0), |s| (s.last as i32, s.seen.len() as i32));
            self.tokens.push(token);
            self.at.push(at);
            if place.is_some() {
                self.wanted.push(i as i32);
            }
        }
        let rows = self.wanted.len();
        let bindings = Bindings::new().with(SEQUENCES, count).with(TOKENS, 1).with(ROWS, rows);
        let inputs = [
            ("tokens", view(&[count, 1], &self.tokens)?),
            ("positions", view(&[count, 1], &self.at)?),
            ("at", view(&[count], &self.at)?),
            ("wanted", view(&[rows], &self.wanted)?),
        ];
        let outputs = self.session.run(&bindings, &inputs)?;
        let logits = outputs.get("logits")?;
        let logits = logits.as_slice::<f32>().map_err(tensor_error)?;
        let (context, width) = (self.prompts.context(), self.model.config().vocab_size);
        let active = self.places.iter_mut().filter(|p| p.is_some());
        for (place, row) in active.zip(logits.chunks_exact(width.max(1))) {
            let Some(sequence) = place else { continue };
            sequence.seen.push(sequence.last);
            let request = sequence.number;
            let piece = if row.first().is_some_and(|l| l.is_finite()) {
                sequence.chooser.choose(&self.model, row, &sequence.seen, context)
            } else {
                Err(LanguageError::NotFinite { position: sequence.seen.len() - 1 })
            };
            let finish = sequence.chooser.finish;
            match &piece {
                Ok(piece) if finish.is_none() => sequence.last = piece.id,
                _ => *place = None,
            }
            pieces.push(BatchPiece { request, piece: piece.map(Some), finish });
        }
        Ok(())
    }
}
