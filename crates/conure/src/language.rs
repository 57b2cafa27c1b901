//! Language models: loaded once, used by any number of sessions.

use crate::error::Error;
use crate::info::{DtypeInfo, tensors_of};
use crate::model::{LoadOptions, hardware, open};
use conure_language::{LanguageBatch, LanguageSession, SessionOptions};
use conure_models::Decoder;
use conure_text::{ChatTemplate, Tokenizer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A language model, ready for any number of sessions.
///
/// ```
/// use conure::{GenerateOptions, LanguageModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/language/hf-gemma3");
/// # conure_convert::convert(folder.as_ref(), &path, &conure_convert::ConvertOptions::default())?;
/// let model = LanguageModel::load(&path)?;
/// let mut session = model.session(&Default::default())?;
/// let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
/// for piece in session.generate("The old man", &options)? {
///     print!("{}", piece?.text);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LanguageModel {
    model: Arc<conure_language::LanguageModel>,
    info: LanguageInfo,
}

/// What a language model's file holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LanguageInfo {
    /// The file.
    pub file: String,
    /// `general.name`.
    pub name: Option<String>,
    /// `general.architecture`.
    pub architecture: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Tensors and bytes of each type.
    pub dtypes: BTreeMap<String, DtypeInfo>,
    /// Tokens that it was trained for.
    pub context_length: usize,
    /// Width.
    pub d_model: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub key_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Inner width of the feed-forward network.
    pub feed_forward: usize,
    /// Experts of each layer; 0 if there are none.
    pub experts: usize,
    /// How many of them a token uses.
    pub experts_used: usize,
    /// Layers that keep a state of fixed size instead of keys and values.
    pub recurrent_layers: usize,
    /// How positions turn queries and keys, in words.
    pub rope: String,
    /// Tokens that local layers see, if there are such layers.
    pub window: Option<usize>,
    /// Layers that are local.
    pub local_layers: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Whether the file has a template for chats.
    pub chat_template: bool,
    /// What the file left out or got wrong, and was survived.
    pub warnings: Vec<String>,
}

impl LanguageModel {
    /// Whether the GGUF file at `path` holds a language model of a family that can be run.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_in(path: impl AsRef<Path>) -> Result<bool, Error> {
        let file = open(path.as_ref(), &LoadOptions::default())?;
        Ok(file.meta().opt_str("general.architecture")?.is_some_and(Decoder::knows))
    }

    /// The model in the GGUF file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read or is no language model, with what is missing or does not fit.
    pub fn load(path: impl AsRef<Path>) -> Result<LanguageModel, Error> {
        LanguageModel::load_with(path, &LoadOptions::default())
    }

    /// As [`LanguageModel::load`], on a device and with as many threads as `options` say.
    ///
    /// # Errors
    /// As [`LanguageModel::load`], and a device that is not there.
    pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<LanguageModel, Error> {
        let path = path.as_ref();
        let (file, name) = (Arc::new(open(path, options)?), path.display().to_string());
        let (device, cpu) = hardware(options)?;
        let model = conure_language::LanguageModel::load(file.clone(), &name, device, cpu)?;
        let config = model.config();
        let (dtypes, parameters) = tensors_of(&file);
        let info = LanguageInfo {
            name: config.name.clone(),
            architecture: config.architecture.clone(),
            file_bytes: file.map().len() as u64,
            parameters,
            dtypes,
            context_length: config.context_length,
            d_model: config.d_model,
            layers: config.layers,
            heads: config.heads,
            key_heads: config.key_heads,
            head_dim: config.head_dim,
            feed_forward: config.feed_forward,
            experts: config.experts.map_or(0, |e| e.count),
            experts_used: config.experts.map_or(0, |e| e.used),
            recurrent_layers: config.layers - config.attention_layers(),
            rope: format!(
                "base {}, {} of {} elements, {:?}",
                config.rope.base, config.rope.turned, config.head_dim, config.rope.scaling
            ),
            window: config.local.as_ref().map(|l| l.window),
            local_layers: (0..config.layers).filter(|&i| config.is_local(i)).count(),
            vocab_size: model.tokenizer().len(),
            chat_template: file.meta().contains("tokenizer.chat_template"),
            warnings: model.tokenizer().warnings().to_vec(),
            file: name,
        };
        Ok(LanguageModel { model: Arc::new(model), info })
    }

    /// What the model is.
    pub fn info(&self) -> &LanguageInfo {
        &self.info
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.model.tokenizer()
    }

    /// The chat template of its file.
    ///
    /// # Errors
    /// A file without one, or with one that is broken.
    pub fn chat_template(&self) -> Result<ChatTemplate, Error> {
        Ok(self.model.chat_template()?)
    }

    /// The names that [`LanguageSession::capture`] takes, in the order of the computation: `embedding`, `blk.N`, `logits`.
    ///
    /// # Errors
    /// If the graph cannot be built.
    pub fn node_names(&self) -> Result<Vec<String>, Error> {
        Ok(self.model.node_names()?)
    }

    /// A session that has read nothing yet.
    ///
    /// # Errors
    /// A context or a type of cache that cannot be had.
    pub fn session(&self, options: &SessionOptions) -> Result<LanguageSession, Error> {
        Ok(self.model.session(options)?)
    }

    /// Room for `places` texts that are continued together: weights are read once for all of them.
    ///
    /// # Errors
    /// As [`LanguageModel::session`], and no places.
    pub fn batch(&self, places: usize, options: &SessionOptions) -> Result<LanguageBatch, Error> {
        Ok(self.model.batch(places, options)?)
    }

    pub(crate) fn cpu(&self) -> &conure_kernels::Cpu {
        self.model.cpu()
    }

    pub(crate) fn device(&self) -> &conure_graph::Device {
        self.model.device()
    }

    pub(crate) fn device_name(&self) -> String {
        self.device().name().to_owned()
    }

    pub(crate) fn program(&self, options: &SessionOptions) -> Result<Arc<conure_graph::Program>, Error> {
        Ok(self.model.program(options)?)
    }
}
