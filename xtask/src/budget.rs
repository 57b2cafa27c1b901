//! `cargo xtask budget`: files and functions that have grown too long to be read at once.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Lines of a file without its tests.
const MAX_FILE: usize = 500;
/// Lines of a function from its `fn` to its closing brace.
const MAX_FUNCTION: usize = 60;

/// What is over budget in one file.
#[derive(Debug, PartialEq)]
enum Over {
    File { lines: usize },
    Function { name: String, line: usize, lines: usize },
}

/// The lines before the module of tests that ends the file.
fn without_tests(source: &str) -> Vec<&str> {
    let lines: Vec<&str> = source.lines().collect();
    let begins_tests = |pair: &[&str]| {
        matches!(pair, [attribute, module] if attribute.starts_with("#[cfg(")
            && attribute.contains("test")
            && module.starts_with("mod ")
            && module.ends_with(['{', '}']))
    };
    let end = lines.windows(2).position(begins_tests).unwrap_or(lines.len());
    lines.into_iter().take(end).collect()
}

/// Rust files under `dir`, in order.
fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut paths = entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if path.is_dir() {
            if !matches!(name, "tests" | "benches" | "target") {
                rust_files(&path, files)?;
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    Ok(())
}

/// What is over budget in `source`. Sources are formatted: a function ends at the first closing brace that stands as far
/// in as its `fn`.
fn over(source: &str) -> Vec<Over> {
    let lines = without_tests(source);
    let mut found = Vec::new();
    if lines.len() > MAX_FILE {
        found.push(Over::File { lines: lines.len() });
    }
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some(name) = function_name(code) else { continue };
        let closes =
            |l: &&str| l.len() > indent && l.get(indent..) == Some("}") && l[..indent].trim().is_empty();
        let Some(end) = lines.iter().skip(start).position(closes) else { continue };
        if end + 1 > MAX_FUNCTION {
            found.push(Over::Function { name: name.to_owned(), line: start + 1, lines: end + 1 });
        }
    }
    found
}

/// The name of the function that `code` begins, if it begins one with a body of several lines.
fn function_name(code: &str) -> Option<&str> {
    let words = ["pub", "const", "unsafe", "async", "extern", "\"C\""];
    let mut rest = code;
    loop {
        let (word, after) = rest.split_once(' ')?;
        if word == "fn" {
            let name = after.split(['(', '<']).next()?;
            let one_line = code.ends_with('}') || code.ends_with(';');
            return (!one_line).then_some(name);
        }
        if !words.contains(&word) && !word.starts_with("pub(") {
            return None;
        }
        rest = after;
    }
}

/// `cargo xtask budget`.
///
/// # Errors
/// Files over budget. Functions over budget are listed only.
pub fn run() -> Result<()> {
    let root = crate::root();
    let mut files = Vec::new();
    rust_files(&root.join("crates"), &mut files)?;
    rust_files(&root.join("xtask"), &mut files)?;
    let (mut too_long, mut functions) = (Vec::new(), 0);
    for path in &files {
        let source =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let shown = path.strip_prefix(&root).unwrap_or(path).display();
        for over in over(&source) {
            match over {
                Over::File { lines } => too_long.push(format!("{shown}: {lines} lines without tests")),
                Over::Function { name, line, lines } => {
                    println!("note: {shown}:{line}: `{name}` has {lines} lines (budget {MAX_FUNCTION})");
                    functions += 1;
                }
            }
        }
    }
    if !too_long.is_empty() {
        bail!("{} files over {MAX_FILE} lines:\n  {}", too_long.len(), too_long.join("\n  "));
    }
    println!("{} files within {MAX_FILE} lines; {functions} functions over {MAX_FUNCTION}", files.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(indent: &str, head: &str, body: usize) -> String {
        format!("{indent}{head} {{\n{}{indent}}}\n", format!("{indent}    x();\n").repeat(body))
    }

    #[test]
    fn long_functions_are_found_at_any_depth() {
        let long = |name: &str, line, lines| Over::Function { name: name.into(), line, lines };
        for (source, expected) in [
            (function("", "fn a()", 58), vec![]),
            (function("", "fn a()", 59), vec![long("a", 1, 61)]),
            (function("", "pub(crate) const unsafe fn b<T>()", 60), vec![long("b", 1, 62)]),
            (format!("impl X {{\n{}}}\n", function("    ", "pub fn c(&self)", 70)), vec![long("c", 2, 72)]),
            (function("", "fn a()", 30) + &function("", "fn b()", 40), vec![]),
            (format!("#[cfg(test)]\n{}", function("", "mod tests", 70)), vec![]),
            (format!("#[cfg(test)]\nmod tests;\n{}", function("", "fn d()", 70)), vec![long("d", 3, 72)]),
            (format!("trait X {{\n    fn a();\n{}}}\n", "    // x\n".repeat(70)), vec![]),
        ] {
            assert_eq!(over(&source), expected, "{source}");
        }
    }

    #[test]
    fn tests_do_not_count() {
        let code = "// x\n".repeat(500);
        assert_eq!(over(&code), []);
        assert_eq!(over(&format!("{code}#[cfg(test)]\nmod tests {{}}\n")), []);
        assert_eq!(over(&format!("{code}// y\n#[cfg(test)]\nmod tests {{}}\n")), [Over::File { lines: 501 }]);
    }
}
