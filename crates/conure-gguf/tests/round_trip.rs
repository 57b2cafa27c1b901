//! What is written is read again, and what is read is written again byte for byte.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of the test functions use them

use conure_gguf::{GgufFile, GgufWriter, Value, WriteError};
use conure_tensor::DType;

const F32S: [u8; 32] = [7; 32];

fn write(writer: GgufWriter<'_>) -> Result<Vec<u8>, WriteError> {
    let mut bytes = Vec::new();
    let count = writer.write(&mut bytes)?;
    assert_eq!(count, bytes.len() as u64);
    Ok(bytes)
}

fn copy(file: &GgufFile) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).unwrap();
    for info in file.tensors() {
        writer.raw_tensor(&info.name, info.ty, &info.shape, &file.map().bytes()[info.range.clone()]);
    }
    write(writer).unwrap()
}

#[test]
fn files_of_the_reference_writer_come_back_byte_for_byte() {
    let dir = format!("{}/../../tests/data/oracle", env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.meta().str("general.architecture").unwrap(), "parakeet");
        assert!(file.tensors().len() > 20 && file.meta().usize("parakeet.encoder.d_model").unwrap() > 0);
        assert!(copy(&file) == std::fs::read(&path).unwrap(), "{}", path.display());
        seen += 1;
        // Cut at the borders of its sections and tensors, no such file opens.
        let bytes = std::fs::read(&path).unwrap();
        let borders = file.tensors().iter().flat_map(|t| [t.range.start, t.range.end - 1]);
        for len in borders.chain([4, 8, 16, 24]).filter(|&len| len < bytes.len()) {
            assert!(GgufFile::from_bytes(bytes[..len].to_vec()).is_err(), "{} cut at {len}", path.display());
        }
    }
    assert!(seen >= 5, "{seen} files");
}

#[test]
fn every_value_type_round_trips() {
    let mut writer = GgufWriter::new();
    writer
        .meta("u8", u8::MAX)
        .meta("i8", i8::MIN)
        .meta("u16", u16::MAX)
        .meta("i16", i16::MIN)
        .meta("u32", u32::MAX)
        .meta("i32", i32::MIN)
        .meta("u64", u64::MAX)
        .meta("i64", i64::MIN)
        .meta("f32", 1.5f32)
        .meta("f64", -2.5f64)
        .meta("bool", true)
        .meta("text", "größe")
        .meta("empty", "")
        .meta("texts", &["a", "", "▁b"][..])
        .meta("none", Vec::<i32>::new())
        .meta("i32s", vec![1i32, -2, i32::MAX])
        .meta("f32s", &[0.5f32, f32::NEG_INFINITY][..])
        .meta("bools", &[true, false][..])
        .meta("u32", 5u32);
    let bytes = write(writer).unwrap();
    let file = GgufFile::from_bytes(bytes.clone()).unwrap();
    let meta = file.meta();
    let keys: Vec<&str> = meta.keys().collect();
    assert_eq!(keys[..6], ["u8", "i8", "u16", "i16", "u32", "i32"]);
    assert_eq!((meta.len(), file.version(), file.alignment()), (18, 3, 32));
    assert_eq!(meta.get("u8"), Some(Value::U8(255)));
    assert_eq!(meta.get("i8"), Some(Value::I8(-128)));
    assert_eq!(meta.get("u16"), Some(Value::U16(65535)));
    assert_eq!(meta.get("i16"), Some(Value::I16(-32768)));
    assert_eq!(meta.get("u32"), Some(Value::U32(5)));
    assert_eq!(meta.get("i32"), Some(Value::I32(i32::MIN)));
    assert_eq!(meta.get("u64"), Some(Value::U64(u64::MAX)));
    assert_eq!(meta.get("i64"), Some(Value::I64(i64::MIN)));
    assert_eq!(meta.get("f64"), Some(Value::F64(-2.5)));
    assert_eq!(meta.f32("f32").unwrap(), 1.5);
    assert!(meta.bool("bool").unwrap());
    assert_eq!((meta.str("text").unwrap(), meta.str("empty").unwrap()), ("größe", ""));
    assert_eq!(meta.str_array("texts").unwrap(), ["a", "", "▁b"]);
    assert!(meta.i32_array("none").unwrap().is_empty());
    assert_eq!(meta.i32_array("i32s").unwrap(), [1, -2, i32::MAX]);
    assert_eq!(meta.f32_array("f32s").unwrap(), [0.5, f32::NEG_INFINITY]);
    assert_eq!(meta.bool_array("bools").unwrap(), [true, false]);
    assert_eq!(copy(&file), bytes);
}

#[test]
fn getters_take_what_fits_and_name_what_does_not() {
    let mut writer = GgufWriter::new();
    writer.meta("u8", 200u8).meta("i64", 7i64).meta("minus", -1i32).meta("big", 1u64 << 40).meta("yes", true);
    writer
        .meta("two", 2u32)
        .meta("pi", 3.5f64)
        .meta("text", "x".repeat(99))
        .meta("wide", vec![1u64, 1 << 40]);
    let file = GgufFile::from_bytes(write(writer).unwrap()).unwrap();
    let meta = file.meta();
    assert_eq!(
        (meta.u32("u8").unwrap(), meta.i32("i64").unwrap(), meta.usize("big").unwrap()),
        (200, 7, 1 << 40)
    );
    assert_eq!((meta.u32("yes").unwrap(), meta.f32("pi").unwrap(), meta.f32("two").unwrap()), (1, 3.5, 2.0));
    assert_eq!(meta.u32_array("i64").ok(), None);
    assert_eq!(meta.opt_u32("none").unwrap(), None);
    assert_eq!(meta.opt_str("none").unwrap(), None);
    let long = format!("string \"{}\"…", "x".repeat(40));
    let cases = [
        (meta.u32("none").err(), "the metadata key 'none' (an integer from 0 to 4294967295) is missing"),
        (meta.u32("minus").err(), "'minus' is i32 -1, expected an integer from 0 to 4294967295"),
        (meta.opt_u32("minus").err(), "'minus' is i32 -1, expected"),
        (meta.i32("big").err(), "'big' is u64 1099511627776, expected an integer of 32 bits"),
        (meta.bool("two").err(), "'two' is u32 2, expected a bool"),
        (meta.f32("text").err(), long.as_str()),
        (meta.u32("pi").err(), "'pi' is f64 3.5, expected an integer"),
        (meta.str("two").err(), "'two' is u32 2, expected a UTF-8 string"),
        (meta.str_array("text").map(drop).err(), "expected an array of UTF-8 strings"),
        (
            meta.i32_array("wide").map(drop).err(),
            "'wide' is array of 2 u64 with u64 1099511627776 at 1, expected",
        ),
        (file.tensor("w").map(drop).err(), "the tensor 'w' is missing (the file has 0 tensors)"),
    ];
    for (error, expected) in cases {
        let text = error.unwrap().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn tensors_of_every_type_round_trip() {
    let data: Vec<u8> = (0..=255).cycle().take(8192).collect();
    let mut writer = GgufWriter::new();
    for dtype in DType::ALL {
        let size = dtype.bytes_for(512).unwrap();
        writer.tensor(dtype.name(), dtype, &[2, 256], &data[..size]);
    }
    writer.tensor("scalar", DType::F32, &[], &data[..4]).tensor(
        "4-d",
        DType::F32,
        &[2, 1, 3, 4],
        &data[..96],
    );
    let bytes = write(writer).unwrap();
    let file = GgufFile::from_bytes(bytes).unwrap();
    for dtype in DType::ALL {
        let tensor = file.tensor(dtype.name()).unwrap();
        assert_eq!((tensor.dtype, tensor.shape, tensor.name), (dtype, &[2, 256][..], dtype.name()));
        assert_eq!(tensor.data, &data[..dtype.bytes_for(512).unwrap()]);
        assert_eq!(tensor.data.as_ptr().addr() % 8, 0);
    }
    assert_eq!(file.tensor("4-d").unwrap().shape, [2, 1, 3, 4]);
    assert_eq!(file.tensor_info("4-d").unwrap().range.start % 32, 0);
}

#[test]
fn alignment_is_the_key() {
    let mut writer = GgufWriter::new();
    writer.meta("general.alignment", 256u32);
    writer.tensor("a", DType::F32, &[8], &F32S).tensor("b", DType::F32, &[8], &F32S);
    let bytes = write(writer).unwrap();
    assert_eq!(bytes.len() % 256, 0);
    let file = GgufFile::from_bytes(bytes).unwrap();
    assert!(file.tensors().iter().all(|t| t.range.start % 256 == 0));
}

#[test]
fn what_cannot_be_written_is_refused() {
    type Writer = GgufWriter<'static>;
    fn one(change: impl FnOnce(&mut Writer) -> &mut Writer) -> String {
        let mut writer = GgufWriter::new();
        change(&mut writer);
        write(writer).unwrap_err().to_string()
    }
    let long = "n".repeat(64);
    let cases = [
        (one(|w| w.tensor("t", DType::F32, &[9], &F32S)), "'t': 36 bytes expected, 32 given"),
        (
            one(|w| w.tensor("t", DType::Q8_0, &[8], &F32S)),
            "'t': rows of 8 elements are not whole q8_0 blocks",
        ),
        (one(|w| w.tensor("t", DType::F32, &[0], &[])), "'t': shape [0] has"),
        (one(|w| w.tensor("t", DType::F32, &[1; 5], &[])), "'t': shape [1, 1, 1, 1, 1] has"),
        (
            one(|w| w.tensor("t", DType::F32, &[1 << 62, 4], &[])),
            "'t': shape [4611686018427387904, 4] is too",
        ),
        (one(|w| w.tensor(&long, DType::F32, &[8], &F32S)), "its name is longer than 63 bytes"),
        (
            one(|w| w.tensor("t", DType::F32, &[8], &F32S).tensor("t", DType::F32, &[8], &F32S)),
            "'t': a tensor of this name is there already",
        ),
        (one(|w| w.meta("general.alignment", 3u32)), "general.alignment 3"),
        (one(|w| w.meta("general.alignment", "32")), "general.alignment of type string"),
        (
            one(|w| w.tensor_with("t", DType::F32, &[8], |out| Ok(out.write_all(&[1; 31])?))),
            "'t': 32 bytes expected, 31 given",
        ),
        (
            one(|w| w.tensor_with("t", DType::F32, &[8], |_| Err("no such layer".into()))),
            "'t': no such layer",
        ),
    ];
    for (text, expected) in cases {
        assert!(text.contains(expected), "{text} does not say {expected}");
    }
}

/// The names in a directory.
fn names(dir: &std::path::Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("größe 1.gguf");
    let mut writer = GgufWriter::new();
    writer.meta("a", 1u32).tensor_with("t", DType::F32, &[8], |out| {
        // While it is written, there is no file of that name.
        assert!(!path.exists());
        Ok(out.write_all(&F32S)?)
    });
    let count = writer.write_to(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), count);
    assert_eq!(GgufFile::open(&path).unwrap().tensor("t").unwrap().data, F32S);

    // A failure half way leaves the old file and nothing else.
    let mut writer = GgufWriter::new();
    writer.tensor("a", DType::F32, &[8], &F32S).tensor_with("t", DType::F32, &[8], |_| Err("broken".into()));
    let error = writer.write_to(&path).unwrap_err();
    assert!(matches!(error, WriteError::Source { .. }), "{error}");
    assert_eq!(names(dir.path()), ["größe 1.gguf"]);
    assert_eq!(GgufFile::open(&path).unwrap().meta().u32("a").unwrap(), 1);

    // A good one replaces it.
    let mut writer = GgufWriter::new();
    writer.meta("a", 2u32);
    writer.write_to(&path).unwrap();
    assert_eq!(GgufFile::open(&path).unwrap().meta().u32("a").unwrap(), 2);
    assert_eq!(names(dir.path()), ["größe 1.gguf"]);

    let error = GgufWriter::new().write_to(dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
    let error = GgufWriter::new().write_to(dir.path().join("none/m.gguf")).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("none/m.gguf"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut writer = GgufWriter::new();
    writer.tensor("a", DType::F32, &[8], &F32S);
    assert!(matches!(writer.write(&mut full), Err(WriteError::Io(_))));
    // A device is never replaced by a file.
    let error = GgufWriter::new().write_to("/dev/full").unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
    assert!(std::fs::metadata("/dev/full").unwrap().len() == 0);
}
