//! Hostile audio (facts: D2 31-40) and degenerate lengths (K4), made here byte by byte: a clear error or bounded work,
//! never a panic, never memory by a header's word.

// Helpers of tests may fail the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::type_complexity)]

use std::io::Read;
use std::time::{Duration, Instant};

use conure_audio::decode::{Audio, DecodeOptions, WarningKind, decode_all};
use conure_audio::downmix::Mix;
use conure_audio::error::{AudioError, AudioErrorKind};
use conure_audio::pcm::RawSpec;
use conure_audio::source::AudioSource;

const LIMIT: Duration = Duration::from_secs(2);

fn decode_with(name: &str, bytes: Vec<u8>, options: &DecodeOptions) -> Result<Audio, AudioError> {
    let start = Instant::now();
    let result = decode_all(AudioSource::bytes(name, bytes), options);
    assert!(start.elapsed() < LIMIT, "{name}: took {:?}", start.elapsed());
    if let Ok(audio) = &result {
        assert!(audio.samples.iter().all(|s| s.is_finite()), "{name}");
    }
    result
}

fn decode(name: &str, bytes: Vec<u8>) -> Result<Audio, AudioError> {
    decode_with(name, bytes, &DecodeOptions::default())
}

fn chunk(id: &[u8; 4], size: u32, body: &[u8]) -> Vec<u8> {
    [&id[..], &size.to_le_bytes(), body].concat()
}

/// A fmt chunk of 16 bytes.
fn fmt(tag: u16, channels: u16, rate: u32, block: u16, bits: u16) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(tag.to_le_bytes());
    body.extend(channels.to_le_bytes());
    body.extend(rate.to_le_bytes());
    body.extend(rate.wrapping_mul(u32::from(block)).to_le_bytes());
    body.extend(block.to_le_bytes());
    body.extend(bits.to_le_bytes());
    chunk(b"fmt ", 16, &body)
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    [&chunk(b"RIFF", body.len() as u32 + 4, b"WAVE")[..], &body].concat()
}

/// 16-bit mono at 16 kHz with these chunks around the data.
fn wav(before: &[Vec<u8>], data_size: u32, samples: &[i16], after: &[Vec<u8>]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut chunks = vec![fmt(1, 1, 16_000, 2, 16)];
    chunks.extend_from_slice(before);
    chunks.push(chunk(b"data", data_size, &data));
    chunks.extend_from_slice(after);
    riff(&chunks)
}

fn ramp(n: usize) -> Vec<i16> {
    (0..n).map(|i| (i as i16).wrapping_mul(7)).collect()
}

fn floats(samples: &[i16]) -> Vec<f32> {
    samples.iter().map(|&s| f32::from(s) / 32768.0).collect()
}

#[test]
fn every_length_from_nothing() {
    for n in (0..2000).step_by(1) {
        let samples = ramp(n);
        let audio = decode("n.wav", wav(&[], 2 * n as u32, &samples, &[])).unwrap();
        assert_eq!(audio.samples, floats(&samples), "{n}");
        // That there is nothing in it is worth a remark.
        assert_eq!(audio.warnings.len(), usize::from(n == 0), "{n}: {:?}", audio.warnings);
        assert_eq!((audio.sample_rate, audio.channels()), (16_000, 1), "{n}");
    }
    let e = decode("z.wav", Vec::new()).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::Empty), "{e}");
    assert_eq!(e.to_string(), "z.wav: the file is empty (0 bytes)");
}

#[test]
fn sizes_that_lie() {
    let samples = ramp(1000);
    let list = chunk(b"LIST", 4, b"INFO");
    // (declared data size, chunks after it, expected number of samples, warning)
    for (size, after, expected, warning) in [
        (2000u32, vec![], 1000usize, None),
        (2000, vec![list.clone()], 1000, None),
        (0, vec![], 1000, None),           // a pipe wrote it
        (0xffff_ffff, vec![], 1000, None), // ffmpeg's pipe
        (0x7fff_f000, vec![], 1000, None), // sox's pipe
        (0x7fff_ffff, vec![], 1000, None),
        (0x7fff_ffff - 36, vec![], 1000, None),
        (0xffff_ffff - 44, vec![], 1000, None),
        (0x8000_0000, vec![], 1000, None),
        (2001, vec![], 1000, None), // half a sample
        (4000, vec![], 1000, Some(WarningKind::TruncatedTail)),
        (0x1000_0000, vec![], 1000, Some(WarningKind::TruncatedTail)),
        (1000, vec![], 500, Some(WarningKind::HeaderLies)),
    ] {
        let bytes = wav(&[], size, &samples, &after);
        let audio = decode("lies.wav", bytes.clone()).unwrap();
        assert_eq!(audio.samples, floats(&samples)[..expected], "{size:#x}");
        assert_eq!(audio.warnings.first().map(|w| w.kind), warning, "{size:#x}: {:?}", audio.warnings);
        // A pipe, whose length nobody knows, gives the same.
        let piped =
            decode_all(AudioSource::reader("-", std::io::Cursor::new(bytes)), &DecodeOptions::default());
        assert_eq!(piped.unwrap().samples, audio.samples, "{size:#x} by pipe");
    }
    let tail = decode("t.wav", wav(&[], 64_000, &ramp(16_000), &[])).unwrap().warnings;
    assert_eq!((tail[0].start, tail[0].end), (1.0, Some(2.0)));
    // No data and a chunk after it: truly empty.
    assert_eq!(decode("e.wav", wav(&[], 0, &[], &[list])).unwrap().samples, []);
}

#[test]
fn wave_headers() {
    let samples = ramp(100);
    let data = || chunk(b"data", 200, &samples.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<_>>());
    let tiny: Vec<Vec<u8>> = (0..10_000).map(|_| chunk(b"junk", 1, &[0, 0])).collect();
    let unpadded: Vec<Vec<u8>> = (0..10).map(|_| chunk(b"junk", 3, b"abc")).collect();
    let extensible = |tag: u16, tail: &[u8; 14]| {
        let mut body = fmt(0xfffe, 1, 16_000, 2, 16)[8..].to_vec();
        body.extend([22, 0, 16, 0, 4, 0, 0, 0]);
        body.extend(tag.to_le_bytes());
        body.extend(tail);
        chunk(b"fmt ", 40, &body)
    };
    let guid = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";
    let ok = [
        ("ten thousand tiny chunks", riff(&[vec![fmt(1, 1, 16_000, 2, 16)], tiny, vec![data()]].concat())),
        (
            "odd chunks without padding",
            riff(&[vec![fmt(1, 1, 16_000, 2, 16)], unpadded, vec![data()]].concat()),
        ),
        ("extensible", riff(&[extensible(1, guid), data()])),
        ("block align 0", riff(&[fmt(1, 1, 16_000, 0, 16), data()])),
        ("bits 0, block align right", riff(&[fmt(1, 1, 16_000, 2, 0), data()])),
        (
            "zip behind it",
            [riff(&[fmt(1, 1, 16_000, 2, 16), data()]), b"PK\x03\x04rest of a zip".to_vec()].concat(),
        ),
        ("riff size 0", {
            let mut b = riff(&[fmt(1, 1, 16_000, 2, 16), data()]);
            b[4..8].fill(0);
            b
        }),
    ];
    for (name, bytes) in ok {
        let audio = decode(name, bytes).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(audio.samples, floats(&samples), "{name}");
        assert!(audio.warnings.is_empty(), "{name}: {:?}", audio.warnings);
    }
    let bad = [
        ("rate 0", riff(&[fmt(1, 1, 0, 2, 16), data()]), "0 Hz"),
        ("rate 1", riff(&[fmt(1, 1, 1, 2, 16), data()]), "1 Hz"),
        ("rate 2^32-1", riff(&[fmt(1, 1, u32::MAX, 2, 16), data()]), "4294967295 Hz"),
        ("no channels", riff(&[fmt(1, 0, 16_000, 2, 16), data()]), "0 channels"),
        ("65535 channels", riff(&[fmt(1, 65_535, 16_000, 65_534, 16), data()]), "65535 channels"),
        ("no bits", riff(&[fmt(1, 1, 16_000, 0, 0), data()]), "0 bits"),
        ("65535 bits", riff(&[fmt(1, 1, 16_000, 2, 65_535), data()]), "65535 bits"),
        ("half floats", riff(&[fmt(3, 1, 16_000, 2, 16), data()]), "floating-point samples of 16 bits"),
        ("fmt after data", riff(&[data(), fmt(1, 1, 16_000, 2, 16)]), "before its fmt chunk"),
        ("no data", riff(&[fmt(1, 1, 16_000, 2, 16)]), "before its data chunk"),
        ("no fmt", riff(&[chunk(b"LIST", 4, b"INFO")]), "before its fmt chunk"),
        ("short fmt", riff(&[chunk(b"fmt ", 4, &[1, 0, 1, 0]), data()]), "expected at least 14"),
        ("huge fmt", riff(&[chunk(b"fmt ", u32::MAX, &[1, 0, 1, 0]), data()]), "before its data chunk"),
        (
            "huge chunk",
            riff(&[chunk(b"junk", u32::MAX - 1, b""), fmt(1, 1, 16_000, 2, 16), data()]),
            "fmt chunk",
        ),
        ("strange GUID", riff(&[extensible(1, &[7; 14]), data()]), "SubFormat"),
        ("GSM", riff(&[fmt(0x31, 1, 8_000, 65, 0), data()]), "GSM 6.10"),
        ("unknown tag", riff(&[fmt(0x1234, 1, 8_000, 65, 0), data()]), "0x1234"),
        ("ADPCM block 0", riff(&[fmt(2, 1, 8_000, 0, 4), data()]), "ADPCM blocks have 0 bytes"),
        ("ADPCM of 9 channels", riff(&[fmt(0x11, 9, 8_000, 512, 4), data()]), "more than two channels"),
        ("only RIFF", b"RIFF".to_vec(), "first 12 bytes"),
        ("MP3 without a frame", riff(&[fmt(0x55, 1, 8_000, 1, 0), data()]), "does not begin with a frame"),
    ];
    for (name, bytes, word) in bad {
        let e = decode(name, bytes).expect_err(name);
        assert!(e.to_string().contains(word), "{e}: expected {word:?}");
    }
}

/// A sparse file longer than 4 GiB, whose 32-bit length has wrapped: found by its file length.
#[cfg(unix)]
#[test]
fn more_than_four_gigabytes() {
    use conure_audio::decode::open;
    use std::io::{Seek, SeekFrom, Write};
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let length = (5u64 << 30) + 8000;
    let header = wav(&[], (length & 0xffff_ffff) as u32, &[], &[]);
    file.write_all(&header).unwrap();
    file.seek(SeekFrom::Start(header.len() as u64 + length - 2)).unwrap();
    file.write_all(&[0, 0x40]).unwrap();
    let options = DecodeOptions { max_seconds: 3.0e5, ..DecodeOptions::default() };
    let mut stream = open(AudioSource::path(file.path()), &options).unwrap();
    // Not read through (that takes long): the first block is there, and nothing is warned about.
    assert!(stream.next_block().unwrap().is_some());
    assert!(stream.warnings().is_empty());
    // 5 GiB are 46 hours, and the limit is 24: refused before it is read.
    let start = Instant::now();
    let e = decode_all(AudioSource::path(file.path()), &DecodeOptions::default()).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::TooLong { .. }), "{e}");
    assert!(start.elapsed() < LIMIT);
    // By pipe its length is not known; the limit of seconds stops it.
    let mut file = file.reopen().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let limit = DecodeOptions { max_seconds: 10.0, ..DecodeOptions::default() };
    let start = Instant::now();
    let e = decode_all(AudioSource::reader("-", file), &limit).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::TooLong { .. }), "{e}");
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn floats_that_are_no_numbers() {
    let values =
        [0.5f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, f32::MIN_POSITIVE / 2.0, -0.0, 0.25];
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = riff(&[fmt(3, 1, 16_000, 4, 32), chunk(b"data", data.len() as u32, &data)]);
    let audio = decode("nan.wav", bytes.clone()).unwrap();
    // 1e38 is a number, but its power is none: it would cost the whole recording.
    assert_eq!(audio.samples, [0.5, 0.0, 0.0, 0.0, 0.0, f32::MIN_POSITIVE / 2.0, -0.0, 0.25]);
    assert_eq!(audio.warnings.len(), 1);
    assert_eq!(audio.warnings[0].kind, WarningKind::NonFinite);
    let strict = DecodeOptions { strict: true, ..DecodeOptions::default() };
    assert!(matches!(decode_with("nan.wav", bytes, &strict).unwrap_err().kind, AudioErrorKind::Damaged(_)));
    // A double beyond the range of f32 is no number either.
    let data: Vec<u8> = [1e300f64, 0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = riff(&[fmt(3, 1, 16_000, 8, 64), chunk(b"data", 16, &data)]);
    assert_eq!(decode("big.wav", bytes).unwrap().samples, [0.0, 0.5]);
}

#[test]
fn raw_samples() {
    let raw = |spec: &str, bytes: Vec<u8>| {
        let options =
            DecodeOptions { raw: Some(spec.parse::<RawSpec>().unwrap()), ..DecodeOptions::default() };
        decode_with("raw", bytes, &options)
    };
    let audio = raw("s16le:8000:2", vec![0, 0x40, 0, 0xc0, 0, 0, 0, 0x80, 1]).unwrap();
    let [half] = audio.warnings.as_slice() else { panic!("{:?}", audio.warnings) };
    assert!(half.kind == WarningKind::Note && half.message.contains("the last 1 bytes"), "{half}");
    assert_eq!((audio.samples, audio.sample_rate), (vec![0.5, -0.5, 0.0, -1.0], 8000));
    // What looks like a WAV file is raw if that is what was asked for.
    assert_eq!(raw("u8:8000:1", b"RIFF".to_vec()).unwrap().frames(), 4);
    assert_eq!(raw("f32be:16000", 0.25f32.to_be_bytes().to_vec()).unwrap().samples, [0.25]);
    assert!(matches!(raw("s16le:8000:1", vec![]).unwrap_err().kind, AudioErrorKind::Empty));
    // Less than one sample of each channel is no sound, and no success.
    for (spec, bytes) in [("s16le:16000:1", 1), ("s16le:16000:2", 3), ("f32le:16000:6", 23)] {
        let error = raw(spec, vec![1; bytes]).unwrap_err().to_string();
        assert!(error.contains(&format!("there are {bytes} bytes")) && error.contains(spec), "{error}");
    }
    // An endless pipe ends at the limit.
    let options = DecodeOptions {
        raw: Some("s16le:16000:1".parse().unwrap()),
        max_seconds: 5.0,
        ..DecodeOptions::default()
    };
    let e = decode_all(AudioSource::reader("/dev/zero", std::io::repeat(0)), &options).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::TooLong { .. }), "{e}");
}

#[test]
fn endless_pipes_of_no_format() {
    for (byte, name) in [(0u8, "zeros"), (0xff, "ones"), (b'a', "text")] {
        let start = Instant::now();
        let e = decode_all(AudioSource::reader(name, std::io::repeat(byte)), &DecodeOptions::default())
            .unwrap_err();
        assert!(e.to_string().starts_with(name), "{e}");
        assert!(start.elapsed() < LIMIT);
    }
    // A reader that fails says so.
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the cable is out"))
        }
    }
    let e = decode_all(AudioSource::reader("-", Broken), &DecodeOptions::default()).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::Read(_)) && e.to_string().contains("cable"), "{e}");
}

#[test]
fn paths() {
    let options = DecodeOptions::default();
    let dir = tempfile::tempdir().unwrap();
    let e = decode_all(AudioSource::path(dir.path()), &options).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::Directory), "{e}");
    let e = decode_all(AudioSource::path(dir.path().join("no such.wav")), &options).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::Open(_)), "{e}");
    // Names are names, whatever is in them.
    for name in ["Hölla 日本.wav", "-rf.wav", "a'b\";$(touch x).wav", "with\nnewline.wav", "x.mp3"] {
        let path = dir.path().join(name);
        std::fs::write(&path, wav(&[], 20, &ramp(10), &[])).unwrap();
        assert_eq!(decode_all(AudioSource::path(&path), &options).unwrap().frames(), 10, "{name}");
        std::fs::write(&path, b"").unwrap();
        let text = decode_all(AudioSource::path(&path), &options).unwrap_err().to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// Deterministic bytes that look like nothing.
fn noise(seed: u64, n: usize) -> Vec<u8> {
    let mut x = seed | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

#[test]
fn random_bytes_behind_each_magic_number() {
    let magics: [&[u8]; 24] = [
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0",
        b"RIFF\xff\xff\xff\xffWAVE",
        b"RF64\xff\xff\xff\xffWAVEds64\x1c\0\0\0",
        b"RIFX\0\0\0\0WAVE",
        b"\x72\x69\x66\x66\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0",
        b".snd\0\0\0\x18",
        b"fLaC\0\0\0\x22",
        b"fLaC\x80\0\0\x22",
        b"OggS\0\x02\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"\x1a\x45\xdf\xa3\x84\x42\x86\x81\x01\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff\x16\x54\xae\x6b",
        b"\x1a\x45\xdf\xa3\x80",
        b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42\0\0\x10\0moov",
        b"\0\0\0\x18ftypisom\0\0\0\0isommp42",
        b"FORM\0\0\x10\0AIFFCOMM\0\0\0\x12",
        b"FORM\0\0\x10\0AIFCCOMM\0\0\0\x16",
        b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20",
        b"caff\0\x01\0\0",
        b"ID3\x04\0\0\0\0\0\0",
        b"ID3\x03\0\0\x7f\x7f\x7f\x7f",
        b"\xff\xfb\x90\x00",
        b"\xff\xf1\x50\x80\x02\x1f\xfc",
        b"\xff\xf9\x50\x80",
        b"OpusHead",
        b"\x56\xe0",
    ];
    for (i, magic) in magics.iter().enumerate() {
        for seed in 0..12u64 {
            let len = [0, 1, 16, 300, 5000, 20_000][seed as usize % 6];
            let bytes = [magic.to_vec(), noise(seed * 977 + i as u64, len)].concat();
            let name = format!("magic {i} seed {seed}");
            match decode(&name, bytes) {
                Ok(audio) => assert!(audio.duration() < 60.0, "{name}: {} s", audio.duration()),
                Err(e) => assert!(e.to_string().len() > name.len() + 10, "{e}"),
            }
        }
    }
}

fn boxed(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], kind, body].concat()
}

fn element(id: &[u8], body: &[u8]) -> Vec<u8> {
    let size = (0x0100_0000_0000_0000u64 | body.len() as u64).to_be_bytes();
    [id, &size, body].concat()
}

/// No damage, but words may be in the other.
#[test]
fn of_several_sound_tracks_the_one_that_is_heard_is_named() {
    let pcm: Vec<u8> = (0..1600i16).flat_map(i16::to_le_bytes).collect();
    let sound =
        element(b"\xe1", &[element(b"\xb5", &16_000f32.to_be_bytes()), element(b"\x62\x64", &[16])].concat());
    let entry = |number: u8, kind: u8, default: u8| {
        let parts = [(b"\xd7", number), (b"\x83", kind), (b"\x88", default)];
        let parts: Vec<u8> = parts.iter().flat_map(|(id, value)| element(*id, &[*value])).collect();
        element(b"\xae", &[parts, element(b"\x86", b"A_PCM/INT/LIT"), sound.clone()].concat())
    };
    let block = |number: u8| element(b"\xa3", &[&[0x80 | number, 0, 0, 0x80], &pcm[..]].concat());
    let webm = |entries: &[Vec<u8>]| {
        let tracks = element(b"\x16\x54\xae\x6b", &entries.concat());
        let blocks: Vec<u8> = (1..).zip(entries).flat_map(|(number, _)| block(number)).collect();
        let cluster = [element(b"\xe7", &[0]), blocks].concat();
        let segment = [tracks, element(b"\x1f\x43\xb6\x75", &cluster)].concat();
        [element(b"\x1a\x45\xdf\xa3", b"\x42\x82\x84webm"), element(b"\x18\x53\x80\x67", &segment)].concat()
    };
    let two = "of its 2 sound tracks only number";
    for (entries, said) in [
        (vec![entry(1, 2, 1)], None),
        (vec![entry(1, 1, 1), entry(2, 2, 1)], None),
        (vec![entry(1, 2, 1), entry(2, 2, 1)], Some(format!("{two} 1 is used (PCM)"))),
        (vec![entry(1, 2, 0), entry(2, 2, 1)], Some(format!("{two} 2 is used (PCM)"))),
        (vec![entry(1, 1, 1), entry(2, 2, 1), entry(3, 2, 1)], Some(format!("{two} 1 is used (PCM)"))),
    ] {
        let audio = decode("two.mkv", webm(&entries)).unwrap();
        let warnings: Vec<String> = audio.warnings.iter().map(ToString::to_string).collect();
        assert_eq!((audio.samples.len(), warnings), (1600, Vec::from_iter(said)));
        assert!(audio.warnings.iter().all(|w| w.kind == WarningKind::Note));
    }
}

#[test]
fn containers_that_bite_their_tail() {
    let ftyp = boxed(b"ftyp", b"M4A \0\0\0\0M4A mp42");
    let mut deep = Vec::new();
    for _ in 0..5_000 {
        deep = boxed(b"moov", &deep);
    }
    let mut deep_trak = Vec::new();
    for _ in 0..5_000 {
        deep_trak = boxed(b"trak", &deep_trak);
    }
    let ebml = element(b"\x1a\x45\xdf\xa3", b"\x42\x82\x84webm");
    let mut nested = Vec::new();
    for _ in 0..5_000 {
        nested = element(b"\x18\x53\x80\x67", &nested);
    }
    let track = |audio: &[u8]| {
        let entry =
            [element(b"\xd7", &[1]), element(b"\x83", &[2]), element(b"\x86", b"A_OPUS"), audio.to_vec()]
                .concat();
        element(b"\x16\x54\xae\x6b", &element(b"\xae", &entry))
    };
    let scale = |n: &[u8]| element(b"\x15\x49\xa9\x66", &element(b"\x2a\xd7\xb1", n));
    let block = element(b"\xa3", b"\x81\0\0\x80\x08\xff\xff");
    let cluster =
        |time: &[u8]| element(b"\x1f\x43\xb6\x75", &[element(b"\xe7", time), block.clone()].concat());
    let webm = |info: Vec<u8>, audio: &[u8], time: &[u8]| {
        [ebml.clone(), element(b"\x18\x53\x80\x67", &[info, track(audio), cluster(time)].concat())].concat()
    };
    let audio = |channels: &[u8], rate: &[u8]| {
        element(b"\xe1", &[element(b"\x9f", channels), element(b"\xb5", rate)].concat())
    };
    let empty_pages: Vec<u8> = (0..20_000).flat_map(|_| [&b"OggS\0\0"[..], &[0; 21]].concat()).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("mp4 box of size 0", [&ftyp[..], b"\0\0\0\0moov"].concat()),
        ("mp4 box of size 1", [&ftyp[..], b"\0\0\0\x01moov\0\0\0\0\0\0\0\0"].concat()),
        ("mp4 box of size 2", [&ftyp[..], b"\0\0\0\x02moov"].concat()),
        ("mp4 box of size 2^64", [&ftyp[..], b"\0\0\0\x01moov\xff\xff\xff\xff\xff\xff\xff\xff"].concat()),
        ("mp4 boxes nested", [ftyp.clone(), deep].concat()),
        ("mp4 tracks nested", [ftyp.clone(), boxed(b"moov", &deep_trak)].concat()),
        ("mp4 without a movie", [ftyp.clone(), boxed(b"mdat", &[0; 1000])].concat()),
        ("ebml nested", [ebml.clone(), nested].concat()),
        ("ebml of unknown sizes", [ebml.clone(), [0x18, 0x53, 0x80, 0x67, 0xff].repeat(5_000)].concat()),
        ("timestamp scale 0", webm(scale(&[0]), &[], &[0])),
        ("timestamp scale 2^64-1", webm(scale(&[0xff; 8]), &[], &[0])),
        ("cluster at the end of time", webm(scale(&[1]), &[], &[0xff; 8])),
        ("no channels", webm(vec![], &audio(&[0], &[0x46, 0x3b, 0x80, 0]), &[0])),
        ("2^32 channels", webm(vec![], &audio(&[1, 0, 0, 0, 0], &[0x46, 0x3b, 0x80, 0]), &[0])),
        ("rate NaN", webm(vec![], &audio(&[1], &[0x7f, 0xc0, 0, 0]), &[0])),
        ("rate infinite", webm(vec![], &audio(&[1], &[0x7f, 0x80, 0, 0]), &[0])),
        ("rate negative", webm(vec![], &audio(&[1], &[0xc6, 0x3b, 0x80, 0]), &[0])),
        ("ogg pages without end", empty_pages),
        ("caf packet table of 2^63", {
            let mut desc = 44_100f64.to_be_bytes().to_vec();
            desc.extend(b"alac\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x01\0\0\0\0");
            let chunk = |id: &[u8], size: u64, body: &[u8]| [id, &size.to_be_bytes(), body].concat();
            let table = [&u64::MAX.to_be_bytes()[1..], &[0; 17], &[0xff; 400]].concat();
            [b"caff\0\x01\0\0".to_vec(), chunk(b"desc", 32, &desc), chunk(b"pakt", 1 << 62, &table)].concat()
        }),
        ("caf packet of 2^60 bytes", {
            let mut desc = 44_100f64.to_be_bytes().to_vec();
            desc.extend(b".mp3\0\0\0\0\0\0\0\0\0\0\x04\x80\0\0\0\x01\0\0\0\0");
            let chunk = |id: &[u8], body: &[u8]| [id, &(body.len() as u64).to_be_bytes(), body].concat();
            let table = [&[0u8; 24][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]].concat();
            [
                b"caff\0\x01\0\0".to_vec(),
                chunk(b"desc", &desc),
                chunk(b"pakt", &table),
                chunk(b"data", &[0; 64]),
            ]
            .concat()
        }),
        ("flac of 2^36 samples", {
            let mut b = b"fLaC\x80\0\0\x22\xff\xff\xff\xff\0\0\0\0\0\0".to_vec();
            b.extend(b"\x0a\xc4\x4f\xff\xff\xff\xff\xff");
            b.extend([0; 16]);
            b.extend(noise(3, 2000));
            b
        }),
        ("flac picture of 2^24 bytes", [&b"fLaC\x06\xff\xff\xff"[..], &noise(4, 500)].concat()),
        ("aiff of 65535 channels", {
            let comm = b"COMM\0\0\0\x12\xff\xff\xff\xff\xff\xff\0\x10\x40\x0e\xac\x44\0\0\0\0\0\0";
            [&b"FORM\0\0\0\0AIFF"[..], comm, b"SSND\0\0\0\x10\0\0\0\0\0\0\0\0abcdefgh"].concat()
        }),
        (
            "au of 2^32 channels",
            [&b".snd\0\0\0\x18\xff\xff\xff\xff\0\0\0\x03\0\0\x3e\x80\xff\xff\xff\xff"[..], &[0; 64]].concat(),
        ),
        (
            "au header of 2^32 bytes",
            [&b".snd\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x03\0\0\x3e\x80\0\0\0\x01"[..], &[0; 64]].concat(),
        ),
    ];
    for (name, bytes) in cases {
        match decode(name, bytes) {
            Ok(audio) => assert!(audio.duration() < 1.0, "{name}: {} s", audio.duration()),
            Err(e) => assert!(e.to_string().starts_with(name), "{e}"),
        }
    }
}

#[test]
fn few_bytes_do_not_become_hours() {
    // A long MP3 of silence: the limit is on decoded seconds, while decoding.
    let mut frame = vec![0xff, 0xe3, 0x18, 0xc0];
    frame.resize(72, 0);
    let mp3 = frame.repeat(10_000); // 720 s in 720 kB
    let limit = DecodeOptions { max_seconds: 10.0, ..DecodeOptions::default() };
    let e = decode_with("silence.mp3", mp3, &limit).unwrap_err();
    assert!(matches!(e.kind, AudioErrorKind::TooLong { limit } if limit == 10.0), "{e}");
}

/// Peak memory does not follow what headers say.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded() {
    let peak = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    // Warm up what is made once.
    let _ = decode("w.wav", wav(&[], 20, &ramp(10), &[]));
    let before = peak();
    sizes_that_lie();
    containers_that_bite_their_tail();
    let grown = peak() - before;
    assert!(grown < 64 << 10, "{grown} KiB");
}

#[test]
fn channels_fold_down() {
    let samples: Vec<i16> = vec![16_384, 0, 0, 16_384, -16_384, -16_384];
    let data: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let audio = decode("s.wav", riff(&[fmt(1, 2, 16_000, 4, 16), chunk(b"data", 12, &data)])).unwrap();
    assert_eq!(audio.mono(Mix::All).unwrap(), [0.25, 0.25, -0.5]);
    assert_eq!(audio.mono(Mix::Channel(1)).unwrap(), [0.0, 0.5, -0.5]);
    assert!(audio.mono(Mix::Channel(2)).is_err());
}
