//! Fault kind K2: files that are cut, damaged or lie about their lengths. Each gives the good part with a warning, or a
//! clear error, in bounded time and memory; nothing panics.
//!
//! `CONURE_STRESS=N` makes N random mutations of each file instead of a few.

// Helpers of tests may fail the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::type_complexity)]

mod common;

use std::time::{Duration, Instant};

use common::{matrix_dir, matrix_rows};
use conure_audio::decode::{Audio, DecodeOptions, WarningKind, decode_all};
use conure_audio::error::{AudioError, AudioErrorKind};
use conure_audio::source::AudioSource;

const LIMIT: Duration = Duration::from_secs(2);

/// Decodes within the time limit and checks what must hold of any result.
fn decode(name: &str, bytes: Vec<u8>) -> Result<Audio, AudioError> {
    let start = Instant::now();
    let result = decode_all(AudioSource::bytes(name, bytes), &DecodeOptions::default());
    let took = start.elapsed();
    assert!(took < LIMIT, "{name}: took {took:?}");
    match &result {
        Ok(audio) => {
            assert!(audio.samples.iter().all(|s| s.is_finite()), "{name}");
            assert!(audio.sample_rate > 0 && audio.samples.len() % audio.channels() == 0, "{name}");
            // Silence for what is lost is bounded.
            assert!(audio.duration() < 3600.0, "{name}: {} s", audio.duration());
            for w in &audio.warnings {
                assert!(w.start >= 0.0 && w.end.is_none_or(|e| e >= w.start), "{name}: {w:?}");
            }
        }
        Err(e) => {
            let text = e.to_string();
            assert!(
                text.starts_with(name) && text.len() > name.len() + 10 && !text.contains("panic"),
                "{text}"
            );
        }
    }
    result
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(matrix_dir().join(name)).unwrap()
}

fn error_db(got: &[f32], expected: &[f32]) -> f64 {
    let error: f64 = got.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let signal: f64 = expected.iter().map(|&v| f64::from(v).powi(2)).sum();
    10.0 * (error / signal.max(1e-12)).max(1e-12).log10()
}

/// A small deterministic generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

#[test]
fn a_cut_file_gives_what_is_left_of_it() {
    for row in matrix_rows("short") {
        let bytes = read(&row.name);
        let whole = decode(&row.name, bytes.clone()).unwrap();
        assert!(whole.warnings.is_empty(), "{}: {:?}", row.name, whole.warnings);
        let cuts = 24;
        for i in 1..cuts {
            let at = bytes.len() * i / cuts;
            let Ok(part) = decode(&row.name, bytes[..at].to_vec()) else { continue };
            assert!(part.samples.len() <= whole.samples.len(), "{} cut at {at}", row.name);
            // The last block may lack its successor's overlap.
            let sure = part.samples.len().saturating_sub(4096);
            let db = error_db(&part.samples[..sure], &whole.samples[..sure]);
            assert!(sure == 0 || db < -60.0, "{} cut at {at}: {db} dB", row.name);
            let missing = whole.duration() - part.duration();
            assert!(
                missing < 0.1 || !part.warnings.is_empty(),
                "{} cut at {at}: {missing} s missing without a word",
                row.name
            );
        }
    }
}

#[test]
fn a_file_cut_in_half_is_not_given_up() {
    for row in matrix_rows("short") {
        let bytes = read(&row.name);
        let whole = decode(&row.name, bytes.clone()).unwrap();
        // An MP4 file with its index at the end has lost that index.
        let index_lost = row.name == "short.m4a" || row.name == "short_alac.m4a" || row.name == "short.caf";
        match decode(&row.name, bytes[..bytes.len() * 6 / 10].to_vec()) {
            Ok(part) => {
                let share = part.duration() / whole.duration();
                assert!((0.3..0.75).contains(&share), "{}: {share} of it", row.name);
                let tail = part.warnings.iter().any(|w| w.kind == WarningKind::TruncatedTail);
                assert!(tail || row.name == "short.webm", "{}: {:?}", row.name, part.warnings);
                let strict = DecodeOptions { strict: true, ..DecodeOptions::default() };
                let cut = bytes[..bytes.len() * 6 / 10].to_vec();
                let e = decode_all(AudioSource::bytes("cut", cut), &strict).expect_err(&row.name);
                assert!(matches!(e.kind, AudioErrorKind::Damaged(_)), "{e}");
            }
            Err(e) => assert!(index_lost, "{e}"),
        }
    }
}

/// A FLAC file that a pipe wrote does not say how many samples it has.
#[test]
fn a_cut_flac_file_of_unknown_length_says_so() {
    let bytes = read("pipe.flac");
    assert!(decode("pipe.flac", bytes.clone()).unwrap().warnings.is_empty());
    let cut = decode("pipe.flac", bytes[..bytes.len() - 1000].to_vec()).unwrap();
    assert_eq!(cut.warnings.len(), 1, "{:?}", cut.warnings);
    assert_eq!(cut.warnings[0].kind, WarningKind::TruncatedTail);
}

#[test]
fn damage_in_the_middle_keeps_later_times() {
    for name in [
        "cbr64.mp3",
        "vbr_stereo.mp3",
        "layer2.mp2",
        "a.flac",
        "vorbis.ogg",
        "audio.opus",
        "voip.opus",
        "flac.oga",
        "tail.m4a",
        "alac.m4a",
        "fragmented.mp4",
        "opus.webm",
        "live.webm",
        "aac.mkv",
        "flac.mkv",
        "adts.aac",
        "alac.caf",
    ] {
        let mut bytes = read(name);
        let whole = decode(name, bytes.clone()).unwrap();
        let middle = bytes.len() / 2;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for b in &mut bytes[middle..middle + 2048] {
            *b = random.below(256) as u8;
        }
        let damaged = decode(name, bytes).unwrap();
        assert!(!damaged.warnings.is_empty(), "{name}: damaged without a word");
        let (a, b) = (damaged.frames() as i64, whole.frames() as i64);
        let rate = i64::from(whole.sample_rate);
        println!("{name:20} {a} of {b} frames, {:?}", damaged.warnings);
        // Within one encoder frame of a recogniser.
        assert!((a - b).abs() * 1000 <= 80 * rate, "{name}: {a} frames instead of {b}");
        // The last second is where it was.
        let second = whole.sample_rate as usize * whole.channels();
        let best = (-80..=80i64)
            .map(|ms| {
                let shift = ms * rate / 1000 * whole.channels() as i64;
                let from = (whole.samples.len() - 2 * second) as i64;
                let got = &damaged.samples[(from + shift) as usize..][..second];
                error_db(got, &whole.samples[from as usize..][..second])
            })
            .fold(f64::MAX, f64::min);
        assert!(best < -20.0 || a != b, "{name}: the end differs by {best} dB");
    }
}

/// ALAC has no checksums: zeros, other bytes and single bits in its packets are told by where their numbers end.
#[test]
fn damaged_alac_is_told() {
    for name in ["alac.m4a", "alac_stereo.m4a", "alac.caf"] {
        let original = read(name);
        let whole = decode(name, original.clone()).unwrap();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (from, to) = (original.len() / 4, original.len() * 3 / 4);
        for round in 0..12 {
            let mut bytes = original.clone();
            let at = from + random.below(to - from);
            match round % 3 {
                0 => bytes[at..at + 2000].fill(0),
                1 => bytes[at..at + 40].fill(0x55),
                _ => bytes[at] ^= 1 << random.below(8),
            }
            let damaged = decode(name, bytes).unwrap();
            assert_eq!(damaged.frames(), whole.frames(), "{name} round {round}");
            if damaged.warnings.is_empty() {
                // Most bits are of numbers that change no length.
                assert!(round % 3 == 2, "{name} round {round} at {at}: without a word");
                continue;
            }
            // What was not understood is silence, and nothing else is changed.
            let same = |(a, b): (&f32, &f32)| a == b || *a == 0.0;
            assert!(damaged.samples.iter().zip(&whole.samples).all(same), "{name} round {round} at {at}");
        }
    }
}

#[test]
fn random_damage_is_survived() {
    let rounds = std::env::var("CONURE_STRESS").ok().and_then(|n| n.parse().ok()).unwrap_or(24usize);
    let mut random = Random(0x0123_4567_89ab_cdef);
    for row in matrix_rows("short") {
        let original = read(&row.name);
        for round in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..=random.below(12) {
                // Headers matter most, so half the changes go into the first bytes (and the last, for MP4's index).
                let range = match random.below(4) {
                    0 => 0..bytes.len().min(64),
                    1 => 0..bytes.len().min(1024),
                    2 => bytes.len().saturating_sub(1024)..bytes.len(),
                    _ => 0..bytes.len(),
                };
                let at = range.start + random.below(range.len());
                match random.below(6) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = random.below(256) as u8,
                    2 => bytes[at] = [0, 0xff, 0x7f, 0x80][random.below(4)],
                    3 => {
                        let end = (at + 4).min(bytes.len());
                        bytes[at..end].fill([0, 0xff][random.below(2)]);
                    }
                    4 => {
                        let end = (at + random.below(64)).min(bytes.len());
                        bytes.drain(at..end);
                    }
                    _ => {
                        let end = (at + random.below(64)).min(bytes.len());
                        let piece = bytes[at..end].to_vec();
                        bytes.splice(at..at, piece);
                    }
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let name = format!("{} round {round}", row.name);
            let _ = decode(&name, bytes);
        }
    }
}

/// Files joined by `cat`: sound that is like the first file's is read on, anything else is named, never lost in silence.
#[test]
fn joined_files_lose_nothing_in_silence() {
    let (wav, flac) = (read("stereo.wav"), read("stereo.flac"));
    let once = decode("a.wav", wav.clone()).unwrap();
    let chunk = [b"LIST\x03\0\0\0abc\0".as_slice(), &wav].concat();
    let pipe = AudioSource::reader("-", std::io::Cursor::new([wav.as_slice(), &wav].concat()));
    for (name, audio) in [
        ("j.wav", decode("j.wav", [wav.as_slice(), &wav, &wav].concat()).unwrap()),
        ("chunk.wav", decode("chunk.wav", [wav.as_slice(), &chunk, &chunk].concat()).unwrap()),
        ("pipe.wav", decode_all(pipe, &DecodeOptions::default()).unwrap()),
        ("j.flac", decode("j.flac", [flac.as_slice(), &flac, &flac].concat()).unwrap()),
    ] {
        let one = if name.ends_with("flac") { decode("a.flac", flac.clone()).unwrap() } else { once.clone() };
        let times = audio.samples.len() / one.samples.len();
        assert!(
            times >= 2 && audio.samples.len() % one.samples.len() == 0,
            "{name}: {}",
            audio.samples.len()
        );
        assert!(audio.samples.chunks(one.samples.len()).all(|part| part == one.samples), "{name}");
        assert!(audio.warnings.is_empty(), "{name}: {:?}", audio.warnings);
    }
    for (name, second) in [("other.wav", read("c48.wav")), ("cut.wav", wav[..30].to_vec())] {
        let audio = decode(name, [wav.as_slice(), &second].concat()).unwrap();
        assert_eq!(audio.samples, once.samples, "{name}");
        let [warning] = audio.warnings.as_slice() else { panic!("{name}: {:?}", audio.warnings) };
        assert!(
            warning.kind.is_damage() && warning.message.contains(&format!("({} bytes)", second.len())),
            "{warning}"
        );
    }
    let broken = [flac.as_slice(), &flac[..40]].concat();
    let audio = decode("broken.flac", broken).unwrap();
    assert_eq!(audio.samples, decode("a.flac", flac).unwrap().samples);
    let said = &audio.warnings[0].message;
    assert!(said.contains("another file (FLAC") && said.contains("(40 bytes)"), "{said}");
}
