//! A configuration of any text is refused or plain data that can be asked for any key.
#![no_main]

use conure_convert::config::{from_json, from_yaml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for value in [from_yaml(text), from_json(text.as_bytes())].into_iter().flatten() {
        for key in ["encoder.d_model", "a.b.c", "x", ""] {
            let _ = (value.get(key), value.u32(key), value.f64(key), value.bool(key), value.str(key));
            let _ = value.ints(key);
        }
        assert!(!value.to_string().is_empty());
    }
});
