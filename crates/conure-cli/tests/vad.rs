//! `conure vad`, and `transcribe --vad` and `--window`, as a user meets them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{conure_with, root, speech};

#[test]
fn spans_are_printed_as_text_and_as_json() {
    let clip = speech();
    let clip = clip.to_str().unwrap();
    let text = conure_with(["vad", clip]);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    let spans: Vec<Vec<f64>> =
        text.stdout.lines().map(|l| l.split('\t').map(|t| t.parse().unwrap()).collect()).collect();
    assert!(!spans.is_empty() && spans.iter().all(|s| s.len() == 2 && s[0] < s[1]), "{}", text.stdout);
    assert!(spans.is_sorted_by(|a, b| a[1] < b[0]));
    let json = conure_with(["vad", clip, "--json", "--probabilities"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["segments"].as_array().unwrap().len(), spans.len());
    assert_eq!((json["detector"].as_str(), json["duration"].as_f64()), (Some("energy"), Some(7.435)));
    assert_eq!(json["probabilities"].as_array().unwrap().len(), 233);
    let lines = conure_with(["vad", clip, "--probabilities", "--start", "1", "--duration", "2"]).stdout;
    assert_eq!(lines.lines().count(), 63);
    assert!(lines.starts_with("1.000\t"), "{lines}");
    // Nobody speaks for that long, and of nothing there is nothing to print.
    assert_eq!(conure_with(["vad", clip, "--min-speech", "60"]).stdout, "");
}

#[test]
fn windows_and_detectors_of_a_transcription() {
    let clip = speech();
    let clip = clip.to_str().unwrap();
    for args in [&["--window", "5"][..], &["--window", "0"], &["--vad", "energy"]] {
        let ran = conure_with(["transcribe", clip, "-q"].iter().chain(args));
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        assert!(ran.stdout.contains("don't wish to see it"), "{args:?}: {}", ran.stdout);
    }
    let model = root().join("tests/data/oracle/ctc80.gguf");
    for (args, code, parts) in [
        (&["--vad", "none.gguf"][..], 1, &["none.gguf", "say energy"][..]),
        (&["--vad", model.to_str().unwrap()], 1, &["speech detector", "transcribe with it"]),
        (&["--window", "3"], 2, &["at least 5 seconds"]),
    ] {
        let ran = conure_with(["transcribe", clip, "-q"].iter().chain(args));
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(parts.iter().all(|p| ran.stderr.contains(p)), "{args:?}: {}", ran.stderr);
    }
    let ran = conure_with(["vad", clip, "--threshold", "2"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("from 0 to 1"), "{}", ran.stderr);
}
