//! Sound in WAV and AU files, and samples without a header, read front to back from files and pipes alike.

use std::io::{self, Read};

use crate::behind::{self, After, after_sound};
use crate::chunks::Chunks;
use crate::error::{AudioErrorKind, Warning, WarningKind, WarningLog, joined};
use crate::layout::ChannelLayout;
use crate::pcm::{RawSpec, SampleFormat};
use crate::riff::{Counted, Encoding, Header, read_header};
use crate::sniff::Format;
use crate::source::{Input, Media};
use crate::stream::{BlockSource, Spec};

pub(crate) type Bytes = Box<dyn Read + Send>;

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
        let length = h.data_len.unwrap_or(u64::MAX);
        let end = h.header_len.saturating_add(length);
        let left_out = behind::behind(&mut media, end, h.chunks).map_err(AudioErrorKind::Read)?;
        let sound = media.window(h.header_len, length).map_err(AudioErrorKind::Read)?;
        return crate::container::open_frames::<crate::elementary::MpegHeader>(sound, "WAV", left_out);
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
    if matches!(header.encoding, Encoding::ImaAdpcm { .. } | Encoding::MsAdpcm { .. }) {
        return crate::wav_adpcm::open(reader, header, len);
    }
    let declared = sound_length(&header, len);
    let Header { encoding, sample_rate, layout, chunks, .. } = header;
    let Encoding::Pcm(format) = encoding else {
        return Err(AudioErrorKind::malformed("WAV", "MP3 in it begins later than its first 64 KiB"));
    };
    let spec = Spec { sample_rate, layout };
    let mut stream = PcmStream::new(reader, format, spec, declared, chunks);
    stream.total = len;
    Ok(Box::new(stream))
}

/// How much sound there should be in a file of `total` bytes. A plain RIFF file longer than 4 GiB counts its data modulo 2^32:
/// the largest length that fits is meant.
pub(crate) fn sound_length(header: &Header, total: Option<u64>) -> Option<u64> {
    let declared = header.data_len?;
    let available = total.map(|n| n.saturating_sub(header.header_len));
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
                After::Bytes(from) => {
                    let left =
                        behind::length(&mut self.reader, from, self.total).map_err(AudioErrorKind::Read)?;
                    let message = behind::stray(left);
                    log.push(Warning { kind: WarningKind::HeaderLies, message, start, end: None });
                }
                After::File(name) => self.join(name, start, log).map_err(AudioErrorKind::Read)?,
            },
            None => {}
        }
        Ok(())
    }
}

impl PcmStream {
    /// Goes on with the file that follows, if its samples are like those so far; else says what is left out.
    fn join(&mut self, name: &'static str, start: f64, log: &mut WarningLog) -> io::Result<()> {
        let begun = self.reader.count;
        let format = [Format::Wav, Format::Au].into_iter().find(|f| f.name() == name);
        let why = match format.map(|format| read_header(&mut self.reader, format)) {
            Some(Ok(next))
                if next.encoding == Encoding::Pcm(self.format)
                    && next.sample_rate == self.spec.sample_rate
                    && next.layout == self.spec.layout =>
            {
                self.left = next.data_len;
                self.ended = false;
                return Ok(());
            }
            Some(Ok(next)) => format!(
                "{name} of {} Hz with {} channels or of another encoding",
                next.sample_rate,
                next.layout.channels()
            ),
            Some(Err(_)) => format!("{name} with a damaged header"),
            None => name.to_owned(),
        };
        let message = joined(&why, behind::length(&mut self.reader, begun, self.total)?);
        log.push(Warning { kind: WarningKind::LostUnknown, message, start, end: None });
        Ok(())
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
