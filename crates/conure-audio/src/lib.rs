//! conure-audio

pub mod log_mel;
mod mel_filterbank;
