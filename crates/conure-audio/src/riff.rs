//! The headers of RIFF WAVE, RIFX, RF64/BW64 (EBU Tech 3306), Sony Wave64 and Sun AU: read leniently, believed little.

use std::io::{self, Read};

use crate::chunks::Chunks;
use crate::error::AudioErrorKind;
use crate::layout::ChannelLayout;
use crate::pcm::{MAX_RATE, MIN_RATE, SampleFormat};
use crate::sniff::{Format, W64_RIFF};

/// How the sound is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Pcm(SampleFormat),
    ImaAdpcm { block: usize },
    MsAdpcm { block: usize },
    Mpeg,
}

/// What the header says about the sound that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) encoding: Encoding,
    pub(crate) sample_rate: u32,
    pub(crate) layout: ChannelLayout,
    /// Bytes of sound; `None` where the header does not know (a pipe wrote it).
    pub(crate) data_len: Option<u64>,
    /// Whether a data length of 32 bits may have overflown.
    pub(crate) may_wrap: bool,
    /// Samples of each channel, from the fact chunk.
    pub(crate) fact: Option<u64>,
    /// What stands before the sound, in bytes.
    pub(crate) header_len: u64,
    /// What may follow the sound.
    pub(crate) chunks: Chunks,
}

/// More header than this before the sound is not believed (a cover picture is a few megabytes).
const MAX_HEADER: u64 = 1 << 30;
/// A format chunk is 16 to 40 bytes, with codec data somewhat more.
const MAX_FMT: u64 = 64 << 10;

/// A reader that counts, and can give back a few bytes.
pub(crate) struct Counted<R> {
    inner: R,
    pub(crate) count: u64,
    back: Vec<u8>,
}

impl<R: Read> Counted<R> {
    pub(crate) fn new(inner: R) -> Counted<R> {
        Counted { inner, count: 0, back: Vec::new() }
    }

    /// Puts bytes back in front.
    pub(crate) fn unread(&mut self, bytes: &[u8]) {
        self.count -= bytes.len() as u64;
        self.back.splice(0..0, bytes.iter().copied());
    }

    /// The next `n` bytes, or fewer at the end. `n` is small or was bounded by the caller.
    pub(crate) fn up_to(&mut self, n: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.take(n as u64).read_to_end(&mut out)?;
        Ok(out)
    }

    pub(crate) fn skip(&mut self, n: u64) -> io::Result<u64> {
        io::copy(&mut self.take(n), &mut io::sink())
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = if self.back.is_empty() {
            self.inner.read(buf)?
        } else {
            let n = buf.len().min(self.back.len());
            buf[..n].copy_from_slice(&self.back[..n]);
            self.back.drain(..n);
            n
        };
        self.count += n as u64;
        Ok(n)
    }
}

/// Whether bytes could be the head of a RIFF chunk.
pub(crate) fn looks_like_chunk(bytes: &[u8]) -> bool {
    bytes.len() >= 4 && bytes[..4].iter().all(|b| (0x20..0x7f).contains(b))
}

fn bad(reason: impl Into<String>) -> AudioErrorKind {
    AudioErrorKind::malformed("WAV", reason)
}

/// Reads up to the first byte of the sound.
pub(crate) fn read_header<R: Read>(r: &mut Counted<R>, format: Format) -> Result<Header, AudioErrorKind> {
    if format == Format::Au {
        return read_au(r);
    }
    let start = r.up_to(12).map_err(AudioErrorKind::Read)?;
    if start == W64_RIFF[..12] {
        return read_w64(r);
    }
    let id = start.get(..4).unwrap_or_default().to_vec();
    let mut walk = Walk {
        r,
        big: id == b"RIFX",
        fmt: None,
        fact: None,
        ds64: None,
        rf64: id == b"RF64" || id == b"BW64",
    };
    walk.run()
}

/// The chunk walk of RIFF.
struct Walk<'a, R> {
    r: &'a mut Counted<R>,
    big: bool,
    rf64: bool,
    fmt: Option<Fmt>,
    fact: Option<u64>,
    /// Data length and sample count of the ds64 chunk.
    ds64: Option<(u64, u64)>,
}

impl<R: Read> Walk<'_, R> {
    fn u32(&self, b: &[u8]) -> u32 {
        let a: [u8; 4] = b.try_into().unwrap_or_default();
        if self.big { u32::from_be_bytes(a) } else { u32::from_le_bytes(a) }
    }

    fn run(&mut self) -> Result<Header, AudioErrorKind> {
        loop {
            let head = self.r.up_to(8).map_err(AudioErrorKind::Read)?;
            let (Some(id), Some(size)) = (head.get(..4), head.get(4..8)) else {
                return Err(self.no_data());
            };
            let size = u64::from(self.u32(size));
            match id {
                b"data" => return self.data(size),
                b"fmt " => {
                    let body = self.body(size)?;
                    self.fmt = Some(Fmt::parse(&body, self.big)?);
                }
                b"ds64" => {
                    let body = self.body(size)?;
                    let u64_at = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
                    self.ds64 = u64_at(8).zip(u64_at(16));
                }
                b"fact" => {
                    let body = self.body(size)?;
                    self.fact = body.get(..4).map(|b| u64::from(self.u32(b)));
                }
                _ => {
                    self.r.skip(size).map_err(AudioErrorKind::Read)?;
                }
            }
            self.pad(size)?;
            if self.r.count > MAX_HEADER {
                return Err(bad("no data chunk in its first gigabyte"));
            }
        }
    }

    fn no_data(&self) -> AudioErrorKind {
        bad(match self.fmt {
            Some(_) => "it ends before its data chunk",
            None => "it ends before its fmt chunk",
        })
    }

    fn body(&mut self, size: u64) -> Result<Vec<u8>, AudioErrorKind> {
        let body = self.r.up_to(size.min(MAX_FMT) as usize).map_err(AudioErrorKind::Read)?;
        self.r.skip(size.saturating_sub(body.len() as u64).min(MAX_HEADER)).map_err(AudioErrorKind::Read)?;
        Ok(body)
    }

    /// A chunk of odd length is followed by one byte of padding, which some writers forget.
    fn pad(&mut self, size: u64) -> Result<(), AudioErrorKind> {
        if size % 2 == 1 {
            let byte = self.r.up_to(1).map_err(AudioErrorKind::Read)?;
            if byte.first().is_some_and(|b| b.is_ascii_alphanumeric()) {
                self.r.unread(&byte);
            }
        }
        Ok(())
    }

    fn data(&mut self, size: u64) -> Result<Header, AudioErrorKind> {
        let Some(fmt) = self.fmt.take() else {
            return Err(bad(
                "its data chunk comes before its fmt chunk, or there is none, so the samples have no format",
            ));
        };
        let mut fact = self.fact;
        let mut data_len = Some(size);
        if let (true, Some((len, samples))) = (self.rf64, self.ds64) {
            if size == 0xffff_ffff {
                data_len = Some(len);
            }
            if fact == Some(0xffff_ffff) {
                fact = Some(samples);
            }
        }
        // What pipes write because they cannot come back to fill it in: sox 0x7ffff000, ffmpeg 0xffffffff, others
        // the same less a header. True sizes that large in a plain RIFF file are rather wrapped ones.
        if data_len == Some(size) && size >= 0x7fff_0000 && !self.exact_large(size) {
            data_len = None;
        }
        if data_len == Some(0) || (self.rf64 && data_len == Some(0xffff_ffff)) {
            data_len = self.empty_or_unknown()?;
        }
        fmt.header(data_len, !self.rf64, fact.filter(|&f| f > 0), self.r.count)
    }

    /// Sizes from 2 to 4 GiB exist. A placeholder has its low bits all set or all clear.
    fn exact_large(&self, size: u64) -> bool {
        !(0x7fff_0000..=0x7fff_ffff).contains(&size)
            && !(0xffff_0000..=0xffff_ffff).contains(&size)
            && size != 0x8000_0000
    }

    /// Length 0 is either true or a placeholder: what follows tells.
    fn empty_or_unknown(&mut self) -> Result<Option<u64>, AudioErrorKind> {
        let next = self.r.up_to(8).map_err(AudioErrorKind::Read)?;
        let empty = next.is_empty() || looks_like_chunk(&next);
        self.r.unread(&next);
        Ok(if empty { Some(0) } else { None })
    }
}

/// The fmt chunk.
struct Fmt {
    tag: u16,
    channels: u16,
    rate: u32,
    block_align: u16,
    bits: u16,
    mask: u32,
    big: bool,
}

/// `00000000-0000-0010-8000-00AA00389B71` behind the two bytes of the tag: how WAVEFORMATEXTENSIBLE writes tags.
const GUID_TAIL: [u8; 14] =
    [0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80, 0x00, 0x00, 0xaa, 0x00, 0x38, 0x9b, 0x71];
/// The same of first-order Ambisonics files (`.amb`).
const AMBISONIC_TAIL: [u8; 14] =
    [0x00, 0x00, 0x21, 0x07, 0xd3, 0x11, 0x86, 0x44, 0xc8, 0xc1, 0xca, 0x00, 0x00, 0x00];

impl Fmt {
    fn parse(body: &[u8], big: bool) -> Result<Fmt, AudioErrorKind> {
        let short = || bad(format!("its fmt chunk has {} bytes, expected at least 14", body.len()));
        let u16_at = |at: usize| {
            let b: [u8; 2] = body.get(at..at + 2)?.try_into().ok()?;
            Some(if big { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) })
        };
        let u32_at = |at: usize| {
            let b: [u8; 4] = body.get(at..at + 4)?.try_into().ok()?;
            Some(if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
        };
        let mut fmt = Fmt {
            tag: u16_at(0).ok_or_else(short)?,
            channels: u16_at(2).ok_or_else(short)?,
            rate: u32_at(4).ok_or_else(short)?,
            block_align: u16_at(12).ok_or_else(short)?,
            bits: u16_at(14).unwrap_or(0),
            mask: 0,
            big,
        };
        if fmt.tag == 0xfffe {
            let (Some(mask), Some(tag), Some(tail)) = (u32_at(20), u16_at(24), body.get(26..40)) else {
                return Err(bad("its extensible fmt chunk is cut short"));
            };
            let known =
                tail == GUID_TAIL || tail == AMBISONIC_TAIL || (big && tail.ends_with(&GUID_TAIL[8..]));
            if !known {
                return Err(crate::sniff::unsupported(
                    "WAV with an encoding of unknown identity (SubFormat GUID)",
                ));
            }
            fmt.mask = mask;
            fmt.tag = tag;
        }
        Ok(fmt)
    }

    fn header(
        &self,
        data_len: Option<u64>,
        may_wrap: bool,
        fact: Option<u64>,
        header_len: u64,
    ) -> Result<Header, AudioErrorKind> {
        let encoding = self.encoding()?;
        check_shape("WAV", self.rate, usize::from(self.channels))?;
        let layout = ChannelLayout::from_wave_mask(self.mask, usize::from(self.channels));
        let chunks = if self.big { Chunks::Iff } else { Chunks::Riff };
        Ok(Header { encoding, sample_rate: self.rate, layout, data_len, may_wrap, fact, header_len, chunks })
    }

    fn encoding(&self) -> Result<Encoding, AudioErrorKind> {
        let block = usize::from(self.block_align);
        let channels = usize::from(self.channels);
        match self.tag {
            1 => self.pcm().map(Encoding::Pcm),
            3 => match (self.sample_bytes(), self.big) {
                (4, false) => Ok(Encoding::Pcm(SampleFormat::F32Le)),
                (8, false) => Ok(Encoding::Pcm(SampleFormat::F64Le)),
                (4, true) => Ok(Encoding::Pcm(SampleFormat::F32Be)),
                (8, true) => Ok(Encoding::Pcm(SampleFormat::F64Be)),
                (n, _) => Err(bad(format!("floating-point samples of {} bits; expected 32 or 64", n * 8))),
            },
            6 => Ok(Encoding::Pcm(SampleFormat::ALaw)),
            7 => Ok(Encoding::Pcm(SampleFormat::MuLaw)),
            2 | 0x11 if !(1..=2).contains(&channels) => {
                Err(crate::sniff::unsupported("WAV with ADPCM of more than two channels"))
            }
            // A block holds the state of each channel and at least one further pair of samples.
            2 if block <= 7 * channels => Err(bad(format!("its ADPCM blocks have {block} bytes"))),
            0x11 if block <= 4 * channels => Err(bad(format!("its ADPCM blocks have {block} bytes"))),
            2 => Ok(Encoding::MsAdpcm { block }),
            0x11 => Ok(Encoding::ImaAdpcm { block }),
            0x50 | 0x55 => Ok(Encoding::Mpeg),
            tag => Err(crate::sniff::unsupported(&format!("WAV with {}", tag_name(tag)))),
        }
    }

    /// Bytes of one sample: from the block if that fits, since bits may be 12 or 20.
    fn sample_bytes(&self) -> usize {
        let from_bits = usize::from(self.bits).div_ceil(8);
        let channels = usize::from(self.channels).max(1);
        let block = usize::from(self.block_align);
        let from_block = if block % channels == 0 { block / channels } else { 0 };
        let fits = from_block >= from_bits && matches!(from_block, 1 | 2 | 3 | 4 | 8);
        if fits { from_block } else { from_bits }
    }

    fn pcm(&self) -> Result<SampleFormat, AudioErrorKind> {
        use SampleFormat::*;
        match (self.sample_bytes(), self.big) {
            (1, _) => Ok(U8),
            (2, false) => Ok(S16Le),
            (3, false) => Ok(S24Le),
            (4, false) => Ok(S32Le),
            (8, false) => Ok(S64Le),
            (2, true) => Ok(S16Be),
            (3, true) => Ok(S24Be),
            (4, true) => Ok(S32Be),
            (8, true) => Ok(S64Be),
            _ => Err(bad(format!("integer samples of {} bits; expected 8, 16, 24, 32 or 64", self.bits))),
        }
    }
}

/// Refuses rates and channel counts that no recording has.
pub(crate) fn check_shape(format: &str, rate: u32, channels: usize) -> Result<(), AudioErrorKind> {
    if !(MIN_RATE..=MAX_RATE).contains(&rate) {
        let reason = format!("a sample rate of {rate} Hz; expected {MIN_RATE} to {MAX_RATE}");
        return Err(AudioErrorKind::malformed(format, reason));
    }
    if channels == 0 || channels > ChannelLayout::MAX_CHANNELS {
        let reason = format!("{channels} channels; expected 1 to {}", ChannelLayout::MAX_CHANNELS);
        return Err(AudioErrorKind::malformed(format, reason));
    }
    Ok(())
}

/// Names of wFormatTag values that people meet and that are not read.
pub(crate) fn tag_name(tag: u16) -> String {
    let name = match tag {
        0x0010 | 0x0017 => "OKI ADPCM",
        0x0014 | 0x0040 | 0x0042 | 0x0045 | 0x0064 | 0x0065 | 0xa100 => "G.72x speech coding",
        0x0020 => "Yamaha ADPCM",
        0x0022 => "TrueSpeech",
        0x0031 | 0x0032 => "GSM 6.10",
        0x0038 | 0x0039 => "RealAudio",
        0x0057 | 0x7a21 | 0x7a22 => "AMR",
        0x0062 | 0x0069 => "Xbox or VoxWare ADPCM",
        0x0092 | 0x2000 => "AC-3 (Dolby Digital)",
        0x2001 => "DTS",
        0x00ff | 0x1600..=0x1610 | 0xa106 | 0x706d => "AAC",
        0x0130 => "SIPR",
        0x0160..=0x0163 | 0x000a => "WMA (Windows Media Audio)",
        0x0270 => "ATRAC3",
        0x674f..=0x6771 => "Vorbis",
        0xa109 => "Speex",
        0xf1ac => "FLAC",
        0x704f => "Opus",
        _ => return format!("the unknown encoding {tag:#06x}"),
    };
    name.to_owned()
}

fn read_w64<R: Read>(r: &mut Counted<R>) -> Result<Header, AudioErrorKind> {
    const TAIL: [u8; 12] = [0xf3, 0xac, 0xd3, 0x11, 0x8c, 0xd1, 0x00, 0xc0, 0x4f, 0x8e, 0xdb, 0x8a];
    // The rest of the riff GUID, the file's length, the wave GUID.
    r.up_to(4 + 8 + 16).map_err(AudioErrorKind::Read)?;
    let (mut fmt, mut fact) = (None::<Fmt>, None);
    loop {
        let head = r.up_to(24).map_err(AudioErrorKind::Read)?;
        let (Some(id), Some(size)) = (head.get(..16), head.get(16..24)) else {
            return Err(AudioErrorKind::malformed("Wave64", "it ends before its data chunk"));
        };
        // Lengths count the 24 bytes of the chunk's head.
        let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
        let body_len = size.saturating_sub(24);
        let known = id[4..] == TAIL;
        match &id[..4] {
            b"data" if known => {
                let fmt = fmt.ok_or_else(|| bad("its data chunk comes before its fmt chunk"))?;
                let data_len = Some(body_len).filter(|&n| size >= 24 && n < 1 << 62 && n > 0);
                return fmt
                    .header(data_len, false, fact, r.count)
                    .map(|h| Header { chunks: Chunks::W64, ..h });
            }
            b"fmt " | b"fact" if known => {
                let body = r.up_to(body_len.min(MAX_FMT) as usize).map_err(AudioErrorKind::Read)?;
                r.skip(body_len.saturating_sub(body.len() as u64).min(MAX_HEADER))
                    .map_err(AudioErrorKind::Read)?;
                if &id[..4] == b"fmt " {
                    fmt = Some(Fmt::parse(&body, false)?);
                } else {
                    fact = body.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
                }
            }
            _ => {
                r.skip(body_len.min(MAX_HEADER)).map_err(AudioErrorKind::Read)?;
            }
        }
        let pad = (8 - body_len % 8) % 8;
        r.skip(pad).map_err(AudioErrorKind::Read)?;
        if r.count > MAX_HEADER {
            return Err(AudioErrorKind::malformed("Wave64", "no data chunk in its first gigabyte"));
        }
    }
}

fn read_au<R: Read>(r: &mut Counted<R>) -> Result<Header, AudioErrorKind> {
    let head = r.up_to(24).map_err(AudioErrorKind::Read)?;
    let little = head.starts_with(b"dns.");
    let word = |i: usize| -> Option<u32> {
        let b: [u8; 4] = head.get(4 * i..4 * i + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) })
    };
    let fields = (word(1), word(2), word(3), word(4), word(5));
    let (Some(offset), Some(size), Some(encoding), Some(rate), Some(channels)) = fields else {
        return Err(AudioErrorKind::malformed("AU", "it ends within its header"));
    };
    use SampleFormat::*;
    let format = match (encoding, little) {
        (1, _) => MuLaw,
        (2, _) => S8,
        (3, false) => S16Be,
        (4, false) => S24Be,
        (5, false) => S32Be,
        (6, false) => F32Be,
        (7, false) => F64Be,
        (3, true) => S16Le,
        (4, true) => S24Le,
        (5, true) => S32Le,
        (6, true) => F32Le,
        (7, true) => F64Le,
        (27, _) => ALaw,
        (n, _) => return Err(crate::sniff::unsupported(&format!("AU with encoding number {n}"))),
    };
    check_shape("AU", rate, usize::try_from(channels).unwrap_or(usize::MAX))?;
    r.skip(u64::from(offset).saturating_sub(24)).map_err(AudioErrorKind::Read)?;
    Ok(Header {
        encoding: Encoding::Pcm(format),
        sample_rate: rate,
        layout: ChannelLayout::default_for(channels as usize),
        data_len: Some(u64::from(size)).filter(|&n| n != 0xffff_ffff),
        may_wrap: false,
        fact: None,
        header_len: r.count,
        chunks: Chunks::None,
    })
}
