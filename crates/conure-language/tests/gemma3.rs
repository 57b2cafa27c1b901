//! Gemma 3 270M in Q4_K_M against exact f32 arithmetic on the same weights. The file is not part of the repository:
//! `scripts/get_gemma3.sh` assembles it in `target/`, `scripts/get_gemma3.sh --check` runs this too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure_gguf::GgufFile;
use conure_graph::Device;
use conure_kernels::{Cpu, Precision};
use conure_language::{GenerateOptions, LanguageModel, Sampling, SessionOptions, perplexity};
use conure_tensor::DType;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(precision: Precision) -> Arc<LanguageModel> {
    let path = root().join("target/gemma3/gemma-3-270m-q4_k_m.gguf");
    let file = GgufFile::open(&path).expect("run scripts/get_gemma3.sh first");
    let cpu = Arc::new(Cpu::detect(None).unwrap().with_precision(precision));
    Arc::new(LanguageModel::load(Arc::new(file), "gemma3", Device::cpu(), cpu).unwrap())
}

fn goldens() -> Value {
    let text = std::fs::read_to_string(root().join("tests/data/language/gemma3.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Keys and values in f32, as the reference has them.
const EXACT: SessionOptions = SessionOptions { context: Some(1024), cache: DType::F32 };

#[test]
#[ignore = "needs the model that scripts/get_gemma3.sh assembles"]
fn tokens_logits_and_greedy_text_are_those_of_exact_arithmetic() {
    let (model, goldens) = (model(Precision::Exact), goldens());
    let mut session = model.session(&EXACT).unwrap();
    let mut worst = 0.0f64;
    for run in goldens["runs"].as_array().unwrap() {
        let prompt = run["prompt"].as_str().unwrap();
        let prompt_ids = ids(&run["prompt_ids"]);
        assert_eq!(model.tokenizer().encode(prompt, false, true).unwrap(), prompt_ids);

        let options = GenerateOptions {
            max_tokens: Some(64),
            sampling: Sampling::greedy(),
            ignore_end: true,
            ..GenerateOptions::default()
        };
        let pieces: Vec<_> = session.generate(prompt, &options).unwrap().map(Result::unwrap).collect();
        let found: Vec<u32> = pieces.iter().map(|p| p.id).collect();
        assert_eq!(found, ids(&run["greedy_ids"]), "{prompt}");
        let text: String = pieces.iter().map(|p| p.text.as_str()).collect();
        assert_eq!(text, model.tokenizer().decode(&found, false));

        session.rewind(0);
        let path = ids(&run["path_ids"]);
        for (i, step) in run["top10"].as_array().unwrap().iter().enumerate() {
            let logits = if i == 0 { session.read(&prompt_ids) } else { session.read(&path[i - 1..i]) };
            let logits = logits.unwrap();
            for entry in step.as_array().unwrap() {
                let (id, expected) = (entry[0].as_u64().unwrap() as usize, entry[1].as_f64().unwrap());
                worst = worst.max((f64::from(logits[id]) - expected).abs());
            }
        }
    }
    println!("greatest difference of a logit among the top 10: {worst:.2e}");
    assert!(worst < 1e-3, "{worst}");
}

#[test]
#[ignore = "needs the model that scripts/get_gemma3.sh assembles"]
fn perplexity_is_that_of_exact_arithmetic() {
    let (model, goldens) = (model(Precision::Exact), goldens());
    let text = std::fs::read_to_string(root().join("tests/data/language/gpl3.txt")).unwrap();
    let expected = ids(&goldens["text_ids"]);
    let found = model.tokenizer().encode(&text, false, false).unwrap();
    assert_eq!(found[..expected.len()], expected, "the tokens of the text");
    let mut session = model.session(&EXACT).unwrap();
    let result = perplexity(&mut session, &expected, 512).unwrap();
    let exact = goldens["perplexity_f32"].as_f64().unwrap();
    println!("perplexity {:.4}, exact {exact:.4}", result.perplexity);
    assert_eq!((result.chunks, result.surprises.len()), (7, 1785));
    assert!((result.perplexity / exact - 1.0).abs() < 1e-3, "{} for {exact}", result.perplexity);
}

/// The perplexity of the goldens' text in chunks of 512, keys and values as `cache` says.
fn perplexity_of(precision: Precision, cache: DType) -> f64 {
    let (model, goldens) = (model(precision), goldens());
    let mut session = model.session(&SessionOptions { cache, ..EXACT }).unwrap();
    let result = perplexity(&mut session, &ids(&goldens["text_ids"]), 512).unwrap();
    assert_eq!((result.chunks, result.surprises.len()), (7, 1785));
    result.perplexity
}

#[test]
#[ignore = "needs the model that scripts/get_gemma3.sh assembles"]
fn fast_perplexity_is_that_of_llama_cpp_within_half_a_percent() {
    // Both round activations to eight bits, in groups of other sizes.
    let expected = goldens()["perplexity_llama_cpp"].as_f64().unwrap();
    for cache in [DType::F16, DType::Q8_0] {
        let found = perplexity_of(Precision::Fast, cache);
        println!("perplexity {found:.4} with keys in {cache}, llama.cpp {expected:.4}");
        assert!((found / expected - 1.0).abs() < 5e-3, "{found} for {expected}");
    }
}

/// The reference's logits of two tokens that rounded activations may put in another order are at most this far apart: logits in
/// fast mode are off by some tenths, those of llama.cpp by up to one.
const NEAR_TIE: f64 = 0.5;

#[test]
#[ignore = "needs the model that scripts/get_gemma3.sh assembles"]
fn fast_mode_chooses_another_token_only_where_two_are_nearly_as_likely() {
    let (model, goldens) = (model(Precision::Fast), goldens());
    let mut session = model.session(&SessionOptions { cache: DType::F16, ..EXACT }).unwrap();
    let (mut steps, mut others) = (0, 0);
    for run in goldens["runs"].as_array().unwrap() {
        session.rewind(0);
        let (prompt, path) = (ids(&run["prompt_ids"]), ids(&run["path_ids"]));
        for (i, top) in run["top10"].as_array().unwrap().iter().enumerate() {
            let logits = if i == 0 { session.read(&prompt) } else { session.read(&path[i - 1..i]) };
            let logits = logits.unwrap();
            let chosen = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            let entry = |j: usize| (top[j][0].as_u64().unwrap() as usize, top[j][1].as_f64().unwrap());
            steps += 1;
            if chosen == entry(0).0 {
                continue;
            }
            others += 1;
            let own = (0..10).map(entry).find(|&(id, _)| id == chosen);
            let gap = own.map_or(f64::INFINITY, |(_, logit)| entry(0).1 - logit);
            let names = [entry(0).0, chosen].map(|id| model.tokenizer().decode(&[id as u32], true));
            println!("{:?} step {i}: {:?} for {:?}, {gap:.3} apart", run["prompt"], names[1], names[0]);
            assert!(gap < NEAR_TIE, "step {i}: {names:?} are {gap} apart in the reference");
        }
    }
    println!("{others} of {steps} steps differ");
}

/// What a process of its own says in [`memory_after_load_is_that_of_the_file_and_the_cache`].
const RESIDENT: &str = "resident bytes: ";

#[test]
#[ignore = "run by memory_after_load_is_that_of_the_file_and_the_cache, in a process of its own"]
fn a_process_that_loads() {
    let model = model(Precision::Fast);
    let mut session = model.session(&SessionOptions { cache: DType::F16, ..EXACT }).unwrap();
    session.read(&[2, 818, 5279]).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    println!("{RESIDENT}{}", kib << 10);
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs the model that scripts/get_gemma3.sh assembles"]
fn memory_after_load_is_that_of_the_file_and_the_cache() {
    let own = std::env::current_exe().unwrap();
    let args = ["--exact", "a_process_that_loads", "--ignored", "--nocapture"];
    let out = std::process::Command::new(own).args(args).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let resident = text.lines().find_map(|l| l.split_once(RESIDENT)).expect(&text).1.trim();
    let resident: usize = resident.parse().unwrap();
    let model = model(Precision::Fast);
    let cache = model.cache_bytes_per_token(DType::F16).unwrap() * EXACT.context.unwrap();
    let file =
        std::fs::metadata(root().join("target/gemma3/gemma-3-270m-q4_k_m.gguf")).unwrap().len() as usize;
    println!("{resident} bytes; the file has {file}, the cache {cache}");
    assert!(resident <= file + cache + (100 << 20), "{resident} for {file} and {cache}");
}
