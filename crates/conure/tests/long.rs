//! Recordings longer than a window: nothing lost or doubled where windows meet, times of the file, memory of a window.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    AudioSource, EndKind, OnProgress, Progress, Samples, Segment, SpeechModel, Stage, StreamEnd,
    StreamOptions, TranscribeOptions, Transcript, Vad,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

const RATE: usize = 16_000;

static MODEL: LazyLock<SpeechModel> = LazyLock::new(|| SpeechModel::embedded(&Default::default()).unwrap());

/// A model of random weights and two heads: fast, for what does not depend on words.
static TINY: LazyLock<SpeechModel> =
    LazyLock::new(|| SpeechModel::load(data("oracle/hybrid_tdt80.gguf")).unwrap());

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

fn read(name: &str) -> Vec<f32> {
    let source = AudioSource::path(data(&format!("audio/{name}")));
    conure::audio::read(source, RATE as u32, &Default::default()).unwrap().samples
}

fn windows(seconds: f64) -> TranscribeOptions {
    TranscribeOptions { window: Some(seconds), ..Default::default() }
}

fn transcribe(model: &SpeechModel, samples: &[f32], options: &TranscribeOptions) -> Transcript {
    model.transcribe(Samples::mono(samples, RATE as u32), options).unwrap()
}

/// What a stream says, as a transcript, and its pauses: words that were told are never taken back.
fn streamed(model: &SpeechModel, samples: &[f32], options: StreamOptions) -> (Transcript, Vec<StreamEnd>) {
    let mut stream = model.stream(options).unwrap();
    let (mut words, mut ends) = (Vec::new(), Vec::new());
    for block in samples.chunks(1_600) {
        let update = stream.feed(block).unwrap();
        words.extend(update.words);
        ends.extend(update.ends);
    }
    words.extend(stream.finish().unwrap().words);
    let segments = vec![Segment { words, ..Segment::default() }];
    (Transcript { segments, duration: stream.seconds(), ..Transcript::default() }, ends)
}

fn texts(found: &Transcript) -> Vec<String> {
    found.segments.iter().flat_map(|s| &s.words).map(|w| w.word.clone()).collect()
}

/// Numbers from 0 to 1 that are the same every time.
struct Seeded(u32);

impl Seeded {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 24) as f32
    }

    fn noise(&mut self, count: usize, level: f32) -> Vec<f32> {
        (0..count).map(|_| (2.0 * self.next() - 1.0) * level).collect()
    }
}

/// Clips one after the other with pauses of 0.3 to 3 s between, and where each of them is, in seconds.
fn recording(clips: &[Vec<f32>]) -> (Vec<f32>, Vec<Range<f64>>) {
    let mut seeded = Seeded(5);
    let (mut samples, mut places) = (Vec::new(), Vec::new());
    for clip in clips {
        let start = samples.len() as f64 / RATE as f64;
        samples.extend_from_slice(clip);
        places.push(start..samples.len() as f64 / RATE as f64);
        samples.extend(vec![0.0; ((0.3 + 2.7 * seeded.next()) * RATE as f32) as usize]);
    }
    (samples, places)
}

/// The words of each place, by the middle of their times; every time is held to the order and the length.
fn by_place(found: &Transcript, places: &[Range<f64>]) -> Vec<Vec<String>> {
    let mut heard = vec![Vec::new(); places.len()];
    let mut last = 0.0;
    for word in found.segments.iter().flat_map(|s| &s.words) {
        assert!(last <= word.start && word.start <= word.end && word.end <= found.duration, "{word:?}");
        last = word.start;
        let middle = (word.start + word.end) / 2.0;
        let far = |p: &Range<f64>| (p.start - middle).max(middle - p.end).max(0.0);
        let nearest = (0..places.len()).min_by(|a, b| far(&places[*a]).total_cmp(&far(&places[*b])));
        heard[nearest.unwrap()].push(word.word.clone());
    }
    heard
}

fn errors(reference: &[&str], found: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=found.len()).collect();
    for (i, word) in reference.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in found.iter().enumerate() {
            let change = diagonal + usize::from(word != other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[found.len()]
}

/// Two minutes of clips in windows of 20 s: every clip is there, as well as alone, and nothing twice.
#[test]
fn nothing_is_lost_or_doubled_at_a_seam() {
    let table = std::fs::read_to_string(data("audio/transcripts.tsv")).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|l| l.split('\t').collect()).collect();
    let short = rows.iter().filter(|r| r[5].parse::<f64>().unwrap() < 10.0);
    let rows: Vec<_> = short.take(28).collect();
    let clips: Vec<Vec<f32>> = rows.iter().map(|r| read(r[0])).collect();
    let (samples, places) = recording(&clips);
    let borrowed: Vec<_> = clips.iter().map(|c| Samples::mono(c, RATE as u32)).collect();
    let alone = MODEL.transcribe_batch(&borrowed, &Default::default()).unwrap();
    let in_windows = |vad| transcribe(&MODEL, &samples, &TranscribeOptions { vad, ..windows(20.0) });
    // Every second of a stream is heard some ten times: the first clips are enough, and twice the window.
    let part = (places[12].start * RATE as f64) as usize;
    let options = StreamOptions { window: Some(15.0), ..Default::default() };
    for (what, found, count) in [
        ("everything", in_windows(None), places.len()),
        ("what is spoken", in_windows(Some(Vad::Energy)), places.len()),
        ("a stream", streamed(&MODEL, &samples[..part], options).0, 12),
    ] {
        let places = &places[..count];
        let length = if count == 12 { part } else { samples.len() };
        assert!((found.duration - length as f64 / RATE as f64).abs() < 1e-9);
        let heard = by_place(&found, places);
        let (mut wrong, mut wrong_alone, mut of) = (0, 0, 0);
        for ((row, alone), heard) in rows.iter().zip(&alone).zip(&heard) {
            assert!(!heard.is_empty() || alone.text.is_empty(), "{what}: nothing of {}", row[0]);
            let reference: Vec<&str> = row[1].split_whitespace().collect();
            let by_itself: Vec<String> = alone.text.split_whitespace().map(str::to_owned).collect();
            wrong += errors(&reference, heard);
            wrong_alone += errors(&reference, &by_itself);
            of += reference.len();
        }
        println!("{what}: {wrong} errors, alone {wrong_alone}, of {of} words");
        // 1.1 times, and two words: there are few in two minutes.
        assert!(
            wrong as f64 <= 1.1 * wrong_alone as f64 + 2.0,
            "{what}: {wrong} errors, alone {wrong_alone}"
        );
        let all: Vec<String> = heard.concat();
        let five: Vec<&[String]> = all.windows(5).collect();
        for (i, words) in five.iter().enumerate() {
            assert!(!five[i + 1..].iter().take(20).any(|w| w == words), "{what}: twice {words:?}");
        }
    }
}

/// A stream of a model for whole recordings that ends within a window says what the recording says, up to words that were final before
/// all was heard: nothing of the tail is lost, no word is more or less than that, and there are no more errors.
#[test]
fn a_stream_ends_as_the_recording_reads() {
    let table = std::fs::read_to_string(data("audio/transcripts.tsv")).unwrap();
    let rows = table.lines().skip(1).map(|l| l.split('\t').collect::<Vec<_>>());
    let (mut wrong, mut wrong_alone) = (0, 0);
    for row in rows.step_by(2).filter(|r| r[5].parse::<f64>().unwrap() < 10.0) {
        let clip = read(row[0]);
        let alone = texts(&transcribe(&MODEL, &clip, &Default::default()));
        let found = texts(&streamed(&MODEL, &clip, StreamOptions::default()).0);
        println!("{}: {found:?}, alone {alone:?}", row[0]);
        assert!(found.last() == alone.last() && found.len().abs_diff(alone.len()) <= 1, "{}", row[0]);
        let reference: Vec<&str> = row[1].split_whitespace().collect();
        wrong += errors(&reference, &found);
        wrong_alone += errors(&reference, &alone);
    }
    println!("{wrong} errors, alone {wrong_alone}");
    assert!(wrong as f64 <= 1.1 * wrong_alone as f64 + 2.0, "{wrong} errors, alone {wrong_alone}");
}

/// How a stream is cut changes nothing, a pause within a sentence neither; a longer one is told.
#[test]
fn streams_of_windows_are_heard_alike_however_they_come() {
    let clip = read("speech.wav");
    let (mut stream, mut found) = (MODEL.stream(StreamOptions::default()).unwrap(), Vec::new());
    let mut at = 0;
    for size in [1, 160, 997, 1_600, 16_000].into_iter().cycle() {
        let block = &clip[at..clip.len().min(at + size)];
        found.extend(stream.feed(block).unwrap().words);
        at += block.len();
        if at == clip.len() {
            break;
        }
    }
    found.extend(stream.finish().unwrap().words);
    assert!(stream.finish().is_err());
    assert_eq!(streamed(&MODEL, &clip, StreamOptions::default()).0.segments[0].words, found);

    // Between two words: the clip has one of its breaths there.
    let gap = found.windows(2).max_by(|a, b| (a[1].start - a[0].end).total_cmp(&(b[1].start - b[0].end)));
    let gap = gap.unwrap();
    let cut = (gap[1].start * RATE as f64) as usize - RATE / 20;
    for (seconds, pauses) in [(0.7, 0), (4.0, 1)] {
        let silence = vec![0.0; (seconds * RATE as f64) as usize];
        let with = [&clip[..cut], &silence, &clip[cut..]].concat();
        let (heard, ends) = streamed(&MODEL, &with, StreamOptions::default());
        let plain: Vec<&str> = found.iter().map(|w| w.word.as_str()).collect();
        let off = errors(&plain, &texts(&heard));
        assert!(off <= 2, "{seconds} s: {:?} and {plain:?}", texts(&heard));
        assert_eq!(ends.len(), pauses, "{seconds} s: {ends:?}");
        // Two frames about the word's end: its last token may be heard a frame apart.
        let there = |e: &StreamEnd| e.kind == EndKind::Pause && (e.time - gap[0].end).abs() < 0.17;
        assert!(ends.iter().all(there), "{seconds} s: {ends:?}, the word ends at {}", gap[0].end);
    }
}

#[test]
fn what_fits_a_window_is_recognised_whole() {
    let clip = read("speech.wav");
    let whole = transcribe(&MODEL, &clip, &windows(0.0));
    for seconds in [7.44, 60.0] {
        assert_eq!(transcribe(&MODEL, &clip, &windows(seconds)), whole, "{seconds}");
    }
    let error = MODEL.transcribe(Samples::mono(&clip, RATE as u32), &windows(1.0)).unwrap_err();
    assert!(error.to_string().contains("5 s or more"), "{error}");
}

/// Clips longer than a window are in windows also beside others.
#[test]
fn a_batch_is_as_its_clips_alone() {
    let clips = [25, 3, 31, 26].map(|seconds| Seeded(4).noise(seconds * RATE, 0.1));
    let borrowed = clips.each_ref().map(|c| Samples::mono(c, RATE as u32));
    let together = TINY.transcribe_batch(&borrowed, &windows(20.0)).unwrap();
    for (clip, found) in clips.iter().zip(together) {
        assert_eq!(found, transcribe(&TINY, clip, &windows(20.0)));
    }
}

/// Just below and above what the usual table of 5,000 positions reaches, at once and in windows.
#[test]
fn no_length_is_a_limit() {
    for seconds in [399, 401] {
        let samples = Seeded(1).noise(seconds * RATE, 0.1);
        for window in [0.0, 60.0] {
            let found = transcribe(&TINY, &samples, &windows(window));
            assert_eq!(found.duration, seconds as f64, "{window}");
            by_place(&found, &[0.0..found.duration]);
        }
    }
}

/// Pieces that are made as they are asked for: how many come makes no difference to what is taken.
#[test]
fn memory_is_that_of_a_window() {
    let arena = |minutes: usize| {
        let model = SpeechModel::load(data("oracle/hybrid_tdt80.gguf")).unwrap();
        let (mut seeded, mut left) = (Seeded(3), minutes * 60);
        let mut most = 0;
        let next = |out: &mut Vec<f32>| -> Result<bool, conure::Error> {
            most = most.max(out.capacity());
            left -= 1;
            out.extend(seeded.noise(RATE, 0.1));
            Ok(left > 0)
        };
        let found = model.recogniser().transcribe_pieces(None, next, &windows(30.0)).unwrap();
        assert_eq!(found.duration, minutes as f64 * 60.0);
        (model.recogniser().arena_bytes(), most)
    };
    let (short, long) = (arena(2), arena(12));
    assert!(long.0 <= short.0 * 11 / 10 && long.1 <= short.1 * 11 / 10, "{short:?} {long:?}");
    // A window, the 5 s that are looked ahead, and how a vector grows.
    assert!(long.1 <= 2 * 40 * RATE, "{long:?}");
}

#[test]
fn a_long_recording_is_watched_and_can_be_stopped() {
    let samples = Seeded(2).noise(100 * RATE, 0.1);
    let told = Arc::new(Mutex::new(Vec::<Progress>::new()));
    let (sink, stop) = (told.clone(), Arc::new(AtomicBool::new(false)));
    let mut options = windows(10.0);
    options.recognise.progress = Some(OnProgress::new(move |p| sink.lock().unwrap().push(p)));
    for expected in [Some(100.0), Some(3.0), None] {
        told.lock().unwrap().clear();
        let mut pieces = samples.chunks(RATE);
        let next = |out: &mut Vec<f32>| -> Result<bool, conure::Error> {
            let piece = pieces.next();
            out.extend_from_slice(piece.unwrap_or_default());
            Ok(piece.is_some())
        };
        TINY.recogniser().transcribe_pieces(expected, next, &options).unwrap();
        let told = told.lock().unwrap();
        assert!(told.is_sorted_by(|a, b| a.fraction <= b.fraction), "{told:?}");
        let last = told.last().unwrap();
        assert_eq!((last.fraction, last.seconds, last.total), (1.0, 100.0, Some(100.0)));
        for p in told.iter().filter(|p| p.fraction < 1.0 && p.stage != Stage::Reading) {
            // What the header said was shorter than what was read already: then nothing is known.
            assert_eq!(p.total, expected.filter(|e| *e > 10.0), "{p:?}");
            assert!(p.seconds <= 100.0 && (p.total.is_some() || p.fraction == 0.0), "{p:?}");
        }
    }
    let set = stop.clone();
    options.recognise.progress = Some(OnProgress::new(move |p| {
        set.store(p.stage != Stage::Reading, Ordering::Relaxed);
    }));
    options.recognise.cancel = Some(stop);
    let error = TINY.transcribe(Samples::mono(&samples, RATE as u32), &options).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
}

#[test]
fn an_error_in_the_middle_is_an_error() {
    let mut left = 50;
    let next = |out: &mut Vec<f32>| {
        left -= 1;
        out.extend(vec![0.0; RATE]);
        if left == 0 { Err(conure::Error::Samples("the line went dead".into())) } else { Ok(true) }
    };
    let error = TINY.recogniser().transcribe_pieces(None, next, &windows(10.0)).unwrap_err();
    assert!(error.to_string().contains("line went dead"));
}

#[test]
fn silence_is_skipped_and_times_stay() {
    let clip = read("speech.wav");
    let silence = |seconds: usize| Seeded(9).noise(seconds * RATE, 1e-4);
    let samples = [silence(30), clip.clone(), silence(61), clip.clone(), silence(5)].concat();
    let found =
        transcribe(&MODEL, &samples, &TranscribeOptions { vad: Some(Vad::Energy), ..Default::default() });
    let length = clip.len() as f64 / RATE as f64;
    let places = [30.0..30.0 + length, 91.0 + length..91.0 + 2.0 * length];
    for word in found.segments.iter().flat_map(|s| &s.words) {
        let inside = |p: &Range<f64>| p.start - 0.1 <= word.start && word.end <= p.end + 0.1;
        assert!(places.iter().any(inside), "{word:?}");
    }
    let heard = by_place(&found, &places);
    // Other samples around a clip change what was doubtful in it.
    let clear = |h: &Vec<String>| h.join(" ").contains("don't wish to see") && h.len() > 18;
    assert!(heard.iter().all(clear), "{heard:?}");
    assert_eq!(
        transcribe(&MODEL, &silence(40), &TranscribeOptions { vad: Some(Vad::Energy), ..Default::default() })
            .text,
        ""
    );
}

#[test]
fn every_length_up_to_two_thousand_samples_works() {
    let speech = read("speech.wav");
    let clips: Vec<_> = (0..=2_000).map(|n| Samples::mono(&speech[..n], RATE as u32)).collect();
    let found =
        TINY.transcribe_batch(&clips, &TranscribeOptions { tokens: true, ..Default::default() }).unwrap();
    for (n, t) in found.iter().enumerate() {
        assert_eq!(t.duration, n as f64 / RATE as f64);
        by_place(t, &[0.0..t.duration]);
        assert!(t.tokens.iter().flatten().all(|t| (0.0..=1.0).contains(&t.confidence)), "{n}");
    }
    let vad = TranscribeOptions { vad: Some(Vad::Energy), ..Default::default() };
    for n in (0..2_000).step_by(133) {
        assert_eq!(transcribe(&TINY, &speech[..n], &vad).duration, n as f64 / RATE as f64);
    }
}

/// In windows, and by what a detector lets through, nothing is heard in minutes of nothing.
#[test]
fn nothing_is_heard_where_nothing_is_said() {
    let n = 60 * RATE;
    for (what, samples) in [
        ("zeros", vec![0.0; n]),
        ("noise at -60 dB", Seeded(1).noise(n, 1e-3)),
        ("a constant", vec![0.5; n]),
        ("full-scale square wave", (0..n).map(|i| if i / 40 % 2 == 0 { 1.0 } else { -1.0 }).collect()),
    ] {
        for (vad, most) in [(None, 1), (Some(Vad::Energy), 0)] {
            let found = transcribe(&MODEL, &samples, &TranscribeOptions { vad, ..windows(20.0) });
            let words = found.text.split_whitespace().count();
            assert!(words <= most, "{what}: {}", found.text);
        }
    }
}

/// Damage far into a long file is told with its time, and what comes after it is where it was.
#[test]
fn warnings_and_times_of_a_damaged_file_are_those_of_the_file() {
    let clip = read("speech.wav");
    let mut samples = [Seeded(9).noise(40 * RATE, 1e-4), clip.clone()].concat();
    samples[35 * RATE] = f32::NAN;
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut audio = conure::AudioOptions::default();
    audio.decode.raw = Some("f32le:16000:1".parse().unwrap());
    let source = AudioSource::reader("pipe", std::io::Cursor::new(bytes));
    let found = MODEL.transcribe_file(source, &audio, &windows(20.0)).unwrap();
    assert!(found.warnings.iter().any(|w| w.contains("no sound")), "{:?}", found.warnings);
    let wish = found.segments.iter().flat_map(|s| &s.words).find(|w| w.word == "wish").unwrap();
    let alone = transcribe(&MODEL, &clip, &Default::default());
    let there = alone.segments.iter().flat_map(|s| &s.words).find(|w| w.word == "wish").unwrap();
    assert!((wish.start - there.start - 40.0).abs() <= 0.08 + 1e-9, "{wish:?} {there:?}");
}
