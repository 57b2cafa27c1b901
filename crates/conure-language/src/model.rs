//! A model and its tokenizer.

use crate::batch::LanguageBatch;
use crate::error::LanguageError;
use crate::grammar::{Constraint, Constraints, Grammar};
use crate::session::LanguageSession;
use conure_gguf::GgufFile;
use conure_graph::{Device, Program, Session};
use conure_kernels::Cpu;
use conure_models::{CacheSpec, Decoder, DecoderConfig};
use conure_tensor::{DType, tensor_bytes};
use conure_text::{ChatTemplate, Tokenizer};
use std::sync::Arc;

/// The most bytes of cache that a session takes without being asked for a longer context.
const CACHE_BYTES: usize = 2 << 30;

/// Texts that are continued together at most.
const MOST_PLACES: usize = 4096;

/// A language model, ready for any number of sessions.
#[derive(Debug)]
pub struct LanguageModel {
    decoder: Decoder,
    tokenizer: Tokenizer,
    constraints: Constraints,
    device: Device,
    cpu: Arc<Cpu>,
    file: Arc<GgufFile>,
    origin: String,
}

/// How a session remembers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionOptions {
    /// Tokens that there is room for; `None`: as many as the model was trained for, as long as their keys and values take at
    /// most 2 GiB. Memory is taken as it is used.
    pub context: Option<usize>,
    /// Element type of keys and values: f16, f32, bf16 or q8_0.
    pub cache: DType,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { context: None, cache: DType::F16 }
    }
}

impl LanguageModel {
    /// The model in `file`, which messages call `origin`, to be run on `device` and `cpu`.
    ///
    /// # Errors
    /// Keys or tensors that are missing or do not fit, by name; a tokenizer that is not known.
    pub fn load(
        file: Arc<GgufFile>,
        origin: &str,
        device: Device,
        cpu: Arc<Cpu>,
    ) -> Result<LanguageModel, LanguageError> {
        let decoder = Decoder::load(file.clone(), origin)?;
        let tokenizer = Tokenizer::from_gguf(file.meta(), origin)?;
        let (tokens, rows) = (tokenizer.len(), decoder.config().vocab_size);
        if tokens > rows {
            return Err(LanguageError::Vocabulary { origin: origin.to_owned(), tokens, rows });
        }
        let (constraints, origin) = (Constraints::default(), origin.to_owned());
        Ok(LanguageModel { decoder, tokenizer, constraints, device, cpu, file, origin })
    }

    /// Its sizes and kinds.
    pub fn config(&self) -> &DecoderConfig {
        self.decoder.config()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What keeps a text within `grammar`.
    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<Constraint, LanguageError> {
        self.constraints.start(&self.tokenizer, grammar)
    }

    /// The chat template of the file.
    ///
    /// # Errors
    /// A file without one, or with one that is broken.
    pub fn chat_template(&self) -> Result<ChatTemplate, LanguageError> {
        Ok(ChatTemplate::from_gguf(self.file.meta(), &self.origin)?)
    }

    /// What it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernels and threads that it computes with.
    pub fn cpu(&self) -> &Arc<Cpu> {
        &self.cpu
    }

    /// Bytes of keys and values of one token; layers with a state of fixed size have none.
    ///
    /// # Errors
    /// [`LanguageError::Option`] if heads do not fill blocks of `dtype`.
    pub fn cache_bytes_per_token(&self, dtype: DType) -> Result<usize, LanguageError> {
        let c = self.config();
        let row = |width: usize| {
            tensor_bytes(dtype, &[c.key_heads, width]).ok_or_else(|| LanguageError::Option {
                option: "the cache's type",
                found: format!("{dtype}, in heads of {width}"),
                expected: "a type whose blocks fill a head",
            })
        };
        Ok(c.attention_layers() * (row(c.head_dim)? + row(c.value_dim)?))
    }

    /// What a session with these options runs: see [`Decoder::program`].
    ///
    /// # Errors
    /// A context or a type of cache that cannot be had.
    pub fn program(&self, options: &SessionOptions) -> Result<Arc<Program>, LanguageError> {
        Ok(self.decoder.program(&self.cache(options)?)?)
    }

    /// The names that [`LanguageSession::capture`] takes, in the order of the computation.
    ///
    /// # Errors
    /// If the graph cannot be built.
    pub fn node_names(&self) -> Result<Vec<String>, LanguageError> {
        let program = self.program(&SessionOptions::default())?;
        Ok(program.graph().node_names().into_iter().map(str::to_owned).collect())
    }

    /// A session that has read nothing yet.
    ///
    /// # Errors
    /// A context or a type of cache that cannot be had.
    pub fn session(self: &Arc<Self>, options: &SessionOptions) -> Result<LanguageSession, LanguageError> {
        let cache = self.cache(options)?;
        Ok(LanguageSession::new(self.clone(), self.graph_session(&cache)?, cache.capacity))
    }

    /// Room for `places` texts that are continued together, each with a context as `options` say.
    ///
    /// # Errors
    /// As [`LanguageModel::session`], and no places.
    pub fn batch(
        self: &Arc<Self>,
        places: usize,
        options: &SessionOptions,
    ) -> Result<LanguageBatch, LanguageError> {
        if places == 0 || places > MOST_PLACES {
            let (option, found) = ("the number of texts", places.to_string());
            return Err(LanguageError::Option { option, found, expected: "1 to 4096" });
        }
        let cache = CacheSpec { items: places, ..self.cache(options)? };
        let session = self.graph_session(&cache)?;
        Ok(LanguageBatch::new(self.clone(), self.session(options)?, session, places))
    }

    fn graph_session(&self, cache: &CacheSpec) -> Result<Session, LanguageError> {
        Ok(Session::on(self.decoder.program(cache)?, &self.device, self.cpu.clone())?)
    }

    /// The cache that a session with these options has.
    fn cache(&self, options: &SessionOptions) -> Result<CacheSpec, LanguageError> {
        if !matches!(options.cache, DType::F16 | DType::F32 | DType::BF16 | DType::Q8_0) {
            return Err(LanguageError::Option {
                option: "the cache's type",
                found: options.cache.to_string(),
                expected: "f16, f32, bf16 or q8_0",
            });
        }
        let per_token = self.cache_bytes_per_token(options.cache)?;
        let fitting = self.config().context_length.min(CACHE_BYTES / per_token.max(1)).max(1);
        let capacity = options.context.unwrap_or(fitting);
        if capacity == 0 || capacity > i32::MAX as usize {
            return Err(LanguageError::Option {
                option: "the context",
                found: capacity.to_string(),
                expected: "1 to 2147483647 tokens",
            });
        }
        Ok(CacheSpec { items: 1, capacity, dtype: options.cache })
    }
}
