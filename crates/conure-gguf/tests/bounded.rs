//! What refusing a large hostile file costs. Alone in its binary, because it looks at the memory of the process.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of the test functions use them

#[cfg(target_os = "linux")]
#[test]
fn large_files_are_refused_in_bounded_time_and_memory() {
    use std::os::unix::fs::FileExt;

    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
    };
    let head = |tensors: u64, keys: u64| {
        let mut head = b"GGUF\x03\0\0\0".to_vec();
        head.extend(tensors.to_le_bytes());
        head.extend(keys.to_le_bytes());
        head
    };
    let key = |item: u32, count: u64| {
        let mut key = [&1u64.to_le_bytes()[..], b"k", &9u32.to_le_bytes()].concat();
        key.extend(item.to_le_bytes());
        key.extend(count.to_le_bytes());
        key
    };
    let size = 4u64 << 30;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    let before = peak();
    let cases = [
        // Everything fits in the file, which is sparse: four gigabytes of zeros.
        ("a billion bytes", [head(0, 1), key(0, size - 100)].concat(), "no model's metadata"),
        (
            "half a billion empty strings",
            [head(0, 1), key(8, size / 8 - 100)].concat(),
            "no model's metadata",
        ),
        (
            "a string of gigabytes",
            [head(0, 1), key(8, 1), (size - 100).to_le_bytes().to_vec()].concat(),
            "no model's",
        ),
        ("empty keys", head(0, 16384), "key number 0 has a name that is empty"),
        ("empty names", head(65536, 0), "tensor number 0 has a name that is empty"),
        ("too many", head(1 << 24, 0), "16777216 tensors"),
    ];
    for (what, bytes, expected) in cases {
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        drop(file);
        let start = std::time::Instant::now();
        let text = conure_gguf::GgufFile::open(&path).unwrap_err().to_string();
        assert!(text.contains(expected), "{what}: {text}");
        assert!(start.elapsed().as_secs_f32() < 1.0, "{what} took {:?}", start.elapsed());
        let grown = peak() - before;
        // Pages of the file that were looked at count too: up to the 128 MiB that metadata may take.
        assert!(grown < 200, "{what}: {grown} MiB");
    }
}
