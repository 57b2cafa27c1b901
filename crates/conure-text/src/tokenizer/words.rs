//! How byte-level vocabularies cut text into words before they merge: `tokenizer.ggml.pre`.

use crate::error::TextError;
use fancy_regex::Regex;
use std::ops::Range;

/// Contractions in either case.
const CONTRACTION: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
/// Lines, spaces before a word without the last one, other spaces.
const SPACES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
/// The words of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// Patterns that are applied one after the other, each to the pieces that the one before it left.
fn patterns(name: &str) -> Option<Vec<String>> {
    let llama3 = |letters: &str, symbols: &str, digits: &str| {
        format!(r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{symbols}+[\r\n]*|{SPACES}")
    };
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let before = r"[^\r\n\p{L}\p{N}]?";
    let gpt4o = |contraction: &str, digits: &str| {
        format!(
            r"{before}{upper}*{lower}+{contraction}|{before}{upper}+{lower}*{contraction}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
        )
    };
    Some(match name {
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "dbrx" | "smaug-bpe" => {
            vec![llama3(r"\p{L}", r"[^\s\p{L}\p{N}]", r"\p{N}{1,3}")]
        }
        "qwen2" | "deepseek-r1-qwen" | "megrez" => {
            vec![llama3(r"\p{L}", r"[^\s\p{L}\p{N}]", r"\p{N}")]
        }
        "qwen35" => vec![llama3(r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]", r"\p{N}")],
        "gpt-4o" | "llama4" => vec![gpt4o(&format!("{CONTRACTION}?"), r"\p{N}{1,3}")],
        "tekken" | "pixtral" => vec![gpt4o("", r"\p{N}")],
        "smollm" | "starcoder" | "refact" | "command-r" => vec![r"\p{N}".to_owned(), GPT2.to_owned()],
        "gpt-2" | "mpt" | "olmo" | "phi-2" => vec![GPT2.to_owned()],
        "default" => vec![
            r"[\p{P}\$\+<=>\^~\|]+".to_owned(),
            GPT2.to_owned(),
            r"\p{N}+".to_owned(),
            r"[0-9][0-9][0-9]".to_owned(),
        ],
        _ => return None,
    })
}

/// The names that are known, for messages.
pub(super) const KNOWN: &str =
    "llama-bpe, qwen2, qwen35, gpt-4o, tekken, smollm, starcoder, command-r, gpt-2, default";

/// Whether vocabularies of this name take a word that is a token as it is.
pub(super) fn takes_whole_words(name: &str) -> bool {
    matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "tekken" | "pixtral")
}

/// A way of cutting text into words.
#[derive(Debug)]
pub(super) struct Words(Vec<Regex>);

impl Words {
    /// The way of this name, if it is known.
    pub(super) fn named(name: &str) -> Option<Words> {
        let compiled = patterns(name)?.iter().map(|p| Regex::new(p)).collect::<Result<Vec<_>, _>>();
        compiled.ok().map(Words)
    }

    /// The words of `text`, which cover it.
    pub(super) fn split(&self, text: &str) -> Result<Vec<Range<usize>>, TextError> {
        let mut words: Vec<Range<usize>> = std::iter::once(0..text.len()).collect();
        for pattern in &self.0 {
            let mut next = Vec::with_capacity(words.len() * 2);
            for word in words {
                let mut at = word.start;
                for found in pattern.find_iter(&text[word.clone()]) {
                    let found = found.map_err(|e| TextError::Split { at, reason: e.to_string() })?;
                    let (start, end) = (word.start + found.start(), word.start + found.end());
                    next.extend([at..start, start..end].into_iter().filter(|r| !r.is_empty()));
                    at = end;
                }
                if at < word.end {
                    next.push(at..word.end);
                }
            }
            words = next;
        }
        words.retain(|w| !w.is_empty());
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_patterns() {
        let cases: [(&str, &str, &[&str]); 9] = [
            ("gpt-2", "Hello  world's 123", &["Hello", " ", " world", "'s", " 123"]),
            (
                "llama-bpe",
                "I'LL go\n\n  now 12345",
                &["I", "'LL", " go", "\n\n", " ", " now", " ", "123", "45"],
            ),
            ("qwen2", "a 123", &["a", " ", "1", "2", "3"]),
            ("gpt-4o", "HelloWorld's/x", &["Hello", "World's", "/x"]),
            ("tekken", "HelloWorld's 12", &["Hello", "World", "'s", " ", "1", "2"]),
            ("smollm", "x1  y", &["x", "1", " ", " y"]),
            ("default", "1234 ab!?", &["123", "4", " ab", "!?"]),
            ("llama-bpe", "   ", &["   "]),
            ("llama-bpe", "", &[]),
        ];
        for (name, text, expected) in cases {
            let words = Words::named(name).unwrap().split(text).unwrap();
            let found: Vec<&str> = words.into_iter().map(|w| &text[w]).collect();
            assert_eq!(found, expected, "{name} {text:?}");
        }
    }

    #[test]
    fn all_known_names_compile_and_others_are_unknown() {
        for name in KNOWN.split(", ") {
            assert!(Words::named(name).is_some(), "{name}");
        }
        assert!(Words::named("qwen7").is_none());
    }
}
