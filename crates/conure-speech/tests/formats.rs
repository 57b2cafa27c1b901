//! Every output format: one transcript written down in each, and properties of what random transcripts give, read back
//! as a player would.

#![allow(clippy::unwrap_used, clippy::panic)]

use conure_speech::format::{FormatOptions, OutputFormat, clock, write};
use conure_speech::result::{Segment, Transcript, Word, join_words};

fn written(transcript: &Transcript, format: OutputFormat, options: &FormatOptions) -> String {
    let mut out = Vec::new();
    write(transcript, format, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn segment(id: usize, words: &[(&str, f64, f64)]) -> Segment {
    let word =
        |&(word, start, end): &(&str, f64, f64)| Word { word: word.into(), start, end, confidence: 0.5 };
    let words: Vec<Word> = words.iter().map(word).collect();
    Segment {
        id,
        start: words[0].start,
        end: words[words.len() - 1].end,
        text: join_words(words.iter().map(|w| w.word.as_str())),
        words,
        speaker: None,
    }
}

fn two_sentences() -> Transcript {
    Transcript {
        text: "Well, \"I\" don't. See  it & <go>?".into(),
        language: Some("en".into()),
        duration: 3725.5,
        model: "m".into(),
        device: "cpu".into(),
        decoder: "tdt".into(),
        segments: vec![
            segment(0, &[("Well,", 0.0, 0.32), ("\"I\"", 0.4, 0.48), ("don't.", 0.8, 1.12)]),
            segment(
                1,
                &[
                    ("See", 3723.0, 3723.2),
                    ("it", 3723.2, 3723.36),
                    ("&", 3723.36, 3724.0),
                    ("<go>?", 3724.0, 3725.44),
                ],
            ),
        ],
        ..Transcript::default()
    }
}

#[test]
fn each_format_as_written_down() {
    let plain = FormatOptions::default();
    let stamps = FormatOptions { timestamps: true, ..plain.clone() };
    let two_words = FormatOptions { max_words: Some(2), ..stamps.clone() };
    for (format, options, want) in [
        (OutputFormat::Txt, &plain, "Well, \"I\" don't. See  it & <go>?\n"),
        (
            OutputFormat::Txt,
            &stamps,
            "[00:00:00.000 --> 00:00:01.120]  Well, \"I\" don't.\n\
             [01:02:03.000 --> 01:02:05.440]  See it& <go>?\n",
        ),
        (
            OutputFormat::Txt,
            &two_words,
            "[00:00:00.000 --> 00:00:00.480]  Well, \"I\"\n[00:00:00.800 --> 00:00:01.120]  don't.\n\
             [01:02:03.000 --> 01:02:03.360]  See it\n[01:02:03.360 --> 01:02:05.440]  & <go>?\n",
        ),
        (
            OutputFormat::Srt,
            &plain,
            "1\n00:00:00,000 --> 00:00:01,120\nWell, \"I\" don't.\n\n\
             2\n01:02:03,000 --> 01:02:05,440\nSee it& <go>?\n\n",
        ),
        (
            OutputFormat::Vtt,
            &plain,
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.120\nWell, \"I\" don't.\n\n\
             01:02:03.000 --> 01:02:05.440\nSee it&amp; &lt;go&gt;?\n\n",
        ),
        (
            OutputFormat::Tsv,
            &plain,
            "start\tend\ttext\n0\t1120\tWell, \"I\" don't.\n3723000\t3725440\tSee it& <go>?\n",
        ),
        (
            OutputFormat::Csv,
            &plain,
            "start,end,text\n0,1120,\"Well, \"\"I\"\" don't.\"\n3723000,3725440,\"See it& <go>?\"\n",
        ),
    ] {
        assert_eq!(written(&two_sentences(), format, options), want, "{format}");
    }
}

#[test]
fn highlighting_underlines_in_srt_and_vtt() {
    let mut transcript = two_sentences();
    transcript.segments.truncate(1);
    let options = FormatOptions { highlight_words: true, max_words: Some(2), ..FormatOptions::default() };
    assert_eq!(
        written(&transcript, OutputFormat::Srt, &options),
        "1\n00:00:00,000 --> 00:00:00,320\n<u>Well,</u> \"I\"\n\n\
         2\n00:00:00,320 --> 00:00:00,400\nWell, \"I\"\n\n\
         3\n00:00:00,400 --> 00:00:00,480\nWell, <u>\"I\"</u>\n\n\
         4\n00:00:00,800 --> 00:00:01,120\n<u>don't.</u>\n\n"
    );
    assert!(written(&transcript, OutputFormat::Vtt, &options).contains("\n<u>Well,</u> \"I\"\n"));
}

#[test]
fn json_is_the_transcript() {
    let transcript = two_sentences();
    let json = written(&transcript, OutputFormat::Json, &FormatOptions::default());
    assert!(json.ends_with("}\n"));
    assert_eq!(serde_json::from_str::<Transcript>(&json).unwrap(), transcript);
}

#[test]
fn nothing_said_is_no_cue() {
    let silent = Transcript { duration: 1.0, ..Transcript::default() };
    for (format, want) in [
        (OutputFormat::Txt, "\n"),
        (OutputFormat::Srt, ""),
        (OutputFormat::Vtt, "WEBVTT\n\n"),
        (OutputFormat::Tsv, "start\tend\ttext\n"),
        (OutputFormat::Csv, "start,end,text\n"),
    ] {
        assert_eq!(written(&silent, format, &FormatOptions::default()), want, "{format}");
    }
}

#[test]
fn names() {
    for format in OutputFormat::ALL {
        assert_eq!(format.name().to_uppercase().parse(), Ok(format));
    }
    let error = "docx".parse::<OutputFormat>().unwrap_err().to_string();
    assert!(error.contains("\"docx\"") && error.contains("vtt"), "{error}");
}

/// A small generator of numbers (xorshift), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

const NASTY: [&str; 26] = [
    "word",
    "a",
    "don't",
    "x.",
    "why?",
    "?",
    "-->",
    "--->",
    "00:00:01,000 --> 00:00:02,000",
    "\n",
    "\r\n\r\n",
    "a\nb",
    "\t",
    "\"",
    "\"\"",
    ",",
    "<i>",
    "</u>",
    "&amp;",
    "&",
    "NOTE",
    "WEBVTT",
    "7",
    "\u{2028}",
    "\0",
    "\u{1f642}\u{4e2d}\u{6587}",
];

/// Words on a frame grid, some of no length, some on one frame, up to the end of the clip.
fn random_transcript(random: &mut Random) -> Transcript {
    let mut transcript =
        Transcript { duration: random.below(600_000) as f64 / 16_000.0, ..Transcript::default() };
    let mut frame = 0u64;
    for id in 0..random.below(4) as usize {
        let mut words = Vec::new();
        for _ in 0..=random.below(30) {
            frame += random.below(3) * random.below(8);
            let time = |frame: u64| (frame as f64 * 0.08).min(transcript.duration);
            let end = frame + random.below(5);
            words.push(Word {
                word: random.pick(&NASTY).into(),
                start: time(frame),
                end: time(end),
                confidence: 0.5,
            });
        }
        let text = join_words(words.iter().map(|w| w.word.as_str()));
        let (start, end) = (words[0].start, words.iter().map(|w| w.end).fold(0.0, f64::max));
        transcript.segments.push(Segment { id, start, end, text, words, speaker: None });
    }
    transcript
}

fn random_options(random: &mut Random) -> FormatOptions {
    FormatOptions {
        timestamps: random.below(2) == 0,
        max_words: (random.below(2) == 0).then(|| random.below(6) as usize),
        max_duration: (random.below(2) == 0).then(|| random.below(40) as f64 / 10.0),
        max_line_width: (random.below(2) == 0).then(|| random.below(40) as usize),
        max_lines: (random.below(2) == 0).then(|| random.below(4) as usize),
        highlight_words: random.below(2) == 0,
    }
}

/// `HH:MM:SS` with three digits behind the separator, in milliseconds.
fn parse_clock(text: &str, separator: char) -> u64 {
    let (clock_part, ms) = text.split_once(separator).unwrap_or_else(|| panic!("{text:?}"));
    let parts: Vec<u64> = clock_part.split(':').map(|p| p.parse().unwrap()).collect();
    assert!(parts.len() == 3 && parts[1] < 60 && parts[2] < 60 && ms.len() == 3, "{text:?}");
    let value = ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + ms.parse::<u64>().unwrap();
    assert_eq!(clock(value, separator), text);
    value
}

/// Blocks of a subtitle file: times and text. Anything that does not belong is a failure.
fn parse_cues(body: &str, separator: char, numbered: bool) -> Vec<(u64, u64, String)> {
    let blocks = body.split_terminator("\n\n");
    let cue = |(i, block): (usize, &str)| {
        let mut lines = block.split('\n');
        if numbered {
            assert_eq!(lines.next().unwrap(), (i + 1).to_string());
        }
        let (start, end) = lines.next().unwrap().split_once(" --> ").unwrap();
        let lines: Vec<&str> = lines.collect();
        let text = lines.join(" ");
        assert!(!lines.is_empty() && lines.iter().all(|l| !l.trim().is_empty()), "{block:?}");
        assert!(!text.contains("-->"), "{block:?}");
        (parse_clock(start, separator), parse_clock(end, separator), text)
    };
    blocks.enumerate().map(cue).collect()
}

fn check_order(cues: &[(u64, u64, String)], transcript: &Transcript) {
    // a clip of less than a millisecond still has one
    let limit = ((transcript.duration * 1000.0 + 1e-6) as u64).max(1);
    let mut previous = (0, 0);
    for (start, end, text) in cues {
        assert!(start < end && *end <= limit, "{start} {end} {text:?} of {limit}");
        assert!(*start >= previous.0, "{start} comes after {previous:?}");
        assert!(*start == previous.0 || *start >= previous.1, "{start} overlaps {previous:?}");
        previous = (*start, *end);
    }
}

/// The letters of a text without spaces and arrows, as a set of cues must still hold them.
fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[test]
fn random_transcripts_give_valid_files() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..500 {
        let transcript = random_transcript(&mut random);
        let options = random_options(&mut random);
        let srt = written(&transcript, OutputFormat::Srt, &options);
        let srt = parse_cues(&srt, ',', true);
        check_order(&srt, &transcript);
        let vtt = written(&transcript, OutputFormat::Vtt, &options);
        let vtt = parse_cues(vtt.strip_prefix("WEBVTT\n\n").unwrap(), '.', false);
        check_order(&vtt, &transcript);
        assert_eq!(srt.len(), vtt.len());
        for ((start, end, _), (vtt_start, vtt_end, text)) in srt.iter().zip(&vtt) {
            assert_eq!((start, end), (vtt_start, vtt_end));
            let tags = text.replace("<u>", "").replace("</u>", "");
            assert!(!tags.contains(['<', '>']), "{text:?}");
        }
        let said: String = transcript.segments.iter().map(|s| letters(&s.text)).collect();
        if !options.highlight_words {
            assert_eq!(srt.iter().map(|cue| letters(&cue.2)).collect::<String>(), said, "round {round}");
        }
        for (format, separator) in [(OutputFormat::Tsv, '\t'), (OutputFormat::Csv, ',')] {
            let table = written(&transcript, format, &options);
            let mut text = String::new();
            for line in table.lines().skip(1) {
                let cells: Vec<&str> = line.splitn(3, separator).collect();
                assert!(cells[0].parse::<u64>().unwrap() < cells[1].parse::<u64>().unwrap(), "{line:?}");
                text += &letters(cells[2]);
                match format {
                    OutputFormat::Tsv => assert!(!cells[2].contains('\t')),
                    _ => {
                        let inner = cells[2].strip_prefix('"').and_then(|c| c.strip_suffix('"')).unwrap();
                        assert!(!inner.replace("\"\"", "").contains('"'), "{line:?}");
                    }
                }
            }
            assert_eq!(text, said, "{format} of round {round}");
        }
        let txt = written(&transcript, OutputFormat::Txt, &options);
        let lines = if options.timestamps { txt.lines().count() } else { 1 };
        assert_eq!(txt.lines().filter(|line| options.timestamps == line.starts_with('[')).count(), lines);
    }
}

#[test]
fn limits_hold_unless_a_single_word_breaks_them() {
    let mut random = Random(42);
    for _ in 0..200 {
        let transcript = random_transcript(&mut random);
        let options =
            FormatOptions { max_words: Some(3), max_duration: Some(2.0), ..FormatOptions::default() };
        let rows = written(&transcript, OutputFormat::Tsv, &options);
        for line in rows.lines().skip(1) {
            let cells: Vec<&str> = line.splitn(3, '\t').collect();
            let length = cells[1].parse::<u64>().unwrap() - cells[0].parse::<u64>().unwrap();
            // no word is longer than 4 frames
            assert!(length <= 2000, "{line:?}");
        }
        let defaults = written(&transcript, OutputFormat::Srt, &FormatOptions::default());
        for (start, end, text) in parse_cues(&defaults, ',', true) {
            assert!(end - start <= 7000 && text.chars().count() <= 84 + 30, "{text:?}");
        }
    }
}

/// Who speaks stands before the text, and lines of subtitles are no wider and no more than asked for.
#[test]
fn speakers_and_lines() {
    let mut transcript = two_sentences();
    for (speaker, segment) in transcript.segments.iter_mut().enumerate() {
        segment.speaker = Some(speaker);
    }
    let narrow = FormatOptions { max_line_width: Some(6), max_lines: Some(2), ..FormatOptions::default() };
    let vtt = written(&transcript, OutputFormat::Vtt, &narrow);
    assert!(vtt.contains("\n<v Speaker 1>Well,\n\n"), "{vtt}");
    assert!(vtt.contains("\n<v Speaker 1>\"I\"\ndon't.\n\n"), "{vtt}");
    assert!(vtt.contains("\n<v Speaker 2>See\nit&amp;\n\n"), "{vtt}");
    for cue in vtt.split("\n\n").skip(1).filter(|c| !c.is_empty()) {
        let lines: Vec<&str> = cue.lines().skip(1).collect();
        assert!((1..=2).contains(&lines.len()), "{cue}");
    }
    let srt = written(&transcript, OutputFormat::Srt, &FormatOptions::default());
    assert!(srt.contains("\nSpeaker 1: Well, \"I\" don't.\n"), "{srt}");
    let txt = written(&transcript, OutputFormat::Txt, &FormatOptions::default());
    assert_eq!(txt, "Speaker 1: Well, \"I\" don't.\nSpeaker 2: See it& <go>?\n");
    let json = written(&transcript, OutputFormat::Json, &FormatOptions::default());
    assert!(json.contains("\"speaker\": 1"), "{json}");
}
