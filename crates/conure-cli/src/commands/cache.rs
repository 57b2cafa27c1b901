//! `conure cache`.

use super::bench::{json, print};
use super::{megabytes, model};
use crate::args::{CacheArgs, CacheCommand};
use crate::failure::Failure;
use crate::output::{clean, shown};
use conure::{CompiledModel, compiled_models};
use serde_json::json;
use std::time::UNIX_EPOCH;

/// Lists or removes the compiled models that are kept.
///
/// # Errors
/// A variable that makes no sense, a folder that cannot be emptied.
pub fn run(args: &CacheArgs) -> Result<(), Failure> {
    let kept = compiled_models().map_err(model::bad_setting)?;
    let Some(store) = kept else {
        return Err(Failure::new("no compiled models are kept")
            .reason("the cache is off, or there is no folder for it")
            .advice("set CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR to a folder"));
    };
    let folder = store.folder().display().to_string();
    match &args.what {
        CacheCommand::List(form) => {
            let entries = store.list();
            let (files, rest) = store.rest();
            let bytes = entries.iter().map(|e| e.bytes).sum::<u64>() + rest;
            if form.json {
                let all: Vec<_> = entries.iter().map(as_json).collect();
                let others = json!({ "files": files, "bytes": rest });
                return print(json(
                    &json!({ "folder": folder, "bytes": bytes, "models": all, "others": others }),
                )?);
            }
            let head =
                format!("{}: {} compiled models, {}\n", clean(&folder), entries.len(), megabytes(bytes));
            let text = entries.iter().map(as_text).fold(head, |text, line| text + &line);
            print(if files > 0 { text + &others_as_text(files, rest) } else { text })
        }
        CacheCommand::Clear(form) => {
            let (models, bytes) = store
                .clear()
                .map_err(|e| Failure::new(format!("cannot empty {}", shown(store.folder()))).because(e))?;
            if form.json {
                return print(json(&json!({ "folder": folder, "models": models, "bytes": bytes }))?);
            }
            print(format!("{}: {models} compiled models removed, {}\n", clean(&folder), megabytes(bytes)))
        }
    }
}

fn as_json(entry: &CompiledModel) -> serde_json::Value {
    let about: serde_json::Map<String, serde_json::Value> =
        entry.about.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let used = entry.used.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    json!({ "key": entry.key, "bytes": entry.bytes, "used": used, "about": about })
}

fn as_text(entry: &CompiledModel) -> String {
    let ago = entry.used.elapsed().map_or(0, |d| d.as_secs());
    let about: Vec<&str> = entry.about.iter().map(|(_, value)| value.as_str()).collect();
    let key = entry.key.get(..12).unwrap_or(&entry.key);
    format!(
        "{key}  {:>9}  used {} ago  {}\n",
        megabytes(entry.bytes),
        duration(ago),
        clean(&about.join(", "))
    )
}

fn others_as_text(files: usize, bytes: u64) -> String {
    let many = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    format!(
        "others        {:>9}  {many}: notes, and what is left of models that were made anew\n",
        megabytes(bytes)
    )
}

/// Seconds for people: `5 min`.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_when() {
        let about =
            vec![("model".to_owned(), "a.gguf".to_owned()), ("device".to_owned(), "openvino:CPU".to_owned())];
        let used = std::time::SystemTime::now() - std::time::Duration::from_secs(7300);
        let entry = CompiledModel { key: "0123456789abcdef".into(), bytes: 24_510_000, used, about };
        assert_eq!(as_text(&entry), "0123456789ab    24.5 MB  used 2 h ago  a.gguf, openvino:CPU\n");
        assert_eq!(as_json(&entry)["about"]["model"], "a.gguf");
        let others = others_as_text(2, 1300);
        assert!(others.starts_with("others           1.3 kB  2 files: "), "{others}");
        for (seconds, text) in [(0, "0 s"), (60, "1 min"), (86_400, "1 d")] {
            assert_eq!(duration(seconds), text);
        }
    }
}
