//! The end of a FLAC stream. Frames do not say how long they are: a reader knows one by the head of the next, and takes what is
//! joined to the last for a part of it, so that its checksum does not fit. Here that last frame is found again, and what stands
//! behind it is named.

use std::io;

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::behind::behind;
use crate::chunks::Chunks;
use crate::guard::guard;
use crate::packets::{Packet, Track};
use crate::source::{Media, SharedMedia};

/// Bytes in which the head of the last good frame is looked for, where damage stood before it.
const MAX_SEARCH: u64 = 64 << 20;
/// No frame is longer: 65,535 samples of 8 channels of 32 bits take 2 MB; the most that STREAMINFO can state is 16 MB.
const MAX_FRAME: u64 = 1 << 24;

/// What stands behind the frames that a reader found.
#[derive(Debug)]
pub(crate) enum Found {
    /// One more frame.
    Frame(Packet),
    /// A frame that is cut off or damaged.
    Cut,
    /// Something that is no part of the stream, in words.
    Stray(String),
    Nothing,
}

/// Where a stream of frames stands in the file, and how far it was read.
pub(crate) struct StreamEnd {
    params: AudioCodecParameters,
    /// The stream's first byte in the file, and its length where another stream follows.
    at: u64,
    len: Option<u64>,
    /// Where its last frame ended, if none was lost; no later than that if some were. From `at` on.
    frames_end: u64,
    /// The beginning of the last frame, its length in bytes, and the place of the sample behind it.
    last: Option<(Vec<u8>, u64, i64)>,
    /// Where it ends by its header, in samples.
    end: Option<i64>,
    reached: bool,
}

impl StreamEnd {
    /// Of the stream at `at`, whose frames begin `header` bytes further.
    pub(crate) fn new(at: u64, len: Option<u64>, header: u64, track: &Track) -> StreamEnd {
        let (params, end) = (track.params.clone(), track.end);
        StreamEnd { params, at, len, frames_end: header, last: None, end, reached: false }
    }

    /// Takes account of a frame that the reader found.
    pub(crate) fn saw(&mut self, packet: &Packet) {
        let len = packet.data.len() as u64;
        self.frames_end += len;
        let mut head = self.last.take().map(|(head, ..)| head).unwrap_or_default();
        head.clear();
        // The head of a frame has its number and a checksum in its first 16 bytes.
        head.extend_from_slice(packet.data.get(..16).unwrap_or(&packet.data));
        let next = packet.at.unwrap_or(0).saturating_add_unsigned(packet.duration);
        self.last = Some((head, len, next));
    }

    /// Whether the reader's last frame was seen, so that it must not be asked again.
    pub(crate) fn reached(&self) -> bool {
        self.reached
    }

    /// Looks at what the reader left.
    pub(crate) fn look(&mut self, shared: &SharedMedia) -> io::Result<Found> {
        self.reached = true;
        let mut media = shared.window(self.at, self.len.unwrap_or(u64::MAX))?;
        let Some(at) = self.locate(&mut media)? else { return Ok(Found::Nothing) };
        let next = self.last.as_ref().map_or(0, |(.., next)| *next);
        let mut sync = [0u8; 2];
        let synced = media.read_at(at, &mut sync)? == 2 && sync[0] == 0xff && sync[1] & 0xfe == 0xf8;
        if synced && self.end.is_none_or(|end| next < end) {
            if let Some(packet) = self.frame(&mut media, at, next)? {
                self.saw(&packet);
                return Ok(Found::Frame(packet));
            }
            return Ok(Found::Cut);
        }
        // Where samples are missing, what stands here may be what is left of them.
        Ok(behind(&mut media, at, Chunks::None)?.map_or(Found::Nothing, Found::Stray))
    }

    /// Where the last frame ends.
    fn locate(&mut self, media: &mut Media) -> io::Result<Option<u64>> {
        const BLOCK: usize = 64 << 10;
        let Some((head, len, _)) = &self.last else { return Ok(Some(self.frames_end)) };
        let from = self.frames_end.saturating_sub(*len);
        let mut block = vec![0u8; BLOCK];
        let mut at = from;
        while at < from.saturating_add(MAX_SEARCH) {
            let n = media.read_at(at, &mut block)?;
            let bytes = block.get(..n).unwrap_or_default();
            if let Some(found) = bytes.windows(head.len().max(1)).position(|w| w == head.as_slice()) {
                self.frames_end = at + found as u64 + len;
                return Ok(Some(self.frames_end));
            }
            if n < BLOCK {
                break;
            }
            at += (BLOCK - head.len()) as u64;
        }
        Ok(None)
    }

    /// The frame that begins at `at`, as far as its checksum and its samples go.
    fn frame(&self, media: &mut Media, at: u64, next: i64) -> io::Result<Option<Packet>> {
        let stated = self.params.extra_data.as_deref().and_then(|info| info.get(7..10));
        let most = stated.map_or(0, |b| b.iter().fold(0, |v, &b| v << 8 | u64::from(b)));
        let most = if most == 0 { MAX_FRAME } else { most };
        let mut data = vec![0u8; most.min(media.len().saturating_sub(at)) as usize];
        let n = media.read_at(at, &mut data)?;
        data.truncate(n);
        let Ok(mut decoder) = crate::container::make_decoder(&self.params) else { return Ok(None) };
        let mut samples = |bytes: &[u8]| {
            let packet = PacketRef::new(0, Timestamp::from(next), Duration::from(0u64), bytes);
            guard(|| decoder.decode_ref(&packet).map_or(0, |buffer| buffer.frames())).unwrap_or(0)
        };
        // The checksum of a frame that ends with its own checksum is 0; among so many places where one may end, that happens by
        // chance too, but then the samples do not end there.
        let mut crc = 0u16;
        for (i, &byte) in data.iter().enumerate() {
            crc = crc16(crc, byte);
            if crc != 0 || i < 8 {
                continue;
            }
            let count = samples(data.get(..i - 1).unwrap_or_default());
            if count > 0 {
                data.truncate(i + 1);
                return Ok(Some(Packet {
                    data,
                    at: Some(next),
                    duration: count as u64,
                    ..Packet::default()
                }));
            }
        }
        Ok(None)
    }
}

/// One more byte of the checksum of frames (RFC 9639, 9.3): polynomial 0x8005, from 0 on.
fn crc16(crc: u16, byte: u8) -> u16 {
    (0..8).fold(crc ^ u16::from(byte) << 8, |c, _| if c & 0x8000 != 0 { c << 1 ^ 0x8005 } else { c << 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_frames() {
        // The check value of this checksum (CRC-16/UMTS), and 0 behind it.
        let crc = b"123456789".iter().fold(0, |c, &b| crc16(c, b));
        assert_eq!(crc, 0xfee8);
        assert_eq!([0xfe, 0xe8].iter().fold(crc, |c, &b| crc16(c, b)), 0);
    }
}
