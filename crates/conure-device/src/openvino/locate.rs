//! Where OpenVINO's C library is on this machine.
//!
//! The library is looked for in this order; in each place the newest version wins:
//!
//! 1. the folder or file that `CONURE_OPENVINO_DIR` names, and then nowhere else;
//! 2. Python packages (`pip install openvino`): the active environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), the environments
//!    whose `python3` is on the `PATH`, the user's own packages, the system's;
//! 3. an installed toolkit: `INTEL_OPENVINO_DIR`, `/opt/intel/openvino*`;
//! 4. the system's library folders.
//!
//! No Python is started for that. Files are opened by their full path, because the library finds its plugins beside itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that says where OpenVINO is.
pub const VARIABLE: &str = "CONURE_OPENVINO_DIR";

/// What the locator looks at, so that tests can give it another machine.
pub(super) struct Machine {
    pub variable: fn(&str) -> Option<OsString>,
}

impl Machine {
    pub(super) fn this() -> Machine {
        Machine { variable: |name| std::env::var_os(name).filter(|v| !v.is_empty()) }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from)
    }
}

/// The library files, best first.
pub(super) fn candidates(machine: &Machine) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let folders = match machine.path(VARIABLE) {
        Some(given) if given.is_file() => return vec![given],
        Some(given) => below(&given),
        None => folders(machine),
    };
    for folder in folders {
        found.extend(libraries(&folder));
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    found
}

/// The places below a folder that somebody named: a virtual environment, a toolkit, a package, or the folder itself.
fn below(given: &Path) -> Vec<PathBuf> {
    let mut all = vec![given.to_owned(), given.join("libs"), given.join("openvino/libs")];
    all.extend(toolkit(given));
    all.extend(packages(given));
    all
}

fn folders(machine: &Machine) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        all.extend(machine.path(variable).iter().flat_map(|prefix| packages(prefix)));
    }
    if let Some(path) = (machine.variable)("PATH") {
        for folder in std::env::split_paths(&path) {
            let has_python = PYTHONS.iter().any(|name| folder.join(name).exists());
            // `bin/python3` belongs to the prefix above it; on Windows `python.exe` of an installation lies in the prefix.
            let prefixes = [folder.parent().map(Path::to_owned), Some(folder.clone())];
            if has_python {
                all.extend(prefixes.into_iter().flatten().flat_map(|prefix| packages(&prefix)));
            }
        }
    }
    if let Some(home) = machine.path("HOME") {
        all.extend(packages(&home.join(".local")));
        all.extend(packages(&home.join("Library/Python")));
    }
    all.extend(["/usr/local", "/usr", "/opt/homebrew"].iter().flat_map(|prefix| packages(Path::new(prefix))));
    all.extend(machine.path("INTEL_OPENVINO_DIR").iter().flat_map(|dir| toolkit(dir)));
    let mut installed = entries(Path::new("/opt/intel"), |name| name.starts_with("openvino"));
    installed.sort_by(|a, b| b.cmp(a));
    all.extend(installed.iter().flat_map(|dir| toolkit(dir)));
    all.extend(SYSTEM.iter().map(PathBuf::from));
    all
}

const PYTHONS: [&str; 3] = ["python3", "python3.exe", "python.exe"];

const SYSTEM: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/lib64",
    "/opt/homebrew/lib",
];

/// The library folders of the packages of one Python environment.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let mut all = vec![prefix.join("Lib/site-packages/openvino/libs")];
    let python = |name: &str| name.starts_with("python3");
    let mut versions: Vec<PathBuf> =
        ["lib", "lib64"].iter().flat_map(|lib| entries(&prefix.join(lib), python)).collect();
    // ~/Library/Python/3.12/lib/python/site-packages
    versions.extend(entries(prefix, |name| name.starts_with("3.")).iter().map(|v| v.join("lib/python")));
    versions.sort_by_key(|path| std::cmp::Reverse(numbers(&path.to_string_lossy())));
    for version in versions {
        for kind in ["site-packages", "dist-packages"] {
            all.push(version.join(kind).join("openvino/libs"));
        }
    }
    all
}

/// The library folders of an installed toolkit.
fn toolkit(dir: &Path) -> Vec<PathBuf> {
    let kinds = ["lib/intel64", "lib/aarch64", "lib/arm64/Release", "lib", "bin/intel64/Release"];
    kinds.iter().map(|kind| dir.join("runtime").join(kind)).collect()
}

/// The C library's files in a folder, newest first.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found = entries(folder, is_library);
    found.sort_by_key(|path| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        std::cmp::Reverse(numbers(&name))
    });
    found
}

/// `libopenvino_c.so`, `libopenvino_c.so.2641`, `libopenvino_c.2641.dylib`, `openvino_c.dll`.
fn is_library(name: &str) -> bool {
    if cfg!(windows) {
        return name.eq_ignore_ascii_case("openvino_c.dll");
    }
    let Some(rest) = name.strip_prefix("libopenvino_c.") else { return false };
    if cfg!(target_os = "macos") {
        return rest.ends_with("dylib");
    }
    let version = rest.strip_prefix("so").map(|v| v.strip_prefix('.').unwrap_or(v));
    version.is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// The numbers in a name, for comparing versions: 3.9 is older than 3.11.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

fn entries(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(dir) = std::fs::read_dir(folder) else { return Vec::new() };
    dir.flatten().filter(|e| e.file_name().to_str().is_some_and(&wanted)).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) -> PathBuf {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        std::fs::canonicalize(path).unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn names_of_the_library() {
        for (name, is) in [
            ("libopenvino_c.so", true),
            ("libopenvino_c.so.2641", true),
            ("libopenvino_c.so.2025.1.0", true),
            ("libopenvino_c.so.2641.bak", false),
            ("libopenvino.so.2641", false),
            ("libopenvino_c.a", false),
        ] {
            assert_eq!(is_library(name), is, "{name}");
        }
    }

    #[test]
    fn newer_versions_come_first() {
        assert!(numbers("python3.11") > numbers("python3.9"));
        assert!(numbers("libopenvino_c.so.2641") > numbers("libopenvino_c.so.2520"));
        assert!(numbers("libopenvino_c.so.2641") > numbers("libopenvino_c.so"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_package_is_found_in_every_kind_of_environment() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path();
        let old = touch(&base.join("venv/lib/python3.9/site-packages/openvino/libs/libopenvino_c.so.2520"));
        let new = touch(&base.join("venv/lib/python3.11/site-packages/openvino/libs/libopenvino_c.so.2641"));
        let toolkit = touch(&base.join("kit/runtime/lib/intel64/libopenvino_c.so.2541"));
        for (given, expected) in [
            (base.join("venv"), vec![new.clone(), old.clone()]),
            (base.join("kit"), vec![toolkit]),
            (base.join("venv/lib/python3.9/site-packages/openvino"), vec![old.clone()]),
            (base.join("venv/lib/python3.9/site-packages"), vec![old.clone()]),
            (old.clone(), vec![old]),
            (base.join("nothing"), vec![]),
        ] {
            let mut found = Vec::new();
            if given.is_file() {
                found.push(given.clone());
            } else {
                below(&given).iter().for_each(|f| found.extend(libraries(f)));
            }
            assert_eq!(
                found.iter().map(|f| std::fs::canonicalize(f).unwrap()).collect::<Vec<_>>(),
                expected,
                "{given:?}"
            );
        }
    }

    #[test]
    fn a_machine_without_it_has_no_candidates_but_the_systems() {
        let empty = Machine { variable: |_| None };
        for path in candidates(&empty) {
            assert!(path.is_absolute(), "{path:?}");
        }
        let nowhere = Machine { variable: |name| (name == VARIABLE).then(|| "/nonexistent/openvino".into()) };
        assert_eq!(candidates(&nowhere), Vec::<PathBuf>::new());
    }
}
