//! IMA ADPCM as QuickTime packs it ("ima4" in AIFF-C, CAF and MOV): 64 samples in 34 bytes for each channel in turn.
//!
//! A block begins with the predictor's upper nine bits and the step index. A decoder that has the block before knows the
//! predictor to all sixteen bits; it goes on from its own value where the block's agrees with it, as Apple's does.

use symphonia::core::audio::{AudioBuffer, AudioMut, AudioSpec};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_ADPCM_IMA_QT;
use symphonia::core::codecs::registry::SupportedAudioCodec;
use symphonia::core::errors::{Error, Result};

use crate::own_codec::OwnCodec;

/// Bytes and samples of a block of one channel.
pub(crate) const BLOCK_BYTES: usize = 34;
pub(crate) const BLOCK_FRAMES: usize = 64;
/// Blocks that are decoded at once at most.
const MAX_BLOCKS: usize = 512;

const INFO: CodecInfo = CodecInfo { short_name: "ima4", long_name: "IMA ADPCM (QuickTime)", profiles: &[] };

/// Step sizes and index changes of IMA ADPCM (IMA Digital Audio Focus and Technical Working Groups, 1992).
const STEPS: [i32; 89] = [
    7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60, 66, 73, 80, 88,
    97, 107, 118, 130, 143, 157, 173, 190, 209, 230, 253, 279, 307, 337, 371, 408, 449, 494, 544, 598, 658,
    724, 796, 876, 963, 1060, 1166, 1282, 1411, 1552, 1707, 1878, 2066, 2272, 2499, 2749, 3024, 3327, 3660,
    4026, 4428, 4871, 5358, 5894, 6484, 7132, 7845, 8630, 9493, 10442, 11487, 12635, 13899, 15289, 16818,
    18500, 20350, 22385, 24623, 27086, 29794, 32767,
];
const INDEX: [i32; 8] = [-1, -1, -1, -1, 2, 4, 6, 8];

#[derive(Debug, Default, Clone, Copy)]
struct Channel {
    predictor: i32,
    index: i32,
}

impl Channel {
    fn begin(&mut self, head: u16) {
        let predictor = i32::from((head & 0xff80) as i16);
        let index = i32::from(head & 0x7f).min(88);
        if self.index != index || (self.predictor - predictor).abs() > 0x7f {
            *self = Channel { predictor, index };
        }
    }

    fn next(&mut self, nibble: u8) -> i16 {
        let step = STEPS.get(self.index as usize).copied().unwrap_or(7);
        let mut difference = step >> 3;
        for (bit, shift) in [(4u8, 0u32), (2, 1), (1, 2)] {
            if nibble & bit != 0 {
                difference += step >> shift;
            }
        }
        let signed = if nibble & 8 != 0 { -difference } else { difference };
        self.predictor = (self.predictor + signed).clamp(-32_768, 32_767);
        self.index = (self.index + INDEX[usize::from(nibble & 7)]).clamp(0, 88);
        self.predictor as i16
    }
}

/// Decodes packets of one or more blocks: the state of each channel.
pub(crate) struct Ima4(Vec<Channel>);

impl OwnCodec for Ima4 {
    const SUPPORTED: &'static [SupportedAudioCodec] =
        &[SupportedAudioCodec { id: CODEC_ID_ADPCM_IMA_QT, info: INFO }];

    fn new(params: &AudioCodecParameters) -> Result<(Ima4, AudioSpec, usize)> {
        let (Some(rate), Some(channels)) = (params.sample_rate, params.channels.clone()) else {
            return Err(Error::Unsupported("ima4: rate and channels are needed"));
        };
        let count = channels.count();
        if count == 0 || count > crate::layout::ChannelLayout::MAX_CHANNELS {
            return Err(Error::Unsupported("ima4: too many channels"));
        }
        let most = BLOCK_FRAMES * MAX_BLOCKS;
        Ok((Ima4(vec![Channel::default(); count]), AudioSpec::new(rate, channels), most))
    }

    fn reset(&mut self) {
        self.0.fill(Channel::default());
    }

    fn decode(&mut self, data: &[u8], buffer: &mut AudioBuffer<f32>) -> Result<()> {
        let set = BLOCK_BYTES * self.0.len();
        let blocks = data.len() / set;
        if blocks == 0 || blocks > MAX_BLOCKS {
            return Err(Error::DecodeError("ima4: packet of impossible length"));
        }
        buffer.render_uninit(Some(blocks * BLOCK_FRAMES));
        for (i, state) in self.0.iter_mut().enumerate() {
            let Some(plane) = buffer.plane_mut(i) else { continue };
            let own = data.chunks_exact(set).filter_map(|s| s.get(i * BLOCK_BYTES..(i + 1) * BLOCK_BYTES));
            for (out, block) in plane.chunks_exact_mut(BLOCK_FRAMES).zip(own) {
                state.begin(u16::from_be_bytes([block[0], block[1]]));
                for (pair, &byte) in out.chunks_exact_mut(2).zip(&block[2..]) {
                    pair[0] = f32::from(state.next(byte & 0x0f)) / 32_768.0;
                    pair[1] = f32::from(state.next(byte >> 4)) / 32_768.0;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_continuation() {
        let mut c = Channel::default();
        c.begin(0x0100 | 20);
        assert_eq!((c.predictor, c.index), (0x0100, 20));
        // Index 20 is a step of 50: nibble 7 adds 6 + 50 + 25 + 12.
        assert_eq!(c.next(7), 0x0100 + 93);
        assert_eq!(c.index, 28);
        // A block that agrees in its nine bits and the index is gone on from.
        let before = c.predictor;
        c.begin((before as u16 & 0xff80) | 28);
        assert_eq!(c.predictor, before);
        c.begin((before as u16 & 0xff80) | 27);
        assert_ne!(c.predictor, before);
        // Nothing leaves its bounds.
        for _ in 0..1000 {
            c.next(7);
        }
        assert_eq!((c.predictor, c.index), (32_767, 88));
    }
}
