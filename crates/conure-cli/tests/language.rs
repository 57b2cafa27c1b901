//! The commands for language models as a user meets them, on a tiny model with random weights.
#![allow(clippy::unwrap_used)]

mod common;

use common::{conure, conure_with, root, run};
use std::path::{Path, PathBuf};

/// A model, converted by the program itself.
fn model(dir: &Path, family: &str) -> String {
    let out = dir.join(format!("{family}.gguf"));
    let folder = root().join(format!("tests/data/language/hf-{family}"));
    let args = ["convert", folder.to_str().unwrap(), out.to_str().unwrap(), "--dtype", "f32", "--quiet"];
    let ran = conure_with(args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    out.to_str().unwrap().to_owned()
}

fn json(args: &[&str]) -> serde_json::Value {
    let ran = conure_with(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn generate_continues_a_text_the_same_way_for_a_seed() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "gemma3");
    let args = |more: &[&'static str]| {
        let base = ["generate", "-m", &m, "-p", "The old man", "-n", "12", "--ignore-eos"];
        base.iter().copied().chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = conure_with(args(&["--seed", "7"]));
    assert_eq!((plain.code, plain.stderr.as_str()), (Some(0), ""));
    assert_eq!(plain.stdout, conure_with(args(&["--seed", "7"])).stdout);
    assert_ne!(plain.stdout, conure_with(args(&["--seed", "8"])).stdout);

    let run = conure_with(args(&["--seed", "7", "--json", "--logprobs", "3"]));
    let full: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(format!("{}\n", full["text"].as_str().unwrap()), plain.stdout);
    assert_eq!(full["ids"].as_array().unwrap().len(), 12);
    assert_eq!((full["finish"].as_str(), full["seed"].as_u64()), (Some("length"), Some(7)));
    assert_eq!(full["prompt_ids"][0].as_u64(), Some(2), "it begins with the BOS");
    assert_eq!(full["timings"]["generated_tokens"].as_u64(), Some(12));
    let first = &full["logprobs"][0];
    assert_eq!(first["top"].as_array().unwrap().len(), 3);
    assert!(first["logprob"].as_f64().unwrap() <= first["top"][0]["logprob"].as_f64().unwrap());
}

#[test]
fn a_stop_text_and_the_end_of_the_context_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "qwen3");
    let base = ["generate", "-m", &m, "-p", "The old man", "--temperature", "0", "--ignore-eos", "--json"];
    let full = json(&[&base[..], &["-n", "20"]].concat());
    let text = full["text"].as_str().unwrap();
    let (at, c) = text.char_indices().nth(4).unwrap();
    let stop = c.to_string();
    let stopped = json(&[&base[..], &["-n", "20", "--stop", &stop]].concat());
    let before = &text[..text[..=at].find(&stop).unwrap_or(at)];
    assert_eq!((stopped["text"].as_str(), stopped["finish"].as_str()), (Some(before), Some("stop")));
    let ended = json(&[&base[..], &["--context", "16"]].concat());
    let known = ended["prompt_ids"].as_array().unwrap().len() + ended["ids"].as_array().unwrap().len();
    assert_eq!((ended["finish"].as_str(), known), (Some("context_full"), 17));
    let ran = conure_with([&base[..], &["--context", "2"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("do not fit in a context of 2"), "{}", ran.stderr);
}

#[test]
fn tokenize_shows_ids_and_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "gemma3");
    let found = json(&["tokenize", "-m", &m, "-p", "The old<eos>", "--json"]);
    let special = json(&["tokenize", "-m", &m, "-p", "The old<eos>", "--json", "--special", "--plain"]);
    assert_eq!(found["ids"][0].as_u64(), Some(2));
    let last = |v: &serde_json::Value| v["ids"].as_array().unwrap().last().unwrap().as_u64();
    assert_eq!((last(&special), last(&found) == Some(1)), (Some(1), false));
    let lines = run(conure().args(["tokenize", "-m", &m, "-f", "-"]).write_stdin("a b"));
    assert_eq!(lines.stdout.lines().next(), Some("2\t<bos>"));
    let ran = run(conure().args(["tokenize", "-m", &m, "-f", "-"]).write_stdin([b'a', 0xff]));
    assert!(ran.code == Some(1) && ran.stderr.contains("not UTF-8 at byte 1"), "{}", ran.stderr);
}

#[test]
fn perplexity_of_a_model_that_knows_nothing_is_that_of_its_vocabulary_or_more() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "llama");
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "The sea was calm, and the old man rowed home with 12 fish.\n".repeat(8)).unwrap();
    let text = text.to_str().unwrap();
    let found = json(&["perplexity", "-m", &m, "-f", text, "--chunk", "64", "--json"]);
    assert!(found["perplexity"].as_f64().unwrap() > 100.0, "{found}");
    assert_eq!(found["tokens"].as_u64().unwrap(), found["chunks"].as_u64().unwrap() * 31);
    let ran = conure_with(["perplexity", "-m", &m, "-f", text, "--chunk", "4096"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("8192 are needed"), "{}", ran.stderr);
}

#[test]
fn info_says_what_a_language_model_is() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "gemma3");
    let info = json(&["info", &m, "--json"]);
    assert_eq!((info["architecture"].as_str(), info["layers"].as_u64()), (Some("gemma3"), Some(3)));
    assert_eq!((info["window"].as_u64(), info["local_layers"].as_u64()), (Some(4), Some(2)));
    let text = conure_with(["info", &m]).stdout;
    assert!(text.contains("2 of 3 layers see 4 tokens") && text.contains("base 1000000"), "{text}");
    let recurrent = model(dir.path(), "qwen35");
    assert_eq!(json(&["info", &recurrent, "--json"])["recurrent_layers"].as_u64(), Some(3));
    let text = conure_with(["info", &recurrent]).stdout;
    assert!(text.contains("4 layers (3 recurrent), width 32") && text.contains("feed-forward 48"), "{text}");
    let text = conure_with(["info", &model(dir.path(), "mixtral")]).stdout;
    assert!(text.contains("2 of 4 experts"), "{text}");
}

#[test]
fn bench_profile_and_graph_look_into_language_models_too() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "gemma3");
    let read = ["--prompt-tokens", "24", "--tokens", "5", "--threads", "1"];
    let b = json(&[&["bench", &m, "--runs", "2", "--json"], &read[..]].concat());
    assert_eq!(
        (b["prompt_tokens"].as_u64(), b["tokens"].as_u64(), b["runs"].as_u64()),
        (Some(24), Some(5), Some(2))
    );
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    assert!(
        (number(&b["prompt_per_second"]) * number(&b["prompt_ms"]["median"]) / 24e3 - 1.0).abs() < 1e-6,
        "{b}"
    );
    assert!(
        (number(&b["gbs"]) / number(&b["peak_gbs"]) / number(&b["bandwidth_fraction"]) - 1.0).abs() < 1e-6
    );
    let text = conure_with([&["bench", &m, "--runs", "1"], &read[..]].concat()).stdout;
    assert!(text.contains("of 24 tokens") && text.contains("GB/s"), "{text}");

    let trace = dir.path().join("trace.json");
    let p = json(&[&["profile", &m, "--json", "--trace", trace.to_str().unwrap()], &read[..]].concat());
    let calls = |part: &str, op: &str| {
        let ops = p[part]["ops"].as_array().unwrap();
        ops.iter().find(|o| o["name"] == op).unwrap()["calls"].as_u64().unwrap()
    };
    // Three blocks: once for the prompt, five times for the tokens after it.
    assert_eq!((calls("prompt", "sdpa"), calls("decode", "sdpa")), (3, 15));
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().unwrap().len() > 18);
    let text = conure_with([&["profile", &m, "--by", "op"], &read[..]].concat()).stdout;
    assert!(text.contains("24 tokens at once") && text.contains("5 tokens one by one"), "{text}");

    let drawn = dir.path().join("graph.json");
    let args = ["graph", &m, "--bind", "T=7,R=1", "--placement", "--memory", "-o", drawn.to_str().unwrap()];
    let ran = conure_with(args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("intermediates"), "{}", ran.stdout);
    let drawn = std::fs::read_to_string(drawn).unwrap();
    assert!(drawn.contains("blk.2") && drawn.contains("sdpa"));

    let ran = conure_with(["bench", &m, "speech.wav"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("MODEL is a language model"), "{}", ran.stderr);
    let ran = conure_with(["bench", "embedded"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("AUDIO is needed"), "{}", ran.stderr);
}

#[test]
fn chat_answers_line_by_line_and_remembers() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "gemma3");
    let saved = dir.path().join("chat.json");
    let input =
        format!("/system Be brief.\nHello\n\nAnd you?\n/save {}\n/quit\nnever read\n", saved.display());
    let args = ["chat", "-m", &m, "--chat-template", "gemma", "-n", "6", "--seed", "1"];
    let ran = run(conure().args(args).write_stdin(input));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let chat: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let roles: Vec<_> = chat.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    let answers =
        format!("{}\n{}\n", chat[2]["content"].as_str().unwrap(), chat[4]["content"].as_str().unwrap());
    assert_eq!(ran.stdout, answers);

    let none = run(conure().args(["chat", "-m", &m]).write_stdin("Hello\n"));
    assert_eq!((none.code, none.stdout.as_str()), (Some(1), ""));
    assert!(none.stderr.contains("no chat template") && none.stderr.contains("gemma"), "{}", none.stderr);
    let broken = dir.path().join("broken.jinja");
    std::fs::write(&broken, "{% for m in %}").unwrap();
    let ran = run(conure().args(["chat", "-m", &m, "--chat-template", broken.to_str().unwrap()]));
    assert!(ran.code == Some(1) && ran.stderr.contains("{% for m in %}"), "{}", ran.stderr);
    // A message that does not fit is refused, and the chat goes on.
    let long = format!("{}\nHi\n", "word ".repeat(200));
    let ran = run(conure().args(args).args(["--context", "80"]).write_stdin(long));
    assert!(ran.code == Some(0) && ran.stderr.contains("do not fit in a context of 80"), "{}", ran.stderr);
    assert!(ran.stdout.lines().count() >= 1, "{}", ran.stdout);
}

/// A copy of a model with one key changed, byte for byte of the same length.
fn damaged(model: &str, find: &[u8], with: &[u8]) -> PathBuf {
    let mut bytes = std::fs::read(model).unwrap();
    let at = bytes.windows(find.len()).position(|w| w == find).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    let path = PathBuf::from(model).with_extension("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn models_that_make_no_sense_are_refused_by_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "qwen2");
    // The value of a u32 key stands after its name and its type.
    let key = |name: &str, from: u32, to: u32| {
        let bytes = |value: u32| [name.as_bytes(), &4u32.to_le_bytes(), &value.to_le_bytes()].concat();
        (bytes(from), bytes(to))
    };
    let heads = key("qwen2.attention.head_count_kv", 2, 3);
    let width = key("qwen2.embedding_length", 32, 33);
    let cases: [(&[u8], &[u8], &str); 5] = [
        (&heads.0, &heads.1, "qwen2.attention.head_count_kv is 3, expected a divisor of 4 heads"),
        (&width.0, &width.1, "[vocabulary, 33]"),
        (b"qwen2.block_count", b"qwen2.block_cound", "qwen2.block_count"),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez", "tokenizer.ggml.merges"),
        (b"blk.1.attn_norm.weight", b"blk.1.attn_nozm.weight", "blk.1.attn_norm.weight"),
    ];
    for (find, with, says) in cases {
        let path = damaged(&m, find, with);
        let ran = conure_with(["generate", "-m", path.to_str().unwrap(), "-p", "x", "-n", "1"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{says}");
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
    let pre = |name: &str| {
        [b"tokenizer.ggml.pre".as_slice(), &8u32.to_le_bytes(), &5u64.to_le_bytes(), name.as_bytes()].concat()
    };
    let path = damaged(&m, &pre("qwen2"), &pre("qwen7"));
    let ran = conure_with(["tokenize", "-m", path.to_str().unwrap(), "-p", "x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("tokenizer.ggml.pre is qwen7"), "{}", ran.stderr);
}

#[test]
fn captures_are_saved_tokens_first() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(dir.path(), "qwen35");
    let output = dir.path().join("x.safetensors").to_str().unwrap().to_owned();
    let list = conure_with(["capture", &m, "--list"]);
    let names: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(names, ["embedding", "blk.0", "blk.1", "blk.2", "blk.3", "logits"], "{}", list.stderr);
    let ids = json(&["tokenize", "-m", &m, "-p", "The old man", "--json"])["ids"].as_array().unwrap().len();
    let ran = conure_with(["capture", &m, "-p", "The old man", "-n", "blk.1,logits", "-o", &output]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    let bytes = std::fs::read(&output).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("blk.1").unwrap().shape(), [ids, 32]);
    // What the model computes is what transformers does: `scripts/make_language_goldens.py`.
    let goldens = root().join("tests/data/language/hf-qwen35/goldens.safetensors");
    let goldens = std::fs::read(goldens).unwrap();
    let goldens = safetensors::SafeTensors::deserialize(&goldens).unwrap();
    let floats = |file: &safetensors::SafeTensors<'_>, name: &str| -> Vec<f32> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let (found, expected) = (floats(&file, "logits"), floats(&goldens, "logits.0"));
    // Keys and values are kept as f16.
    assert!(found.len() == expected.len() && found.iter().zip(&expected).all(|(f, e)| (f - e).abs() < 0.02));
    for (args, said) in [
        (vec!["capture", &m, "-p", "a", "-n", "nope", "-o", &output], "--list"),
        (vec!["capture", &m, "clip.wav", "-n", "logits", "-o", &output], "is not heard"),
        (vec!["capture", "embedded", "-p", "a", "-n", "encoder", "-o", &output], "for language models"),
        (vec!["graph", &m, "--part", "joint", "-o", "x.svg"], "--part is for speech models"),
        (vec!["graph", &m, "--passes", "-o", "x.svg"], "--passes is for speech models"),
        (vec!["generate", "-m", &m, "-p", "a", "--without-pass", "fuse_glu"], "is a language model"),
        (vec!["profile", &m, "--without-pass", "fuse_glu"], "is a language model"),
    ] {
        let ran = conure_with(&args);
        assert!(ran.code != Some(0) && ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(std::fs::read(&output).unwrap(), bytes);
}
