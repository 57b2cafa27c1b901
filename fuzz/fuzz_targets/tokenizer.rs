//! A tokenizer of any bytes is refused or gives pieces.
#![no_main]

use conure_convert::tokenizer::{cutting, hugging_face, sentencepiece, text_vocabulary};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(pieces) = sentencepiece(bytes) {
        assert!(!pieces.is_empty() && pieces.len() <= bytes.len());
    }
    let _ = cutting(bytes);
    if let Ok(pieces) = text_vocabulary(bytes) {
        assert!(!pieces.is_empty());
    }
    for count in [0, 1, 3, 128] {
        if let Ok(pieces) = hugging_face(bytes, count) {
            assert_eq!(pieces.len(), count);
        }
    }
});
