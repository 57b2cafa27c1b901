//! The pieces of a tokenizer in the order of their ids, from each of the files that hold them.

use crate::config::{self, ConfigError, Value};

/// The largest known vocabulary has 13,087 pieces.
const MAX_PIECES: usize = 1_000_000;
const MAX_PIECE: usize = 4096;
/// A SentencePiece model has 0.25 MB (mostly its normaliser table) and up to 1 MB of pieces.
pub const MAX_TOKENIZER: u64 = 64 << 20;

/// Why a tokenizer is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The bytes are not what the name promises.
    #[error("it is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Where.
        offset: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// A piece cannot be used.
    #[error("piece {id}: {reason}")]
    Piece {
        /// Its id.
        id: usize,
        /// What is wrong.
        reason: String,
    },
    /// Too many or too long.
    #[error("more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// The JSON cannot be used.
    #[error(transparent)]
    Json(#[from] ConfigError),
    /// No pieces at all.
    #[error("it holds no pieces")]
    Empty,
}

/// What a SentencePiece piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Ordinary text.
    Normal,
    /// The unknown piece.
    Unknown,
    /// Control: prints nothing.
    Control,
    /// Added by the user.
    UserDefined,
    /// In the table, never used.
    Unused,
    /// One byte.
    Byte,
}

/// A piece of a SentencePiece model.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its text; U+2581 marks the start of a word.
    pub text: String,
    /// What it is for.
    pub kind: PieceKind,
    /// What it counts for: a logarithm of a probability, or less the later pieces are merged to it.
    pub score: f32,
}

/// How a SentencePiece model cuts texts: `TrainerSpec` and `NormalizerSpec`, where they say nothing SentencePiece's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Cutting {
    /// `model_type`: 1 unigram, 2 byte-pair encoding, 3 words, 4 characters.
    pub model_type: u64,
    /// `unk_id`, `bos_id`, `eos_id`; `None` where there is no such piece.
    pub signs: [Option<u32>; 3],
    /// `treat_whitespace_as_suffix`.
    pub space_after: bool,
    /// `precompiled_charsmap`: which characters are replaced.
    pub charsmap: Vec<u8>,
    /// `add_dummy_prefix`: whether a space is put before texts.
    pub space_before: bool,
    /// `remove_extra_whitespaces`.
    pub single_spaces: bool,
    /// `escape_whitespaces`: whether spaces become U+2581.
    pub marks_spaces: bool,
}

/// Reads the pieces of a SentencePiece model, a protocol buffer (`ModelProto`, field 1: `SentencePiece` with
/// 1: text, 2: score, 3: type). Everything else in it is passed over.
///
/// # Errors
/// [`TokenizerError`] if it is damaged or holds no pieces.
pub fn sentencepiece(bytes: &[u8]) -> Result<Vec<Piece>, TokenizerError> {
    let mut out = Vec::new();
    let mut fields = Fields { bytes, at: 0, base: 0 };
    while let Some((number, value)) = fields.next()? {
        let (1, Field::Bytes(body, base)) = (number, value) else { continue };
        if out.len() >= MAX_PIECES {
            return Err(TokenizerError::Limit { what: "pieces", limit: MAX_PIECES });
        }
        out.push(piece(body, base, out.len())?);
    }
    if out.is_empty() { Err(TokenizerError::Empty) } else { Ok(out) }
}

/// Reads how a SentencePiece model cuts texts (`ModelProto`, fields 2 and 3).
///
/// # Errors
/// [`TokenizerError`] if it is damaged.
pub fn cutting(bytes: &[u8]) -> Result<Cutting, TokenizerError> {
    let mut out = Cutting {
        model_type: 1,
        signs: [Some(0), Some(1), Some(2)],
        space_after: false,
        charsmap: Vec::new(),
        space_before: true,
        single_spaces: true,
        marks_spaces: true,
    };
    let mut fields = Fields { bytes, at: 0, base: 0 };
    while let Some((part, value)) = fields.next()? {
        let (2 | 3, Field::Bytes(body, base)) = (part, value) else { continue };
        let mut settings = Fields { bytes: body, at: 0, base };
        while let Some((number, value)) = settings.next()? {
            match (part, number, value) {
                (2, 3, Field::Number(n)) => out.model_type = n,
                (2, 24, Field::Number(n)) => out.space_after = n != 0,
                // -1, where there is none, does not fit.
                (2, 40..=42, Field::Number(n)) => out.signs[(number - 40) as usize] = u32::try_from(n).ok(),
                (3, 2, Field::Bytes(table, _)) => out.charsmap = table.to_vec(),
                (3, 3, Field::Number(n)) => out.space_before = n != 0,
                (3, 4, Field::Number(n)) => out.single_spaces = n != 0,
                (3, 5, Field::Number(n)) => out.marks_spaces = n != 0,
                _ => {}
            }
        }
    }
    Ok(out)
}

fn piece(body: &[u8], base: usize, id: usize) -> Result<Piece, TokenizerError> {
    let mut text = None;
    let (mut kind, mut score) = (PieceKind::Normal, 0.0);
    let mut fields = Fields { bytes: body, at: 0, base };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Field::Bytes(raw, _)) => {
                let s = std::str::from_utf8(raw)
                    .map_err(|_| TokenizerError::Piece { id, reason: "its text is not UTF-8".into() })?;
                text = Some(checked(id, s)?);
            }
            (2, Field::Float(value)) => score = value,
            (3, Field::Number(n)) => {
                kind = match n {
                    1 => PieceKind::Normal,
                    2 => PieceKind::Unknown,
                    3 => PieceKind::Control,
                    4 => PieceKind::UserDefined,
                    5 => PieceKind::Unused,
                    6 => PieceKind::Byte,
                    _ => {
                        return Err(TokenizerError::Piece { id, reason: format!("its type {n} is unknown") });
                    }
                };
            }
            _ => {}
        }
    }
    let text = text.ok_or_else(|| TokenizerError::Piece { id, reason: "it has no text".into() })?;
    Ok(Piece { text, kind, score })
}

fn checked(id: usize, text: &str) -> Result<String, TokenizerError> {
    if text.len() > MAX_PIECE {
        return Err(TokenizerError::Piece { id, reason: format!("it is longer than {MAX_PIECE} bytes") });
    }
    Ok(text.to_owned())
}

enum Field<'a> {
    Number(u64),
    /// Contents and where they start in the file.
    Bytes(&'a [u8], usize),
    Float(f32),
    Other,
}

/// The fields of one protocol buffer message.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    base: usize,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, TokenizerError> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.skip(8)?,
            5 => {
                let start = self.at;
                self.skip(4)?;
                let bytes = self.bytes[start..].first_chunk::<4>();
                bytes.map_or(Field::Other, |b| Field::Float(f32::from_le_bytes(*b)))
            }
            2 => {
                let n = usize::try_from(self.varint()?).map_err(|_| self.damaged("a length is too large"))?;
                let start = self.at;
                self.skip(n)?;
                Field::Bytes(&self.bytes[start..self.at], self.base + start)
            }
            _ => return Err(self.damaged("this is no SentencePiece model (an unknown wire type)")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.damaged("it ends inside a number"))?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged("a number is longer than 64 bits"))
    }

    fn skip(&mut self, n: usize) -> Result<Field<'a>, TokenizerError> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        self.at = end.ok_or_else(|| self.damaged("it ends inside a field"))?;
        Ok(Field::Other)
    }

    fn damaged(&self, reason: &'static str) -> TokenizerError {
        TokenizerError::Damaged { offset: self.base.saturating_add(self.at), reason }
    }
}

/// Reads a text vocabulary, one piece a line: `tokenizer.vocab` (piece, tab, score) or `vocab.txt` (piece). A
/// `vocab.txt` in the WordPiece spelling (`##` before what continues a word) is turned into the `▁` spelling.
///
/// # Errors
/// [`TokenizerError`] if it is not UTF-8 or holds no pieces.
pub fn text_vocabulary(bytes: &[u8]) -> Result<Vec<String>, TokenizerError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| TokenizerError::Damaged { offset: e.valid_up_to(), reason: "it is not UTF-8" })?;
    let mut out = Vec::new();
    for line in text.split('\n') {
        let piece = line.strip_suffix('\r').unwrap_or(line);
        let piece = piece.rsplit_once('\t').map_or(piece, |(piece, _score)| piece);
        if out.len() >= MAX_PIECES {
            return Err(TokenizerError::Limit { what: "pieces", limit: MAX_PIECES });
        }
        out.push(checked(out.len(), piece)?);
    }
    if out.last().is_some_and(String::is_empty) {
        out.pop();
    }
    if out.iter().any(|p| p.len() > 2 && p.starts_with("##")) {
        for piece in &mut out {
            let special = (piece.starts_with('<') && piece.ends_with('>'))
                || (piece.starts_with('[') && piece.ends_with(']'));
            *piece = match piece.strip_prefix("##") {
                Some(rest) if !rest.is_empty() => rest.to_owned(),
                _ if special => piece.clone(),
                _ => format!("\u{2581}{piece}"),
            };
        }
    }
    if out.is_empty() { Err(TokenizerError::Empty) } else { Ok(out) }
}

/// Reads the first `count` pieces of a Hugging Face `tokenizer.json`: a Unigram list or a BPE map, with the added
/// tokens on top.
///
/// # Errors
/// [`TokenizerError`] if an id below `count` has no piece or two.
pub fn hugging_face(bytes: &[u8], count: usize) -> Result<Vec<String>, TokenizerError> {
    if count > MAX_PIECES {
        return Err(TokenizerError::Limit { what: "pieces", limit: MAX_PIECES });
    }
    let json = config::from_json(bytes)?;
    let mut out: Vec<Option<String>> = vec![None; count];
    match json.get("model.vocab") {
        Some(Value::List(items)) => {
            for (id, item) in items.iter().enumerate().take(count) {
                let piece = match item {
                    Value::List(pair) => pair.first(),
                    other => Some(other),
                };
                let Some(Value::Str(piece)) = piece else {
                    return Err(TokenizerError::Piece { id, reason: "it is no text".into() });
                };
                out[id] = Some(checked(id, piece)?);
            }
        }
        Some(Value::Map(entries)) => {
            for (piece, id) in entries {
                let id = match id {
                    Value::Int(n) => usize::try_from(*n).ok(),
                    _ => None,
                };
                let id = id.ok_or_else(|| ConfigError::unexpected("model.vocab", piece, "an id from 0"))?;
                if let Some(slot) = out.get_mut(id)
                    && slot.replace(checked(id, piece)?).is_some()
                {
                    return Err(TokenizerError::Piece { id, reason: "two pieces have this id".into() });
                }
            }
        }
        _ => return Err(ConfigError::missing("model.vocab", "a list or map of pieces").into()),
    }
    if let Some(Value::List(added)) = json.get("added_tokens") {
        for token in added {
            let (Some(id), Some(text)) = (token.u32("id")?, token.str("content")?) else { continue };
            if let Some(slot) = out.get_mut(id as usize) {
                *slot = Some(checked(id as usize, text)?);
            }
        }
    }
    out.into_iter()
        .enumerate()
        .map(|(id, p)| {
            p.ok_or_else(|| TokenizerError::Piece { id, reason: format!("it is missing (of {count})") })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proto_piece(text: &[u8], kind: Option<u8>) -> Vec<u8> {
        let mut body = vec![0x0a, text.len() as u8];
        body.extend_from_slice(text);
        body.extend_from_slice(&[0x15, 0, 0, 0x80, 0xbf]);
        if let Some(k) = kind {
            body.extend_from_slice(&[0x18, k]);
        }
        [vec![0x0a, body.len() as u8], body].concat()
    }

    #[test]
    fn sentencepiece_pieces() {
        let mut bytes = proto_piece(b"<unk>", Some(2));
        bytes.extend(proto_piece("\u{2581}the".as_bytes(), None));
        bytes.extend_from_slice(&[0x12, 3, 1, 2, 3]); // trainer settings, passed over
        bytes.extend(proto_piece(b"<EOU>", Some(4)));
        let got = sentencepiece(&bytes).unwrap();
        let got: Vec<_> = got.iter().map(|p| (p.text.as_str(), p.kind)).collect();
        assert_eq!(
            got,
            [
                ("<unk>", PieceKind::Unknown),
                ("\u{2581}the", PieceKind::Normal),
                ("<EOU>", PieceKind::UserDefined)
            ]
        );
        assert_eq!(sentencepiece(&bytes).unwrap()[1].score, -1.0);
    }

    #[test]
    fn how_texts_are_cut() {
        let defaults = cutting(&proto_piece(b"a", None)).unwrap();
        assert_eq!((defaults.model_type, defaults.signs), (1, [Some(0), Some(1), Some(2)]));
        assert!(defaults.space_before && defaults.single_spaces && defaults.marks_spaces);
        // model_type 2, bos_id -1; charsmap "xy", no dummy prefix.
        let trainer = [&[0x12, 14, 0x18, 2, 0xc8, 0x02][..], &[0xff; 9], &[0x01]].concat();
        let bytes = [&trainer[..], &[0x1a, 6, 0x12, 2, b'x', b'y', 0x18, 0]].concat();
        let mut wanted = Cutting { model_type: 2, charsmap: b"xy".to_vec(), space_before: false, ..defaults };
        wanted.signs[1] = None;
        assert_eq!(cutting(&bytes).unwrap(), wanted);
        assert!(cutting(&bytes[..9]).is_err());
    }

    #[test]
    fn damaged_sentencepiece_models() {
        let good = proto_piece(b"abc", None);
        for (want, bytes) in [
            ("no pieces", Vec::new()),
            ("no pieces", vec![0x12, 0]),
            ("ends inside a field", good[..good.len() - 1].to_vec()),
            ("ends inside a number", vec![0x0a, 0x80]),
            ("longer than 64 bits", vec![0xff; 20]),
            ("wire type", b"<html>".to_vec()),
            ("ends inside a field", vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            ("UTF-8", proto_piece(&[0xff], None)),
            ("type 9", proto_piece(b"a", Some(9))),
            ("no text", vec![0x0a, 2, 0x18, 1]),
        ] {
            let e = sentencepiece(&bytes).unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
        }
    }

    #[test]
    fn text_vocabularies() {
        assert_eq!(text_vocabulary(b"<unk>\t0\n\xe2\x96\x81a\t-1.5\n").unwrap(), ["<unk>", "\u{2581}a"]);
        assert_eq!(text_vocabulary(b"<unk>\r\nthe\r\n##s\r\n").unwrap(), ["<unk>", "\u{2581}the", "s"]);
        assert_eq!(text_vocabulary(b""), Err(TokenizerError::Empty));
        assert!(text_vocabulary(b"a\n\xff").is_err());
    }

    #[test]
    fn hugging_face_vocabularies() {
        let added = r#""added_tokens":[{"id":2,"content":"<EOU>"},{"id":3,"content":"<pad>"}]"#;
        let uni = format!(r#"{{{added},"model":{{"type":"Unigram","vocab":[["<unk>",0.0],["a",-1.5]]}}}}"#);
        assert_eq!(hugging_face(uni.as_bytes(), 3).unwrap(), ["<unk>", "a", "<EOU>"]);
        let bpe = r#"{"model":{"type":"BPE","vocab":{"b":1,"a":0,"z":7}}}"#;
        assert_eq!(hugging_face(bpe.as_bytes(), 2).unwrap(), ["a", "b"]);
        for (want, json, count) in [
            ("piece 2: it is missing", bpe.to_owned(), 3),
            ("two pieces", bpe.replace("\"z\":7", "\"z\":1"), 2),
            ("`model.vocab` is missing", "{}".to_owned(), 1),
            ("an id from 0", bpe.replace("\"z\":7", "\"z\":-1"), 2),
            ("more than 1000000", bpe.to_owned(), usize::MAX),
        ] {
            let e = hugging_face(json.as_bytes(), count).unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
        }
    }
}
