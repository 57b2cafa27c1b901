//! The program on OpenVINO's CPU device: the cache of compiled models as processes see it, memory, and what profiles show.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Ran, conure, root, run, speech};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CACHE: &str = "CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR";
const LIBRARY: &str = "CONURE_OPENVINO_DIR";

/// Where OpenVINO is: what the variable says, as in all tests, or where `cargo xtask setup` puts it.
fn library() -> PathBuf {
    std::env::var_os(LIBRARY).map_or_else(|| root().join("target/venv-openvino"), PathBuf::from)
}

/// `conure` with its compiled models in `cache`.
fn with_cache(cache: &Path, args: &[&str]) -> assert_cmd::Command {
    let mut command = conure();
    command.env(LIBRARY, library()).env(CACHE, cache).args(args);
    command
}

/// A small model of every part: subsampling, encoder, CTC, predictor and joint.
fn model() -> String {
    root().join("tests/data/oracle/hybrid_tdt80.gguf").display().to_string()
}

/// Transcribes the clip of the README, which takes no longer than compiling for it.
fn transcribe(cache: &Path) -> Ran {
    let clip = speech().display().to_string();
    let args = ["transcribe", &clip, "--model", &model(), "--device", "openvino:CPU", "--quiet"];
    run(&mut with_cache(cache, &args))
}

fn list(cache: &Path) -> Value {
    let listed = run(&mut with_cache(cache, &["cache", "list", "--json"]));
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    serde_json::from_str(&listed.stdout).unwrap()
}

fn models(cache: &Path) -> usize {
    list(cache)["models"].as_array().unwrap().len()
}

fn parts(cache: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache).into_iter().flatten().map(|e| e.unwrap().path());
    files.filter(|p| p.extension().is_some_and(|e| e == "part")).collect()
}

#[test]
fn what_is_kept_is_listed_used_and_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    assert_eq!(models(&cache), 0);
    let first = transcribe(&cache);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let kept = list(&cache);
    let all = kept["models"].as_array().unwrap();
    assert!(all.len() >= 3, "encoder, predictor, joint: {kept}");
    for entry in all {
        let about = &entry["about"];
        assert_eq!(
            (about["device"].as_str(), about["self-test"].as_str()),
            (Some("openvino:CPU"), Some("passed"))
        );
        assert!(about["model"].as_str().unwrap().ends_with("hybrid_tdt80.gguf"), "{entry}");
    }
    // A start that compiles nothing says the same, from a copy of the file elsewhere too.
    let copy = dir.path().join("copy.gguf");
    std::fs::copy(model(), &copy).unwrap();
    for path in [model(), copy.display().to_string()] {
        let args = ["bench", "startup", &path, "--once", "--device", "openvino:CPU"];
        let again = run(&mut with_cache(&cache, &args));
        assert_eq!(again.stdout.split_whitespace().next(), Some("0"), "{}{}", again.stdout, again.stderr);
    }
    assert_eq!(transcribe(&cache).stdout, first.stdout);
    assert_eq!(models(&cache), all.len());

    let text = run(&mut with_cache(&cache, &["cache", "list"])).stdout;
    let others = |listed: &Value| listed["others"]["files"].as_u64().unwrap();
    let notes = others(&list(&cache));
    let lines = 1 + all.len() + usize::from(notes > 0);
    assert!(text.contains("openvino:CPU") && text.lines().count() == lines, "{text}");
    assert!(!text.contains("nodes from ,") && !text.contains("nodes from :"), "{text}");
    std::fs::write(cache.join(".left.1.2.3.part"), [0; 5000]).unwrap();
    let kept = list(&cache);
    assert_eq!(others(&kept), notes + 1, "{kept}");
    let cleared = run(&mut with_cache(&cache, &["cache", "clear", "--json"])).stdout;
    let cleared: Value = serde_json::from_str(&cleared).unwrap();
    assert_eq!(cleared["models"].as_u64(), Some(all.len() as u64));
    assert_eq!(cleared["bytes"], kept["bytes"], "all that is removed is counted before");
    assert_eq!(models(&cache), 0);
    let off = run(&mut with_cache(Path::new("off"), &["cache", "list"]));
    assert!(off.code == Some(1) && off.stderr.contains(CACHE), "{}", off.stderr);
}

/// A start of its own, whose words nobody reads.
fn start(cache: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conure"));
    command.env(LIBRARY, library()).env(CACHE, cache).stdout(Stdio::null()).stderr(Stdio::null());
    command.args(["bench", "startup", &model(), "--once", "--device", "openvino:CPU"]);
    command.spawn().unwrap()
}

#[test]
fn a_process_killed_while_it_writes_leaves_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let right = transcribe(&dir.path().join("other"));
    let cache = dir.path().join("cache");
    let mut killed = 0;
    for _ in 0..3 {
        let mut child = start(&cache);
        let begun = Instant::now();
        while parts(&cache).is_empty() && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(100));
            std::thread::sleep(Duration::from_micros(100));
        }
        killed += usize::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(killed > 0, "no process was caught while it wrote");
    let after = transcribe(&cache);
    assert_eq!((after.code, &after.stdout), (Some(0), &right.stdout), "{}", after.stderr);
    assert_eq!(transcribe(&cache).stdout, right.stdout);
}

#[test]
fn processes_that_write_at_once_all_get_it_right() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let mut children: Vec<Child> = (0..3).map(|_| start(&cache)).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert!(parts(&cache).is_empty());
    let args = ["bench", "startup", &model(), "--once", "--device", "openvino:CPU"];
    let after = run(&mut with_cache(&cache, &args));
    assert_eq!((after.stdout.split_whitespace().next(), after.stderr.as_str()), (Some("0"), ""));
}

/// A file system that takes no more than 64 kB a file stands for a full one: writing fails in the middle.
#[test]
fn a_disk_without_room_costs_a_line_and_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let right = transcribe(&dir.path().join("other"));
    let cache = dir.path().join("cache");
    let clip = speech().display().to_string();
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut command = assert_cmd::Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_conure"), "transcribe", &clip]);
    command.args(["--model", &model(), "--device", "openvino:CPU"]);
    command.env(LIBRARY, library()).env(CACHE, &cache);
    let ran = run(&mut command);
    assert_eq!((ran.code, &ran.stdout), (Some(0), &right.stdout), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("not kept for the next start").count(), 1, "{}", ran.stderr);
    assert!(parts(&cache).is_empty());
    // What was kept, if anything, is whole.
    assert_eq!(transcribe(&cache).stdout, right.stdout);
}

#[test]
fn a_profile_names_the_kernels_that_ran() {
    let dir = tempfile::tempdir().unwrap();
    let clip = speech().display().to_string();
    let args = ["profile", &model(), &clip, "--device", "openvino:CPU", "--json"];
    let ran = run(&mut with_cache(dir.path(), &args));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let profile: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = |key: &str| profile[key].as_array().unwrap().clone();
    let named = |rows: &[Value], part: &str| rows.iter().any(|r| r["name"].as_str().unwrap().contains(part));
    assert!(named(&rows("kernels"), "FullyConnected: "), "{}", profile["kernels"]);
    assert!(named(&rows("device_layers"), "encoder.layers.1."), "{}", profile["device_layers"]);
    assert!(rows("kernels").iter().map(|r| r["ms"].as_f64().unwrap()).sum::<f64>() > 0.0);
}

/// The device's own numbers, not those of the CPU's kernels.
#[test]
fn a_benchmark_says_in_which_numbers_the_device_computes() {
    let dir = tempfile::tempdir().unwrap();
    let text_model = dir.path().join("m.gguf").display().to_string();
    let folder = root().join("tests/data/language/hf-gemma3").display().to_string();
    assert_eq!(run(conure().args(["convert", "-q", &folder, &text_model])).code, Some(0));
    let (speech_model, clip) = (model(), speech().display().to_string());
    let heard = ["bench", &speech_model, &clip, "--runs", "1", "--json"];
    let read = ["bench", &text_model, "--runs", "1", "--prompt-tokens", "4", "--tokens", "2", "--json"];
    for args in [&heard[..], &read] {
        for (device, precision) in [("openvino:CPU", "fast"), ("cpu", "exact")] {
            let args = [args, &["--device", device]].concat();
            let ran = run(with_cache(dir.path(), &args).env("CONURE_OPENVINO_PRECISION", "fast"));
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            let bench: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(bench["precision"], precision, "{device}: {bench}");
        }
    }
}

/// What the process has in memory at its end with these options, in bytes: anonymous, and pages of files.
fn resident(cache: &str, model: &str, options: &[&str]) -> f64 {
    let args = ["bench", "startup", model, "--once", "--device", "openvino:CPU"];
    let args: Vec<&str> = args.iter().chain(options).copied().collect();
    let ran = run(&mut with_cache(Path::new(cache), &args));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn memory_optimize_gives_back_what_the_device_copied() {
    // The embedded model is in the program; its file is of f16 for the most part.
    let model = root().join("crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf").display().to_string();
    let size = std::fs::metadata(&model).unwrap().len() as f64;
    let [plain, spared, kept] =
        [&[][..], &["--memory-optimize"], &["--memory-optimize", "--release-weights=no"]]
            .map(|options| resident("off", &model, options));
    // Nearly all of the file are matrices, which the device keeps in a layout of its own.
    assert!(plain - spared > 0.8 * size, "{plain} plain, {spared} spared, of {size}");
    assert!(kept - spared > 0.8 * size, "{kept} with the part set, {spared} without");
}

#[test]
fn memory_does_not_grow_with_the_number_of_lengths_met() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["bench", "lengths", "embedded", "--device", "openvino:CPU", "--decoder", "ctc", "--runs", "400"];
    let ran = run(with_cache(dir.path(), &args).args(["--longest", "5", "--json"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let lengths: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(lengths["compiled"], 1, "one model for all lengths: {lengths}");
    // Kernels of every length that is met, were they kept, would be 60 MB and more in 100 recordings.
    assert!(lengths["slope_mb"].as_f64().unwrap() < 12.0, "{lengths}");
}
