//! What stands behind the sound of a file: chunks, tags and padding belong to it; anything else is named with its length.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use crate::chunks::Chunks;
use crate::elementary::{AdtsHeader, MpegHeader};
use crate::error::joined;
use crate::riff::{Counted, looks_like_chunk};
use crate::sniff::{Format, frames_in_a_row, joined_file, tag_len};
use crate::source::Media;

/// What follows the sound of a file whose header says where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing that could be sound: chunks, tags, padding, the rest of an archive.
    Nothing,
    /// Another file of this format, joined to the first end to end; the reader stands before it.
    File(&'static str),
    /// Something else from this byte on, as the reader counts; the reader stands somewhere behind it.
    Bytes(u64),
}

/// Chunks behind the sound that are looked at: more has no file that anyone wrote.
const MAX_CHUNKS: u32 = 1000;
/// Bytes of a pipe that are read only to say how many they are.
const MAX_COUNTED: u64 = 1 << 30;
/// Enough to hold four frames of MPEG audio, whose longest has 2881 bytes, or of usual AAC.
const FRAMES: usize = 16 << 10;

/// Chunks that are often the last of a file: one of these that is cut off is no other file.
const USUAL: [&[u8; 4]; 22] = [
    b"LIST", b"id3 ", b"ID3 ", b"bext", b"JUNK", b"junk", b"iXML", b"_PMX", b"cue ", b"smpl", b"PEAK",
    b"fact", b"NAME", b"ANNO", b"AUTH", b"MARK", b"COMT", b"APPL", b"pakt", b"info", b"strg", b"free",
];

/// Looks at what follows the sound; `chunks` is how the format writes what may.
pub(crate) fn after_sound<R: Read>(reader: &mut Counted<R>, chunks: Chunks) -> io::Result<After> {
    skip_padding(reader, chunks)?;
    // Where the tags before the place that is looked at began: with them begins the file that they belong to.
    let mut tags = None;
    for _ in 0..MAX_CHUNKS {
        let here = reader.count;
        let head = reader.up_to(24)?;
        if let Some(name) = joined_file(&head) {
            reader.unread(&head);
            return Ok(After::File(name));
        }
        if let Some(tag) = tag_len(&head) {
            tags = tags.or(Some(here));
            reader.unread(&head);
            reader.skip(tag)?;
            continue;
        }
        // The rest of an archive, or fewer bytes than any sound has.
        if head.starts_with(b"PK") || head.is_empty() || (chunks != Chunks::None && head.len() < 12) {
            return Ok(After::Nothing);
        }
        if head.starts_with(&[0; 4]) {
            reader.unread(&head);
            skip_zeros(reader)?;
            continue;
        }
        match chunks.lengths(&head) {
            Some((len, size)) if looks_like_chunk(&head) => {
                reader.unread(head.get(len..).unwrap_or_default());
                let there = reader.skip(size)? == size;
                if !there && !USUAL.iter().any(|id| head.starts_with(*id)) {
                    return Ok(After::Bytes(tags.unwrap_or(here)));
                }
                tags = None;
            }
            _ => {
                reader.unread(&head);
                let data = reader.up_to(FRAMES)?;
                reader.unread(&data);
                let format = if frames_in_a_row::<MpegHeader>(&data, 4) {
                    Some(Format::Mpeg)
                } else {
                    frames_in_a_row::<AdtsHeader>(&data, 4).then_some(Format::Adts)
                };
                return Ok(match (format, tags) {
                    (Some(format), None) => After::File(format.name()),
                    _ => After::Bytes(tags.unwrap_or(here)),
                });
            }
        }
    }
    Ok(After::Nothing)
}

/// Padding directly behind the sound: up to a multiple of two bytes, or of eight.
fn skip_padding<R: Read>(reader: &mut Counted<R>, chunks: Chunks) -> io::Result<()> {
    let padding = match chunks {
        Chunks::W64 => 7,
        Chunks::Riff | Chunks::Iff => 1,
        Chunks::Caf | Chunks::None => 0,
    };
    for _ in 0..padding {
        let head = reader.up_to(24)?;
        reader.unread(&head);
        if head.first() != Some(&0) || joined_file(&head).is_some() {
            break;
        }
        reader.skip(1)?;
    }
    Ok(())
}

/// Padding anywhere else: what stands behind it does not belong to the file any more.
fn skip_zeros<R: Read>(reader: &mut Counted<R>) -> io::Result<()> {
    const BLOCK: usize = 4096;
    loop {
        let block = reader.up_to(BLOCK)?;
        let Some(end) = block.iter().position(|&b| b != 0) else {
            if block.len() < BLOCK {
                return Ok(());
            }
            continue;
        };
        // The first bytes of MP4 are zeros too.
        let mp4 = block.get(end.saturating_sub(3)..).filter(|b| joined_file(b).is_some());
        reader.unread(mp4.or(block.get(end..)).unwrap_or_default());
        return Ok(());
    }
}

/// How many bytes there are from `from` on; `total` is the length of the whole, if that is known. A pipe is read to its end for it,
/// within bounds: `None` beyond them.
pub(crate) fn length<R: Read>(
    reader: &mut Counted<R>,
    from: u64,
    total: Option<u64>,
) -> io::Result<Option<u64>> {
    if let Some(total) = total {
        return Ok(Some(total.saturating_sub(from)));
    }
    let whole = reader.skip(MAX_COUNTED)? < MAX_COUNTED;
    Ok(whole.then(|| reader.count.saturating_sub(from)))
}

/// What is said of bytes that are no part of the sound nor a file with a name.
pub(crate) fn stray(bytes: Option<u64>) -> String {
    let bytes = bytes.map_or(format!("more than {MAX_COUNTED} bytes"), |n| format!("{n} bytes"));
    format!("the sound ends here, but more follows that is no audio of this file; it was left out ({bytes})")
}

/// What is said of what follows, with its length, where it is no part of the file.
pub(crate) fn remark<R: Read>(
    reader: &mut Counted<R>,
    chunks: Chunks,
    total: Option<u64>,
) -> io::Result<Option<String>> {
    Ok(match after_sound(reader, chunks)? {
        After::Nothing => None,
        After::File(name) => {
            let from = reader.count;
            Some(joined(name, length(reader, from, total)?))
        }
        After::Bytes(from) => Some(stray(length(reader, from, total)?)),
    })
}

/// The same of what stands from byte `at` on in something that can seek, whose last tags (ID3v1, and APE without a head) are
/// passed over too.
pub(crate) fn behind(media: &mut Media, at: u64, chunks: Chunks) -> io::Result<Option<String>> {
    let total = before_tags(media)?;
    if at >= total {
        return Ok(None);
    }
    media.seek(SeekFrom::Start(at))?;
    let mut reader = Counted::new(BufReader::new(media.take(total - at)));
    remark(&mut reader, chunks, Some(total - at))
}

/// Where the tags that are found from the end of a file begin.
fn before_tags(media: &mut Media) -> io::Result<u64> {
    let mut end = media.len();
    let mut mark = [0u8; 32];
    if let Some(at) = end.checked_sub(128) {
        let n = media.read_at(at, &mut mark)?;
        if mark.get(..n).is_some_and(|m| m.starts_with(b"TAG")) {
            end = at;
        }
    }
    if let Some(at) = end.checked_sub(32) {
        media.read_at(at, &mut mark)?;
        if mark.starts_with(b"APETAGEX") {
            // The size counts the items and this foot; bit 31 of the flags says that a head of 32 bytes stands before them.
            let word = |at: usize| {
                mark.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
            };
            let head = if word(20) >> 31 == 1 { 32 } else { 0 };
            end = end.saturating_sub(u64::from(word(12)) + head);
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::AudioSource;

    /// A tag of APE with a body of ten bytes: with its head, or found by its foot only.
    fn ape(head: bool) -> Vec<u8> {
        let mark = |flags: u32| {
            let numbers = [2000u32, 42, 1, flags, 0, 0];
            [&b"APETAGEX"[..], &numbers.map(u32::to_le_bytes).concat()].concat()
        };
        let top = if head { mark(0xa000_0000) } else { Vec::new() };
        [top, b"\x01\0\0\0\0\0\0\0K\0".to_vec(), mark(if head { 0x8000_0000 } else { 0 })].concat()
    }

    #[test]
    fn what_belongs_to_a_file_and_what_does_not() {
        let mut id3 = b"TAG".to_vec();
        id3.resize(128, b' ');
        let mut mp3 = Vec::new();
        (0..5).for_each(|_| mp3.extend([&[0xffu8, 0xfb, 0x90, 0x00][..], &[0x55; 413]].concat()));
        let junk: Vec<u8> = (0..200u32).map(|i| (i * 37 % 251) as u8 | 0x80).collect();
        let wav = b"RIFF\x24\0\0\0WAVEfmt ".to_vec();
        let list = b"LIST\x04\0\0\0abcd".to_vec();
        let cut = b"LIST\x40\0\0\0abcd and no more of it".to_vec();
        let text = b"Hello, this is some text and no chunk at all".to_vec();
        let zeros = vec![0u8; 300];
        for (tail, expected) in [
            (vec![], None),
            (zeros.clone(), None),
            (id3.clone(), None),
            (ape(true), None),
            (ape(false), None),
            ([ape(false), id3.clone()].concat(), None),
            ([ape(true), id3.clone()].concat(), None),
            (list.clone(), None),
            (cut, None),
            ([&list[..], &junk].concat(), Some("no audio of this file; it was left out (200 bytes)")),
            (junk.clone(), Some("(200 bytes)")),
            ([&zeros[..], &junk].concat(), Some("(200 bytes)")),
            (
                [&zeros[..], &wav].concat(),
                Some("(WAV) is joined to the end of this one; it was left out (16 bytes)"),
            ),
            (text, Some("(44 bytes)")),
            (mp3.clone(), Some("(MP3) is joined to the end of this one; it was left out (2085 bytes)")),
            // With its tag before it, the whole of the second file is counted.
            ([&b"ID3\x04\0\0\0\0\0\x02ab"[..], &mp3].concat(), Some("(2097 bytes)")),
            ([&mp3[..], &id3].concat(), Some("(MP3)")),
        ] {
            let file = [&[1u8; 100][..], &tail].concat();
            let mut media = AudioSource::bytes("x", file).open(1 << 30).unwrap().into_media().unwrap();
            let got = behind(&mut media, 100, Chunks::Riff).unwrap();
            let fits = match (&got, expected) {
                (Some(got), Some(part)) => got.contains(part),
                (None, None) => true,
                _ => false,
            };
            assert!(fits, "{:02x?}: {got:?} instead of {expected:?}", tail.get(..8));
        }
    }
}
