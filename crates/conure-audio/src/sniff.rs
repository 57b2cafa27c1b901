//! Which format is it? By content, never by the file's name.

use crate::elementary::{AdtsHeader, FrameHeader, MpegHeader};
use crate::error::AudioErrorKind;

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// RIFF, RIFX, RF64, BW64 and Sony Wave64.
    Wav,
    Au,
    Flac,
    /// MPEG audio layers 1 to 3 as a bare stream.
    Mpeg,
    Adts,
    Ogg,
    Mp4,
    Matroska,
    Aiff,
    Caf,
}

impl Format {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Wav => "WAV",
            Format::Au => "AU",
            Format::Flac => "FLAC",
            Format::Mpeg => "MP3",
            Format::Adts => "AAC (ADTS)",
            Format::Ogg => "Ogg",
            Format::Mp4 => "MP4",
            Format::Matroska => "Matroska/WebM",
            Format::Aiff => "AIFF",
            Format::Caf => "CAF",
        }
    }
}

/// The first 16 bytes of a Sony Wave64 file: the GUID of `riff`.
pub(crate) const W64_RIFF: [u8; 16] =
    [0x72, 0x69, 0x66, 0x66, 0x2e, 0x91, 0xcf, 0x11, 0xa5, 0xd6, 0x28, 0xdb, 0x04, 0xc1, 0x00, 0x00];

const CONVERT: &str = "convert it first, for example: ffmpeg -i FILE out.wav";

/// The error for a known format that is not read.
pub(crate) fn unsupported(what: &str) -> AudioErrorKind {
    AudioErrorKind::Unsupported { what: what.to_owned(), advice: CONVERT.to_owned() }
}

fn not_audio(what: &str, advice: &str) -> AudioErrorKind {
    AudioErrorKind::Unsupported { what: what.to_owned(), advice: advice.to_owned() }
}

/// The container that a file with these first bytes (64 are enough) surely is; `None` also for bare MPEG streams, whose first
/// bytes many other files have too.
pub(crate) fn certain(head: &[u8]) -> Option<&'static str> {
    by_magic(head).map(Format::name)
}

/// How many bytes an ID3v2 tag at the beginning takes, if there is one.
pub(crate) fn id3v2_len(head: &[u8]) -> Option<u64> {
    let h = head.get(..10)?;
    if &h[..3] != b"ID3" || h[3] == 0xff || h[6..10].iter().any(|b| b & 0x80 != 0) {
        return None;
    }
    let size = h[6..10].iter().fold(0u64, |n, &b| n << 7 | u64::from(b));
    let footer = if h[5] & 0x10 != 0 { 10 } else { 0 };
    Some(10 + size + footer)
}

/// The length of a tag (ID3v1, ID3v2, APE) that begins `data`: programs put them before and behind any file.
pub(crate) fn tag_len(data: &[u8]) -> Option<u64> {
    if data.starts_with(b"TAG") {
        return Some(128);
    }
    if data.starts_with(b"APETAGEX") {
        let size = data.get(12..16).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        return Some(u64::from(size) + 32);
    }
    id3v2_len(data)
}

/// Tells the format from the first bytes, and where in them its data begin (bare MPEG streams may follow junk).
pub(crate) fn identify(head: &[u8]) -> Result<(Format, usize), AudioErrorKind> {
    if head.is_empty() {
        return Err(AudioErrorKind::Empty);
    }
    if let Some(format) = by_magic(head) {
        return Ok((format, 0));
    }
    if let Some(kind) = named(head) {
        return Err(kind);
    }
    // Bare streams have only a weak magic number, so they come after everything with a strong one.
    if let Some(found) = bare_stream(head) {
        return Ok(found);
    }
    if let Some(kind) = weakly_named(head) {
        return Err(kind);
    }
    Err(AudioErrorKind::Unrecognised { start: readable_start(head) })
}

fn by_magic(head: &[u8]) -> Option<Format> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|h| h.starts_with(magic));
    if (at(0, b"RIFF") || at(0, b"RIFX") || at(0, b"RF64") || at(0, b"BW64")) && at(8, b"WAVE") {
        return Some(Format::Wav);
    }
    if at(0, &W64_RIFF) {
        return Some(Format::Wav);
    }
    if at(0, b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")) {
        return Some(Format::Aiff);
    }
    let simple: [(&[u8], Format); 6] = [
        (b".snd", Format::Au),
        (b"dns.", Format::Au),
        (b"fLaC", Format::Flac),
        (b"OggS", Format::Ogg),
        (b"\x1a\x45\xdf\xa3", Format::Matroska),
        (b"caff", Format::Caf),
    ];
    if let Some((_, format)) = simple.iter().find(|(magic, _)| at(0, magic)) {
        return Some(*format);
    }
    if at(4, b"ftyp") && !image_brand(head) {
        return Some(Format::Mp4);
    }
    // QuickTime files of the old kind have no ftyp.
    if ([&b"moov"[..], b"mdat", b"wide", b"skip", b"free"].iter().any(|kind| at(4, kind)))
        && head.first().is_some_and(|&b| b < 0x20)
    {
        return Some(Format::Mp4);
    }
    None
}

/// The name of the format of a file that begins here, told by a strong magic number: what was joined to another file.
pub(crate) fn joined_file(start: &[u8]) -> Option<&'static str> {
    by_magic(start).map(Format::name)
}

fn image_brand(head: &[u8]) -> bool {
    let brand = head.get(8..12).unwrap_or_default();
    [b"heic".as_slice(), b"heix", b"mif1", b"avif", b"avis", b"jxl ", b"crx "].contains(&brand)
}

/// Magic numbers at offset 0 of what is known and not read.
const NAMED: [(&[u8], &str); 37] = [
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "WMA (Windows Media Audio)"),
    (b"#!AMR", "AMR (Adaptive Multi-Rate)"),
    (b"\x0b\x77", "AC-3 (Dolby Digital)"),
    (b"\x77\x0b", "AC-3 (Dolby Digital)"),
    (b"\x7f\xfe\x80\x01", "DTS"),
    (b"\xfe\x7f\x01\x80", "DTS"),
    (b"\x1f\xff\xe8\x00", "DTS"),
    (b"\xff\x1f\x00\xe8", "DTS"),
    (b"MPCK", "Musepack"),
    (b"MP+", "Musepack"),
    (b"MAC ", "APE (Monkey's Audio)"),
    (b"wvpk", "WavPack"),
    (b"TTA1", "TTA (True Audio)"),
    (b"TTA2", "TTA (True Audio)"),
    (b"OFR ", "OptimFROG"),
    (b"ajkg", "Shorten"),
    (b"tBaK", "TAK"),
    (b"DSD ", "DSD (DSF, one-bit audio)"),
    (b"FRM8", "DSD (DSDIFF, one-bit audio)"),
    (b"MThd", "MIDI (notes, not sound)"),
    (b".RMF", "RealMedia"),
    (b".ra\xfd", "RealAudio"),
    (b"FLV\x01", "FLV (Flash video)"),
    (b"\x00\x00\x01\xba", "MPEG-PS (MPEG program stream)"),
    (b"ADIF", "AAC in ADIF"),
    (b"NIST_1A", "NIST SPHERE"),
    (b"Creative Voice File", "VOC (Creative Voice)"),
    (b"IMPM", "a tracker module (Impulse Tracker)"),
    (b"Extended Module:", "a tracker module (XM)"),
    (b"PSID", "SID (Commodore 64 music)"),
    (b"RSID", "SID (Commodore 64 music)"),
    (b"2BIT", "AVR (Audio Visual Research)"),
    (b"PVF", "PVF (Portable Voice Format)"),
    (b"QCLM", "QCELP"),
    (b"!<arch>", "an ar archive"),
    (b"qoaf", "QOA (Quite OK Audio)"),
    (b"SILK", "SILK"),
];

/// What is not audio at all: (magic, name, what to do).
const NOT_AUDIO: [(&[u8], &str); 15] = [
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"GGUF", "a GGUF model file"),
    (b"\x7fELF", "a program (ELF)"),
    (b"SQLite format 3", "an SQLite database"),
];

const UNPACK: &str = "give the audio file itself";

fn named(head: &[u8]) -> Option<AudioErrorKind> {
    if head.starts_with(b"RIFF") && head.len() >= 12 {
        return match head.get(8..12)? {
            b"AVI " => Some(unsupported("AVI (video)")),
            b"RMID" => Some(unsupported("MIDI (notes, not sound)")),
            b"QLCM" => Some(unsupported("QCELP (QCP)")),
            b"WEBP" => Some(not_audio("a WebP image", UNPACK)),
            _ => None,
        };
    }
    if head.len() < 12 && [&b"RIFF"[..], b"RF64", b"RIFX", b"FORM"].iter().any(|m| head.starts_with(m)) {
        return Some(AudioErrorKind::malformed("WAV or AIFF", "the file ends within its first 12 bytes"));
    }
    if head.starts_with(b"FORM") && head.get(8..12) == Some(b"8SVX") {
        return Some(unsupported("8SVX (Amiga)"));
    }
    if head.get(4..8) == Some(b"ftyp") {
        return Some(not_audio("an image in the HEIF/AVIF container", UNPACK));
    }
    if head.starts_with(b"\x0b\x77") && head.get(5).is_some_and(|b| b >> 3 > 10) {
        return Some(unsupported("E-AC-3 (Dolby Digital Plus)"));
    }
    if let Some((_, what)) = NAMED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(unsupported(what));
    }
    if let Some((_, what)) = NOT_AUDIO.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(not_audio(what, UNPACK));
    }
    [188usize, 192]
        .iter()
        .any(|&packet| {
            let sync = packet - 188;
            head.len() > sync + 2 * packet && (0..3).all(|i| head[sync + i * packet] == 0x47)
        })
        .then(|| unsupported("MPEG-TS (MPEG transport stream)"))
}

/// Text of all kinds, and streams told by two bytes only.
fn weakly_named(head: &[u8]) -> Option<AudioErrorKind> {
    if head.len() > 2 && head[0] == 0x56 && head[1] & 0xe0 == 0xe0 {
        return Some(unsupported("AAC in LOAS/LATM"));
    }
    let utf16 = head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff");
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The head may end within a character.
        Err(e) if e.valid_up_to() + 4 > head.len() => std::str::from_utf8(&head[..e.valid_up_to()]).ok()?,
        Err(_) if utf16 => return Some(not_audio("a text file (UTF-16)", UNPACK)),
        Err(_) => return None,
    };
    if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x0c' | '\u{1b}')) {
        return None;
    }
    let start: String = text.trim_start_matches('\u{feff}').trim_start().chars().take(64).collect();
    let lower = start.to_ascii_lowercase();
    const PLAYLIST: &str =
        "Conure opens no other files or addresses on its behalf; give the audio file itself";
    let kinds = [
        ("#extm3u", "a playlist (M3U)", PLAYLIST),
        ("[playlist]", "a playlist (PLS)", PLAYLIST),
        ("ffconcat", "a playlist (ffconcat)", PLAYLIST),
        ("<asx", "a playlist (ASX)", PLAYLIST),
        ("file:", "a text with a file address", PLAYLIST),
        ("concat:", "a text with file addresses", PLAYLIST),
        ("http://", "a text with an address", PLAYLIST),
        ("https://", "a text with an address", PLAYLIST),
        ("<!doctype html", "an HTML page", "the download probably gave an error page; fetch the file again"),
        ("<html", "an HTML page", "the download probably gave an error page; fetch the file again"),
        ("<?xml", "an XML document", UNPACK),
        ("version https://git-lfs", "a Git LFS pointer", "fetch the file with: git lfs pull"),
        ("{\\rtf", "a rich-text document", UNPACK),
    ];
    let kind = kinds.iter().find(|(start, ..)| lower.starts_with(start));
    let (what, advice) = kind.map_or(("a text file", UNPACK), |(_, what, advice)| (*what, *advice));
    Some(not_audio(what, advice))
}

/// Looks for a run of MPEG audio or ADTS frames, at the very beginning with little proof, further on with more.
fn bare_stream(head: &[u8]) -> Option<(Format, usize)> {
    for offset in 0..head.len().saturating_sub(7) {
        if head[offset] != 0xff {
            continue;
        }
        let proof = if offset == 0 { 2 } else { 4 };
        if frames_in_a_row::<MpegHeader>(&head[offset..], proof) {
            return Some((Format::Mpeg, offset));
        }
        if frames_in_a_row::<AdtsHeader>(&head[offset..], proof) {
            return Some((Format::Adts, offset));
        }
    }
    None
}

/// Whether `wanted` frames of one stream stand in a row, or as many as the data hold.
pub(crate) fn frames_in_a_row<H: FrameHeader>(data: &[u8], wanted: usize) -> bool {
    let mut at = 0usize;
    let mut first: Option<H> = None;
    for n in 0..wanted {
        let Some(rest) = data.get(at..) else { return n >= 2 };
        if rest.len() < H::LEN {
            // The data end here: a file of one frame is a file too, but only from the very beginning.
            return n >= 1 && wanted == 2 || n >= 2;
        }
        let Some(header) = H::parse(rest) else { return false };
        if first.as_ref().is_some_and(|f| !f.same_stream(&header)) {
            return false;
        }
        at = at.saturating_add(header.size());
        first.get_or_insert(header);
    }
    true
}

fn readable_start(head: &[u8]) -> String {
    let hex: Vec<String> = head.iter().take(12).map(|b| format!("{b:02x}")).collect();
    hex.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_named() {
        let mut ts = vec![0u8; 188 * 4];
        (0..4).for_each(|i| ts[i * 188] = 0x47);
        for (head, word) in [
            (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11....".to_vec(), "WMA"),
            (b"#!AMR\n<".to_vec(), "AMR"),
            (b"#!AMR-WB\n<".to_vec(), "AMR"),
            (vec![0x0b, 0x77, 0, 0, 0, 8 << 3, 0, 0], "AC-3"),
            (vec![0x0b, 0x77, 0, 0, 0, 16 << 3, 0, 0], "E-AC-3"),
            (b"MPCKSH".to_vec(), "Musepack"),
            (b"MAC \x96\x0f".to_vec(), "Monkey"),
            (b"wvpk....".to_vec(), "WavPack"),
            (b"DSD ....".to_vec(), "DSD"),
            (b"FRM8........DSD ".to_vec(), "DSD"),
            (b"MThd\0\0\0\x06".to_vec(), "MIDI"),
            (b".RMF\0\0".to_vec(), "RealMedia"),
            (b".ra\xfd\0\x03".to_vec(), "RealAudio"),
            (b"#EXTM3U\nhttp://example.org/a.mp3\n".to_vec(), "playlist (M3U)"),
            (b"[playlist]\nFile1=/etc/passwd\n".to_vec(), "playlist (PLS)"),
            (b"ffconcat version 1.0\nfile /etc/passwd\n".to_vec(), "ffconcat"),
            (b"file:/etc/passwd".to_vec(), "file address"),
            (b"concat:/etc/passwd|/etc/group".to_vec(), "file addresses"),
            (b"<!DOCTYPE html><html>".to_vec(), "HTML"),
            (b"\xef\xbb\xbf  <html>".to_vec(), "HTML"),
            (b"<?xml version='1.0'?>".to_vec(), "XML"),
            (b"PK\x03\x04....".to_vec(), "ZIP"),
            (b"\x1f\x8b\x08".to_vec(), "gzip"),
            (b"%PDF-1.7".to_vec(), "PDF"),
            ("Grüße, nur Text".as_bytes().to_vec(), "text"),
            (b"version https://git-lfs.github.com/spec/v1".to_vec(), "LFS"),
            (b"RIFF\x10\0\0\0AVI LIST".to_vec(), "AVI"),
            (b"\0\0\0\x18ftypheic".to_vec(), "HEIF"),
            (ts, "MPEG-TS"),
            (b"NIST_1A\n   1024\n".to_vec(), "SPHERE"),
        ] {
            match identify(&head) {
                Err(AudioErrorKind::Unsupported { what, advice }) => {
                    assert!(what.contains(word), "{word}: {what}");
                    assert!(!advice.is_empty());
                }
                other => panic!("{word}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_rest() {
        assert!(matches!(identify(b""), Err(AudioErrorKind::Empty)));
        assert!(matches!(identify(b"\x01\x02\x03\x04\x05"), Err(AudioErrorKind::Unrecognised { .. })));
        assert!(matches!(identify(&[0xff; 4096]), Err(AudioErrorKind::Unrecognised { .. })));
        assert!(matches!(identify(&[0; 4096]), Err(AudioErrorKind::Unrecognised { .. })));
        for (head, format) in [
            (b"RIFF\xff\xff\xff\xffWAVE".to_vec(), Format::Wav),
            (b"RF64\xff\xff\xff\xffWAVE".to_vec(), Format::Wav),
            (W64_RIFF.to_vec(), Format::Wav),
            (b"fLaC\0\0\0\x22".to_vec(), Format::Flac),
            (b"\0\0\0\x20ftypM4A ".to_vec(), Format::Mp4),
        ] {
            assert_eq!(identify(&head).unwrap(), (format, 0));
        }
        assert_eq!(id3v2_len(b"ID3\x04\0\0\0\0\x02\x01......"), Some(10 + 257));
        assert_eq!(id3v2_len(b"ID3\x04\0\x10\0\0\0\0......"), Some(20));
        assert_eq!(id3v2_len(b"ID3\x04\0\0\xff\0\0\0......"), None);
    }
}
