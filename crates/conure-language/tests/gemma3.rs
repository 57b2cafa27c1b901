//! Gemma 3 270M in Q4_K_M against exact f32 arithmetic on the same weights. The file is not part of the repository:
//! `scripts/get_gemma3.sh` assembles it in `target/`, `scripts/get_gemma3.sh --check` runs this too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure_gguf::GgufFile;
use conure_graph::Device;
use conure_kernels::Cpu;
use conure_language::{GenerateOptions, LanguageModel, Sampling, SessionOptions, perplexity};
use conure_tensor::DType;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model() -> Arc<LanguageModel> {
    let path = root().join("target/gemma3/gemma-3-270m-q4_k_m.gguf");
    let file = GgufFile::open(&path).expect("run scripts/get_gemma3.sh first");
    let cpu = Arc::new(Cpu::detect(None).unwrap());
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
    let (model, goldens) = (model(), goldens());
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
    let (model, goldens) = (model(), goldens());
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
