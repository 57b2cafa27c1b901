//! Any bytes as Ogg (checksums are not looked at when fuzzing): an error, or bounded and finite samples.
#![no_main]

mod audio_check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    audio_check::check(&[(0, b"OggS\0")], bytes);
});
