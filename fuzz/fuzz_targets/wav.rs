//! Any bytes as WAV and its kin: an error, or bounded and finite samples.
#![no_main]

mod audio_check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Other kinds of RIFF, Wave64 and AU begin otherwise.
    let riff = bytes.first().is_some_and(|b| b.is_ascii_alphabetic());
    audio_check::check(if riff { &[] } else { &[(0, b"RIFF"), (8, b"WAVE")] }, bytes);
});
