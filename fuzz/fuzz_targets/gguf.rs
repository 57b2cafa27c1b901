//! A GGUF file of any bytes is refused or can be read to the end, and what is read can be written and read again.
#![no_main]

use conure_gguf::{GgufFile, GgufWriter, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec()) else { return };
    let meta = file.meta();
    for (key, value) in meta.iter() {
        visit(value);
        let _ = (meta.u32(key), meta.i32(key), meta.f32(key), meta.bool(key), meta.str(key));
        let _ = (meta.str_array(key), meta.i32_array(key), meta.f32_array(key), meta.bool_array(key));
    }
    for info in file.tensors() {
        let Ok(tensor) = file.tensor(&info.name) else { continue };
        let count = tensor.shape.iter().product::<usize>();
        let mut values = vec![0.0; count];
        let _ = conure_tensor::quant::decode(tensor.dtype, tensor.data, &mut values);
    }
    write_again(&file);
});

fn visit(value: Value<'_>) {
    assert!(!value.to_string().is_empty());
    if let Some(array) = value.as_array() {
        assert_eq!(array.iter().map(visit).count(), array.len());
    }
}

/// Names of 64 bytes and more are read, but not written; everything else survives.
fn write_again(file: &GgufFile) {
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).expect("values were read before");
    for info in file.tensors() {
        writer.raw_tensor(&info.name, info.ty, &info.shape, &file.map().bytes()[info.range.clone()]);
    }
    let mut written = Vec::new();
    // A hostile alignment would make the copy large.
    if file.alignment() > 4096 || writer.write(&mut written).is_err() {
        return;
    }
    let again = GgufFile::from_bytes(written).expect("what was written can be read");
    assert!(again.meta().keys().eq(file.meta().keys()));
    assert!(
        again.meta().iter().map(|(_, v)| v.to_string()).eq(file.meta().iter().map(|(_, v)| v.to_string()))
    );
    for (a, b) in again.tensors().iter().zip(file.tensors()) {
        assert_eq!((&a.name, a.ty, &a.shape), (&b.name, b.ty, &b.shape));
        assert_eq!(again.map().bytes()[a.range.clone()], file.map().bytes()[b.range.clone()]);
    }
}
