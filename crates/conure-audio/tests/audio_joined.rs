//! Files of more than one part: joined by `cat`, with advertisements put in, with their beginning lost. All of it is
//! decoded, or what is not is named with its time.

// Helpers of tests may fail the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::matrix_dir;
use conure_audio::decode::{Audio, DecodeOptions, Warning, WarningKind, decode_all};
use conure_audio::downmix::Mix;
use conure_audio::error::AudioErrorKind;
use conure_audio::source::AudioSource;

fn read(name: &str) -> Vec<u8> {
    std::fs::read(matrix_dir().join(name)).unwrap()
}

fn decode(bytes: impl Into<Vec<u8>>) -> Audio {
    decode_all(AudioSource::bytes("x", bytes), &DecodeOptions::default()).unwrap()
}

fn damage(audio: &Audio) -> Vec<&Warning> {
    audio.warnings.iter().filter(|w| w.kind.is_damage()).collect()
}

fn power(samples: &[f32]) -> f32 {
    samples.iter().map(|s| s * s).sum::<f32>() / samples.len().max(1) as f32
}

/// A quarter of a second of one channel.
fn piece(mono: &[f32], rate: u32, at: f64) -> &[f32] {
    let from = (at * f64::from(rate)) as usize;
    &mono[from..from + rate as usize / 4]
}

/// Parts of another rate or with other channels are all there, one after the other, at the rate of the first.
#[test]
fn bare_streams_that_change_are_decoded_on() {
    let parts = ["cbr128_44.mp3", "vbr_stereo.mp3", "low8k.mp3", "cbr128_44.mp3"].map(read);
    let whole = decode(parts.concat());
    let each: Vec<Audio> = parts.iter().map(|p| decode(p.clone())).collect();
    let total: f64 = each.iter().map(Audio::duration).sum();
    assert_eq!((whole.sample_rate, whole.channels()), (each[0].sample_rate, each[0].channels()));
    assert!((whole.duration() - total).abs() < 0.1, "{} s instead of {total} s", whole.duration());
    assert!(damage(&whole).is_empty(), "{:?}", whole.warnings);
    assert!(whole.warnings.iter().any(|w| w.message.contains("sample rate changes")), "{:?}", whole.warnings);
    let mono = whole.mono(Mix::All).unwrap();
    let mut begin = 0.0;
    for part in &each {
        // Where each part is loudest, the whole is as loud.
        let (own, rate) = (part.mono(Mix::All).unwrap(), part.sample_rate);
        let loudness = |i: usize| power(piece(&own, rate, i as f64 / 4.0));
        let count = (part.duration() * 4.0) as usize - 1;
        let loud = (0..count).max_by(|a, b| loudness(*a).total_cmp(&loudness(*b))).unwrap();
        let ratio = power(piece(&mono, whole.sample_rate, begin + loud as f64 / 4.0)) / loudness(loud);
        assert!((0.5..2.0).contains(&ratio), "the part at {begin} s is {ratio} times as loud");
        begin += part.duration();
    }
    // Between tags of all kinds, too.
    let mut tag = b"TAG".to_vec();
    tag.resize(128, 0);
    let tagged = decode([&parts[0][..], &tag, b"ID3\x04\0\0\0\0\0\x02ab", &parts[1]].concat());
    let expected = each[0].duration() + each[1].duration();
    assert!((tagged.duration() - expected).abs() < 0.05, "{}", tagged.duration());
    assert!(damage(&tagged).is_empty(), "{:?}", tagged.warnings);
}

#[test]
fn chains_whose_rate_changes_are_decoded_on() {
    for names in [["short.ogg", "vorbis.ogg"], ["stereo.flac", "up96.flac"], ["flac.oga", "short.oga"]] {
        let parts = names.map(read);
        let whole = decode(parts.concat());
        let total: f64 = parts.iter().map(|p| decode(p.clone()).duration()).sum();
        assert!((whole.duration() - total).abs() < 0.05, "{names:?}: {} of {total} s", whole.duration());
        assert!(damage(&whole).is_empty(), "{names:?}: {:?}", whole.warnings);
    }
}

/// Another file behind the first is decoded or named with its time; padding and tags are not worth a word.
#[test]
fn what_is_joined_is_named() {
    let (flac, wav) = (read("short.flac"), read("speech.wav"));
    // MP3 behind a tag is more than a tag.
    let mp3 = [b"ID3\x04\0\0\0\0\0\x02ab".to_vec(), read("short.mp3")].concat();
    for first in ["short.wav", "short.ogg", "short.mka"] {
        let joined = decode([read(first), mp3.clone()].concat());
        assert_eq!(damage(&joined).len(), 1, "{first}: {:?}", joined.warnings);
    }
    for first in [
        "short.aiff",
        "short.au",
        "short.caf",
        "short.wav",
        "short.m4a",
        "short.mp3",
        "short.ogg",
        "short.mka",
    ] {
        let bytes = read(first);
        let alone = decode(bytes.clone());
        for second in [&flac, &wav, &bytes] {
            let joined = decode([&bytes[..], second].concat());
            let longer = joined.duration() > alone.duration() * 1.9;
            let named = damage(&joined).iter().any(|w| {
                (w.start - alone.duration()).abs() < 0.1
                    && w.message.contains(&format!("({} bytes)", second.len()))
            });
            assert!(longer || named, "{first}: {} s, {:?}", joined.duration(), joined.warnings);
        }
        let mut tag = b"TAG".to_vec();
        tag.resize(128, 0);
        for tail in [vec![0; 300], tag] {
            let padded = decode([&bytes[..], &tail].concat());
            assert!(padded.warnings.is_empty(), "{first}: {:?}", padded.warnings);
            assert!((padded.duration() - alone.duration()).abs() < 0.01, "{first}");
        }
    }
}

/// So many bytes that are no sound in any format.
fn junk(count: u64) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Whatever is put behind a file of whichever container, with sound of whichever codec, is named with its length; nothing of the
/// file itself is lost for it.
#[test]
fn whatever_follows_is_named_with_its_length() {
    let mp3 = read("short.mp3");
    let tagless = mp3[mp3.iter().position(|&b| b == 0xff).unwrap()..].to_vec();
    let junk = junk(3000);
    for name in [
        "ima.wav",
        "ima_stereo.wav",
        "msadpcm.wav",
        "msadpcm_stereo.wav",
        "mp3.wav",
        "mulaw.wav",
        "w64.w64",
        "speech.wav",
        "alac.m4a",
        "alac_stereo.m4a",
        "tail.m4a",
        "faststart.m4a",
        "fragmented.mp4",
        "flac.mp4",
        "mp3.mp4",
        "opus.mp4",
        "pcm.mov",
        "ima4.mov",
        "ima4.aifc",
        "aiff16.aiff",
        "ima4.caf",
        "alac.caf",
        "flac.caf",
        "au16.au",
        "a.flac",
        "stereo.flac",
        "pipe.flac",
        "vorbis.ogg",
        "audio.opus",
        "opus.webm",
    ] {
        let bytes = read(name);
        let alone = decode(bytes.clone());
        assert!(damage(&alone).is_empty(), "{name}: {:?}", alone.warnings);
        for (kind, tail) in [("junk", &junk), ("MP3", &mp3), ("MP3 without a tag", &tagless)] {
            let joined = decode([&bytes[..], tail].concat());
            assert_eq!(joined.samples.len(), alone.samples.len(), "{name} + {kind}: {:?}", joined.warnings);
            assert!(joined.samples == alone.samples, "{name} + {kind}: other samples");
            let said = damage(&joined);
            let [warning] = said.as_slice() else { panic!("{name} + {kind}: {said:?}") };
            let length = format!("({} bytes)", tail.len());
            let begun = format!("{} bytes that are no Matroska", tail.len());
            assert!(
                warning.message.contains(&length) || warning.message.contains(&begun),
                "{name} + {kind}: {warning}"
            );
            assert!((warning.start - alone.duration()).abs() < 0.1, "{name} + {kind}: {warning}");
        }
    }
}

/// By a pipe, whose length is not known, too.
#[test]
fn what_follows_a_pipe_is_counted() {
    for name in ["ima.wav", "speech.wav"] {
        let bytes = [read(name), junk(100_000)].concat();
        let pipe = AudioSource::reader("-", std::io::Cursor::new(bytes));
        let audio = decode_all(pipe, &DecodeOptions::default()).unwrap();
        assert!(audio.warnings[0].message.contains("(100000 bytes)"), "{name}: {:?}", audio.warnings);
    }
}

/// ADPCM joined end to end is read on, also in another kind of blocks, as WAV of other encodings is.
#[test]
fn joined_adpcm_is_decoded_on() {
    for names in
        [["ima.wav", "ima.wav"], ["msadpcm_stereo.wav", "msadpcm_stereo.wav"], ["ima.wav", "msadpcm.wav"]]
    {
        let parts = names.map(|name| decode(read(name)));
        let whole = decode(names.map(read).concat());
        assert!(damage(&whole).is_empty(), "{names:?}: {:?}", whole.warnings);
        assert!(whole.samples == [&parts[0].samples[..], &parts[1].samples].concat(), "{names:?}");
    }
}

/// Tags that programs put behind FLAC, MP4 and WAV are no sound, and cost none.
#[test]
fn tags_behind_a_file_are_passed_over() {
    let mut id3 = b"TAG".to_vec();
    id3.resize(128, b' ');
    let foot = |head: bool| {
        let numbers = [2000u32, 42, 1, if head { 0x8000_0000 } else { 0 }, 0, 0];
        [&b"APETAGEX"[..], &numbers.map(u32::to_le_bytes).concat()].concat()
    };
    let ape = [&foot(true)[..], b"\x01\0\0\0\0\0\0\0K\0", &foot(true)].concat();
    let ape1 = [&b"\x01\0\0\0\0\0\0\0K\0"[..], &foot(false)].concat();
    for name in ["a.flac", "pipe.flac", "c51.flac", "alac.m4a", "fragmented.mp4", "mp3.wav", "alac.caf"] {
        let bytes = read(name);
        let alone = decode(bytes.clone());
        for (kind, tag) in [
            ("ID3v1", id3.clone()),
            ("APE", ape.clone()),
            ("APE without a head", ape1.clone()),
            ("both", [&ape[..], &id3].concat()),
        ] {
            let tagged = decode([&bytes[..], &tag].concat());
            assert!(tagged.samples == alone.samples, "{name} {kind}: {:?}", tagged.warnings);
            assert!(tagged.warnings.is_empty(), "{name} {kind}: {:?}", tagged.warnings);
        }
    }
}

/// The byte ranges of the pages of an Ogg file.
fn pages(ogg: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut at = 0;
    let mut pages = Vec::new();
    while at < ogg.len() {
        let count = usize::from(ogg[at + 26]);
        let body: usize = ogg[at + 27..at + 27 + count].iter().map(|&n| usize::from(n)).sum();
        pages.push(at..at + 27 + count + body);
        at += 27 + count + body;
    }
    pages
}

/// A lost beginning is silence, so that all later times stay right.
#[test]
fn a_damaged_beginning_keeps_later_times() {
    for name in ["audio.opus", "vorbis.ogg", "flac.oga", "a.flac", "opus.webm"] {
        let bytes = read(name);
        let whole = decode(bytes.clone());
        let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
        if bytes.starts_with(b"OggS") {
            let pages = pages(&bytes);
            // The first page that is not header: its granule position is not 0.
            let first = pages.iter().find(|p| bytes[p.start + 6..p.start + 14] != [0; 8]).unwrap().clone();
            let mut junk = bytes.clone();
            junk[first.start + 40..first.start + 60].fill(0x55);
            cases.push(("damaged", junk));
            cases.push(("gone", [&bytes[..first.start], &bytes[first.end..]].concat()));
        } else {
            let mut junk = bytes.clone();
            let from = if name == "a.flac" { 8_800 } else { 700 };
            junk[from..from + 600].fill(0x55);
            cases.push(("damaged", junk));
        }
        for (case, bytes) in cases {
            let damaged = decode(bytes);
            let off = (damaged.duration() - whole.duration()).abs();
            assert!(off < 0.08, "{name} {case}: {off} s shifted, {:?}", damaged.warnings);
            let lost = damage(&damaged);
            assert!(!lost.is_empty(), "{name} {case}: without a word");
        }
    }
}

/// Pages that are there twice are played once.
#[test]
fn repeated_pages_are_played_once() {
    for name in ["audio.opus", "vorbis.ogg"] {
        let bytes = read(name);
        let pages = pages(&bytes);
        let middle = pages[pages.len() / 2].clone();
        let twice = [&bytes[..middle.end], &bytes[middle.clone()], &bytes[middle.end..]].concat();
        let (audio, whole) = (decode(twice), decode(bytes.clone()));
        assert_eq!(audio.frames(), whole.frames(), "{name}: {:?}", audio.warnings);
    }
}

/// Damage up to the end of the only cluster is said; what follows damage in a cluster is found again.
#[test]
fn damaged_clusters() {
    for name in ["opus.webm", "aac.mkv", "flac.mkv"] {
        let bytes = read(name);
        let whole = decode(bytes.clone());
        let cluster = bytes.windows(4).position(|w| w == [0x1f, 0x43, 0xb6, 0x75]).unwrap();
        let mut empty = bytes.clone();
        empty[cluster + 12..].fill(0x55);
        let result = decode_all(AudioSource::bytes("x", empty), &DecodeOptions::default());
        assert!(
            matches!(&result, Err(e) if matches!(e.kind, AudioErrorKind::Malformed { .. })),
            "{name}: {result:?}"
        );
        let mut rest = bytes.clone();
        rest[bytes.len() / 2..].fill(0x55);
        let half = decode(rest);
        assert!(
            damage(&half).iter().any(|w| w.kind == WarningKind::TruncatedTail),
            "{name}: {:?}",
            half.warnings
        );
        // 64 bytes put in: the lengths no longer fit.
        let at = bytes.len() / 2;
        let more = decode([&bytes[..at], &[0x55; 64], &bytes[at..]].concat());
        assert!(
            (more.duration() - whole.duration()).abs() < 0.2,
            "{name}: {} s, {:?}",
            more.duration(),
            more.warnings
        );
        assert!(!damage(&more).is_empty(), "{name}: without a word");
    }
}

/// Opus in CAF whose description states another length of packets than they have.
#[test]
fn a_description_that_lies_about_packets_costs_nothing() {
    let opus = read("frame60.opus");
    let whole = decode(opus.clone());
    // Packets of one or more pages: those of the sound follow the two headers.
    let mut packets: Vec<Vec<u8>> = vec![Vec::new()];
    for page in pages(&opus) {
        let count = usize::from(opus[page.start + 26]);
        let mut at = page.start + 27 + count;
        for &n in &opus[page.start + 27..page.start + 27 + count] {
            let piece = &opus[at..at + usize::from(n)];
            packets.last_mut().unwrap().extend(piece);
            at += usize::from(n);
            if n < 255 {
                packets.push(Vec::new());
            }
        }
    }
    let sound = &packets[2..packets.len() - 1];
    let chunk = |id: &[u8; 4], body: &[u8]| [&id[..], &(body.len() as u64).to_be_bytes(), body].concat();
    let mut desc = 48_000f64.to_be_bytes().to_vec();
    desc.extend(b"opus");
    desc.extend([0u32, 0, 120, 1, 0].iter().flat_map(|v| v.to_be_bytes()));
    let mut table = (sound.len() as u64).to_be_bytes().to_vec();
    table.extend((sound.len() as u64 * 120).to_be_bytes());
    table.extend([0u8; 8]);
    for packet in sound {
        table.extend([0x80 | (packet.len() >> 7) as u8, (packet.len() & 0x7f) as u8]);
    }
    let data = [&[0u8; 4][..], &sound.concat()].concat();
    let caf = [
        b"caff\0\x01\0\0".to_vec(),
        chunk(b"desc", &desc),
        chunk(b"kuki", &packets[0]),
        chunk(b"pakt", &table),
        chunk(b"data", &data),
    ]
    .concat();
    let audio = decode(caf);
    assert!(audio.duration() >= whole.duration(), "{} of {} s", audio.duration(), whole.duration());
}

/// Files that truly hold nothing are all alike: no samples, and a remark.
#[test]
fn valid_and_empty() {
    let mut aiff = b"FORM\0\0\0\x2eAIFFCOMM\0\0\0\x12\0\x01\0\0\0\0\0\x10".to_vec();
    aiff.extend([0x40, 0x0c, 0xfa, 0, 0, 0, 0, 0, 0, 0]);
    aiff.extend(b"SSND\0\0\0\x08\0\0\0\0\0\0\0\0");
    let au = b".snd\0\0\0\x18\0\0\0\0\0\0\0\x03\0\0\x3e\x80\0\0\0\x01".to_vec();
    let mut caf = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
    caf.extend(16_000f64.to_be_bytes());
    caf.extend(b"lpcm\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\0\0\x10data\0\0\0\0\0\0\0\x04\0\0\0\0");
    let mut flac = b"fLaC\x80\0\0\x22\x10\0\x10\0\0\0\0\0\0\0".to_vec();
    flac.extend((16_000u64 << 44 | 15 << 36).to_be_bytes());
    flac.extend([0; 16]);
    for (name, bytes) in [("aiff", aiff), ("au", au), ("caf", caf), ("flac", flac)] {
        let audio = decode_all(AudioSource::bytes(name, bytes), &DecodeOptions::default());
        let audio = audio.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((audio.frames(), audio.sample_rate), (0, 16_000), "{name}");
        assert_eq!(audio.warnings.len(), 1, "{name}: {:?}", audio.warnings);
        assert_eq!(audio.warnings[0].kind, WarningKind::Note, "{name}");
    }
}
