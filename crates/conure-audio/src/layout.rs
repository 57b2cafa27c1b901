//! Which loudspeaker each channel belongs to.

use std::fmt;

/// The place of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Speaker {
    /// Front left.
    FrontLeft,
    /// Front right.
    FrontRight,
    /// Front centre; the one channel of mono.
    FrontCenter,
    /// Low-frequency effects.
    Lfe,
    /// Back left.
    BackLeft,
    /// Back right.
    BackRight,
    /// Between front left and front centre.
    FrontLeftOfCenter,
    /// Between front right and front centre.
    FrontRightOfCenter,
    /// Back centre.
    BackCenter,
    /// Side left.
    SideLeft,
    /// Side right.
    SideRight,
    /// Any overhead channel.
    Top,
    /// A channel without a stated place.
    Unknown,
}

use Speaker::*;

/// The first eleven bits of `dwChannelMask` of WAVEFORMATEXTENSIBLE, in order; the seven above are overhead.
const MASK_ORDER: [Speaker; 11] = [
    FrontLeft,
    FrontRight,
    FrontCenter,
    Lfe,
    BackLeft,
    BackRight,
    FrontLeftOfCenter,
    FrontRightOfCenter,
    BackCenter,
    SideLeft,
    SideRight,
];

/// The channels of a stream, in the order of the interleaved samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLayout {
    speakers: Vec<Speaker>,
}

impl ChannelLayout {
    /// The most channels that are read: sixth-order Ambisonics has 49, the largest mixing desks 64.
    pub const MAX_CHANNELS: usize = 256;

    /// One channel.
    pub fn mono() -> ChannelLayout {
        ChannelLayout { speakers: vec![FrontCenter] }
    }

    /// Left and right.
    pub fn stereo() -> ChannelLayout {
        ChannelLayout { speakers: vec![FrontLeft, FrontRight] }
    }

    /// The usual layout of `channels` channels where a file states none: the order of WAVE
    /// (5.1 is L R C LFE Ls Rs), and no places above eight channels.
    pub fn default_for(channels: usize) -> ChannelLayout {
        let speakers = match channels {
            1 => vec![FrontCenter],
            2 => vec![FrontLeft, FrontRight],
            3 => vec![FrontLeft, FrontRight, FrontCenter],
            4 => vec![FrontLeft, FrontRight, BackLeft, BackRight],
            5 => vec![FrontLeft, FrontRight, FrontCenter, BackLeft, BackRight],
            6 => vec![FrontLeft, FrontRight, FrontCenter, Lfe, BackLeft, BackRight],
            7 => vec![FrontLeft, FrontRight, FrontCenter, Lfe, BackCenter, SideLeft, SideRight],
            8 => vec![FrontLeft, FrontRight, FrontCenter, Lfe, BackLeft, BackRight, SideLeft, SideRight],
            n => vec![Unknown; n],
        };
        ChannelLayout { speakers }
    }

    /// `channels` channels without places.
    pub fn discrete(channels: usize) -> ChannelLayout {
        ChannelLayout { speakers: vec![Unknown; channels] }
    }

    /// From the channel mask of a WAV or W64 header. A mask of 0 or one that names too few channels leaves the
    /// rest without a place.
    pub fn from_wave_mask(mask: u32, channels: usize) -> ChannelLayout {
        if mask == 0 {
            return ChannelLayout::default_for(channels);
        }
        let mut speakers: Vec<Speaker> = (0..18usize)
            .filter(|bit| mask >> bit & 1 == 1)
            .map(|bit| MASK_ORDER.get(bit).copied().unwrap_or(Top))
            .take(channels)
            .collect();
        speakers.resize(channels, Unknown);
        // A single channel is mono whatever place the mask gives it.
        if channels == 1 { ChannelLayout::mono() } else { ChannelLayout { speakers } }
    }

    /// From explicit places.
    pub fn from_speakers(speakers: Vec<Speaker>) -> ChannelLayout {
        ChannelLayout { speakers }
    }

    /// How many channels.
    pub fn channels(&self) -> usize {
        self.speakers.len()
    }

    /// The places, in the order of the interleaved samples.
    pub fn speakers(&self) -> &[Speaker] {
        &self.speakers
    }
}

impl fmt::Display for ChannelLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |n: usize| self.speakers == ChannelLayout::default_for(n).speakers;
        match self.speakers.len() {
            1 => write!(f, "mono"),
            2 => write!(f, "stereo"),
            6 if known(6) => write!(f, "5.1"),
            8 if known(8) => write!(f, "7.1"),
            n => write!(f, "{n} channels"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wave_masks() {
        for (mask, channels, expected) in [
            (0x3, 2, vec![FrontLeft, FrontRight]),
            (0x4, 1, vec![FrontCenter]),
            (0x1, 1, vec![FrontCenter]),
            (0x3f, 6, vec![FrontLeft, FrontRight, FrontCenter, Lfe, BackLeft, BackRight]),
            (0x60f, 6, vec![FrontLeft, FrontRight, FrontCenter, Lfe, SideLeft, SideRight]),
            (0x3, 3, vec![FrontLeft, FrontRight, Unknown]),
            (0, 3, vec![FrontLeft, FrontRight, FrontCenter]),
            (0x3ffff, 1, vec![FrontCenter]),
            (0xffff_ffff, 2, vec![FrontLeft, FrontRight]),
        ] {
            assert_eq!(
                ChannelLayout::from_wave_mask(mask, channels).speakers(),
                expected,
                "{mask:#x} {channels}"
            );
        }
    }
}
