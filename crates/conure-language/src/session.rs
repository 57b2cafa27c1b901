//! A session: the tokens that were read so far, and the keys and values that the model made of them.

use crate::error::LanguageError;
use crate::generate::{GenerateOptions, Generation};
use crate::model::LanguageModel;
use conure_graph::{GraphError, Observer, Session};
use conure_models::decoder::{ROWS, SEQUENCES, TOKENS};
use conure_tensor::{Bindings, Tensor, TensorView};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Tokens that are read at once: enough for products at full speed, few enough for small buffers.
const CHUNK: usize = 512;

/// Of which tokens the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Of the last.
    Last,
    /// Of all.
    All,
}

/// What the states know of the tokens read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// All of them.
    All,
    /// All of them and more, which cannot be taken back.
    TooMuch,
}

/// One text in the making, with what the model remembers of it.
#[derive(Debug)]
pub struct LanguageSession {
    model: Arc<LanguageModel>,
    session: Session,
    capacity: usize,
    /// The tokens read so far.
    seen: Vec<u32>,
    /// How many of them the states know: all, but for a model with recurrent layers that was rewound, whose states know more
    /// than was kept and must read it again.
    known: Known,
    tokens: Vec<i32>,
    positions: Vec<i32>,
    wanted: Vec<i32>,
}

/// Tokens that a session makes room for at once; a longer context grows.
const MOST_ROOM: usize = 1 << 20;

impl LanguageSession {
    pub(crate) fn new(model: Arc<LanguageModel>, session: Session, capacity: usize) -> LanguageSession {
        let room = || Vec::with_capacity(CHUNK);
        LanguageSession {
            model,
            session,
            capacity,
            // Room for all that may come: reading a token allocates nothing.
            seen: Vec::with_capacity(capacity.min(MOST_ROOM)),
            known: Known::All,
            tokens: room(),
            positions: room(),
            wanted: room(),
        }
    }

    /// Its model.
    pub fn model(&self) -> &Arc<LanguageModel> {
        &self.model
    }

    /// Tokens that there is room for.
    pub fn context(&self) -> usize {
        self.capacity
    }

    /// The tokens read so far.
    pub fn tokens(&self) -> &[u32] {
        &self.seen
    }

    /// Forgets all but the first `count` tokens. A model with recurrent layers cannot go back: it reads those tokens again
    /// before the next ones.
    pub fn rewind(&mut self, count: usize) {
        if count < self.seen.len() && self.model.config().recurrent.is_some() {
            self.known = Known::TooMuch;
        }
        self.seen.truncate(count);
    }

    /// Makes room: keeps the first `keep` tokens, BOS included, and the later half of the others, which are read again at their new
    /// places, so that all is as if nothing else had ever been read.
    ///
    /// # Errors
    /// What reading says: then less may be kept.
    pub fn shift(&mut self, keep: usize) -> Result<(), LanguageError> {
        let kept = shifted(&self.seen, keep);
        self.rewind(keep);
        self.catch_up()?;
        let from = self.seen.len();
        kept[from..].chunks(CHUNK).try_for_each(|chunk| self.run(chunk, None, &[]))
    }

    /// Bytes of the arena and of the cache; of the cache, what was never written is not there yet.
    pub fn memory(&self) -> (usize, usize) {
        (self.session.arena_bytes(), self.session.state_bytes())
    }

    /// A flag that ends a run once it is set.
    pub fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.session.set_cancel(cancel);
    }

    /// Who is told of each step of the runs from now on.
    pub fn set_observer(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.session.set_observer(observer);
    }

    /// Reads `ids` after what was read so far; the logits after the last of them, one for each token of the vocabulary.
    ///
    /// Reading one token allocates nothing once that was done before.
    ///
    /// # Errors
    /// No tokens, tokens that the model does not know, more than there is room for; logits that are no numbers.
    pub fn read(&mut self, ids: &[u32]) -> Result<&[f32], LanguageError> {
        let most = self.chunk();
        let Some(last) = ids.chunks(most).count().checked_sub(1) else {
            return Err(LanguageError::EmptyPrompt);
        };
        self.check(self.seen.len(), ids)?;
        self.catch_up()?;
        for chunk in ids.chunks(most).take(last) {
            self.run(chunk, None, &[])?;
        }
        let rest = ids.chunks(most).next_back().unwrap_or(&[]);
        self.run(rest, Some(Wanted::Last), &[])?;
        let logits = self.logits()?;
        if logits.first().is_some_and(|l| l.is_finite()) {
            return Ok(logits);
        }
        Err(LanguageError::NotFinite { position: self.seen.len().saturating_sub(1) })
    }

    /// As [`LanguageSession::read`], and gives the logits of each token: `[ids, vocabulary]`, in memory at once.
    ///
    /// # Errors
    /// As [`LanguageSession::read`].
    pub fn read_all(&mut self, ids: &[u32]) -> Result<&[f32], LanguageError> {
        self.check(self.seen.len(), ids)?;
        self.catch_up()?;
        self.run(ids, Some(Wanted::All), &[])?;
        self.logits()
    }

    /// As [`LanguageSession::read`], and gives what the model computed under these names on the way, in f32, tokens first
    /// (`[ids, D]`): those of [`LanguageModel::node_names`].
    ///
    /// # Errors
    /// As [`LanguageSession::read`]; a name that the model has not, with those it has.
    pub fn capture(&mut self, ids: &[u32], names: &[&str]) -> Result<Vec<(String, Tensor)>, LanguageError> {
        if ids.is_empty() {
            return Err(LanguageError::EmptyPrompt);
        }
        self.check(self.seen.len(), ids)?;
        for name in names {
            self.session.program().graph().named(name)?;
        }
        self.catch_up()?;
        let wanted = names.contains(&"logits").then_some(Wanted::All);
        let mut values: Vec<Vec<f32>> = vec![Vec::new(); names.len()];
        for chunk in ids.chunks(self.chunk()) {
            self.run(chunk, wanted, names)?;
            let outputs = self.session.outputs()?;
            for (name, values) in names.iter().zip(&mut values) {
                values.extend_from_slice(outputs.get(name)?.as_slice::<f32>().map_err(tensor_error)?);
            }
        }
        let of_tokens = |(name, values): (&&str, Vec<f32>)| {
            let shape = [ids.len(), values.len() / ids.len()];
            let tensor = Tensor::from_slice(&shape, &values).map_err(tensor_error)?;
            Ok(((*name).to_owned(), tensor))
        };
        names.iter().zip(values).map(of_tokens).collect()
    }

    /// Most tokens of a run.
    fn chunk(&self) -> usize {
        self.session.device().chunk().map_or(CHUNK, |most| most.clamp(1, CHUNK))
    }

    /// The logits of the last run.
    pub(crate) fn logits(&self) -> Result<&[f32], LanguageError> {
        let view = self.session.outputs()?.get("logits")?;
        view.as_slice::<f32>().map_err(tensor_error)
    }

    /// Whether `ids` can be read after `before` tokens.
    fn check(&self, before: usize, ids: &[u32]) -> Result<(), LanguageError> {
        let (tokens, trained) = (self.model.config().vocab_size, self.model.config().context_length);
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= tokens) {
            return Err(LanguageError::UnknownToken { id, tokens });
        }
        let (tokens, context) = (before + ids.len(), self.capacity);
        if tokens > context {
            return Err(LanguageError::ContextFull { tokens, context, trained });
        }
        Ok(())
    }

    /// Lets states that know too much read again what was kept. At the beginning there is nothing to read: layers begin anew
    /// with the first token.
    fn catch_up(&mut self) -> Result<(), LanguageError> {
        if self.known == Known::All {
            return Ok(());
        }
        let kept = std::mem::take(&mut self.seen);
        // If a run fails, the next read begins again.
        let read = kept.chunks(self.chunk()).try_for_each(|chunk| self.run(chunk, None, &[]));
        match read {
            Ok(()) => self.known = Known::All,
            Err(_) => self.seen = kept,
        }
        read
    }

    fn run(&mut self, ids: &[u32], wanted: Option<Wanted>, captures: &[&str]) -> Result<(), LanguageError> {
        let (at, count) = (self.seen.len() as i32, ids.len());
        self.tokens.clear();
        self.tokens.extend(ids.iter().map(|&id| id as i32));
        self.positions.clear();
        self.positions.extend((at..).take(count));
        self.wanted.clear();
        match wanted {
            None => {}
            Some(Wanted::Last) => self.wanted.push(count as i32 - 1),
            Some(Wanted::All) => self.wanted.extend(0..count as i32),
        }
        let bindings = Bindings::new().with(SEQUENCES, 1).with(TOKENS, count).with(ROWS, self.wanted.len());

        let at = [at];
        let inputs = [
            ("tokens", view(&[1, count], &self.tokens)?),
            ("positions", view(&[1, count], &self.positions)?),
            ("at", view(&[1], &at)?),
            ("wanted", view(&[self.wanted.len()], &self.wanted)?),
        ];
        self.session.run_capturing(&bindings, &inputs, captures)?;
        self.seen.extend_from_slice(ids);
        Ok(())
    }

    /// Continues `prompt`, a text, after what the file asks texts to begin with. What this session read before and the prompt
    /// begins with too is not read again.
    ///
    /// # Errors
    /// A text that cannot be tokenised or does not fit; options that make no sense.
    pub fn generate(
        &mut self,
        prompt: &str,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>, LanguageError> {
        let ids = self.model.tokenizer().encode(prompt, false, true)?;
        self.generate_ids(&ids, options)
    }

    /// As [`LanguageSession::generate`], of tokens.
    ///
    /// # Errors
    /// As [`LanguageSession::generate`].
    pub fn generate_ids(
        &mut self,
        ids: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'_>, LanguageError> {
        Generation::start(self, ids, options)
    }

    /// Whether a full context can be shifted so that `keep` tokens stay.
    pub(crate) fn check_shift(&self, keep: Option<usize>) -> Result<(), LanguageError> {
        match keep {
            Some(keep) if keep >= self.capacity => Err(LanguageError::Option {
                option: "what a context shift keeps",
                found: format!("{keep} tokens"),
                expected: "less than the context has room for",
            }),
            _ => Ok(()),
        }
    }

    /// Whether `ids` can be read from the beginning.
    pub(crate) fn check_prompt(&self, ids: &[u32]) -> Result<(), LanguageError> {
        if ids.is_empty() { Err(LanguageError::EmptyPrompt) } else { self.check(0, ids) }
    }

    /// Reads `ids` from the beginning, but for what was read before; how much that is.
    pub(crate) fn read_prompt(&mut self, ids: &[u32]) -> Result<usize, LanguageError> {
        self.check_prompt(ids)?;
        let reused = self.keep_prefix(ids);
        self.read(&ids[reused..])?;
        Ok(reused)
    }

    /// Its cache.
    pub(crate) fn graph_session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Keeps what was read and `ids` begins with too, but for the last token, whose logits are needed; how much is kept.
    fn keep_prefix(&mut self, ids: &[u32]) -> usize {
        let same = self.seen.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let kept = same.min(ids.len().saturating_sub(1));
        let again = kept < self.seen.len() || self.known == Known::TooMuch;
        // States that cannot go back would read what is kept again: nothing is kept, so that it is counted as read.
        self.rewind(if again && self.model.config().recurrent.is_some() { 0 } else { kept });
        self.seen.len()
    }
}

/// The first `keep` tokens, and the later half of the others.
pub(crate) fn shifted(seen: &[u32], keep: usize) -> Vec<u32> {
    let (first, rest) = seen.split_at(keep.min(seen.len()));
    [first, &rest[rest.len().div_ceil(2)..]].concat()
}

/// i32 of this shape.
pub(crate) fn view<'a>(shape: &[usize], data: &'a [i32]) -> Result<TensorView<'a>, LanguageError> {
    TensorView::of(shape, data).map_err(tensor_error)
}

pub(crate) fn tensor_error(source: conure_tensor::TensorError) -> LanguageError {
    LanguageError::Graph(GraphError::Tensor { path: "session".into(), source })
}
