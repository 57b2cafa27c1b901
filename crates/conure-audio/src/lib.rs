//! Audio as a recogniser needs it: decoding ([`decode`]), folding down to one channel ([`downmix`]), resampling and the
//! log-mel spectrogram; and where in it somebody speaks ([`vad`]).
//!
//! Nothing here panics on input: a file is an error or samples with warnings, whatever is in it.

mod aac_config;
mod aiff;
mod alac;
pub mod balance;
mod behind;
mod caf;
mod chunks;
mod conform;
mod container;
pub mod decode;
pub mod downmix;
mod ebml;
mod elementary;
pub mod error;
mod fixed_packets;
mod flac;
mod flac_end;
pub mod g711;
mod guard;
mod ima4;
pub mod layout;
mod lookahead;
mod matroska;
mod matroska_codecs;
mod matroska_ids;
mod matroska_lacing;
mod mp4;
mod mp4_entry;
mod mp4_samples;
mod ogg;
mod ogg_page;
mod opus;
mod own_codec;
mod packets;
pub mod pcm;
mod riff;
mod sniff;
pub mod source;
mod stream;
mod track;
pub mod vad;
mod vorbis_headers;
mod wav;
mod wav_adpcm;

pub mod log_mel;
mod mel_filterbank;
pub mod resample;
