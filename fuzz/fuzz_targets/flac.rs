//! Any bytes as FLAC: an error, or bounded and finite samples.
#![no_main]

mod audio_check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    audio_check::check(&[(0, b"fLaC")], bytes);
});
