//! Damaged and hostile files: each is refused with an error that names what is wrong, fast, and without taking the
//! memory that numbers in the file ask for. Rows follow the usual attacks on GGUF readers.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of the test functions use them

use conure_gguf::{GgufError, GgufFile};
use std::time::{Duration, Instant};

const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A file written field by field, so that any field can be wrong.
#[derive(Clone)]
struct Raw {
    version: u32,
    counts: Option<(u64, u64)>,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    alignment: usize,
    data: usize,
}

fn raw() -> Raw {
    Raw { version: 3, counts: None, keys: vec![], tensors: vec![], alignment: 32, data: 0 }
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

impl Raw {
    fn counts(mut self, tensors: u64, keys: u64) -> Raw {
        self.counts = Some((tensors, keys));
        self
    }

    /// A key with a value given as bytes.
    fn key(mut self, key: &str, ty: u32, value: &[u8]) -> Raw {
        self.keys.push([&string(key.as_bytes())[..], &ty.to_le_bytes(), value].concat());
        self
    }

    fn u32(self, key: &str, value: u32) -> Raw {
        self.key(key, U32, &value.to_le_bytes())
    }

    /// A tensor's entry; lengths as in the file, fastest first.
    fn tensor(self, name: &str, lengths: &[u64], ty: u32, offset: u64) -> Raw {
        self.tensor_dims(name, lengths.len() as u32, lengths, ty, offset)
    }

    fn tensor_dims(mut self, name: &str, dims: u32, lengths: &[u64], ty: u32, offset: u64) -> Raw {
        let mut entry = string(name.as_bytes());
        entry.extend(dims.to_le_bytes());
        entry.extend(lengths.iter().flat_map(|n| n.to_le_bytes()));
        entry.extend(ty.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    /// The number of bytes of tensor data.
    fn data(mut self, bytes: usize) -> Raw {
        self.data = bytes;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = self.counts.unwrap_or((self.tensors.len() as u64, self.keys.len() as u64));
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(counts.0.to_le_bytes());
        out.extend(counts.1.to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|part| out.extend(part));
        out.resize(out.len().next_multiple_of(self.alignment) + self.data, 0);
        out
    }
}

fn array(item: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&item.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// Arrays in each other, the innermost one empty.
fn nested(depth: usize) -> Vec<u8> {
    let mut value = Vec::new();
    for _ in 1..depth {
        value.extend(array(ARRAY, 1, &[]));
    }
    value.extend(array(U32, 0, &[]));
    value
}

/// Opens bytes and gives the error's text, or panics; checks that it took less than a second.
fn refusal(what: &str, bytes: Vec<u8>) -> String {
    let start = Instant::now();
    let result = GgufFile::from_bytes(bytes);
    assert!(start.elapsed() < Duration::from_secs(1), "{what} took {:?}", start.elapsed());
    match result {
        Ok(file) => panic!("{what} was opened: {file:?}"),
        Err(error) => error.to_string(),
    }
}

fn check(cases: Vec<(&str, Raw, &str)>) {
    for (what, raw, expected) in cases {
        let text = refusal(what, raw.bytes());
        assert!(text.contains(expected), "{what}: {text:?} does not say {expected:?}");
        assert!(text.starts_with("GGUF data in memory: "), "{text}");
    }
}

#[test]
fn counts_in_the_header() {
    let whole = raw().u32("a", 1).tensor("t", &[8], 0, 0).data(32);
    check(vec![
        ("2^63 tensors", whole.clone().counts(1 << 63, 1), "9223372036854775808 tensors"),
        ("2^32 tensors", whole.clone().counts(1 << 32, 1), "4294967296 tensors"),
        ("2^64-1 keys", whole.clone().counts(1, u64::MAX), "18446744073709551615 metadata keys"),
        ("2^32 keys", whole.clone().counts(1, 1 << 32), "4294967296 metadata keys"),
        ("a tensor too many", whole.clone().counts(2, 1), "tensor number 1 has a name that is empty"),
        (
            "2^20 tensors in a large file",
            whole.clone().counts(1 << 20, 1).data(64 << 20),
            "the most that are read",
        ),
        (
            "2^20 keys in a large file",
            whole.clone().counts(1, 1 << 20).data(64 << 20),
            "the most that are read",
        ),
        // The key's bytes are then read as a tensor's entry.
        ("no keys", whole.clone().counts(1, 0), "tensor 'a' has"),
    ]);
    assert!(GgufFile::from_bytes(whole.bytes()).is_ok());
    let empty = GgufFile::from_bytes(raw().bytes()).unwrap();
    assert!(empty.meta().is_empty() && empty.tensors().is_empty());
}

#[test]
fn lengths_of_strings_and_arrays() {
    let long = |len: u64| [&len.to_le_bytes()[..], b"abc"].concat();
    let mut key_too_long = raw();
    key_too_long.keys.push([&long(1 << 40)[..], &[0; 20]].concat());
    let mut key_endless = raw();
    key_endless.keys.push([&long(u64::MAX)[..], &[0; 20]].concat());
    let mut name_too_long = raw();
    name_too_long.tensors.push([&long(u64::MAX - 7)[..], &[0; 40]].concat());
    let inside = "inside the value of the metadata key 'k'";
    check(vec![
        ("key beyond the file", key_too_long, "inside the name of metadata key number 0"),
        ("key of 2^64-1", key_endless, "18446744073709551615 bytes expected"),
        ("tensor name of 2^64-8", name_too_long, "inside the name of tensor number 0"),
        ("key of 600 bytes", raw().u32(&"k".repeat(600), 1), "600 bytes long"),
        ("tensor name of 300 bytes", raw().tensor(&"t".repeat(300), &[8], 0, 0).data(32), "300 bytes long"),
        ("string beyond the file", raw().key("k", STRING, &long(1000)), inside),
        ("string of 2^64-1", raw().key("k", STRING, &long(u64::MAX)), inside),
        ("u8s beyond the file", raw().key("k", ARRAY, &array(0, 1 << 33, &[0; 100])), inside),
        ("u32s of 2^62, wraps to 0", raw().key("k", ARRAY, &array(U32, 1 << 62, &[0; 100])), inside),
        ("f64s of 2^61 + 1, wraps to 8", raw().key("k", ARRAY, &array(12, (1 << 61) + 1, &[0; 100])), inside),
        ("bools of 2^64-1", raw().key("k", ARRAY, &array(7, u64::MAX, &[0; 100])), inside),
        ("strings of 2^64-1", raw().key("k", ARRAY, &array(STRING, u64::MAX, &[0; 100])), inside),
        ("more strings than bytes", raw().key("k", ARRAY, &array(STRING, 20, &[0; 100])), inside),
        ("arrays of 2^60", raw().key("k", ARRAY, &array(ARRAY, 1 << 60, &[0; 100])), inside),
        (
            "long last string",
            raw().key("k", ARRAY, &array(STRING, 2, &[0, 0, 0, 0, 0, 0, 0, 0, 255])),
            inside,
        ),
    ]);
}

#[test]
fn values_that_cannot_be() {
    check(vec![
        ("arrays 10000 deep", raw().key("k", ARRAY, &nested(10_000)), "'k' nests arrays more than 4 deep"),
        ("arrays 5 deep", raw().key("k", ARRAY, &nested(5)), "'k' nests arrays more than 4 deep"),
        ("value type 13", raw().key("k", 13, &[0; 8]), "'k' has the unknown value type 13"),
        ("value type 2^32-1", raw().key("k", u32::MAX, &[0; 8]), "'k' has the unknown value type 4294967295"),
        ("array of type 99", raw().key("k", ARRAY, &array(99, 0, &[])), "'k' has the unknown value type 99"),
        ("bool of 2", raw().key("k", 7, &[2]), "'k' holds a bool of value 2"),
        (
            "array with a bool of 255",
            raw().key("k", ARRAY, &array(7, 2, &[1, 255])),
            "'k' holds a bool of value 255",
        ),
        (
            "key that is no text",
            raw().key("k", U32, &[0; 4]).not_text(),
            "metadata key number 0 has a name that is not",
        ),
        ("key twice", raw().u32("k", 1).u32("j", 1).u32("k", 2), "'k' occurs twice"),
    ]);
    let fine = GgufFile::from_bytes(raw().key("k", ARRAY, &nested(4)).bytes()).unwrap();
    assert_eq!(fine.meta().array("k").unwrap().len(), 1);
}

impl Raw {
    /// Breaks the text of the first key.
    fn not_text(mut self) -> Raw {
        self.keys[0][8] = 0xff;
        self
    }
}

#[test]
fn alignments() {
    let with =
        |ty: u32, value: &[u8]| raw().key("general.alignment", ty, value).tensor("t", &[8], 0, 0).data(32);
    check(vec![
        ("0", with(U32, &[0; 4]), "general.alignment is u32 0"),
        ("3", with(U32, &3u32.to_le_bytes()), "general.alignment is u32 3"),
        ("4", with(U32, &4u32.to_le_bytes()), "general.alignment is u32 4"),
        ("33", with(U32, &33u32.to_le_bytes()), "general.alignment is u32 33"),
        ("2^31", with(U32, &(1u32 << 31).to_le_bytes()), "tensor 't' takes 32 bytes from byte 2147483648 on"),
        ("-32", with(5, &(-32i32).to_le_bytes()), "general.alignment is i32 -32"),
        ("2^40", with(10, &(1u64 << 40).to_le_bytes()), "general.alignment is u64 1099511627776"),
        ("a text", with(STRING, &string(b"32")), "general.alignment is string \"32\""),
        ("a float", with(6, &32f32.to_le_bytes()), "general.alignment is f32 32"),
        (
            "an array",
            with(ARRAY, &array(U32, 1, &32u32.to_le_bytes())),
            "general.alignment is array of 1 u32",
        ),
    ]);
    for alignment in [8usize, 64, 4096] {
        let mut raw = with(U32, &(alignment as u32).to_le_bytes());
        raw.alignment = alignment;
        let file = GgufFile::from_bytes(raw.bytes()).unwrap();
        assert_eq!(file.alignment(), alignment);
        assert_eq!(file.tensors()[0].range.start % alignment, 0);
    }
}

#[test]
fn shapes_and_types() {
    let t = |lengths: &[u64], ty: u32| raw().tensor("t", lengths, ty, 0).data(4096);
    let dims = |dims: u32| raw().tensor_dims("t", dims, &[1; 5], 0, 0).data(4096);
    check(vec![
        ("5 axes", dims(5), "tensor 't' has 5 dimensions"),
        ("255 axes", dims(255), "tensor 't' has 255 dimensions"),
        ("2^32-1 axes", dims(u32::MAX), "tensor 't' has 4294967295 dimensions"),
        ("an empty axis", t(&[8, 0], 0), "tensor 't' has an axis of length 0"),
        ("an empty axis hides a product", t(&[1 << 40, 1 << 40, 0], 0), "axis of length 0"),
        ("product 2^64 wraps to 0", t(&[1 << 32, 1 << 32], 0), "has a size that no memory holds"),
        ("product wraps to small", t(&[(1 << 42) + 1, 1 << 22], 0), "has a size that no memory holds"),
        ("bytes wrap to 0", t(&[1 << 62], 0), "has a size that no memory holds"),
        ("bytes wrap to small", t(&[(1 << 62) + 8], 0), "has a size that no memory holds"),
        ("blocks' bytes wrap", t(&[1 << 32, (1 << 32) - 1], 8), "has a size that no memory holds"),
        ("length 2^64-1", t(&[u64::MAX], 0), "has a size that no memory holds"),
        ("larger than the file", t(&[1 << 40], 0), "takes 4398046511104 bytes from byte"),
        ("row of 33", t(&[33, 2], 8), "has rows of 33 elements, which are not whole q8_0 blocks of 32"),
        ("row of 128", t(&[128, 2], 12), "has rows of 128 elements, which are not whole q4_k blocks of 256"),
        ("a scalar in blocks", t(&[], 2), "has rows of 1 elements, which are not whole q4_0"),
        ("type 4", t(&[8], 4), "tensor 't' has the unknown type number 4"),
        ("type 2^32-1", t(&[8], u32::MAX), "tensor 't' has the unknown type number 4294967295"),
    ]);
    let scalar = GgufFile::from_bytes(t(&[], 0).bytes()).unwrap();
    let tensor = scalar.tensor("t").unwrap();
    assert_eq!((tensor.shape, tensor.data.len()), (&[][..], 4));
    // A type that is known but not computed with opens, and is refused when asked for.
    let other = GgufFile::from_bytes(t(&[256, 2], 10).bytes()).unwrap();
    assert_eq!(other.tensors()[0].range.len(), 168);
    let error = other.tensor("t").unwrap_err().to_string();
    assert!(error.contains("tensor 't' is of type q2_k, which Conure does not compute with"), "{error}");
}

#[test]
fn offsets() {
    let two =
        |first: u64, second: u64| raw().tensor("a", &[8, 2], 0, first).tensor("b", &[8], 0, second).data(128);
    check(vec![
        ("odd", two(0, 65), "tensor 'b' starts at offset 65, which is not a multiple of the alignment 32"),
        ("half", two(16, 64), "tensor 'a' starts at offset 16"),
        ("past the end", two(0, 128), "tensor 'b' takes 32 bytes from byte"),
        ("across the end", two(96, 0), "tensor 'a' takes 64 bytes from byte"),
        ("far past the end", two(0, 1 << 50), "tensor 'b' takes 32 bytes from byte"),
        ("wraps", two(0, u64::MAX - 31), "tensor 'b' takes 32 bytes from byte 18446744073709551"),
        ("the same place", two(0, 0), "shares bytes with tensor"),
        ("inside another", two(0, 32), "tensor 'b' shares bytes with tensor 'a'"),
        (
            "a name twice",
            raw().tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32).data(64),
            "tensor 'a' occurs twice",
        ),
    ]);
    // Any order and gaps are fine.
    let file = GgufFile::from_bytes(two(64, 0).bytes()).unwrap();
    assert!(file.tensor("a").unwrap().data.len() == 64 && file.tensor("b").unwrap().data.len() == 32);
}

#[test]
fn versions_and_other_files() {
    let version = |version: u32| Raw { version, ..raw().u32("a", 1) };
    check(vec![
        ("version 0", version(0), "GGUF version 0 is not supported"),
        ("version 1", version(1), "GGUF version 1 is not supported (Conure reads 2 and 3)"),
        ("version 4", version(4), "GGUF version 4 is not supported"),
        ("version 99", version(99), "GGUF version 99 is not supported"),
        ("big-endian 3", version(3 << 24), "big-endian"),
        ("big-endian 1", version(1 << 24), "big-endian"),
        ("nonsense", version(0x1234_5678), "GGUF version 305419896 is not supported"),
    ]);
    assert_eq!(GgufFile::from_bytes(version(2).bytes()).unwrap().version(), 2);
    for (bytes, expected) in [
        (&b""[..], "this is not a GGUF file: it is empty"),
        (b"<!DOCTYPE html><html>", "a web page (HTML)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"gguf\x03\0\0\0", "starts with the bytes [67, 67, 75, 66"),
    ] {
        let text = refusal("other file", bytes.to_vec());
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn paths_that_are_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases =
        vec![(dir.path().to_owned(), "is a directory"), (dir.path().join("none.gguf"), "cannot open")];
    #[cfg(unix)]
    {
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        cases.extend([(pipe, "is a pipe"), ("/dev/zero".into(), "is a device")]);
    }
    for (path, expected) in cases {
        let error = GgufFile::open(&path).unwrap_err();
        assert!(matches!(error, GgufError::Map(_)));
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(&path.display().to_string()), "{text}");
    }
}

/// A small file with everything in it.
fn sample() -> Vec<u8> {
    raw()
        .key("general.architecture", STRING, &string(b"parakeet"))
        .u32("n", 7)
        .key("flag", 7, &[1])
        .key("pieces", ARRAY, &array(STRING, 2, &[string(b"a"), string("▁b".as_bytes())].concat()))
        .key(
            "deep",
            ARRAY,
            &array(ARRAY, 2, &[array(0, 3, &[1, 2, 3]), array(STRING, 1, &string(b"x"))].concat()),
        )
        .tensor("w", &[32, 2], 8, 0)
        .tensor("b", &[3], 0, 96)
        .data(96 + 12)
        .bytes()
}

#[test]
fn a_file_cut_anywhere() {
    let whole = sample();
    let file = GgufFile::from_bytes(whole.clone()).unwrap();
    assert_eq!(file.tensors().len(), 2);
    for len in 0..whole.len() {
        let text = refusal("a cut file", whole[..len].to_vec());
        let known = ["incomplete", "not downloaded completely", "is empty", "more than"];
        assert!(known.iter().any(|known| text.contains(known)), "cut at {len}: {text}");
    }
}

#[test]
fn any_byte_changed_is_refused_or_read() {
    // Whatever a changed byte makes of the file: no panic, and what opens can be read to the end.
    let whole = sample();
    let mut opened = 0;
    for at in 0..whole.len() {
        for value in [0, 1, 0x20, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at].wrapping_add(1)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let Ok(file) = GgufFile::from_bytes(bytes) else { continue };
            opened += 1;
            for (key, value) in file.meta().iter() {
                assert!(!value.to_string().is_empty());
                let _ = (file.meta().u32(key), file.meta().str(key), file.meta().str_array(key));
            }
            for info in file.tensors() {
                let _ = file.tensor(&info.name).map(|t| t.data.iter().map(|&b| u64::from(b)).sum::<u64>());
            }
        }
    }
    assert!(opened > 1000);
}

#[test]
fn a_mapped_file_that_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, sample()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tensor("b").unwrap().data.len(), 12);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let text = file.tensor("b").unwrap_err().to_string();
    assert!(text.contains("changed while it was in use") && text.contains("m.gguf"), "{text}");
}

#[test]
fn vocabularies() {
    let large = "x".repeat(16 << 20);
    let pieces = [string(b"ok"), string(b"<0x-1>"), string(&[0xff, 0xfe]), string(large.as_bytes())].concat();
    let file =
        raw().key("pieces", ARRAY, &array(STRING, 4, &pieces)).key("name", STRING, &string(b"\xc3\x28"));
    let file = GgufFile::from_bytes(file.bytes()).unwrap();
    let text = file.meta().str_array("pieces").unwrap_err().to_string();
    assert!(
        text.contains(
            "'pieces' is array of 4 string with string \"\u{fffd}\u{fffd}\", which is not UTF-8 at 2"
        ),
        "{text}"
    );
    let lengths: Vec<_> =
        file.meta().array("pieces").unwrap().iter().map(|v| v.as_str().map(str::len)).collect();
    assert_eq!(lengths, [Some(2), Some(6), None, Some(16 << 20)]);
    let text = file.meta().str("name").unwrap_err().to_string();
    assert!(text.contains("which is not UTF-8, expected a UTF-8 string"), "{text}");
}

#[test]
fn names_in_messages_are_printable_and_short() {
    let name = format!("\u{1b}[31mred\n{}", "n".repeat(200));
    let text = refusal("odd name", raw().tensor(&name, &[33], 8, 0).bytes());
    assert!(!text.chars().any(char::is_control) && text.len() < 400, "{text:?}");
}
