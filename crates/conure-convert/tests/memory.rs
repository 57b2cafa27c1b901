//! A file is converted tensor by tensor: memory does not grow with the model.
#![cfg(target_os = "linux")]
// Helpers of tests may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{TestTensor, checkpoint_entries, nemo, part, parts, tensors};
use conure_convert::{ConvertOptions, TargetType, convert};

const INPUT: &str = "CONURE_TEST_MEMORY_INPUT";

/// Peak resident memory of this process.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn memory_is_bounded_by_the_largest_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("big.nemo");
    // 40 more tensors of 4 MiB.
    let mut all = parts("ctc80_local.nemo");
    let weights = part(&mut all, "model_weights.ckpt");
    let mut list = tensors(weights);
    for i in 0..40 {
        list.push(TestTensor::f32(&format!("extra.{i}"), &[1024, 1024], &vec![i as f32; 1 << 20]));
    }
    *weights = common::zip(&checkpoint_entries(&list), zip::CompressionMethod::Stored);
    std::fs::write(&input, nemo(&all)).unwrap();
    // In a process of its own, so that what was used to make the file does not count.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "converts_in_its_own_process", "--ignored", "--nocapture"])
        .env(INPUT, &input)
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{shown}{}", String::from_utf8_lossy(&child.stderr));
    assert!(shown.contains("1 passed"), "{shown}");
}

#[test]
#[ignore = "started by memory_is_bounded_by_the_largest_tensor"]
fn converts_in_its_own_process() {
    let input = std::path::PathBuf::from(std::env::var(INPUT).unwrap());
    let before = peak_mib();
    let options = ConvertOptions { dtype: TargetType::F16, ..Default::default() };
    let report = convert(&input, &input.with_extension("gguf"), &options).unwrap();
    assert!(report.bytes > 160 << 20);
    let grown = peak_mib() - before;
    // Bytes, values and encoded bytes of one tensor are 12 MiB.
    assert!(grown < 32, "memory grew by {grown} MiB for {} MiB", report.bytes >> 20);
}
