//! What a continuation must be: a grammar, of which each token keeps within.

/// What a continuation must be. Needs the feature `grammar`; without it such options are refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// JSON that this JSON schema (Draft 2020-12, as far as llguidance knows it) describes.
    JsonSchema(String),
    /// What this grammar in llguidance's variant of Lark derives from `start`.
    Lark(String),
    /// What this regular expression matches, whole.
    Regex(String),
}

#[cfg(feature = "grammar")]
pub(crate) use within::{Constraint, Constraints};

#[cfg(not(feature = "grammar"))]
pub(crate) use without::{Constraint, Constraints};

#[cfg(feature = "grammar")]
mod within {
    use super::Grammar;
    use crate::error::LanguageError;
    use conure_text::{Kind, Tokenizer};
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
    use llguidance::{Matcher, ParserFactory};
    use std::sync::{Arc, OnceLock};

    /// Bytes of the longest token that a grammar may choose: the trie has eight bits for a depth.
    const LONGEST: usize = 250;

    /// The most tokens of a vocabulary: the trie has 24 bits for a number.
    const MOST_TOKENS: usize = (1 << 24) - 2;

    /// The space between two parts of JSON: enough for a new line and an indentation.
    const SPACE: &str = r"[ \n\r\t]{1,64}";

    /// What grammars of one tokenizer share, made when first needed: 262144 tokens take a quarter of a second.
    #[derive(Default)]
    pub(crate) struct Constraints(OnceLock<Result<Arc<ParserFactory>, String>>);

    impl std::fmt::Debug for Constraints {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Constraints").field("made", &self.0.get().is_some()).finish_non_exhaustive()
        }
    }

    /// The tokens of a vocabulary as bytes.
    struct Vocabulary(TokTrie);

    impl TokenizerEnv for Vocabulary {
        fn tok_trie(&self) -> &TokTrie {
            &self.0
        }

        fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
            self.0.greedy_tokenize(bytes)
        }

        fn tokenize_is_canonical(&self) -> bool {
            false
        }
    }

    fn refused(reason: impl std::fmt::Display) -> LanguageError {
        LanguageError::Grammar { reason: reason.to_string() }
    }

    /// A schema, with a bound on the space between the parts of its JSON unless it says otherwise: a model may want nothing else.
    fn schema(text: &str) -> Result<serde_json::Value, LanguageError> {
        let mut schema: serde_json::Value =
            serde_json::from_str(text).map_err(|e| refused(format!("the schema is no JSON: {e}")))?;
        if let Some(object) = schema.as_object_mut() {
            let bound = || serde_json::json!({"whitespace_pattern": SPACE});
            object.entry("x-guidance").or_insert_with(bound);
        }
        Ok(schema)
    }

    /// All tokens: signs for the model behind the mark that they have in grammars, what no grammar may choose empty.
    fn vocabulary(tokenizer: &Tokenizer) -> Result<TokTrie, String> {
        let ends: Vec<TokenId> = tokenizer.ends().to_vec();
        let Some(&end) = ends.first() else {
            return Err("the model has no token that ends a text".to_owned());
        };
        if tokenizer.len() > MOST_TOKENS {
            return Err(format!("the vocabulary has more than {MOST_TOKENS} tokens"));
        }
        let count = tokenizer.len() as u32;
        let mark = TokTrie::SPECIAL_TOKEN_MARKER;
        let words: Vec<Vec<u8>> = (0..count)
            .map(|id| {
                let bytes = match tokenizer.kind(id) {
                    Kind::Unused => Vec::new(),
                    Kind::Control | Kind::Unknown => {
                        [&[mark], tokenizer.token_bytes(id, true).as_slice()].concat()
                    }
                    _ => tokenizer.token_bytes(id, false),
                };
                // A lone byte that begins no character looks like a sign.
                let sign = matches!(tokenizer.kind(id), Kind::Control | Kind::Unknown);
                let odd = bytes.len() > LONGEST || (!sign && bytes.first() == Some(&mark));
                if odd { Vec::new() } else { bytes }
            })
            .collect();
        Ok(TokTrie::from(&TokRxInfo::new(count, end), &words).with_eos_tokens(&ends))
    }

    impl Constraints {
        fn factory(&self, tokenizer: &Tokenizer) -> Result<Arc<ParserFactory>, LanguageError> {
            let made = self.0.get_or_init(|| {
                let env: TokEnv = Arc::new(Vocabulary(vocabulary(tokenizer)?));
                let mut factory = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
                factory.quiet().limits_mut().verbose_errors = false;
                Ok(Arc::new(factory))
            });
            made.clone().map_err(refused)
        }

        /// `grammar`, ready to be kept within.
        ///
        /// # Errors
        /// [`LanguageError::Grammar`] with what is wrong with it.
        pub(crate) fn start(
            &self,
            tokenizer: &Tokenizer,
            grammar: &Grammar,
        ) -> Result<Constraint, LanguageError> {
            let factory = self.factory(tokenizer)?;
            let top = match grammar {
                Grammar::JsonSchema(text) => TopLevelGrammar::from_json_schema(schema(text)?),
                Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
                Grammar::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            };
            let matcher = Matcher::new(factory.create_parser(top));
            match matcher.get_error() {
                Some(reason) => Err(refused(reason)),
                None => Ok(Constraint { matcher }),
            }
        }
    }

    /// A continuation that keeps within a grammar.
    pub(crate) struct Constraint {
        matcher: Matcher,
    }

    impl std::fmt::Debug for Constraint {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Constraint").field("stopped", &self.matcher.is_stopped()).finish_non_exhaustive()
        }
    }

    impl Constraint {
        /// Makes the logits of all tokens that cannot come next minus infinity.
        ///
        /// # Errors
        /// [`LanguageError::Grammar`] if the grammar takes too much work, or nothing can come next.
        pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<(), LanguageError> {
            let mask = self.matcher.compute_mask_or_eos().map_err(refused)?;
            let known = mask.len().min(logits.len());
            let mut left = 0;
            for (id, logit) in logits.iter_mut().enumerate() {
                if id < known && mask.is_allowed(id as TokenId) {
                    left += 1;
                } else {
                    *logit = f32::NEG_INFINITY;
                }
            }
            if left == 0 {
                return Err(refused("no token of the vocabulary can come next"));
            }
            Ok(())
        }

        /// Goes on with `id`; whether the text is complete.
        ///
        /// # Errors
        /// As [`Constraint::mask`].
        pub(crate) fn accept(&mut self, id: u32) -> Result<bool, LanguageError> {
            self.matcher.consume_token(id).map_err(refused)?;
            Ok(self.matcher.is_stopped())
        }
    }
}

#[cfg(not(feature = "grammar"))]
mod without {
    use super::Grammar;
    use crate::error::LanguageError;
    use conure_text::Tokenizer;

    /// Builds without grammars share nothing.
    #[derive(Debug, Default)]
    pub(crate) struct Constraints(());

    /// There is none.
    #[derive(Debug)]
    pub(crate) enum Constraint {}

    impl Constraints {
        pub(crate) fn start(&self, _: &Tokenizer, _: &Grammar) -> Result<Constraint, LanguageError> {
            let reason = "this build knows none; build it with the feature `grammar`".to_owned();
            Err(LanguageError::Grammar { reason })
        }
    }

    impl Constraint {
        pub(crate) fn mask(&mut self, _: &mut [f32]) -> Result<(), LanguageError> {
            match *self {}
        }

        pub(crate) fn accept(&mut self, _: u32) -> Result<bool, LanguageError> {
            match *self {}
        }
    }
}
