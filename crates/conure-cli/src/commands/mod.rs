//! The commands, one file each.

pub mod bench;
pub mod bench_conv;
pub mod cache;
pub mod capture;
pub mod chat;
pub mod completions;
pub mod convert;
pub mod devices;
pub mod generate;
pub mod graph;
pub mod info;
pub mod language;
mod language_inspect;
pub mod lengths;
pub mod listen;
mod many;
mod microphone;
pub mod model;
pub mod perplexity;
pub mod profile;
pub mod quantize;
#[cfg(feature = "microphone")]
mod sound_card;
pub mod startup;
mod stream;
pub mod tokenize;
pub mod transcribe;
pub mod vad;

/// Bytes for people: `24.5 MB`.
pub fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes() {
        for (bytes, text) in
            [(0, "0.0 kB"), (1500, "1.5 kB"), (24_510_000, "24.5 MB"), (12_000_000_000, "12.0 GB")]
        {
            assert_eq!(super::megabytes(bytes), text);
        }
    }
}
