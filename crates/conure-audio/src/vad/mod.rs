//! Where somebody speaks: a detector without a model ([`EnergyVad`]), and from probabilities to spans ([`speech`]).
//!
//! Every detector gives one probability of speech per frame of [`FRAME_SECONDS`]; what makes spans, pauses and cuts of them
//! does not know which detector it was.

mod energy;
mod spans;

pub use energy::EnergyVad;
pub use spans::{SpanOptions, longest_pause, padded, speech};

/// Seconds of a detector's frame: 32 ms, which are 512 samples at 16 kHz.
pub const FRAME_SECONDS: f64 = 0.032;

/// Samples of a detector's frame at `sample_rate` Hz.
pub fn frame_samples(sample_rate: u32) -> usize {
    ((f64::from(sample_rate) * FRAME_SECONDS).round() as usize).max(1)
}
