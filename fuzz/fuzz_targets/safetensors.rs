//! A safetensors file of any bytes is refused or gives every tensor with as many values as its shape says.
#![no_main]

use conure_convert::safetensors::SafetensorsFile;
use conure_convert::section::Section;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = SafetensorsFile::open(&Section::of_bytes(bytes.to_vec())) else { return };
    for (i, tensor) in file.tensors().iter().enumerate() {
        assert_eq!(file.read_f32(i).expect("its place was checked").len(), tensor.elements());
    }
});
