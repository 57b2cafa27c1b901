//! A PyTorch checkpoint of any bytes is refused or gives every tensor with as many values as its shape says, or an
//! error for it.
#![no_main]

use conure_convert::section::Section;
use conure_convert::torch::TorchFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = TorchFile::open(&Section::of_bytes(bytes.to_vec())) else { return };
    for (i, tensor) in file.tensors().iter().enumerate() {
        if let Ok(values) = file.read_f32(i) {
            assert_eq!(values.len(), tensor.elements());
        }
    }
});
