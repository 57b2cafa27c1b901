//! The other commands as a user meets them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{conure, conure_with, root, run, speech};

fn json(args: &[&str]) -> serde_json::Value {
    let ran = conure_with(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn info_shows_the_embedded_model_with_its_sources() {
    let info = json(&["info", "--json"]);
    assert_eq!(info["decoders"], serde_json::json!(["tdt", "ctc"]));
    assert_eq!(
        (info["architecture"].as_str(), info["license"].as_str()),
        (Some("parakeet"), Some("MIT OR Apache-2.0"))
    );
    assert_eq!(
        (info["encoder"]["d_model"].as_u64(), info["tokenizer"]["vocab_size"].as_u64()),
        (Some(192), Some(256))
    );
    let text = conure_with(["info"]).stdout;
    for part in
        ["parakeet-tiny-en", "Common Voice", "CC BY-SA 3.0", "12 layers", "durations 0 1 2 3 4", "80 mel"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn info_of_a_file() {
    for (model, decoders, languages) in
        [("ctc80.gguf", vec!["ctc"], 0), ("rnnt80.gguf", vec!["rnnt"], 0), ("tdt128.gguf", vec!["tdt"], 0)]
    {
        let path = root().join("tests/data/oracle").join(model);
        let info = json(&["info", path.to_str().unwrap(), "--json"]);
        assert_eq!(info["decoders"], serde_json::json!(decoders), "{model}");
        assert_eq!(info["languages"].as_array().unwrap().len(), languages, "{model}");
    }
    let ran = conure_with(["info", "not-there.gguf"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    let ran = run(conure().env("CONURE_MODEL", "not-there.gguf").arg("info"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
}

#[test]
fn devices_are_listed() {
    let devices = json(&["devices", "--json"]);
    let cpu = &devices.as_array().unwrap()[0];
    assert_eq!((cpu["name"].as_str(), cpu["available"].as_bool()), (Some("cpu"), Some(true)));
    assert!(cpu["capabilities"].as_array().unwrap().contains(&"scalar".into()));
    let text = conure_with(["devices"]).stdout;
    assert!(text.starts_with("cpu: ") && text.contains("threads"), "{text}");
}

#[test]
fn a_variable_that_makes_no_sense_is_refused_with_what_it_takes() {
    let with = |name: &str, value: &str, args: &[&str]| {
        run(conure().env(format!("CONURE_OPENVINO_{name}"), value).args(args))
    };
    let clip = speech().display().to_string();
    for (name, value, allowed) in
        [("PRECISION", "nonsense", "exact, fast, bf16, f16"), ("SELF_TEST", "maybe", "0, off, no, false")]
    {
        let named = format!("CONURE_OPENVINO_{name} is {value:?}");
        for args in [&["transcribe", "-q", &clip][..], &["cache", "list"], &["bench", "conv"]] {
            let ran = with(name, value, args);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{args:?}");
            assert!(ran.stderr.contains(&named) && ran.stderr.contains(allowed), "{args:?}: {}", ran.stderr);
        }
        let listed = with(name, value, &["devices"]);
        assert!(listed.code == Some(0) && listed.stdout.contains(&named), "{}", listed.stdout);
    }
    // What is an option too is refused where options are.
    for name in ["RELEASE_WEIGHTS", "MEMORY_OPTIMIZE"] {
        let ran = with(name, "maybe", &["transcribe", "-q", &clip]);
        assert_eq!(ran.code, Some(2));
        for part in ["'maybe'", "0, off, no, false", &format!("CONURE_OPENVINO_{name}")] {
            assert!(ran.stderr.contains(part), "{}", ran.stderr);
        }
    }
}

#[test]
fn threads_that_cannot_be_had_are_told_of_once_and_not_quietly() {
    let clip = speech().display().to_string();
    let said = |args: &[&str]| {
        let ran = run(conure().env("CONURE_THREADS", "1000").args(args));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr.matches(" used of the 1000 threads asked for").count()
    };
    assert_eq!(said(&["transcribe", &clip]), 1);
    assert_eq!(said(&["transcribe", "-q", &clip]), 0);
    assert_eq!(said(&["transcribe", "-t", "1", &clip]), 0);
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["m.gguf", "q.gguf"].map(|name| dir.path().join(name).display().to_string());
    let nemo = root().join("tests/data/oracle/hybrid_tdt80.nemo").display().to_string();
    assert_eq!(said(&["convert", &nemo, &from]), 0);
    assert_eq!(said(&["quantize", &from, &to, "q8_0"]), 1);
}

#[test]
fn a_converted_model_transcribes() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.gguf");
    let nemo = root().join("tests/data/oracle/hybrid_tdt80.nemo");
    let ran = run(conure().arg("convert").args([&nemo, &output]).args(["--dtype", "f32", "--name", "mine"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("hybrid_tdt_ctc") && ran.stderr.contains("m.gguf"), "{}", ran.stderr);
    assert_eq!(json(&["info", output.to_str().unwrap(), "--json"])["name"], "mine");
    let unnamed = dir.path().join("unnamed.gguf");
    assert_eq!(run(conure().args(["convert", "-q"]).args([&nemo, &unnamed])).code, Some(0));
    assert_eq!(json(&["info", unnamed.to_str().unwrap(), "--json"])["name"], "hybrid_tdt80");
    let before = std::fs::read(&output).unwrap();
    let failed = run(conure().arg("convert").arg(root().join("README.md")).arg(&output));
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""));
    assert!(failed.stderr.contains("cannot convert"), "{}", failed.stderr);
    assert_eq!(std::fs::read(&output).unwrap(), before, "a failed conversion leaves the file that was there");
    let ran = run(conure().args(["transcribe", "-q", "-m"]).arg(&output).arg(speech()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let expected: serde_json::Value = serde_json::from_str(
        &std::fs::read_to_string(root().join("tests/data/oracle/hybrid_tdt80.json")).unwrap(),
    )
    .unwrap();
    assert!(!ran.stdout.trim().is_empty() && expected.is_object());
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_to_be_is_written_through_and_what_a_killed_run_left_goes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let nemo = root().join("tests/data/oracle/hybrid_tdt80.nemo");
    std::os::unix::fs::symlink("q8.gguf", at("link.gguf")).unwrap();
    std::os::unix::fs::symlink("gone/q8.gguf", at("nowhere.gguf")).unwrap();
    let mut killed = std::process::Command::new("true").spawn().unwrap();
    killed.wait().unwrap();
    let left = at(&format!(".conure.{}-0.part", killed.id()));
    std::fs::write(&left, "half a model").unwrap();
    assert_eq!(
        run(conure().args(["convert", "-q", "--dtype", "f32"]).args([&nemo, &at("m.gguf")])).code,
        Some(0)
    );
    assert!(!left.exists());
    let quantize = |to: &str| run(conure().args(["quantize", "-q"]).args([at("m.gguf"), at(to)]).arg("q8_0"));
    let ran = quantize("link.gguf");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(std::fs::symlink_metadata(at("link.gguf")).unwrap().is_symlink() && at("q8.gguf").is_file());
    let ran = quantize("nowhere.gguf");
    assert!(ran.code == Some(1) && ran.stderr.contains("a link to"), "{}", ran.stderr);
    assert!(ran.stderr.contains("gone/q8.gguf, whose folder is not there"), "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_output_is_an_error_where_there_is_something_to_say() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let clip = speech().display().to_string();
    let nemo = root().join("tests/data/oracle/hybrid_tdt80.nemo").display().to_string();
    let closed = |args: &[&str]| {
        let mut command = assert_cmd::Command::new("bash");
        command.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_conure")]).args(args);
        run(&mut command)
    };
    for args in [&["transcribe", "-q", &clip][..], &["info"], &["devices"]] {
        let ran = closed(args);
        assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("cannot write to standard output\n  because: it is closed"),
            "{}",
            ran.stderr
        );
    }
    let out = at("out");
    for args in [
        &["convert", "-q", &nemo, &at("m.gguf")][..],
        &["quantize", "-q", &at("m.gguf"), &at("q.gguf"), "q8_0"],
        &["transcribe", "-q", &clip, "-o", &out],
    ] {
        let ran = closed(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn captures_are_saved_frames_first() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("x.safetensors");
    let list = conure_with(["capture", "embedded", "--list"]);
    let names: Vec<&str> = list.stdout.lines().collect();
    for name in
        ["log_mel", "subsampling", "encoder.layers.0", "encoder.layers.11.conv", "encoder", "ctc.log_probs"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let mut command = conure();
    command.args(["capture", "embedded", "--node", "log_mel,encoder", "-n", "joint.logits"]).arg(speech());
    command.arg("-o").arg(&output);
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    let bytes = std::fs::read(&output).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| file.tensor(name).unwrap().shape().to_vec();
    // 118,960 samples: a frame every 160, and eight of those make one of the encoder's
    assert_eq!((shape("log_mel"), shape("encoder")), (vec![743, 80], vec![93, 192]));
    assert_eq!(shape("joint.logits").last(), Some(&262));
    let ran =
        run(conure().args(["capture", "embedded"]).arg(speech()).args(["-n", "nope", "-o"]).arg(&output));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("nope") && ran.stderr.contains("--list"), "{}", ran.stderr);
    assert_eq!(std::fs::read(&output).unwrap(), bytes);
}

#[test]
fn graphs_are_drawn_placed_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, args, parts) in [
        (
            "a.svg",
            &["--bind", "T=1000,B=2"][..],
            &["<svg", "rel_pos_attention", "f32 [2, 125, 192]", "tiles of"][..],
        ),
        ("a.dot", &["--part", "predictor"], &["digraph", "lstm_cell", "h0_next"]),
        ("a.json", &["--part", "joint", "--placement"], &["joint.logits", "\"device\": \"cpu\""]),
    ] {
        let path = at(name);
        let ran = conure_with([&["graph", "embedded", "-o", &path], args].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let text = std::fs::read_to_string(&path).unwrap();
        for part in parts {
            assert!(text.contains(part), "{name}: {part}");
        }
    }
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(at("a.json")).unwrap()).unwrap();
    assert!(json["nodes"].as_array().unwrap().len() >= 5 && json["edges"][0]["type"].is_string());
    let ran = conure_with(["graph", "embedded", "--placement", "--memory"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("cpu: all ") && ran.stdout.contains("60 min"), "{}", ran.stdout);
    let one = conure_with(["graph", "embedded", "--memory", "--bind", "T=3000"]).stdout;
    assert_eq!((one.lines().count(), one.contains(" 30 s ")), (2, true), "{one}");
    // Rewrites leave fewer nodes; without one there are more.
    let nodes = |args: &[&str]| {
        let path = at("n.json");
        assert_eq!(
            conure_with([&["graph", "embedded", "-o", &path], args].concat()).code,
            Some(0),
            "{args:?}"
        );
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        json["nodes"].as_array().unwrap().len()
    };
    let (built, all, some) = (nodes(&[]), nodes(&["--passes"]), nodes(&["--without-pass", "fuse_glu"]));
    assert!(built > some && some > all, "{built} {some} {all}");
    assert_eq!(built, nodes(&["--without-pass", "all"]));
    for args in [
        &["graph", "embedded"][..],
        &["graph", "embedded", "-o", "x.png"],
        &["graph", "embedded", "--bind", "X=1", "--memory"],
    ] {
        assert_eq!(conure_with(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_benchmark_says_what_it_measured() {
    let clip = speech();
    let bench =
        json(&["bench", "embedded", clip.to_str().unwrap(), "--runs", "2", "--threads", "1", "--json"]);
    for key in ["load_ms", "first_ms", "rtfx", "arena_mb", "gflops", "roofline_fraction", "encoder_gflop"] {
        assert!(bench[key].as_f64().unwrap() > 0.0, "{key}: {bench}");
    }
    for key in ["features_ms", "encoder_ms", "decoder_ms", "total_ms"] {
        let (min, median) = (&bench[key]["min"], &bench[key]["median"]);
        assert!(0.0 < min.as_f64().unwrap() && min.as_f64() <= median.as_f64(), "{key}: {bench}");
    }
    assert_eq!((bench["threads"].as_u64(), bench["decoder"].as_str()), (Some(1), Some("tdt")));
    assert_eq!((bench["runs"].as_u64(), bench["audio_s"].as_f64()), (Some(2), Some(7.435)));
    let step = json(&["bench", "step", "embedded", "--steps", "20", "--json"]);
    assert!(step["step_us"]["median"].as_f64().unwrap() > 0.0, "{step}");
    let roofline = json(&["bench", "roofline", "--threads", "1", "--json"]);
    for key in ["f32_gflops", "f16_gflops", "q8_0_gflops", "int8_gflops", "bandwidth_gbs"] {
        assert!(roofline[key].as_f64().unwrap() > 0.0, "{key}: {roofline}");
    }
    let ctc = root().join("tests/data/oracle/ctc80.gguf");
    let ran = conure_with(["bench", "step", ctc.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("no tdt decoder"), "{}", ran.stderr);
    assert_eq!(conure_with(["bench", "embedded"]).code, Some(2));
}

#[test]
fn a_profile_accounts_for_the_run() {
    let (clip, dir) = (speech(), tempfile::tempdir().unwrap());
    let trace = dir.path().join("trace.json");
    let args = ["profile", "embedded", clip.to_str().unwrap(), "--json", "--trace", trace.to_str().unwrap()];
    let profile = json(&args);
    let sum = |key: &str| -> f64 {
        profile[key].as_array().unwrap().iter().map(|s| s["ms"].as_f64().unwrap()).sum()
    };
    let steps = profile["steps_ms"].as_f64().unwrap();
    for key in ["ops", "layers", "nodes"] {
        assert!((sum(key) / steps - 1.0).abs() < 1e-6, "{key}");
    }
    // What the steps took is part of what encoder and decoder took.
    let stages = profile["encoder_ms"].as_f64().unwrap() + profile["decoder_ms"].as_f64().unwrap();
    assert!(steps > 0.0 && steps <= stages, "{steps} of {stages}");
    let linear = profile["ops"].as_array().unwrap().iter().find(|o| o["name"] == "linear").unwrap();
    assert!(linear["gflop"].as_f64().unwrap() > 0.5 && linear["of_peak"].as_f64().unwrap() > 0.0, "{linear}");
    let layers: Vec<&str> =
        profile["layers"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert!(layers.contains(&"encoder.layers.11") && layers.contains(&"encoder.pre_encode"), "{layers:?}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let calls: u64 = profile["nodes"].as_array().unwrap().iter().map(|n| n["calls"].as_u64().unwrap()).sum();
    assert_eq!(events.len() as u64, calls);
    assert!(events.iter().all(|e| e["ph"] == "X" && e["dur"].as_f64().unwrap() >= 0.0));
    let text = conure_with(["profile", "embedded", clip.to_str().unwrap(), "--by", "node"]).stdout;
    assert!(text.contains("encoder.layers.0.feed_forward1.linear1: linear"), "{text}");
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = conure_with(["completions", shell]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.stdout.contains("transcribe") && ran.stdout.contains("output-format"), "{shell}");
    }
}

#[test]
fn version_and_help_go_to_standard_output() {
    let ran = conure_with(["--version"]);
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("conure {}\n", env!("CARGO_PKG_VERSION"))));
    let help = conure_with(["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    for command in [
        "transcribe",
        "convert",
        "info",
        "devices",
        "capture",
        "graph",
        "bench",
        "profile",
        "completions",
        "vad",
    ] {
        assert!(help.stdout.contains(command), "{command}");
    }
}

/// The long options that `--help` of a command names.
fn options(help: &str) -> Vec<String> {
    let long = |line: &str| -> Option<String> {
        let at = line.trim_start();
        let at = if at.starts_with("--") {
            Some(at)
        } else {
            at.starts_with('-').then(|| at.split(", ").nth(1)).flatten()
        };
        let name: String =
            at?.strip_prefix("--")?.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        Some(format!("--{name}"))
    };
    help.lines().filter_map(long).filter(|o| !matches!(o.as_str(), "--help" | "--version")).collect()
}

#[test]
fn the_guide_names_every_option_and_no_other() {
    let guide = std::fs::read_to_string(root().join("docs/command-line.md")).unwrap();
    for command in ["transcribe", "listen", "convert", "info", "devices", "capture", "vad"] {
        let help = conure_with([command, "--help"]).stdout;
        let options = options(&help);
        assert!(!options.is_empty(), "{command}: {help}");
        let section = guide.split("\n## ").find(|s| s.starts_with(&format!("{command}\n"))).unwrap();
        for option in &options {
            assert!(
                section.contains(option.as_str()),
                "docs/command-line.md does not name {command} {option}"
            );
        }
        let words = section.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for word in words.filter(|w| w.starts_with("--") && !w.starts_with("---")) {
            assert!(
                options.iter().any(|o| o == word),
                "{command} has no {word}; docs/command-line.md says so"
            );
        }
    }
}

#[test]
fn a_model_is_quantised_for_what_it_hears() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let model = root().join("crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf").display().to_string();
    std::fs::create_dir(at("clips")).unwrap();
    std::fs::write(at("clips/notes.txt"), "no audio").unwrap();
    let quantize = |input: &str, to: &str, dtype: &str, recordings: &[&str]| {
        let recordings = recordings.iter().flat_map(|path| ["--calibrate", path]);
        run(conure().args(["quantize", input, &at(to), dtype]).args(recordings))
    };
    let (clips, small) = (at("clips"), at("small.gguf"));
    let nothing = quantize(&model, "small.gguf", "q4_0", &[&clips]);
    assert!(nothing.code == Some(1) && nothing.stderr.contains("nothing to hear"), "{}", nothing.stderr);
    std::fs::copy(speech(), at("clips/speech.wav")).unwrap();
    let ran = quantize(&model, "small.gguf", "q4_0", &[&clips, &at("clips/speech.wav")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line =
        ran.stdout.lines().find(|l| l.starts_with("encoder.layers.3.self_attn.linear_v.weight")).unwrap();
    let [.., nearest, products] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(products.parse::<f64>().unwrap() < nearest.parse::<f64>().unwrap(), "{line}");
    assert!(ran.stdout.lines().next().unwrap().ends_with("nearest % products %"), "{}", ran.stdout);
    assert_eq!(json(&["info", &small, "--json"])["calibrated_with"], 2);
    assert!(conure_with(["info", &small]).stdout.contains("calibrated    with 2 recordings"));
    let said = conure_with(["transcribe", "-m", &small, &speech().display().to_string()]);
    assert!(said.stdout.contains("turning away her eyes"), "{}", said.stdout);
    // A clip is not written over, what is small already is not made of, and f16 leaves nothing to choose.
    std::fs::copy(speech(), at("clip.wav")).unwrap();
    for (input, to, dtype, recording, code, says) in [
        (&model, "clip.wav", "q4_0", at("clip.wav"), 2, "would be overwritten"),
        (&small, "x.gguf", "q4_k", at("clip.wav"), 1, "is q4_0 already"),
        (&model, "x.gguf", "bf16", at("clip.wav"), 1, "no choice of roundings"),
        (&model, "x.gguf", "q8_0", at("not-there.wav"), 1, "not-there.wav"),
        (&model, "x.gguf", "q8_0", "-".to_owned(), 2, "not standard input"),
    ] {
        let ran = quantize(input, to, dtype, &[&recording]);
        assert!(ran.code == Some(code) && ran.stderr.contains(says), "{to} {dtype}: {}", ran.stderr);
    }
    assert!(!std::path::Path::new(&at("x.gguf")).exists());
}

/// Whatever is read, by whichever option, is not written over.
#[test]
fn no_output_replaces_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let model = root().join("tests/data/oracle/hybrid_tdt80.gguf");
    for name in ["m.txt", "model.gguf"] {
        std::fs::copy(&model, at(name)).unwrap();
    }
    for name in ["m.wav", "hot.wav", "clip.wav"] {
        std::fs::copy(speech(), at(name)).unwrap();
    }
    std::fs::write(at("hot.txt"), "feeby\n").unwrap();
    std::fs::write(at("list.jsonl"), "{\"audio_filepath\": \"clip.wav\"}\n").unwrap();
    let before: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().display().to_string())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    let (out, clip, list) = (at(""), at("clip.wav"), at("list.jsonl"));
    let (as_text, m, hot) = (at("m.txt"), at("m.wav"), at("hot.wav"));
    for (args, what) in [
        (vec!["transcribe", "-m", &as_text, &m, "-o", &out], "is the model and would be overwritten"),
        (
            vec!["transcribe", &hot, "--beam", "2", "--hot-words", &at("hot.txt"), "-o", &out],
            "is the list of --hot-words",
        ),
        (vec!["transcribe", "--manifest", &list, "--output-manifest", &clip], "is an input"),
        (vec!["transcribe", "--manifest", &list, "--output-manifest", &list], "is the --manifest"),
        (vec!["capture", &at("model.gguf"), &clip, "-n", "log_mel", "-o", &at("model.gguf")], "is the model"),
        (vec!["capture", "embedded", &clip, "-n", "log_mel", "-o", &clip], "is the recording"),
        (vec!["profile", "embedded", &clip, "--trace", &clip], "is the recording"),
        (vec!["graph", &as_text, "-o", &as_text], "txt"),
    ] {
        let ran = run(conure().args(&args));
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
    }
    for (path, bytes) in before {
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{path}");
    }
}

/// What an option would do that the output has no place for is said.
#[test]
fn options_without_effect_are_named() {
    let clip = speech().display().to_string();
    for (option, format, told) in [
        ("--tokens", "txt", true),
        ("--tokens", "json", false),
        ("--highlight-words", "json", true),
        ("--highlight-words", "vtt", false),
    ] {
        let ran = run(conure().args(["transcribe", &clip, option, "--output-format", format]));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("changes nothing here"), told, "{option} {format}: {}", ran.stderr);
    }
}
