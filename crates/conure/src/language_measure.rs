//! How fast a language model is, where its time goes, and its graph.

use crate::bench::{Times, milliseconds, precision};
use crate::error::Error;
use crate::language::LanguageModel;
use crate::process::peak_memory;
use crate::profile::{Shares, TraceEvent, watched};
use conure_graph::{DrawOptions, Drawing, Placement};
use conure_kernels::roofline::{Roofline, bandwidth};
use conure_language::{LanguageError, LanguageSession, SessionOptions};
use conure_models::decoder::{ROWS, SEQUENCES, TOKENS};
use conure_tensor::Bindings;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What is read while a model is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanguageLoad {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens that are read one by one after it.
    pub tokens: usize,
}

/// How fast a language model is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LanguageBench {
    /// The model's file.
    pub model: String,
    /// What it ran on.
    pub device: String,
    /// The instruction set of the CPU's kernels.
    pub isa: &'static str,
    /// In which numbers the device computes (`exact`, `fast`, `int8`, `bf16`, `f16`), with `+` between several.
    pub precision: String,
    /// Threads.
    pub threads: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were read one by one.
    pub tokens: usize,
    /// Runs that were timed, after the first.
    pub runs: usize,
    /// Loading the model, if the caller says.
    pub load_ms: Option<f64>,
    /// The first run of all: packs weights and plans, or compiles.
    pub first_ms: f64,
    /// The prompt.
    pub prompt_ms: Times,
    /// One token.
    pub token_ms: Times,
    /// Tokens of the prompt a second, by the median.
    pub prompt_per_second: f64,
    /// Tokens a second one by one, by the median.
    pub tokens_per_second: f64,
    /// Bytes of weights that a token reads, in 10^6.
    pub weights_mb: f64,
    /// These a second, in 10^9.
    pub gbs: f64,
    /// The rate at which the threads read a buffer of that size, in 10^9 bytes a second.
    pub peak_gbs: f64,
    /// The former by the latter.
    pub bandwidth_fraction: f64,
    /// The most memory that the process had so far, in 10^6 bytes.
    pub peak_rss_mb: Option<f64>,
    /// Memory of intermediates, in 10^6 bytes.
    pub arena_mb: f64,
    /// Memory that keys and values may take, in 10^6 bytes.
    pub cache_mb: f64,
}

/// Where the time of a language model goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LanguageProfile {
    /// The model's file.
    pub model: String,
    /// What it ran on.
    pub device: String,
    /// The instruction set of the CPU's kernels.
    pub isa: &'static str,
    /// Threads.
    pub threads: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were read one by one.
    pub tokens: usize,
    /// The prompt.
    pub prompt_ms: f64,
    /// All single tokens together.
    pub tokens_ms: f64,
    /// The machine's peak in f32 products, in 10^9 operations a second.
    pub peak_gflops: f64,
    /// The machine's peak in reading memory, in 10^9 bytes a second.
    pub peak_gbs: f64,
    /// Of the prompt.
    pub prompt: Shares,
    /// Of all single tokens together.
    pub decode: Shares,
    /// Every step, up to a million for either part.
    #[serde(skip)]
    pub trace: Vec<TraceEvent>,
}

/// Lengths for the symbols of a language model's graph: `B` sequences, `T` new tokens of each, `R` rows of logits. What is left
/// out of a graph that is bound at all is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanguageLengths {
    /// Sequences.
    pub sequences: Option<usize>,
    /// New tokens of each.
    pub tokens: Option<usize>,
    /// Rows of logits that are wanted.
    pub rows: Option<usize>,
}

impl LanguageModel {
    /// A session for `load`, and the tokens of its prompt: numbers from all over the vocabulary.
    fn measured(&self, load: LanguageLoad) -> Result<(LanguageSession, Vec<u32>), Error> {
        let context = Some(load.prompt + load.tokens + 1);
        let session = self.session(&SessionOptions { context, ..SessionOptions::default() })?;
        let ids = (0..load.prompt.max(1)).map(|i| self.token(i)).collect();
        Ok((session, ids))
    }

    fn token(&self, at: usize) -> u32 {
        (at * 7919 % self.info().vocab_size.max(1)) as u32
    }

    /// The time for a prompt, from nothing.
    fn read_prompt(&self, session: &mut LanguageSession, prompt: &[u32]) -> Result<Duration, LanguageError> {
        session.rewind(0);
        let begun = Instant::now();
        session.read(prompt)?;
        Ok(begun.elapsed())
    }

    /// The time for tokens one by one, after what was read.
    fn read_tokens(&self, session: &mut LanguageSession, tokens: usize) -> Result<Duration, LanguageError> {
        let begun = Instant::now();
        for at in 0..tokens {
            session.read(&[self.token(at)])?;
        }
        Ok(begun.elapsed())
    }

    /// The times for a prompt, and for tokens one by one after it.
    fn read(
        &self,
        session: &mut LanguageSession,
        prompt: &[u32],
        tokens: usize,
    ) -> Result<(Duration, Duration), LanguageError> {
        Ok((self.read_prompt(session, prompt)?, self.read_tokens(session, tokens)?))
    }

    /// Reads a prompt of made up tokens, and tokens one by one: once to warm up and then `runs` times, at least once.
    ///
    /// # Errors
    /// A context that cannot be had; a run that fails.
    pub fn bench(&self, load: LanguageLoad, runs: usize) -> Result<LanguageBench, Error> {
        let load = LanguageLoad { tokens: load.tokens.max(1), ..load };
        let (mut session, ids) = self.measured(load)?;
        let begun = Instant::now();
        self.read(&mut session, &ids, 1)?;
        let first_ms = milliseconds(begun.elapsed());
        let runs = runs.max(1);
        let times: Vec<_> =
            (0..runs).map(|_| self.read(&mut session, &ids, load.tokens)).collect::<Result<_, _>>()?;
        let peak_rss_mb = peak_memory().map(|bytes| bytes as f64 * 1e-6);
        let weights = self.info().dtypes.values().map(|d| d.bytes).sum::<u64>();
        let peak = bandwidth(self.cpu(), weights as usize).map_err(LanguageError::from)?;
        let prompt_ms = Times::of(times.iter().map(|t| t.0));
        let token_ms = Times::of(times.iter().map(|t| t.1 / load.tokens as u32));
        let tokens_per_second = 1e3 / token_ms.median;
        let (arena, cache) = session.memory();
        Ok(LanguageBench {
            model: self.info().file.clone(),
            device: self.device_name(),
            isa: self.cpu().isa().name(),
            precision: precision(self.device(), self.cpu()),
            threads: self.cpu().threads().count(),
            prompt_tokens: ids.len(),
            tokens: load.tokens,
            runs,
            load_ms: None,
            first_ms,
            prompt_per_second: ids.len() as f64 * 1e3 / prompt_ms.median,
            prompt_ms,
            token_ms,
            tokens_per_second,
            weights_mb: weights as f64 * 1e-6,
            gbs: weights as f64 * tokens_per_second * 1e-9,
            peak_gbs: peak * 1e-9,
            bandwidth_fraction: weights as f64 * tokens_per_second / peak,
            peak_rss_mb,
            arena_mb: arena as f64 * 1e-6,
            cache_mb: cache as f64 * 1e-6,
        })
    }

    /// Reads a prompt and single tokens twice, the second time with a clock at every step.
    ///
    /// # Errors
    /// As [`LanguageModel::bench`].
    pub fn profile(&self, load: LanguageLoad) -> Result<LanguageProfile, Error> {
        let (mut session, ids) = self.measured(load)?;
        self.read(&mut session, &ids, load.tokens.min(1))?;
        let peak = Roofline::measure(self.cpu()).map_err(LanguageError::from)?;
        let (prompt_ms, prompt, mut trace) = watched(&peak, |observer| {
            session.set_observer(Some(observer));
            Ok(milliseconds(self.read_prompt(&mut session, &ids)?))
        })?;
        let (tokens_ms, decode, rest) = watched(&peak, |observer| {
            session.set_observer(Some(observer));
            Ok(milliseconds(self.read_tokens(&mut session, load.tokens)?))
        })?;
        let end = trace.last().map_or(0.0, |e| e.ts + e.dur);
        trace.extend(rest.into_iter().map(|event| TraceEvent { ts: event.ts + end, ..event }));
        Ok(LanguageProfile {
            model: self.info().file.clone(),
            device: self.device_name(),
            isa: self.cpu().isa().name(),
            threads: self.cpu().threads().count(),
            prompt_tokens: ids.len(),
            tokens: load.tokens,
            prompt_ms,
            tokens_ms,
            peak_gflops: peak.f32 * 1e-9,
            peak_gbs: peak.bandwidth * 1e-9,
            prompt,
            decode,
            trace,
        })
    }

    /// The graph of the model as a picture; with `placed`, each node says on which device it runs.
    ///
    /// # Errors
    /// A piece that the device cannot compile.
    pub fn drawing(&self, lengths: LanguageLengths, placed: bool) -> Result<Drawing, Error> {
        let program = self.program(&SessionOptions::default())?;
        let placed = if placed {
            Some(program.placed(self.device(), &[]).map_err(LanguageError::from)?)
        } else {
            None
        };
        let or_one = |length: Option<usize>| length.unwrap_or(1);
        let bindings = (lengths != LanguageLengths::default()).then(|| {
            Bindings::new()
                .with(SEQUENCES, or_one(lengths.sequences))
                .with(TOKENS, or_one(lengths.tokens))
                .with(ROWS, or_one(lengths.rows))
        });
        let options = DrawOptions { bindings: bindings.as_ref(), placed: placed.as_deref() };
        Ok(Drawing::new(program.graph(), &options).map_err(LanguageError::from)?)
    }

    /// Which nodes of the graph the model's device runs, in how many pieces, and why not the rest.
    ///
    /// # Errors
    /// As [`LanguageModel::drawing`].
    pub fn placement(&self) -> Result<Placement, Error> {
        let program = self.program(&SessionOptions::default())?;
        let placed = program.placed(self.device(), &[]).map_err(LanguageError::from)?;
        Ok(placed.placement().clone())
    }

    /// Bytes of the arena that reading `tokens` tokens at once takes where the CPU runs all of it. Nothing is allocated for it.
    ///
    /// # Errors
    /// Lengths that no memory holds.
    pub fn arena_bytes(&self, tokens: usize) -> Result<usize, Error> {
        let program = self.program(&SessionOptions::default())?;
        let bindings = Bindings::new().with(SEQUENCES, 1).with(TOKENS, tokens).with(ROWS, 1);
        Ok(program.arena_bytes(&bindings, &[], self.cpu()).map_err(LanguageError::from)?)
    }
}
