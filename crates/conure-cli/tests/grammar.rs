//! `conure generate` with a form that the text must have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{conure_with, root};

fn at(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

fn model(dir: &tempfile::TempDir) -> String {
    let folder = root().join("tests/data/language/hf-gemma3");
    let ran = conure_with(["convert", "-q", folder.to_str().unwrap(), &at(dir, "model.gguf")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    at(dir, "model.gguf")
}

#[cfg(feature = "grammar")]
#[test]
fn texts_have_the_form_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(&dir);
    let base = ["generate", "-m", &m, "-p", "The old man", "--seed", "3"];
    let ran = |more: &[&str]| {
        let ran = conure_with([&base[..], more].concat());
        assert_eq!(ran.code, Some(0), "{more:?}: {}", ran.stderr);
        ran.stdout.trim_end().to_owned()
    };
    let schema = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}"#;
    std::fs::write(at(&dir, "schema.json"), schema).unwrap();
    std::fs::write(at(&dir, "yes.lark"), "start: \"yes\" | \"no\"").unwrap();
    for given in [schema, &at(&dir, "schema.json")] {
        let json: serde_json::Value = serde_json::from_str(&ran(&["--json-schema", given])).unwrap();
        assert!(json["ok"].is_boolean() && json.as_object().unwrap().len() == 1, "{json}");
    }
    assert!(["yes", "no"].contains(&ran(&["--grammar", &at(&dir, "yes.lark")]).as_str()));
    assert!(ran(&["--regex", "[0-9]{4}"]).parse::<u32>().is_ok());

    let wrong = conure_with([&base[..], &["--json-schema", r#"{"type": "fish"}"#]].concat());
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(1), ""));
    assert!(wrong.stderr.contains("fish"), "{}", wrong.stderr);
    let missing = conure_with([&base[..], &["--json-schema", "nowhere.json"]].concat());
    assert!(missing.stderr.contains("nowhere.json"), "{}", missing.stderr);
}

#[cfg(not(feature = "grammar"))]
#[test]
fn builds_without_grammars_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let ran = conure_with(["generate", "-m", &model(&dir), "-p", "a", "--regex", "b"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("feature `grammar`"), "{}", ran.stderr);
}
