//! Audio as a recogniser needs it: decoding ([`decode`]), folding down to one channel ([`downmix`]), resampling and the
//! log-mel spectrogram.
//!
//! Nothing here panics on input: a file is an error or samples with warnings, whatever is in it.

mod aac_config;
mod container;
pub mod decode;
pub mod downmix;
mod elementary;
pub mod error;
pub mod g711;
mod guard;
pub mod layout;
mod mp4;
mod opus;
mod packets;
pub mod pcm;
mod riff;
mod sniff;
pub mod source;
mod stream;
mod wav;

pub mod log_mel;
mod mel_filterbank;
pub mod resample;
