//! A tar archive of any bytes is refused or lists members inside it, each once, with names that stay in it.
#![no_main]

use conure_convert::section::Section;
use conure_convert::tar::members;
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

fuzz_target!(|bytes: &[u8]| {
    let whole = Section::of_bytes(bytes.to_vec());
    let Ok(list) = members(&whole) else { return };
    let mut seen = HashSet::new();
    for m in list {
        assert!(whole.sub(m.offset, m.size).is_some());
        assert!(!m.name.starts_with('/') && !m.name.contains('\\') && m.name.split('/').all(|p| p != ".."));
        assert!(seen.insert(m.name));
    }
});
