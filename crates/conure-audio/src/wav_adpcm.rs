//! IMA and Microsoft ADPCM in WAV: blocks that decode by themselves, read front to back.

use symphonia::core::codecs::audio::well_known::{CODEC_ID_ADPCM_IMA_WAV, CODEC_ID_ADPCM_MS};
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::behind::{self, After, after_sound};
use crate::chunks::Chunks;
use crate::error::{AudioErrorKind, joined};
use crate::packets::{Packet, PacketSource, PacketStream, SourceError, Track};
use crate::riff::{Counted, Encoding, Header, read_header};
use crate::sniff::Format;
use crate::stream::BlockSource;
use crate::wav::{Bytes, sound_length};

/// The sound that `header` stands before; `total`: the bytes of the whole file, if that is known.
pub(crate) fn open(
    reader: Counted<Bytes>,
    header: Header,
    total: Option<u64>,
) -> Result<Box<dyn BlockSource>, AudioErrorKind> {
    let (blocks, track) =
        blocks(&header, total).ok_or_else(|| AudioErrorKind::malformed("WAV", "its encoding is no ADPCM"))?;
    let source = AdpcmBlocks { reader, total, blocks };
    Ok(Box::new(PacketStream::new("WAV", Box::new(source), track)?))
}

/// Where the blocks of one file are.
struct Blocks {
    codec: AudioCodecId,
    /// Bytes of a block.
    block: usize,
    channels: usize,
    /// Bytes still to read, if the header knows.
    left: Option<u64>,
    /// The place of the next sample.
    at: i64,
    chunks: Chunks,
}

impl Blocks {
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

/// What a header says of its blocks; `None` if they are no ADPCM.
fn blocks(header: &Header, total: Option<u64>) -> Option<(Blocks, Track)> {
    let (codec, block, name) = match header.encoding {
        Encoding::ImaAdpcm { block } => (CODEC_ID_ADPCM_IMA_WAV, block, "IMA ADPCM"),
        Encoding::MsAdpcm { block } => (CODEC_ID_ADPCM_MS, block, "Microsoft ADPCM"),
        Encoding::Pcm(_) | Encoding::Mpeg => return None,
    };
    let channels = header.layout.channels();
    let left = sound_length(header, total);
    let blocks = Blocks { codec, block, channels, left, at: 0, chunks: header.chunks };
    let frames = blocks.frames(block);
    let mut params = AudioCodecParameters::new();
    params
        .for_codec(codec)
        .with_sample_rate(header.sample_rate)
        .with_channels(crate::container::wave_channels(channels))
        .with_max_frames_per_packet(frames)
        .with_frames_per_block(frames);
    let declared = left.map(|n| n / block as u64 * frames);
    // The last block may hold more samples than the file means.
    let meant = header.fact.filter(|&f| declared.is_none_or(|d| f <= d && d - f < frames));
    let bounded = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut track = Track::new(params, name);
    track.drop = meant.map(|m| bounded(m)..i64::MAX).into_iter().collect();
    track.end = declared.filter(|_| total.is_some()).map(|d| bounded(d - d % frames.max(1)));
    Some((blocks, track))
}

struct AdpcmBlocks {
    reader: Counted<Bytes>,
    /// Bytes of the whole input, where that is known.
    total: Option<u64>,
    blocks: Blocks,
}

impl AdpcmBlocks {
    /// What there is instead of a block: the end, or the file that is joined to it.
    fn after(&mut self) -> Result<Option<Packet>, SourceError> {
        // Where sound is missing, nothing follows.
        if self.blocks.left != Some(0) {
            return Ok(None);
        }
        let after = after_sound(&mut self.reader, self.blocks.chunks).map_err(SourceError::Read)?;
        let (name, from) = match after {
            After::Nothing => return Ok(None),
            After::File(name) => (Some(name), self.reader.count),
            After::Bytes(from) => (None, from),
        };
        if name == Some(Format::Wav.name())
            && let Ok(next) = read_header(&mut self.reader, Format::Wav)
            && let Some((blocks, track)) = blocks(&next, self.total)
        {
            self.blocks = blocks;
            return Err(SourceError::NewStream(Box::new(track)));
        }
        let left = behind::length(&mut self.reader, from, self.total).map_err(SourceError::Read)?;
        let why = name.map_or_else(|| behind::stray(left), |name| joined(name, left));
        Err(SourceError::Truncated(why))
    }
}

impl PacketSource for AdpcmBlocks {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let blocks = &mut self.blocks;
        let want = blocks.left.map_or(blocks.block, |left| left.min(blocks.block as u64) as usize);
        let mut data = self.reader.up_to(want).map_err(SourceError::Read)?;
        if let Some(left) = &mut blocks.left {
            *left -= data.len() as u64;
        }
        let (got, whole) = (blocks.frames(data.len()), blocks.frames(blocks.block));
        if got == 0 {
            return self.after();
        }
        // A last block that is cut short: decoded as far as it goes.
        data.resize(blocks.block, 0);
        let trim = (0, whole - got);
        let packet = Packet { data, at: Some(blocks.at), duration: whole, trim, ..Packet::default() };
        blocks.at = blocks.at.saturating_add_unsigned(whole);
        Ok(Some(packet))
    }
}
