//! An ONNX file of any bytes is refused, or the values of every weight lie in it, as many as its shape says.
#![no_main]

use conure_convert::onnx::initializers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = initializers(bytes) else { return };
    for tensor in tensors {
        if let Some(range) = tensor.values {
            assert_eq!(bytes[range].len(), 4 * tensor.shape.iter().product::<usize>());
        }
    }
});
