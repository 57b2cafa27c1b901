//! What the program holds while it recognises a minute of speech: the file's weights once, in whatever form.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{conure_with, root, speech};

/// MiB that may come on top of the model's file: it is 45 to 49. Weights that are there twice would be 24 more in f16, and those of
/// q8_0 46 more if they were kept widened.
const ON_TOP: f64 = 64.0;

#[test]
#[cfg(target_os = "linux")]
fn weights_are_resident_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // A minute: the clip, eight times.
    let wav = std::fs::read(speech()).unwrap();
    let data = wav[44..].repeat(8);
    let mut minute = wav[..44].to_vec();
    minute[4..8].copy_from_slice(&(36 + data.len() as u32).to_le_bytes());
    minute[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
    minute.extend_from_slice(&data);
    std::fs::write(path("minute.wav"), minute).unwrap();

    let model = root().join("crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf").display().to_string();
    for (kind, precision) in [("f16", "exact"), ("q8_0", "exact"), ("q8_0", "fast")] {
        let file = if kind == "f16" { model.clone() } else { path(&format!("{kind}.gguf")) };
        if kind != "f16" {
            let quantize = conure_with(["quantize", &model, &file, kind]);
            assert_eq!(quantize.code, Some(0), "{}", quantize.stderr);
        }
        let bench = ["bench", &file, &path("minute.wav"), "--runs", "1", "--threads", "2", "--json"];
        let bench = conure_with(bench.into_iter().chain(["--precision", precision]));
        assert_eq!(bench.code, Some(0), "{}", bench.stderr);
        let bench: serde_json::Value = serde_json::from_str(&bench.stdout).unwrap();
        let size = std::fs::metadata(&file).unwrap().len() as f64 / 1_048_576.0;
        let peak = bench["peak_rss_mb"].as_f64().unwrap() * 1e6 / 1_048_576.0;
        assert!(
            peak > size && peak < size + ON_TOP,
            "{kind} {precision}: {peak:.0} MiB, the file has {size:.0}"
        );
    }
}
