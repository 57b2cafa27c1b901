//! From encoder output to transcripts: greedy decoders, word times, output formats.

pub mod decode;
pub mod format;
pub mod result;
pub mod timing;
