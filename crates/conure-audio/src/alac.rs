//! Apple Lossless (ALAC): Symphonia decodes it, and this tells damaged packets, which have no checksum.
//!
//! A packet is a row of elements, the last of which is the mark of the end (three bits, all set), and then less than a byte of
//! zeros. Its samples are numbers of varying length, each of which says how the next is written, so damage almost surely makes
//! them end elsewhere than at that mark. Their lengths alone are followed here: nothing is predicted.
//!
//! What cannot be told is damage that keeps every length: in the coefficients of the predictor, and in samples that are written as
//! plain numbers (the low bits of 24-bit sound, and blocks that do not compress).

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::{
    AudioCodecParameters, AudioDecoder, AudioDecoderOptions, FinalizeResult,
};
use symphonia::core::codecs::registry::{RegisterableAudioDecoder, SupportedAudioCodec};
use symphonia::core::errors::{Error, Result};
use symphonia::core::packet::PacketRef;
use symphonia::default::codecs::AlacDecoder;

/// Symphonia's decoder behind a check of every packet.
pub(crate) struct CheckedAlac {
    decoder: AlacDecoder,
    setup: Setup,
}

impl AudioDecoder for CheckedAlac {
    fn reset(&mut self) {
        self.decoder.reset();
    }

    fn codec_info(&self) -> &CodecInfo {
        self.decoder.codec_info()
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        self.decoder.codec_params()
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Result<GenericAudioBufferRef<'_>> {
        if self.setup.is_whole(packet.data) {
            self.decoder.decode_ref(packet)
        } else {
            Err(Error::DecodeError("alac: the packet does not end where its samples do"))
        }
    }

    fn finalize(&mut self) -> FinalizeResult {
        self.decoder.finalize()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.decoder.last_decoded()
    }
}

impl RegisterableAudioDecoder for CheckedAlac {
    fn try_registry_new(
        params: &AudioCodecParameters,
        options: &AudioDecoderOptions,
    ) -> Result<Box<dyn AudioDecoder>> {
        let decoder = AlacDecoder::try_new(params, options)?;
        let setup = params
            .extra_data
            .as_deref()
            .and_then(Setup::parse)
            .ok_or(Error::Unsupported("alac: setup data are cut short"))?;
        Ok(Box::new(CheckedAlac { decoder, setup }))
    }

    fn supported_codecs() -> &'static [SupportedAudioCodec] {
        AlacDecoder::supported_codecs()
    }
}

/// What the lengths of numbers follow from: a part of the setup data ("magic cookie").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    /// Samples of each channel in a packet that does not say otherwise.
    frames: u32,
    bits: u32,
    /// How fast the mean of the numbers is followed, where it begins, and the most bits of a remainder.
    rate: u32,
    first_mean: u32,
    most: u32,
    channels: u32,
}

impl Setup {
    /// Out of the setup data, around which old writers put boxes.
    fn parse(mut data: &[u8]) -> Option<Setup> {
        for kind in [b"frma", b"alac"] {
            if data.get(4..8) == Some(kind) {
                data = data.get(12..)?;
            }
        }
        let byte = |at: usize| data.get(at).map(|&b| u32::from(b));
        Some(Setup {
            frames: u32::from_be_bytes(data.get(..4)?.try_into().ok()?),
            bits: byte(5)?,
            rate: byte(6)?,
            first_mean: byte(7)?,
            most: byte(8)?.min(31),
            channels: byte(9)?,
        })
    }

    /// Whether the elements of a packet have all channels and fill it.
    fn is_whole(&self, packet: &[u8]) -> bool {
        let mut bits = Bits { data: packet, at: 0 };
        self.follow(&mut bits).is_some() && bits.rest_is_zero()
    }

    /// Goes over the elements, up to the mark of the end; `None` where there cannot be such elements.
    fn follow(&self, bits: &mut Bits<'_>) -> Option<()> {
        let mut channels = 0;
        loop {
            // Without the mark, the end of the packet is as good.
            if channels == self.channels && bits.left() < 8 && bits.word() == 0 {
                return Some(());
            }
            match bits.take(3)? {
                // One channel, and one for low frequencies.
                0 | 3 => {
                    channels += 1;
                    self.channels(bits, 1)?;
                }
                1 => {
                    channels += 2;
                    self.channels(bits, 2)?;
                }
                // Data of another kind.
                4 => {
                    bits.take(4)?;
                    let align = bits.take(1)? == 1;
                    let mut count = bits.take(8)?;
                    if count == 255 {
                        count += bits.take(8)?;
                    }
                    if align {
                        bits.at = bits.at.next_multiple_of(8);
                    }
                    bits.skip(u64::from(count) * 8)?;
                }
                6 => {
                    let mut count = bits.take(4)?;
                    if count == 15 {
                        count += bits.take(8)? - 1;
                    }
                    bits.skip(u64::from(count) * 8)?;
                }
                7 => return (channels == self.channels).then_some(()),
                _ => return None,
            }
            if channels > self.channels {
                return None;
            }
        }
    }

    /// One element of sound of `count` channels, behind its kind.
    fn channels(&self, bits: &mut Bits<'_>, count: u32) -> Option<()> {
        // Its number, and twelve bits that are always zero.
        if bits.take(16)? & 0xfff != 0 {
            return None;
        }
        let partial = bits.take(1)? == 1;
        let low = 8 * bits.take(2)?;
        let plain = bits.take(1)? == 1;
        let frames = if partial { bits.take(32)? } else { self.frames };
        if low >= 24 || low >= self.bits || frames > self.frames {
            return None;
        }
        let each = u64::from(frames) * u64::from(count);
        if plain {
            return bits.skip(each * u64::from(self.bits));
        }
        // How the channels were mixed.
        bits.skip(16)?;
        let mut rates = [0; 2];
        for rate in rates.iter_mut().take(count as usize) {
            let mode = bits.take(4)?;
            bits.skip(4)?;
            *rate = self.rate * bits.take(3)? / 4;
            let order = bits.take(5)?;
            bits.skip(u64::from(order) * 16)?;
            if mode != 0 && mode != 15 {
                return None;
            }
        }
        bits.skip(each * u64::from(low))?;
        let width = self.bits - low + count - 1;
        for rate in rates.into_iter().take(count as usize) {
            self.numbers(bits, frames, rate, width)?;
        }
        Some(())
    }

    /// Goes over `frames` numbers of at most `width` bits: adaptive Golomb codes, and runs of zeros where the mean is small.
    fn numbers(&self, bits: &mut Bits<'_>, frames: u32, rate: u32, width: u32) -> Option<()> {
        let mut mean = self.first_mean;
        let mut after_run = 0;
        let mut i = 0;
        while i < frames {
            let k = 31 - ((mean >> 9) + 3).leading_zeros();
            let value = bits.golomb(k.min(self.most), width)?.wrapping_add(after_run);
            mean = if value > 0xffff {
                0xffff
            } else {
                mean.wrapping_add(rate * value).wrapping_sub(rate.wrapping_mul(mean) >> 9)
            };
            after_run = 0;
            i += 1;
            if mean < 128 && i < frames {
                let k = mean.leading_zeros() - 24 + ((mean + 16) >> 6);
                let zeros = bits.golomb(k.min(self.most), 16)?;
                after_run = u32::from(zeros < 0xffff);
                mean = 0;
                i = i.saturating_add(zeros);
            }
        }
        Some(())
    }
}

/// Bits of a packet, the most significant of a byte first.
struct Bits<'a> {
    data: &'a [u8],
    /// The next bit.
    at: u64,
}

impl Bits<'_> {
    fn left(&self) -> u64 {
        (self.data.len() as u64 * 8).saturating_sub(self.at)
    }

    /// The next 57 bits at least, at the top; zeros behind the end.
    fn word(&self) -> u64 {
        let rest = self.data.get((self.at / 8) as usize..).unwrap_or_default();
        let bytes = match rest.first_chunk::<8>() {
            Some(bytes) => *bytes,
            None => {
                let mut bytes = [0; 8];
                bytes.iter_mut().zip(rest).for_each(|(b, &r)| *b = r);
                bytes
            }
        };
        u64::from_be_bytes(bytes) << (self.at % 8)
    }

    fn skip(&mut self, n: u64) -> Option<()> {
        (n <= self.left()).then(|| self.at += n)
    }

    /// The next `n` bits, 1 to 32.
    fn take(&mut self, n: u32) -> Option<u32> {
        let value = (self.word() >> (64 - n)) as u32;
        self.skip(u64::from(n)).map(|()| value)
    }

    /// A number of which the quotient by 2^k - 1 is written as ones, nine of them before a plain number of `width` bits.
    fn golomb(&mut self, k: u32, width: u32) -> Option<u32> {
        let ones = self.word().leading_ones().min(9);
        if ones == 9 {
            self.skip(9)?;
            return self.take(width.clamp(1, 32));
        }
        self.skip(u64::from(ones) + 1)?;
        if k < 2 {
            return Some(if k == 0 { 0 } else { ones });
        }
        let quotient = ones * ((1 << k) - 1);
        // A remainder of 0 takes a bit less; others count from 2.
        let remainder = (self.word() >> (64 - k)) as u32;
        self.skip(u64::from(if remainder < 2 { k - 1 } else { k }))?;
        Some(quotient + remainder.saturating_sub(1))
    }

    /// Whether nothing but zeros follows.
    fn rest_is_zero(&self) -> bool {
        let rest = self.data.get((self.at / 8) as usize..).unwrap_or_default();
        let first = rest.first().is_none_or(|b| b << (self.at % 8) == 0);
        first && rest.iter().skip(1).all(|&b| b == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup { frames: 4096, bits: 16, rate: 40, first_mean: 10, most: 14, channels: 1 };

    #[test]
    fn setup_data() {
        let plain = [0u8, 0, 0x10, 0, 0, 16, 40, 10, 14, 1, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3e, 0x80];
        let boxed = [&b"\0\0\0\x0cfrmaalac\0\0\0\x24alac\0\0\0\0"[..], &plain].concat();
        assert_eq!(Setup::parse(&plain), Some(SETUP));
        assert_eq!(Setup::parse(&boxed), Some(SETUP));
        assert_eq!(Setup::parse(&plain[..9]), None);
    }

    #[test]
    fn packets() {
        // Two samples as plain numbers: kind, number and zeros, partial, plain, the count, the samples, the mark of the end.
        let bits = format!("{:019b}1001{:032b}{:016b}{:016b}111", 0, 2, 0x1234, 0x5678);
        let pack = |bits: &str| -> Vec<u8> {
            let padded = format!("{bits:0<width$}", width = bits.len().next_multiple_of(8));
            padded.as_bytes().chunks(8).map(|c| c.iter().fold(0, |v, b| v << 1 | (b & 1))).collect()
        };
        let whole = pack(&bits);
        // Two samples that are zeros, as a run.
        let coded = pack(&format!("{:019b}1000{:032b}{:016b}{:016b}000010111", 0, 2, 0, 0));
        for (packet, expected) in [
            (whole.clone(), true),
            (coded.clone(), true),
            ([&whole[..], &[0; 3]].concat(), true),
            ([&whole[..], &[1]].concat(), false),
            (whole[..whole.len() - 2].to_vec(), false),
            (vec![0; 500], false),
            (vec![0xff; 500], false),
            (vec![0xe0], false),
            (vec![], false),
        ] {
            assert_eq!(SETUP.is_whole(&packet), expected, "{packet:02x?}");
        }
        // The mark of the end is missing, and the other channel.
        assert!(SETUP.is_whole(&pack(&bits[..bits.len() - 3])));
        assert!(!Setup { channels: 2, ..SETUP }.is_whole(&whole));
    }
}
