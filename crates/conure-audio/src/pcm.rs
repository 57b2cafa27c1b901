//! Uncompressed samples: their formats, and `--raw FORMAT:RATE:CHANNELS`.

use std::fmt;
use std::str::FromStr;

use crate::g711::{alaw_to_s16, mulaw_to_s16};

/// The lowest sample rate that is read, in Hz. Speech needs 8000; below 1000 a header is surely wrong.
pub const MIN_RATE: u32 = 1_000;
/// The highest sample rate that is read, in Hz: that of the fastest converters sold, and what the resampler takes.
pub const MAX_RATE: u32 = 768_000;

/// How one sample lies in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleFormat {
    /// Unsigned 8 bits, 128 is silence.
    U8,
    /// Signed 8 bits.
    S8,
    /// Signed 16 bits, little endian.
    S16Le,
    /// Signed 16 bits, big endian.
    S16Be,
    /// Signed 24 bits in 3 bytes, little endian.
    S24Le,
    /// Signed 24 bits in 3 bytes, big endian.
    S24Be,
    /// Signed 32 bits, little endian.
    S32Le,
    /// Signed 32 bits, big endian.
    S32Be,
    /// Signed 64 bits, little endian.
    S64Le,
    /// Signed 64 bits, big endian.
    S64Be,
    /// IEEE float, 32 bits, little endian.
    F32Le,
    /// IEEE float, 32 bits, big endian.
    F32Be,
    /// IEEE float, 64 bits, little endian.
    F64Le,
    /// IEEE float, 64 bits, big endian.
    F64Be,
    /// G.711 A-law.
    ALaw,
    /// G.711 mu-law.
    MuLaw,
}

/// Names as ffmpeg gives them to its raw formats.
const NAMES: [(SampleFormat, &str); 16] = [
    (SampleFormat::U8, "u8"),
    (SampleFormat::S8, "s8"),
    (SampleFormat::S16Le, "s16le"),
    (SampleFormat::S16Be, "s16be"),
    (SampleFormat::S24Le, "s24le"),
    (SampleFormat::S24Be, "s24be"),
    (SampleFormat::S32Le, "s32le"),
    (SampleFormat::S32Be, "s32be"),
    (SampleFormat::S64Le, "s64le"),
    (SampleFormat::S64Be, "s64be"),
    (SampleFormat::F32Le, "f32le"),
    (SampleFormat::F32Be, "f32be"),
    (SampleFormat::F64Le, "f64le"),
    (SampleFormat::F64Be, "f64be"),
    (SampleFormat::ALaw, "alaw"),
    (SampleFormat::MuLaw, "mulaw"),
];

impl SampleFormat {
    /// Bytes of one sample of one channel.
    pub fn bytes(self) -> usize {
        use SampleFormat::*;
        match self {
            U8 | S8 | ALaw | MuLaw => 1,
            S16Le | S16Be => 2,
            S24Le | S24Be => 3,
            S32Le | S32Be | F32Le | F32Be => 4,
            S64Le | S64Be | F64Le | F64Be => 8,
        }
    }

    /// The name, as in `--raw`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(f, _)| *f == self).map_or("?", |(_, n)| n)
    }

    /// Appends the samples of `bytes` to `out`. Integers are divided by 2^(bits-1), so full scale is -1 to just
    /// under 1; floats are taken as they are. A last incomplete sample is left out.
    pub fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        use SampleFormat::*;
        const S16: f32 = 1.0 / 32_768.0;
        out.reserve(bytes.len() / self.bytes());
        match self {
            U8 => out.extend(bytes.iter().map(|&b| (f32::from(b) - 128.0) / 128.0)),
            S8 => out.extend(bytes.iter().map(|&b| f32::from(b as i8) / 128.0)),
            ALaw => out.extend(bytes.iter().map(|&b| f32::from(alaw_to_s16(b)) * S16)),
            MuLaw => out.extend(bytes.iter().map(|&b| f32::from(mulaw_to_s16(b)) * S16)),
            S16Le => each(bytes, out, |b: [u8; 2]| f32::from(i16::from_le_bytes(b)) * S16),
            S16Be => each(bytes, out, |b: [u8; 2]| f32::from(i16::from_be_bytes(b)) * S16),
            S24Le => each(bytes, out, |[a, b, c]| s32(i32::from_le_bytes([0, a, b, c]))),
            S24Be => each(bytes, out, |[a, b, c]| s32(i32::from_be_bytes([a, b, c, 0]))),
            S32Le => each(bytes, out, |b| s32(i32::from_le_bytes(b))),
            S32Be => each(bytes, out, |b| s32(i32::from_be_bytes(b))),
            S64Le => each(bytes, out, |b| s64(i64::from_le_bytes(b))),
            S64Be => each(bytes, out, |b| s64(i64::from_be_bytes(b))),
            F32Le => each(bytes, out, f32::from_le_bytes),
            F32Be => each(bytes, out, f32::from_be_bytes),
            F64Le => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
            F64Be => each(bytes, out, |b| f64::from_be_bytes(b) as f32),
        }
    }
}

fn s32(v: i32) -> f32 {
    v as f32 / 2_147_483_648.0
}

fn s64(v: i64) -> f32 {
    v as f32 / 9_223_372_036_854_775_808.0
}

fn each<const N: usize>(bytes: &[u8], out: &mut Vec<f32>, f: impl Fn([u8; N]) -> f32) {
    out.extend(bytes.as_chunks::<N>().0.iter().map(|&b| f(b)));
}

impl fmt::Display for SampleFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Samples without a header: `FORMAT:RATE[:CHANNELS]`, such as `s16le:16000:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSpec {
    /// How a sample lies in bytes.
    pub format: SampleFormat,
    /// Samples a second of each channel, in Hz.
    pub sample_rate: u32,
    /// Interleaved channels.
    pub channels: u16,
}

/// Why a `--raw` value was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawSpecError {
    /// Not two or three parts.
    #[error("{0:?} is not FORMAT:RATE[:CHANNELS]; for example s16le:16000:1")]
    Shape(String),
    /// Unknown sample format.
    #[error("unknown sample format {0:?}; expected one of {names}", names = format_names())]
    Format(String),
    /// A rate that is no number or out of bounds.
    #[error("{0:?} is not a sample rate; expected a number from {MIN_RATE} to {MAX_RATE} (Hz)")]
    Rate(String),
    /// A channel count that is no number or out of bounds.
    #[error("{0:?} is not a channel count; expected a number from 1 to {max}", max = crate::layout::ChannelLayout::MAX_CHANNELS)]
    Channels(String),
}

fn format_names() -> String {
    NAMES.map(|(_, n)| n).join(", ")
}

impl FromStr for RawSpec {
    type Err = RawSpecError;

    fn from_str(s: &str) -> Result<RawSpec, RawSpecError> {
        let mut parts = s.split(':');
        let (Some(format), Some(rate), channels, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(RawSpecError::Shape(s.to_owned()));
        };
        let lower = format.to_ascii_lowercase();
        let format = NAMES
            .iter()
            .find(|(_, name)| *name == lower)
            .map(|(f, _)| *f)
            .ok_or_else(|| RawSpecError::Format(format.to_owned()))?;
        let sample_rate = rate
            .parse::<u32>()
            .ok()
            .filter(|r| (MIN_RATE..=MAX_RATE).contains(r))
            .ok_or_else(|| RawSpecError::Rate(rate.to_owned()))?;
        let channels = channels.unwrap_or("1");
        let channels = channels
            .parse::<u16>()
            .ok()
            .filter(|&c| c >= 1 && usize::from(c) <= crate::layout::ChannelLayout::MAX_CHANNELS)
            .ok_or_else(|| RawSpecError::Channels(channels.to_owned()))?;
        Ok(RawSpec { format, sample_rate, channels })
    }
}

impl fmt::Display for RawSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.format, self.sample_rate, self.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_specs() {
        let spec = |format, sample_rate, channels| Ok(RawSpec { format, sample_rate, channels });
        for (text, expected) in [
            ("s16le:16000:1", spec(SampleFormat::S16Le, 16_000, 1)),
            ("S24BE:48000:6", spec(SampleFormat::S24Be, 48_000, 6)),
            ("mulaw:8000", spec(SampleFormat::MuLaw, 8_000, 1)),
            ("s16le", Err(RawSpecError::Shape("s16le".into()))),
            ("s16le:16000:1:2", Err(RawSpecError::Shape("s16le:16000:1:2".into()))),
            ("s16:16000:1", Err(RawSpecError::Format("s16".into()))),
            ("s16le:0:1", Err(RawSpecError::Rate("0".into()))),
            ("s16le:4294967295:1", Err(RawSpecError::Rate("4294967295".into()))),
            ("s16le:-1:1", Err(RawSpecError::Rate("-1".into()))),
            ("s16le:16000:0", Err(RawSpecError::Channels("0".into()))),
            ("s16le:16000:65535", Err(RawSpecError::Channels("65535".into()))),
            ("", Err(RawSpecError::Shape(String::new()))),
        ] {
            assert_eq!(text.parse::<RawSpec>(), expected, "{text}");
        }
    }

    #[test]
    fn samples() {
        let decode = |f: SampleFormat, bytes: &[u8]| {
            let mut out = Vec::new();
            f.decode(bytes, &mut out);
            out
        };
        for (format, bytes, expected) in [
            (SampleFormat::U8, vec![0u8, 128, 255], vec![-1.0, 0.0, 127.0 / 128.0]),
            (SampleFormat::S8, vec![0x80, 0, 127], vec![-1.0, 0.0, 127.0 / 128.0]),
            (SampleFormat::S16Le, vec![0, 0x80, 1, 0], vec![-1.0, 1.0 / 32768.0]),
            (SampleFormat::S16Be, vec![0x80, 0, 0, 1], vec![-1.0, 1.0 / 32768.0]),
            (SampleFormat::S24Le, vec![0, 0, 0x80, 1, 0, 0], vec![-1.0, 1.0 / 8_388_608.0]),
            (SampleFormat::S24Be, vec![0x80, 0, 0, 0, 0, 1], vec![-1.0, 1.0 / 8_388_608.0]),
            (SampleFormat::S32Le, vec![0, 0, 0, 0x80], vec![-1.0]),
            (SampleFormat::S32Be, vec![0x40, 0, 0, 0], vec![0.5]),
            (SampleFormat::S64Le, vec![0, 0, 0, 0, 0, 0, 0, 0x80], vec![-1.0]),
            (SampleFormat::F32Le, 0.25f32.to_le_bytes().to_vec(), vec![0.25]),
            (SampleFormat::F32Be, 0.25f32.to_be_bytes().to_vec(), vec![0.25]),
            (SampleFormat::F64Le, 0.25f64.to_le_bytes().to_vec(), vec![0.25]),
            (SampleFormat::F64Be, 0.25f64.to_be_bytes().to_vec(), vec![0.25]),
            (SampleFormat::S16Le, vec![0, 0x40, 7], vec![0.5]), // an odd byte at the end
        ] {
            assert_eq!(decode(format, &bytes), expected, "{format}");
        }
    }
}
