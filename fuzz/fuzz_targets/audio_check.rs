//! What must hold of any bytes that are given as audio: a clear error, or bounded, finite samples.

use conure_audio::decode::{DecodeOptions, decode_all};
use conure_audio::source::AudioSource;

/// `magic` stands in front, so that the bytes are taken for the format that is meant.
pub fn check(magic: &[(usize, &[u8])], bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    for (at, mark) in magic {
        if let Some(place) = bytes.get_mut(*at..at + mark.len()) {
            place.copy_from_slice(mark);
        }
    }
    let options = DecodeOptions { max_seconds: 30.0, ..DecodeOptions::default() };
    match decode_all(AudioSource::bytes("input", bytes.as_slice()), &options) {
        Ok(audio) => {
            assert!(audio.samples.iter().all(|s| s.is_finite()));
            assert!(audio.sample_rate > 0 && audio.samples.len() % audio.channels() == 0);
            assert!(audio.duration() <= 30.0);
            // By pipe it is the same.
            let piped = AudioSource::reader("input", std::io::Cursor::new(bytes));
            let piped = decode_all(piped, &options).expect("a pipe gives what the bytes give");
            assert!(piped.samples == audio.samples);
        }
        Err(e) => assert!(e.to_string().starts_with("input: ") && !e.code().is_empty()),
    }
}
