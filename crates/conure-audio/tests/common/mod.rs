//! Where the files of scripts/make_audio_matrix.sh are, and what they are.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

pub fn matrix_dir() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/audio-matrix");
    assert!(
        target.join("manifest.tsv").is_file(),
        "the audio files are not there; make them with: scripts/make_audio_matrix.sh (or run: cargo xtask test)"
    );
    target
}

/// A file, and what to compare it with.
pub struct Row {
    pub name: String,
    pub rate: u32,
    pub channels: usize,
    pub reference: String,
}

pub fn matrix_rows(kind: &str) -> Vec<Row> {
    let manifest = std::fs::read_to_string(matrix_dir().join("manifest.tsv")).unwrap();
    let rows: Vec<Row> = manifest
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|f| f[1] == kind)
        .map(|f| Row {
            name: f[0].into(),
            rate: f[2].parse().unwrap(),
            channels: f[3].parse().unwrap(),
            reference: f[4].into(),
        })
        .collect();
    assert!(!rows.is_empty(), "no {kind} files; make them again with: scripts/make_audio_matrix.sh --force");
    rows
}
