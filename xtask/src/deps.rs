//! `cargo xtask deps`: the direction of the house. A crate may use only crates above it in the table of ARCHITECTURE.md,
//! and that table's "depends on" column says which it uses.

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};

/// Crates of the workspace that are not part of the product and may use all of it.
const OUTSIDE: [&str; 1] = ["xtask"];

/// A row of the table: a crate and what it says it depends on.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    depends_on: BTreeSet<String>,
}

/// What a crate of the workspace uses of the workspace.
#[derive(Debug, Default)]
struct Uses {
    /// In the product.
    normal: BTreeSet<String>,
    /// In its tests and build scripts.
    other: BTreeSet<String>,
}

/// The rows of the first table whose head has a "crate" and a "depends on" column.
fn table(markdown: &str) -> Result<Vec<Row>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect()
    };
    let mut lines = markdown.lines().skip_while(|l| !(l.starts_with("| crate") && l.contains("depends on")));
    let head = cells(lines.next().context("no table with the columns `crate` and `depends on`")?);
    let column = head.iter().position(|c| c == "depends on").context("no column `depends on`")?;
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).filter(|n| !n.is_empty()).map(str::to_owned).collect()
    };
    let mut rows = Vec::new();
    for line in lines.skip(1).take_while(|l| l.starts_with('|')) {
        let cells = cells(line);
        let name = cells.first().and_then(|c| names(c).into_iter().next());
        let name = name.with_context(|| format!("the row `{line}` does not begin with a crate's name"))?;
        rows.push(Row { name, depends_on: cells.get(column).map(|c| names(c)).unwrap_or_default() });
    }
    Ok(rows)
}

fn uses(metadata: &Metadata) -> BTreeMap<String, Uses> {
    let members: BTreeMap<_, _> =
        metadata.workspace_packages().into_iter().map(|p| (p.name.to_string(), p)).collect();
    let mut all = BTreeMap::new();
    for (name, package) in &members {
        let entry: &mut Uses = all.entry(name.clone()).or_default();
        for dependency in package.dependencies.iter().filter(|d| members.contains_key(&d.name)) {
            match dependency.kind {
                DependencyKind::Normal => entry.normal.insert(dependency.name.clone()),
                _ => entry.other.insert(dependency.name.clone()),
            };
        }
    }
    all
}

/// What is wrong, one line each.
fn faults(rows: &[Row], uses: &BTreeMap<String, Uses>) -> Vec<String> {
    let mut faults = Vec::new();
    let place = |name: &str| rows.iter().position(|r| r.name == name);
    for name in uses.keys().filter(|n| !OUTSIDE.contains(&n.as_str()) && place(n).is_none()) {
        faults.push(format!("`{name}` is not in the table of ARCHITECTURE.md: give it its place there"));
    }
    let nothing = Uses::default();
    for (i, row) in rows.iter().enumerate() {
        let name = &row.name;
        let used = uses.get(name).unwrap_or(&nothing);
        if !uses.contains_key(name) {
            faults.push(format!("`{name}` is in the table of ARCHITECTURE.md, and there is no such crate"));
        }
        for other in used.normal.iter().chain(&used.other) {
            if place(other).is_none_or(|p| p >= i) {
                faults.push(format!("`{name}` uses `{other}`, which is not above it in ARCHITECTURE.md"));
            }
        }
        for other in used.normal.difference(&row.depends_on) {
            faults.push(format!(
                "`{name}` uses `{other}`; its `depends on` in ARCHITECTURE.md does not say so"
            ));
        }
        for other in row.depends_on.difference(&used.normal) {
            faults.push(format!("ARCHITECTURE.md says that `{name}` depends on `{other}`; it does not"));
        }
    }
    faults
}

fn check() -> Result<(usize, Vec<String>)> {
    let path = crate::root().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = table(&text).context("ARCHITECTURE.md")?;
    let metadata = MetadataCommand::new()
        .manifest_path(crate::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    Ok((rows.len(), faults(&rows, &uses(&metadata))))
}

/// `cargo xtask deps`.
///
/// # Errors
/// Every place where code and table differ.
pub fn run() -> Result<()> {
    let (count, faults) = check()?;
    if !faults.is_empty() {
        bail!("{} against the direction of the house:\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("{count} crates, each using only crates above it, as ARCHITECTURE.md says");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_follows_architecture_md() {
        let (count, faults) = check().unwrap();
        assert!(count >= 13, "{count}");
        assert_eq!(faults, Vec::<String>::new());
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_table_is_read() {
        let rows = table(
            "# x\n\n| crate | what | depends on |\n|---|---|---|\n| `a` | x `y` | |\n| `b` | | `a` |\n\n| `c` |",
        );
        let row = |name: &str, on: &[&str]| Row { name: name.into(), depends_on: set(on) };
        assert_eq!(rows.unwrap(), [row("a", &[]), row("b", &["a"])]);
        assert!(table("| crate | what |\n|---|---|\n").is_err());
    }

    #[test]
    fn what_breaks_the_direction_is_named() {
        let rows = table("| crate | depends on |\n|---|---|\n| `a` | |\n| `b` | `a` |\n").unwrap();
        let uses = |a: &[&str], b: &[&str], b_tests: &[&str]| {
            BTreeMap::from([
                ("a".to_owned(), Uses { normal: set(a), other: set(&[]) }),
                ("b".to_owned(), Uses { normal: set(b), other: set(b_tests) }),
                ("xtask".to_owned(), Uses { normal: set(&["b"]), other: set(&[]) }),
            ])
        };
        assert_eq!(faults(&rows, &uses(&[], &["a"], &["a"])), Vec::<String>::new());
        for (uses, part) in [
            (uses(&["b"], &["a"], &[]), "`a` uses `b`, which is not above it"),
            (uses(&[], &["a"], &["b"]), "`b` uses `b`, which is not above it"),
            (uses(&[], &["a", "xtask"], &[]), "`b` uses `xtask`, which is not above it"),
            (uses(&[], &[], &[]), "says that `b` depends on `a`; it does not"),
            (uses(&["b"], &["a"], &[]), "does not say so"),
        ] {
            let found = faults(&rows, &uses);
            assert!(found.iter().any(|f| f.contains(part)), "{part}: {found:?}");
        }
        let mut more = uses(&[], &["a"], &[]);
        more.insert("c".to_owned(), Uses::default());
        more.remove("a");
        let found = faults(&rows, &more).join("\n");
        assert!(
            found.contains("`c` is not in the table") && found.contains("`a` is in the table"),
            "{found}"
        );
    }
}
