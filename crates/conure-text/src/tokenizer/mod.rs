//! Tokenizers of language models, made of what their GGUF file says.

mod bpe;
mod merge;
mod normaliser;
mod pieces;
mod special;
mod spm;
mod text;
mod unigram;
mod words;

pub use pieces::Kind;
pub use text::TextStream;

use crate::error::TextError;
use bpe::{Merges, char_of};
use conure_gguf::{Metadata, Value};
use normaliser::Normaliser;
use pieces::Pieces;
use special::{Part, Specials};
use std::collections::HashMap;
use text::byte_value;
use unigram::Unigram;
use words::{KNOWN, Words, takes_whole_words};

/// Texts of tokens that end what a model says, whatever the file says of them.
const ENDS: [&str; 17] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
];

/// Tokens of gpt-oss that structure what it says and are shown.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// How text is cut into tokens.
#[derive(Debug)]
enum Model {
    /// SentencePiece's byte-pair encoding, by scores.
    Spm,
    /// Byte-level byte-pair encoding, by merges.
    Bpe(Merges),
    /// SentencePiece's unigram model, by sums of scores.
    Unigram(Unigram),
}

/// A tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    /// The texts of the tokens, and after them of pieces that merges mention and that are no tokens.
    pieces: Pieces,
    tokens: usize,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    specials: Specials,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    space_prefix: bool,
    ends: Vec<u32>,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// The tokenizer that `tokenizer.ggml.*` of `meta` describes; messages call the file `origin`.
    ///
    /// # Errors
    /// Keys that are missing or make no sense, by name; kinds of tokenizers and of words that are not known.
    pub fn from_gguf(meta: &Metadata, origin: &str) -> Result<Tokenizer, TextError> {
        let keys = Keys { meta, origin };
        let mut warnings = Vec::new();
        let mut pieces = keys.pieces()?;
        let tokens = pieces.len();
        let kinds = keys.kinds(tokens)?;
        let scores = meta.opt_f32_array("tokenizer.ggml.scores")?.unwrap_or_default();
        if !scores.is_empty() && scores.len() != tokens {
            return Err(keys.count("tokenizer.ggml.scores", scores.len(), tokens));
        }
        // Whether texts begin and end with signs and a space, where the file does not say.
        let (model, default_bos, default_eos, space_prefix) = match meta.str("tokenizer.ggml.model")? {
            "llama" => (Model::Spm, true, false, true),
            "t5" => {
                (Model::Unigram(keys.unigram(&pieces, &kinds, &scores, &mut warnings)?), false, true, false)
            }
            "gpt2" => {
                let pre = keys.words(&mut warnings)?;
                let bos = matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "tekken" | "pixtral");
                (Model::Bpe(keys.merges(&mut pieces, pre)?), bos, false, false)
            }
            other => return Err(keys.wrong("tokenizer.ggml.model", other, "llama, gpt2 or t5")),
        };
        let defaults = match model {
            Model::Spm => (Some(1), Some(2)),
            Model::Bpe(_) => (None, None),
            Model::Unigram(_) => (None, Some(1)),
        };
        let bos =
            keys.id("bos_token_id", tokens, &mut warnings)?.or(defaults.0.filter(|&id| id < tokens as u32));
        let eos =
            keys.id("eos_token_id", tokens, &mut warnings)?.or(defaults.1.filter(|&id| id < tokens as u32));
        let mut tokenizer = Tokenizer {
            model,
            pieces,
            tokens,
            kinds,
            scores,
            specials: Specials::of(std::iter::empty::<&[u8]>()),
            bytes: vec![None; 256],
            bos,
            eos,
            add_bos: meta.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(default_bos),
            add_eos: meta.opt_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(default_eos),
            space_prefix: meta.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(space_prefix),
            ends: Vec::new(),
            warnings,
        };
        tokenizer.find_ends(&keys)?;
        tokenizer.index();
        Ok(tokenizer)
    }

    /// Which tokens end what a model says.
    fn find_ends(&mut self, keys: &Keys<'_>) -> Result<(), TextError> {
        let mut ends: Vec<u32> = self.eos.into_iter().collect();
        for name in
            ["eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"]
        {
            ends.extend(keys.id(name, self.tokens, &mut self.warnings)?);
        }
        ends.extend(ENDS.iter().filter_map(|text| self.token(text)));
        let harmony = self.token("<|return|>").is_some() && self.token("<|call|>").is_some();
        if harmony {
            let end = self.token("<|end|>");
            ends.retain(|&id| Some(id) != end);
            for id in SHOWN.iter().chain(&["<|end|>"]).filter_map(|text| self.token(text)).collect::<Vec<_>>()
            {
                self.kinds[id as usize] = Kind::UserDefined;
            }
        }
        ends.sort_unstable();
        ends.dedup();
        self.ends = ends;
        Ok(())
    }

    /// Special tokens by their first byte, and the tokens of bytes.
    fn index(&mut self) {
        let special = |kind| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown);
        let count = self.tokens as u32;
        let ids = (0..count).filter(|&id| special(self.kinds[id as usize]));
        self.specials = Specials::of(ids.map(|id| self.pieces.get(id)));
        for id in (0..count).filter(|&id| self.kinds[id as usize] == Kind::Byte) {
            if let Some(byte) = byte_value(self.pieces.get(id)) {
                self.bytes[byte as usize].get_or_insert(id);
            }
        }
    }

    /// The tokens of `text`. `parse` finds signs for the model in it (for templates, not for what users write); `signs` puts
    /// those at its start and end that the file asks for: one BOS, also where the text begins with one already.
    ///
    /// # Errors
    /// A character that the vocabulary cannot express; a text that cannot be cut into words.
    pub fn encode(&self, text: &str, parse: bool, signs: bool) -> Result<Vec<u32>, TextError> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if signs && self.add_bos {
            out.extend(self.bos);
        }
        let start = out.len();
        let mut after_special = true;
        for part in self.parts(text, parse) {
            match part {
                Part::Token(id) => {
                    // A template may write the BOS that was put there already.
                    if !(start == 1 && out.len() == 1 && Some(id) == self.bos) {
                        out.push(id);
                    }
                    after_special = true;
                }
                Part::Text(range) => {
                    let space = self.space_prefix && after_special;
                    match &self.model {
                        Model::Spm => self.encode_spm(&text[range], space, &mut out)?,
                        Model::Bpe(merges) => self.encode_bpe(&text[range], merges, &mut out)?,
                        Model::Unigram(model) => self.encode_unigram(model, &text[range], space, &mut out)?,
                    }
                    after_special = false;
                }
            }
        }
        if signs && self.add_eos && self.eos != out.last().copied() {
            out.extend(self.eos);
        }
        Ok(out)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// The token whose text is exactly `text`.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.pieces.find(text.as_bytes()).filter(|&id| self.is_token(id))
    }

    /// A token's text as the file has it, with the signs for spaces and bytes; empty for a number that is no token.
    pub fn piece_text(&self, id: u32) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.pieces.get(id))
    }

    fn is_token(&self, id: u32) -> bool {
        (id as usize) < self.tokens
    }

    /// What a token is for; unused for a number that is no token.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether texts are to begin with [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The tokens that end what a model says, in order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether `id` ends what a model says.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// What the file left out or got wrong, and was survived.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// The keys of a file.
struct Keys<'a> {
    meta: &'a Metadata,
    origin: &'a str,
}

impl<'a> Keys<'a> {
    fn wrong(&self, key: &str, found: &str, expected: &str) -> TextError {
        let (origin, key) = (self.origin.to_owned(), key.to_owned());
        TextError::Key { origin, key, found: found.to_owned(), expected: expected.to_owned() }
    }

    fn count(&self, key: &str, found: usize, tokens: usize) -> TextError {
        self.wrong(key, &format!("an array of {found}"), &format!("one for each of {tokens} tokens"))
    }

    /// The texts of the tokens.
    fn pieces(&self) -> Result<Pieces, TextError> {
        let key = "tokenizer.ggml.tokens";
        let texts = self.meta.array(key)?;
        let mut pieces = Pieces::with_room(texts.len());
        for text in texts.iter() {
            let Value::String(text) = text else {
                return Err(self.wrong(key, &format!("{text:?}"), "an array of strings"));
            };
            pieces.push(text);
        }
        if pieces.len() == 0 {
            return Err(self.wrong(key, "empty", "at least one token"));
        }
        Ok(pieces)
    }

    fn kinds(&self, tokens: usize) -> Result<Vec<Kind>, TextError> {
        let key = "tokenizer.ggml.token_type";
        let Some(numbers) = self.meta.opt_i32_array(key)? else { return Ok(vec![Kind::Normal; tokens]) };
        if numbers.len() != tokens {
            return Err(self.count(key, numbers.len(), tokens));
        }
        let kind = |&n: &i32| Kind::from_number(n).ok_or_else(|| self.wrong(key, &n.to_string(), "1 to 6"));
        numbers.iter().map(kind).collect()
    }

    /// A special token's number, if it is given and there is such a token.
    fn id(&self, name: &str, tokens: usize, warnings: &mut Vec<String>) -> Result<Option<u32>, TextError> {
        let key = format!("tokenizer.ggml.{name}");
        let Some(id) = self.meta.opt_i64(&key)? else { return Ok(None) };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < tokens => Ok(Some(id)),
            _ => {
                warnings.push(format!("{key} is {id}, which is no token of {tokens}; it is left out"));
                Ok(None)
            }
        }
    }

    /// The name of the way to cut words.
    fn words(&self, warnings: &mut Vec<String>) -> Result<&'a str, TextError> {
        let named = self.meta.opt_str("tokenizer.ggml.pre")?;
        if named.is_none() {
            warnings.push(
                "tokenizer.ggml.pre is missing: words are cut by general rules, which may not be those of this model; \
                 convert it anew"
                    .into(),
            );
        }
        Ok(named.unwrap_or("default"))
    }

    /// The unigram model of pieces of these kinds with these scores.
    fn unigram(
        &self,
        pieces: &Pieces,
        kinds: &[Kind],
        scores: &[f32],
        warnings: &mut Vec<String>,
    ) -> Result<Unigram, TextError> {
        if scores.len() != kinds.len() {
            return Err(self.count("tokenizer.ggml.scores", scores.len(), kinds.len()));
        }
        let key = "tokenizer.ggml.precompiled_charsmap";
        let table = self.meta.opt_i32_array(key)?.unwrap_or_default();
        // Writers give bytes with a sign or without.
        let table: Vec<u8> = table.into_iter().map(|b| b as u8).collect();
        let single = self.meta.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
        let normaliser = Normaliser::new(&table, single)
            .map_err(|found| self.wrong(key, &found, "SentencePiece's table of rules"))?;
        let of_kind = kinds.iter().position(|&k| k == Kind::Unknown).map(|i| i as u32);
        let unknown = self.id("unknown_token_id", kinds.len(), warnings)?.or(of_kind);
        let texts = kinds.iter().zip(0u32..).map(|(&kind, id)| (pieces.get(id), kind));
        Ok(Unigram::new(normaliser, texts, scores, unknown))
    }

    fn merges(&self, pieces: &mut Pieces, pre: &str) -> Result<Merges, TextError> {
        let words = Words::named(pre)
            .ok_or_else(|| self.wrong("tokenizer.ggml.pre", pre, &format!("one of {KNOWN}")))?;
        let number =
            |pieces: &mut Pieces, text: &[u8]| pieces.find(text).unwrap_or_else(|| pieces.push(text));
        let mut ranks = HashMap::new();
        let list = self.meta.str_array("tokenizer.ggml.merges")?;
        for (rank, merge) in list.iter().enumerate() {
            // The left side may itself begin with a space.
            let after_first = merge.char_indices().nth(1).map_or(merge.len(), |(i, _)| i);
            let Some(space) = merge[after_first..].find(' ').map(|i| i + after_first) else {
                return Err(self.wrong(
                    "tokenizer.ggml.merges",
                    &format!("{merge:?}"),
                    "two pieces and a space",
                ));
            };
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            let merged = [left, right].concat();
            let pair = (number(pieces, left.as_bytes()), number(pieces, right.as_bytes()));
            let id = number(pieces, merged.as_bytes());
            ranks.entry(pair).or_insert((rank as u32, id));
        }
        let mut bytes = Box::new([0; 256]);
        for (byte, slot) in (0..=255u8).zip(bytes.iter_mut()) {
            *slot = number(pieces, char_of(byte).encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(Merges { ranks, bytes, words, whole_words: takes_whole_words(pre) })
    }
}
