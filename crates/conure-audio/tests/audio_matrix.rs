//! Fault kind K1: every container and encoding that people have, by path, by pipe and from memory.
//! The files are made by scripts/make_audio_matrix.sh with sox and ffmpeg.

// Helpers of tests may fail the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::type_complexity)]

mod common;

use std::io::Read;
use std::sync::OnceLock;

use common::{Row, matrix_dir as dir, matrix_rows as rows};
use conure_audio::decode::{Audio, DecodeOptions, decode_all, open};
use conure_audio::error::{AudioError, AudioErrorKind};
use conure_audio::g711::{alaw_to_s16, mulaw_to_s16};
use conure_audio::source::AudioSource;

/// A reader that gives few bytes at a time and cannot seek, like a pipe.
struct Trickle(std::io::Cursor<Vec<u8>>, usize);

impl Read for Trickle {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 % 4093 + 1;
        let n = buf.len().min(self.1);
        self.0.read(&mut buf[..n])
    }
}

/// Decodes by path, by pipe, and from memory under a misleading name; all three must agree.
fn decode_all_ways(name: &str) -> Result<Audio, AudioError> {
    let path = dir().join(name);
    let bytes = std::fs::read(&path).unwrap();
    let options = DecodeOptions::default();
    let by_path = decode_all(AudioSource::path(&path), &options);
    let by_pipe =
        decode_all(AudioSource::reader("-", Trickle(std::io::Cursor::new(bytes.clone()), 0)), &options);
    let by_bytes = decode_all(AudioSource::bytes("upload.txt", bytes), &options);
    match (&by_path, &by_pipe, &by_bytes) {
        (Ok(a), Ok(b), Ok(c)) => {
            for (way, other) in [("pipe", b), ("bytes", c)] {
                assert!(a.samples == other.samples, "{name}: by {way} the samples differ");
                assert_eq!(
                    (a.sample_rate, &a.layout),
                    (other.sample_rate, &other.layout),
                    "{name}: by {way}"
                );
                assert_eq!(a.warnings, other.warnings, "{name}: by {way}");
            }
        }
        (Err(a), Err(b), Err(c)) => {
            assert_eq!((a.code(), a.code()), (b.code(), c.code()), "{name}: {a} / {b} / {c}");
        }
        other => panic!("{name}: the three ways disagree: {other:?}"),
    }
    by_path
}

fn data_chunk(bytes: &[u8]) -> &[u8] {
    let at = bytes.windows(4).position(|w| w == b"data").unwrap() + 8;
    let len = u32::from_le_bytes(bytes[at - 4..at].try_into().unwrap()) as usize;
    &bytes[at..at + len]
}

/// The exact samples of the clip a lossless file was made from.
fn lossless_reference(name: &str) -> &'static [f32] {
    static ALL: OnceLock<Vec<(String, Vec<f32>)>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let read = |name: &str, f: &dyn Fn(&[u8]) -> Vec<f32>| {
            (name.to_owned(), f(data_chunk(&std::fs::read(dir().join(format!("{name}.wav"))).unwrap())))
        };
        let s16 = |d: &[u8]| -> Vec<f32> {
            d.chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
        };
        let s24 = |d: &[u8]| -> Vec<f32> {
            let v = |b: &[u8]| i32::from_le_bytes([0, b[0], b[1], b[2]]) >> 8;
            d.chunks_exact(3).map(|b| v(b) as f32 / 8_388_608.0).collect()
        };
        let mut all: Vec<_> =
            ["speech", "stereo", "c51", "c44", "c48", "c48s"].iter().map(|n| read(n, &s16)).collect();
        all.push(read("up96", &s24));
        all.push(read("alaw", &|d| d.iter().map(|&b| f32::from(alaw_to_s16(b)) / 32768.0).collect()));
        all.push(read("mulaw", &|d| d.iter().map(|&b| f32::from(mulaw_to_s16(b)) / 32768.0).collect()));
        all
    });
    &all.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no reference {name}")).1
}

fn check_shape(row: &Row, audio: &Audio) {
    assert_eq!(audio.sample_rate, row.rate, "{}: rate", row.name);
    assert_eq!(audio.channels(), row.channels, "{}: channels", row.name);
    assert!(audio.warnings.is_empty(), "{}: {:?}", row.name, audio.warnings);
}

#[test]
fn lossless_files_give_the_samples_bit_for_bit() {
    for row in rows("lossless") {
        let audio = decode_all_ways(&row.name).unwrap();
        check_shape(&row, &audio);
        let expected = lossless_reference(&row.reference);
        assert_eq!(audio.samples.len(), expected.len(), "{}: number of samples", row.name);
        let wrong = audio.samples.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(wrong, None, "{}: first differing sample", row.name);
    }
}

#[test]
fn companded_and_8_bit_files_follow_their_definitions() {
    let definitions: [(&str, fn(u8) -> f32); 3] = [
        ("u8", |b| (f32::from(b) - 128.0) / 128.0),
        ("alaw", |b| f32::from(alaw_to_s16(b)) / 32768.0),
        ("mulaw", |b| f32::from(mulaw_to_s16(b)) / 32768.0),
    ];
    for (kind, definition) in definitions {
        for row in rows(kind) {
            let audio = decode_all_ways(&row.name).unwrap();
            check_shape(&row, &audio);
            let bytes = std::fs::read(dir().join(&row.name)).unwrap();
            let expected: Vec<f32> = data_chunk(&bytes).iter().map(|&b| definition(b)).collect();
            assert!(audio.samples == expected, "{}", row.name);
        }
    }
}

/// Error of `got` against `expected` relative to the signal, in dB.
fn error_db(got: &[f32], expected: &[f32]) -> f64 {
    let power = |i: &mut dyn Iterator<Item = f64>| i.map(|v| v * v).sum::<f64>();
    let error = power(&mut got.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    let signal = power(&mut expected.iter().map(|&v| f64::from(v)));
    10.0 * (error / signal.max(1e-30)).max(1e-30).log10()
}

#[test]
fn lossy_files_decode_as_ffmpeg_decodes_them() {
    let mut failures = Vec::new();
    for row in rows("lossy") {
        let audio = match decode_all_ways(&row.name) {
            Ok(audio) => audio,
            Err(e) => {
                failures.push(format!("{e}"));
                continue;
            }
        };
        let reference: Vec<f32> = std::fs::read(dir().join(&row.reference))
            .unwrap()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let db = error_db(&audio.samples, &reference);
        // ffmpeg leaves the last frame's padding in some containers; ours may end earlier, by less than a frame
        // of the codec (2048 samples), and never later.
        let (ours, theirs) = (audio.frames(), reference.len() / row.channels);
        let length_ok = ours <= theirs && theirs - ours < 2048;
        let shape_ok = (audio.sample_rate, audio.channels()) == (row.rate, row.channels);
        println!("{:22} {:8.1} dB  {ours} of {theirs} frames {:?}", row.name, db, audio.warnings);
        if db > -50.0 || !length_ok || !shape_ok || !audio.warnings.is_empty() {
            failures.push(format!(
                "{}: {db:.1} dB, {ours} frames of {theirs}, {} Hz x {} for {} x {}, {:?}",
                row.name, audio.sample_rate, audio.layout, row.rate, row.channels, audio.warnings
            ));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn what_is_not_read_is_named() {
    for row in rows("refused") {
        let e = decode_all_ways(&row.name).expect_err(&row.name);
        let text = e.to_string();
        assert!(text.contains(&row.reference), "{text}: expected {:?} in it", row.reference);
        assert!(text.contains(&row.name), "{text}: the file is not named");
        assert!(
            matches!(e.kind, AudioErrorKind::Unsupported { .. } | AudioErrorKind::NoAudioTrack { .. }),
            "{text}: {}",
            e.code()
        );
    }
}

#[test]
fn a_stream_gives_blocks() {
    let mut stream = open(AudioSource::path(dir().join("cbr64.mp3")), &DecodeOptions::default()).unwrap();
    assert_eq!((stream.sample_rate(), stream.container(), stream.codec()), (16_000, "MP3", "MP3"));
    assert_eq!(stream.expected_seconds(), Some(118_960.0 / 16_000.0));
    let mut all = Vec::new();
    while let Some(block) = stream.next_block().unwrap() {
        assert!(!block.is_empty() && block.len() <= 8192);
        all.extend_from_slice(block);
    }
    assert!(stream.next_block().unwrap().is_none());
    assert_eq!(
        all,
        decode_all(AudioSource::path(dir().join("cbr64.mp3")), &DecodeOptions::default()).unwrap().samples
    );
}

/// Its track twice: the chunks are where they were, since the index comes last.
#[test]
fn of_two_sound_tracks_the_one_that_is_heard_is_named() {
    let bytes = std::fs::read(dir().join("alac.m4a")).unwrap();
    let find = |kind: &[u8; 4]| bytes.windows(4).position(|w| w == kind).unwrap() - 4;
    let size = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (moov, trak) = (find(b"moov"), find(b"trak"));
    assert!(find(b"mdat") < moov);
    let track = &bytes[trak..trak + size(trak) as usize];
    let mut two = [&bytes[..trak], track, &bytes[trak..]].concat();
    two[moov..moov + 4].copy_from_slice(&(size(moov) + size(trak)).to_be_bytes());
    let decode = |bytes: Vec<u8>| decode_all(AudioSource::bytes("a.m4a", bytes), &DecodeOptions::default());
    let (one, two) = (decode(bytes.clone()).unwrap(), decode(two).unwrap());
    let warnings: Vec<String> = two.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["of its 2 sound tracks only number 1 is used (ALAC)"]);
    assert!(one.warnings.is_empty() && one.samples == two.samples);
}
