//! Sound in WAV and AU files, and samples without a header, read front to back from files and pipes alike.

use std::io::{self, Read};

use symphonia::core::codecs::audio::well_known::{CODEC_ID_ADPCM_IMA_WAV, CODEC_ID_ADPCM_MS};
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::chunks::Chunks;
use crate::error::{AudioErrorKind, Warning, WarningKind, WarningLog, joined};
use crate::layout::ChannelLayout;
use crate::packets::{Packet, PacketSource, PacketStream, SourceError, Track};
use crate::pcm::{RawSpec, SampleFormat};
use crate::riff::{Counted, Encoding, Header, looks_like_chunk, read_header};
use crate::sniff::{Format, joined_file, tag_len};
use crate::source::{Input, Media};
use crate::stream::{BlockSource, Spec};

type Bytes = Box<dyn Read + Send>;

/// Samples without a header.
pub(crate) fn open_raw(input: Input, spec: RawSpec) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let layout = ChannelLayout::default_for(usize::from(spec.channels));
    let frame = spec.format.bytes() * layout.channels();
    match input.head.len() {
        0 => return Err(AudioErrorKind::Empty),
        n if n < frame => {
            let reason =
                format!("there are {n} bytes, and one sample of each channel of {spec} takes {frame}");
            return Err(AudioErrorKind::malformed("samples", reason));
        }
        _ => {}
    }
    let format = spec.format;
    let spec = Spec { sample_rate: spec.sample_rate, layout };
    let len = input.len();
    let mut stream = PcmStream::new(Counted::new(input.into_reader()?), format, spec, None, Chunks::None);
    stream.total = len;
    Ok(Box::new(stream))
}

/// A WAV or AU input.
pub(crate) fn open(input: Input, format: Format) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let len = input.len();
    // MP3 in WAV must be looked into, so it is kept; everything else streams.
    let header = read_header(&mut Counted::new(input.head.as_slice()), format);
    if matches!(&header, Ok(h) if h.encoding == Encoding::Mpeg) {
        return open_media(input.into_media()?, format);
    }
    open_reader(input.into_reader()?, len, format)
}

/// The same of bytes that can seek.
pub(crate) fn open_media(mut media: Media, format: Format) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let mut head = vec![0u8; crate::source::HEAD];
    let n = media.read_at(0, &mut head).map_err(AudioErrorKind::Read)?;
    head.truncate(n);
    let header = read_header(&mut Counted::new(head.as_slice()), format);
    if let Ok(h) = header
        && h.encoding == Encoding::Mpeg
    {
        let rest = media.len().saturating_sub(h.header_len);
        let sound = media.window(h.header_len, h.data_len.unwrap_or(rest)).map_err(AudioErrorKind::Read)?;
        return crate::container::open_frames::<crate::elementary::MpegHeader>(sound, "WAV");
    }
    media.rewind().map_err(AudioErrorKind::Read)?;
    let len = media.len();
    open_reader(Box::new(io::BufReader::with_capacity(64 << 10, media)), Some(len), format)
}

fn open_reader(
    reader: Bytes,
    len: Option<u64>,
    format: Format,
) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let mut reader = Counted::new(reader);
    let header = read_header(&mut reader, format)?;
    let available = len.map(|n| n.saturating_sub(header.header_len));
    let extent = Extent { declared: unwrap_length(&header, available), available };
    let Header { encoding, sample_rate, layout, fact, chunks, .. } = header;
    let spec = Spec { sample_rate, layout };
    match encoding {
        Encoding::Pcm(format) => {
            let mut stream = PcmStream::new(reader, format, spec, extent.declared, chunks);
            stream.total = len;
            Ok(Box::new(stream))
        }
        Encoding::ImaAdpcm { block } => adpcm(reader, CODEC_ID_ADPCM_IMA_WAV, block, spec, extent, fact),
        Encoding::MsAdpcm { block } => adpcm(reader, CODEC_ID_ADPCM_MS, block, spec, extent, fact),
        Encoding::Mpeg => {
            Err(AudioErrorKind::malformed("WAV", "MP3 in it begins later than its first 64 KiB"))
        }
    }
}

/// How much sound there should be, and how much there is.
#[derive(Debug, Clone, Copy)]
struct Extent {
    declared: Option<u64>,
    available: Option<u64>,
}

/// A plain RIFF file longer than 4 GiB counts its data modulo 2^32: the largest length that fits is meant.
fn unwrap_length(header: &Header, available: Option<u64>) -> Option<u64> {
    let declared = header.data_len?;
    match available {
        Some(available) if header.may_wrap && available >= declared => {
            Some(declared + ((available - declared) >> 32 << 32))
        }
        _ => Some(declared),
    }
}

/// Uncompressed samples from the beginning of `media` on; `declared` bytes of them, if a header says so.
pub(crate) fn pcm_stream(
    media: Media,
    format: SampleFormat,
    spec: Spec,
    declared: Option<u64>,
    chunks: Chunks,
) -> Box<dyn BlockSource> {
    let total = media.len();
    let reader: Bytes = Box::new(io::BufReader::with_capacity(64 << 10, media));
    let mut stream = PcmStream::new(Counted::new(reader), format, spec, declared, chunks);
    stream.total = Some(total);
    Box::new(stream)
}

/// Frames read at once. A block must fill before it is handed on: few enough for live pipes to be heard soon.
const BLOCK_FRAMES: usize = 1024;

struct PcmStream {
    reader: Counted<Bytes>,
    format: SampleFormat,
    spec: Spec,
    /// Bytes still to read, if the header knows.
    left: Option<u64>,
    /// More can be declared than is there; less than this is not asked for.
    frames: u64,
    bytes: Vec<u8>,
    ended: bool,
    /// Bytes of the whole input, where that is known.
    total: Option<u64>,
    /// What may follow the sound.
    chunks: Chunks,
}

impl PcmStream {
    fn new(
        reader: Counted<Bytes>,
        format: SampleFormat,
        spec: Spec,
        left: Option<u64>,
        chunks: Chunks,
    ) -> PcmStream {
        let bytes = Vec::new();
        PcmStream { reader, format, spec, left, frames: 0, bytes, ended: false, total: None, chunks }
    }

    fn frame_bytes(&self) -> usize {
        self.format.bytes() * self.spec.layout.channels()
    }

    fn seconds(&self, frames: u64) -> f64 {
        frames as f64 / f64::from(self.spec.sample_rate)
    }

    fn end(&mut self, log: &mut WarningLog) -> Result<(), AudioErrorKind> {
        self.ended = true;
        let start = self.seconds(self.frames);
        match self.left {
            Some(left) if left >= self.frame_bytes() as u64 => {
                let end = self.seconds(self.frames + left / self.frame_bytes() as u64);
                let message = "the end of the file is missing".to_owned();
                log.push(Warning { kind: WarningKind::TruncatedTail, message, start, end: Some(end) });
            }
            Some(_) => match after_sound(&mut self.reader, self.chunks).map_err(AudioErrorKind::Read)? {
                After::Nothing => {}
                After::Bytes => {
                    let message = "the header ends the sound here, but more bytes follow; they were left out"
                        .to_owned();
                    log.push(Warning { kind: WarningKind::HeaderLies, message, start, end: None });
                }
                After::File(name) => self.join(name, start, log),
            },
            None => {}
        }
        Ok(())
    }
}

/// What follows the sound of a file whose header says where it ends.
enum After {
    /// Nothing that could be sound: chunks, padding, the rest of an archive.
    Nothing,
    /// Another file of this format, joined to the first end to end; the reader stands before it.
    File(&'static str),
    /// Something else, probably sound that the header forgot.
    Bytes,
}

/// Chunks behind the sound that are looked at: more has no file that anyone wrote.
const MAX_CHUNKS: u32 = 1000;

fn after_sound(reader: &mut Counted<Bytes>, chunks: Chunks) -> io::Result<After> {
    // Padding behind the sound: up to a multiple of two bytes, or of eight.
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
    for _ in 0..MAX_CHUNKS {
        let head = reader.up_to(24)?;
        if let Some(name) = joined_file(&head) {
            reader.unread(&head);
            return Ok(After::File(name));
        }
        if let Some(tag) = tag_len(&head) {
            reader.unread(&head);
            reader.skip(tag)?;
            continue;
        }
        if head.iter().all(|&b| b == 0) || head.starts_with(b"PK") {
            break;
        }
        match chunks.lengths(&head) {
            Some((len, size)) if looks_like_chunk(&head) => {
                reader.unread(head.get(len..).unwrap_or_default());
                reader.skip(size)?;
            }
            None if chunks != Chunks::None && head.len() < 12 => break,
            _ => return Ok(After::Bytes),
        }
    }
    Ok(After::Nothing)
}

impl PcmStream {
    /// Goes on with the file that follows, if its samples are like those so far; else says what is left out.
    fn join(&mut self, name: &'static str, start: f64, log: &mut WarningLog) {
        let begun = self.reader.count;
        let left = self.total.map(|n| n.saturating_sub(begun));
        let format = [Format::Wav, Format::Au].into_iter().find(|f| f.name() == name);
        let why = match format.map(|format| read_header(&mut self.reader, format)) {
            Some(Ok(next))
                if next.encoding == Encoding::Pcm(self.format)
                    && next.sample_rate == self.spec.sample_rate
                    && next.layout == self.spec.layout =>
            {
                self.left = next.data_len;
                self.ended = false;
                return;
            }
            Some(Ok(next)) => format!(
                "{name} of {} Hz with {} channels or of another encoding",
                next.sample_rate,
                next.layout.channels()
            ),
            Some(Err(_)) => format!("{name} with a damaged header"),
            None => name.to_owned(),
        };
        let message = joined(&why, left);
        log.push(Warning { kind: WarningKind::LostUnknown, message, start, end: None });
    }
}

impl BlockSource for PcmStream {
    fn next_block(&mut self, out: &mut Vec<f32>, log: &mut WarningLog) -> Result<bool, AudioErrorKind> {
        if self.ended {
            return Ok(false);
        }
        let frame = self.frame_bytes();
        let want = (BLOCK_FRAMES * frame) as u64;
        let want = self.left.map_or(want, |left| left.min(want));
        self.bytes.clear();
        (&mut self.reader).take(want).read_to_end(&mut self.bytes).map_err(AudioErrorKind::Read)?;
        let read = self.bytes.len();
        if let Some(left) = &mut self.left {
            *left -= read as u64;
        }
        let whole = read - read % frame;
        self.format.decode(self.bytes.get(..whole).unwrap_or_default(), out);
        self.frames += (whole / frame) as u64;
        if whole < read {
            let message = format!(
                "the last {} bytes are less than one sample of each channel ({frame} bytes); they were left out",
                read - whole
            );
            let start = self.seconds(self.frames);
            log.push(Warning { kind: WarningKind::Note, message, start, end: None });
        }
        if (read as u64) < (BLOCK_FRAMES * frame) as u64 {
            self.end(log)?;
        }
        Ok(!self.ended)
    }

    fn spec(&self) -> Option<&Spec> {
        Some(&self.spec)
    }

    fn declared_spec(&self) -> Option<Spec> {
        Some(self.spec.clone())
    }

    fn expected_frames(&self) -> Option<u64> {
        let frame = self.frame_bytes().max(1) as u64;
        self.left.map(|left| self.frames + left / frame)
    }

    fn known_frames(&self) -> Option<u64> {
        let there = self.total?.saturating_sub(self.reader.count);
        let left = self.left.map_or(there, |left| left.min(there));
        Some(self.frames + left / self.frame_bytes().max(1) as u64)
    }

    fn codec(&self) -> &str {
        match self.format {
            SampleFormat::ALaw => "A-law",
            SampleFormat::MuLaw => "mu-law",
            _ => "PCM",
        }
    }
}

fn adpcm(
    reader: Counted<Bytes>,
    codec: AudioCodecId,
    block: usize,
    spec: Spec,
    extent: Extent,
    fact: Option<u64>,
) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let channels = spec.layout.channels();
    let source = AdpcmBlocks { reader, codec, block, channels, left: extent.declared, at: 0 };
    let frames = source.frames(block);
    let mut params = AudioCodecParameters::new();
    params
        .for_codec(codec)
        .with_sample_rate(spec.sample_rate)
        .with_channels(crate::container::wave_channels(channels))
        .with_max_frames_per_packet(frames)
        .with_frames_per_block(frames);
    let name = if codec == CODEC_ID_ADPCM_MS { "Microsoft ADPCM" } else { "IMA ADPCM" };
    let declared = extent.declared.map(|n| n / block as u64 * frames);
    // The last block may hold more samples than the file means.
    let meant = fact.filter(|&f| declared.is_none_or(|d| f <= d && d - f < frames));
    let bounded = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut track = Track::new(params, name);
    track.drop = meant.map(|m| bounded(m)..i64::MAX).into_iter().collect();
    track.end = declared.filter(|_| extent.available.is_some()).map(|d| bounded(d - d % frames.max(1)));
    Ok(Box::new(PacketStream::new("WAV", Box::new(source), track)?))
}

/// The blocks of ADPCM: each decodes by itself.
struct AdpcmBlocks {
    reader: Counted<Bytes>,
    codec: AudioCodecId,
    block: usize,
    channels: usize,
    left: Option<u64>,
    at: i64,
}

impl AdpcmBlocks {
    /// Samples of each channel in a block of `bytes`.
    fn frames(&self, bytes: usize) -> u64 {
        let n = if self.codec == CODEC_ID_ADPCM_MS {
            // 7 bytes of state with two samples, then two samples a byte.
            bytes.checked_sub(7 * self.channels).map_or(0, |b| b * 2 / self.channels + 2)
        } else {
            // 4 bytes of state with one sample, then groups of 4 bytes, 8 samples, for each channel in turn.
            bytes.checked_sub(4 * self.channels).map_or(0, |b| b / (4 * self.channels) * 8 + 1)
        };
        n as u64
    }
}

impl PacketSource for AdpcmBlocks {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let want = self.left.map_or(self.block, |left| left.min(self.block as u64) as usize);
        let mut data = self.reader.up_to(want).map_err(SourceError::Read)?;
        if let Some(left) = &mut self.left {
            *left -= data.len() as u64;
        }
        let (got, whole) = (self.frames(data.len()), self.frames(self.block));
        if got == 0 {
            let after = after_sound(&mut self.reader, Chunks::Riff).map_err(SourceError::Read)?;
            return match after {
                After::File(name) if self.left == Some(0) => Err(SourceError::Truncated(joined(name, None))),
                _ => Ok(None),
            };
        }
        // A last block that is cut short: decoded as far as it goes.
        data.resize(self.block, 0);
        let packet =
            Packet { data, at: Some(self.at), duration: whole, trim: (0, whole - got), ..Packet::default() };
        self.at = self.at.saturating_add_unsigned(whole);
        Ok(Some(packet))
    }
}
