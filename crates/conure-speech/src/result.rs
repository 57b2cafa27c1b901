//! What a transcription gives, and the JSON it is written as.

use conure_text::Vocabulary;
use serde::{Deserialize, Serialize, Serializer};

use crate::decode::Token;
use crate::timing::{Head, TimingOptions, segments, words};

/// A transcribed clip. Times are seconds from its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// The whole text.
    pub text: String,
    /// Language asked for or detected, where the model knows any.
    pub language: Option<String>,
    /// Where in its file the audio begins, if not at the file's start.
    #[serde(default, skip_serializing_if = "is_zero", serialize_with = "seconds")]
    pub start: f64,
    /// Length of the audio. Every time lies in `start ..= start + duration`.
    #[serde(serialize_with = "seconds")]
    pub duration: f64,
    /// Name of the model.
    pub model: String,
    /// Device and precision in use.
    pub device: String,
    /// `ctc`, `rnnt` or `tdt`.
    pub decoder: String,
    /// Sentences, in order.
    pub segments: Vec<Segment>,
    /// Tokens, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<TokenInfo>>,
    /// What may have been said, the likeliest first, `text` among it; where several were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// What the user should know: damaged audio, fallbacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A text that a beam search found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The text.
    pub text: String,
    /// Natural logarithm of its probability.
    pub score: f64,
    /// Its words.
    pub words: Vec<Word>,
}

/// The tokens of one clip, as a decoder gave them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipTokens<'a> {
    /// The tokens in order.
    pub tokens: &'a [Token],
    /// The decoder that made them.
    pub head: Head,
    /// Seconds of silence that were put before the clip and after it: frame 0 lies so long before its start.
    pub padding: f64,
}

impl ClipTokens<'_> {
    /// The words, in the time of the clip.
    pub(crate) fn words(&self, vocabulary: &Vocabulary, options: &TimingOptions) -> Vec<Word> {
        // Times count from the padding; words that lie in it are moved to the clip's ends.
        let padded = TimingOptions { duration: options.duration + 2.0 * self.padding, ..options.clone() };
        let mut spoken = words(self.tokens, self.head, vocabulary, &padded);
        for word in &mut spoken {
            word.start = (word.start - self.padding).clamp(0.0, options.duration);
            word.end = (word.end - self.padding).clamp(word.start, options.duration);
        }
        spoken
    }

    /// The text.
    pub(crate) fn text(&self, vocabulary: &Vocabulary) -> String {
        vocabulary.decode(&self.tokens.iter().map(|token| token.id).collect::<Vec<u32>>())
    }
}

impl Transcript {
    /// What the tokens of one clip say: `text`, `duration`, `decoder`, `segments` and, with `with_tokens`, `tokens`;
    /// the other fields are the caller's. [`TimingOptions::duration`] is that of the clip without padding.
    ///
    /// The text is NeMo's to the last space, without special tokens; words and segments are as [`words`] and
    /// [`segments`] give them.
    pub fn from_tokens(
        clip: &ClipTokens<'_>,
        vocabulary: &Vocabulary,
        options: &TimingOptions,
        with_tokens: bool,
    ) -> Self {
        let info = |token: &Token| TokenInfo {
            id: token.id,
            piece: vocabulary.piece(token.id).unwrap_or_default().to_owned(),
            frame: token.frame,
            duration: token.duration,
            confidence: token.confidence,
        };
        let spoken = clip.words(vocabulary, options);
        Transcript {
            text: clip.text(vocabulary),
            duration: options.duration,
            decoder: clip.head.name().to_owned(),
            segments: segments(spoken, options),
            tokens: with_tokens.then(|| clip.tokens.iter().map(info).collect()),
            ..Transcript::default()
        }
    }
}

/// A run of words, usually a sentence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Number from 0.
    pub id: usize,
    /// Start of the first word.
    #[serde(serialize_with = "seconds")]
    pub start: f64,
    /// End of the last word.
    #[serde(serialize_with = "seconds")]
    pub end: f64,
    /// The words, joined.
    pub text: String,
    /// The words.
    pub words: Vec<Word>,
    /// Who speaks, counted from 0, where speakers are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<usize>,
}

/// A word with its punctuation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Word {
    /// Text without spaces around it.
    pub word: String,
    /// Start of the word.
    #[serde(serialize_with = "seconds")]
    pub start: f64,
    /// End of the word; never before its start nor after the end of the audio.
    #[serde(serialize_with = "seconds")]
    pub end: f64,
    /// Least confidence of the word's tokens, 0 to 1.
    #[serde(serialize_with = "confidence")]
    pub confidence: f32,
}

/// A token as the decoder emitted it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// Id in the vocabulary.
    pub id: u32,
    /// Piece of the tokenizer, word mark included.
    pub piece: String,
    /// Encoder frame it was emitted on.
    pub frame: usize,
    /// Encoder frames it covers; see [`Token::duration`](crate::decode::Token::duration).
    pub duration: usize,
    /// 0 to 1.
    #[serde(serialize_with = "confidence")]
    pub confidence: f32,
}

/// Whether a word is one punctuation mark, which sticks to the word before.
pub(crate) fn is_mark(word: &str) -> bool {
    let mut chars = word.chars();
    matches!((chars.next(), chars.next()), (Some(c), None) if conure_text::is_punctuation(c))
}

/// Text of words in order: one space between two, none before a word that is one punctuation mark.
pub fn join_words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() && !is_mark(word) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

/// Milliseconds are all that a frame grid of 80 ms can mean; a longer number would be the noise of its arithmetic.
fn seconds<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((value * 1e3).round() / 1e3)
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn confidence<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((f64::from(*value) * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn json_has_the_documented_shape() {
        let transcript = Transcript {
            text: "yes".into(),
            duration: 1.0 / 3.0,
            segments: vec![Segment {
                text: "yes".into(),
                words: vec![Word { word: "yes".into(), start: 0.08 * 3.0, end: 0.32, confidence: 0.999_97 }],
                ..Segment::default()
            }],
            ..Transcript::default()
        };
        assert_eq!(
            serde_json::to_string(&transcript).unwrap(),
            r#"{"text":"yes","language":null,"duration":0.333,"model":"","device":"","decoder":"","segments":[{"id":0,"start":0.0,"end":0.0,"text":"yes","words":[{"word":"yes","start":0.24,"end":0.32,"confidence":1.0}]}]}"#
        );
        let with =
            Transcript { tokens: Some(vec![TokenInfo::default()]), warnings: vec!["w".into()], ..transcript };
        let json = serde_json::to_value(&with).unwrap();
        assert_eq!(
            json["tokens"][0],
            serde_json::json!({"id":0,"piece":"","frame":0,"duration":0,"confidence":0.0})
        );
        assert_eq!(json["warnings"][0], "w");
        let back: Transcript = serde_json::from_value(json).unwrap();
        assert_eq!(back.segments[0].words[0].end, 0.32);
    }

    #[test]
    fn tokens_become_text_segments_and_a_list() {
        let vocabulary = Vocabulary::new(["<EOU>", "\u{2581}a", "b", "."]);
        let token = |(id, frame)| Token { id, frame, duration: 1, confidence: 0.5 };
        let tokens: Vec<Token> = [(1, 0), (2, 1), (3, 2), (0, 3), (1, 9)].into_iter().map(token).collect();
        let options = TimingOptions::new(1.0);
        let mut clip = ClipTokens { tokens: &tokens, head: Head::Tdt, padding: 0.0 };
        let transcript = Transcript::from_tokens(&clip, &vocabulary, &options, true);
        assert_eq!((transcript.text.as_str(), transcript.decoder.as_str()), ("ab. a", "tdt"));
        let texts: Vec<&str> = transcript.segments.iter().map(|s| s.text.as_str()).collect();
        assert_eq!(texts, ["ab.", "a"]);
        let list = transcript.tokens.unwrap();
        assert_eq!((list.len(), list[3].piece.as_str(), list[4].frame), (5, "<EOU>", 9));
        clip.padding = 0.2;
        let padded = Transcript::from_tokens(&clip, &vocabulary, &options, false);
        assert_eq!((padded.tokens, padded.duration), (None, 1.0));
        let times = |t: &[Segment]| t.iter().map(|s| (s.start, s.end)).collect::<Vec<_>>();
        let moved = |at: f64| (at - 0.2).max(0.0);
        let expected = times(&transcript.segments).into_iter().map(|(a, b)| (moved(a), moved(b)));
        for ((a, b), (c, d)) in times(&padded.segments).into_iter().zip(expected) {
            assert!((a - c).abs() < 1e-9 && (b - d).abs() < 1e-9, "{a} {b} {c} {d}");
        }
    }

    #[test]
    fn joining() {
        assert_eq!(join_words(["a", "b?", "?", "c"]), "a b?? c");
        assert_eq!(join_words(["?", "c", "--"]), "? c --");
        assert_eq!(join_words([]), "");
    }
}
