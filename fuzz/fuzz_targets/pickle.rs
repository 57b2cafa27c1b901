//! A pickle of any bytes is refused or gives tensors that lie in their storages.
#![no_main]

use conure_convert::pickle::state_dict;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = state_dict(bytes) else { return };
    assert!(!tensors.is_empty());
    for (_, t) in tensors {
        let stored = t.storage.dtype.map_or(t.storage.len / t.dtype.size() as u64, |_| t.storage.len);
        assert!(t.elements() as u64 <= stored.max(1));
        assert!(t.offset.checked_add(t.span() as u64).is_some_and(|end| end <= stored));
        let _ = t.is_contiguous();
    }
});
