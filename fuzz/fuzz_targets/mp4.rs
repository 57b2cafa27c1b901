//! Any bytes as MP4 and QuickTime: an error, or bounded and finite samples.
#![no_main]

mod audio_check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    audio_check::check(&[(4, b"ftyp")], bytes);
});
