//! `conure listen` through ALSA: a file device of ALSA's own stands for the sound card.
#![cfg(all(feature = "microphone", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{conure, root, run, speech};

/// What the device gives is heard as a file of the same samples is.
#[test]
fn a_sound_card_is_heard() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let nemo = root().join("tests/data/oracle/stream_eou128.nemo");
    let ran = run(conure().args(["convert", "-q"]).arg(nemo).arg(at("stream.gguf")));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // ALSA's device of nothing prefers two channels of f32 at 48 kHz.
    let wav = std::fs::read(speech()).unwrap();
    let samples = wav[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0);
    let raw: Vec<u8> = samples.flat_map(|s| [s.to_le_bytes(); 6].concat()).collect();
    std::fs::write(at("in.raw"), raw).unwrap();
    let config = format!(
        "pcm.!default {{\n type file\n slave.pcm null\n file /dev/null\n infile \"{}\"\n format raw\n}}\npcm.null {{ type null }}\n",
        at("in.raw")
    );
    std::fs::write(at("asound.conf"), config).unwrap();

    let heard = run(conure()
        .env("ALSA_CONFIG_PATH", at("asound.conf"))
        .args(["listen", "--output-format", "txt", "--duration", "3", "-m"])
        .arg(at("stream.gguf")));
    assert_eq!(heard.code, Some(0), "{}", heard.stderr);
    assert!(heard.stderr.contains("listening to the microphone"), "{}", heard.stderr);
    let stream = run(conure()
        .args([
            "transcribe",
            "--stream",
            "--no-timestamps",
            "-q",
            "--raw",
            "f32le:48000:2",
            "--duration",
            "3",
            "-m",
        ])
        .arg(at("stream.gguf"))
        .arg(at("in.raw")));
    assert!(stream.stdout.split_whitespace().count() > 2, "{}", stream.stdout);
    assert_eq!(heard.stdout, stream.stdout);

    let other = run(conure()
        .env("ALSA_CONFIG_PATH", at("asound.conf"))
        .env("PATH", "/nowhere")
        .args(["listen", "--microphone", "none such", "-m"])
        .arg(at("stream.gguf")));
    assert!(
        other.code == Some(1) && other.stderr.contains("there is no microphone none such"),
        "{}",
        other.stderr
    );
}
