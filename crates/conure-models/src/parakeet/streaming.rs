//! The geometry of cache-aware streaming: chunks of mel frames, and what of the past each sees.
//!
//! ```text
//!   mel      |0 ........ 8|9 ......... 24|25 ........ 40|      a chunk is 8 (R + 1) frames; the first has 7 fewer, as the
//!   window   |  chunk 0   |                                    convolutions see 8t-7 ..= 8t of a causal encoder frame t
//!                 |0 ... 8|  chunk 1     |                     later chunks see the 9 mel frames before them again, whose
//!                                |16..24 |   chunk 2    |      two encoder frames are dropped
//!   encoder  |   R + 1    |    R + 1     |    R + 1     |
//! ```
//!
//! A chunk of R + 1 encoder frames sees itself and the frames kept before it: what `chunked_limited` attention shows, so that
//! a stream gives the offline result, frame by frame.

use super::ParakeetConfig;
use crate::conformer::SUBSAMPLING_FACTOR;
use crate::error::ModelError;
use conure_ops::AttentionMask;

/// How a model hears a stream. Mel frames are of 10 ms, encoder frames of 80 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamingConfig {
    /// Encoder frames before a chunk that it sees.
    pub left: usize,
    /// Encoder frames of look-ahead R: a chunk has R + 1.
    pub right: usize,
    /// Mel frames of the first chunk.
    pub first_mel: usize,
    /// Mel frames of every later chunk.
    pub mel: usize,
    /// Mel frames before a later chunk that its convolutions see again.
    pub mel_before: usize,
    /// Encoder frames that come of these and are dropped.
    pub drop: usize,
}

impl StreamingConfig {
    /// Encoder frames of a whole chunk.
    pub fn frames(&self) -> usize {
        self.right + 1
    }

    /// Encoder frames that come of `mel` mel frames of a chunk, `first` or later.
    pub fn frames_of(&self, mel: usize, first: bool) -> usize {
        if mel == 0 {
            return 0;
        }
        // Three causal convolutions of kernel 3 and stride 2, padded by 2 before and 1 after.
        let halve = |n: usize| n / 2 + 1;
        let window = if first { mel } else { mel + self.mel_before };
        halve(halve(halve(window))).saturating_sub(if first { 0 } else { self.drop })
    }
}

impl ParakeetConfig {
    /// How the model hears a stream with `right` frames of look-ahead.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) fn streaming(
        &self,
        right: Option<usize>,
        origin: &str,
    ) -> Result<StreamingConfig, ModelError> {
        let never = |why| Err(ModelError::NotStreaming { origin: origin.to_owned(), why });
        if !self.causal_downsampling || !self.conv_causal {
            return never("its convolutions look ahead without end");
        }
        let AttentionMask::ChunkedLimited { left: Some(left), right: trained } = self.mask else {
            return never("its attention has no limit to the left");
        };
        let right = right.unwrap_or(trained);
        // The frames kept must divide into chunks of one more than the look-ahead.
        let fits = |right: usize| left.is_multiple_of(right.saturating_add(1));
        if !fits(right) {
            let allowed: Vec<String> = (0..left).filter(|&r| fits(r)).map(|r| r.to_string()).collect();
            let allowed = allowed.join(", ");
            return Err(ModelError::LookAhead { origin: origin.to_owned(), right, allowed });
        }
        Ok(StreamingConfig {
            left,
            right,
            first_mel: 1 + SUBSAMPLING_FACTOR * right,
            mel: SUBSAMPLING_FACTOR * (right + 1),
            mel_before: SUBSAMPLING_FACTOR + 1,
            drop: 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_give_as_many_frames_as_nemo_says() {
        // NeMo's [70, R]: first and later chunks of mel frames, encoder frames of each.
        for (right, first_mel, mel) in [(0, 1, 8), (1, 9, 16), (6, 49, 56), (13, 105, 112)] {
            let s = StreamingConfig { left: 70, right, first_mel, mel, mel_before: 9, drop: 2 };
            assert_eq!(
                (s.frames_of(first_mel, true), s.frames_of(mel, false)),
                (right + 1, right + 1),
                "{right}"
            );
            assert_eq!(s.frames_of(0, false), 0);
        }
    }
}
