//! Loading the model that a command names.

use crate::args::ComputeArgs;
use crate::failure::Failure;
use crate::output::{clean, note, shown};
use conure::{Error, LoadOptions, Notices, Passes, SpeechModel, ThreadBudget};
use std::path::Path;
use std::sync::{LazyLock, Once};

/// The name by which the embedded model is asked for.
const EMBEDDED: &str = "embedded";

/// Whether this means the model in the program.
pub fn is_embedded(path: Option<&Path>) -> bool {
    path.is_none_or(|p| p.as_os_str() == EMBEDDED && !p.exists())
}

/// The model at `path`, or the embedded one.
///
/// # Errors
/// Why it cannot be used.
pub fn load(path: Option<&Path>, compute: &ComputeArgs) -> Result<SpeechModel, Failure> {
    load_rewritten(path, compute, compute.passes()?)
}

/// As [`load`], with these rewrites of its graphs.
///
/// # Errors
/// As [`load`].
pub fn load_rewritten(
    path: Option<&Path>,
    compute: &ComputeArgs,
    passes: Passes,
) -> Result<SpeechModel, Failure> {
    load_with(path, &LoadOptions { passes, ..options(compute)? })
}

/// How a model is loaded.
///
/// # Errors
/// A rewrite that does not exist.
pub fn options(compute: &ComputeArgs) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        device: compute.device.clone(),
        budget: threads(compute.threads),
        passes: compute.passes()?,
        precision: compute.precision.into(),
        memory: compute.openvino.memory(),
        notices: notices(),
        ..LoadOptions::default()
    })
}

/// Who is told of what a device finds: the same for all models, since some of it is said once.
fn notices() -> Notices {
    static NOTICES: LazyLock<Notices> = LazyLock::new(|| Notices::new(|line| note(&clean(line))));
    NOTICES.clone()
}

/// The threads that are asked for, as far as the process may use so many; else a line says how many are used, once.
pub fn threads(asked: Option<usize>) -> ThreadBudget {
    static TOLD: Once = Once::new();
    let budget = ThreadBudget::of_process(asked);
    if let Some(asked) = asked.filter(|&n| n > budget.total()) {
        let total = budget.total();
        TOLD.call_once(|| {
            let many = if total == 1 { "1 is" } else { &format!("{total} are") };
            note(&format!(
                "{many} used of the {asked} threads asked for: more than the processors that this process may use only \
                 wait for each other"
            ));
        });
    }
    budget
}

/// As [`load`], with all that can be said of it.
///
/// # Errors
/// As [`load`].
pub fn load_with(path: Option<&Path>, options: &LoadOptions) -> Result<SpeechModel, Failure> {
    let path = path.filter(|p| !is_embedded(Some(p)));
    let loaded = match path {
        Some(path) => SpeechModel::load_with(path, options),
        None => SpeechModel::embedded(options),
    };
    loaded.map_err(|error| match path {
        Some(path) => not_loaded(path, error),
        None if matches!(error, Error::Device(_)) => Failure::new("cannot use the device").because(error),
        None if matches!(error, Error::Variable(_)) => bad_setting(error),
        None => Failure::new("cannot load the embedded model").because(error),
    })
}

/// A failure to load the model at `path`.
pub fn not_loaded(path: &Path, error: Error) -> Failure {
    if matches!(error, Error::Variable(_)) {
        return bad_setting(error);
    }
    let what = match &error {
        Error::Device(_) => "cannot use the device".to_owned(),
        _ => format!("cannot load the model {}", shown(path)),
    };
    let failure = Failure::new(what).because(error);
    match advice(path) {
        Some(advice) => failure.advice(advice),
        None => failure,
    }
}

/// A failure because of what the environment says.
pub fn bad_setting(error: Error) -> Failure {
    Failure::new("a setting makes no sense").because(error)
}

/// What to do about a model that cannot be loaded, where that can be told from its path.
fn advice(path: &Path) -> Option<String> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    if path.is_dir() || matches!(extension.as_str(), "nemo" | "safetensors") {
        return Some(format!("convert it first: conure convert {} model.gguf", shown(path)));
    }
    (!path.exists())
        .then(|| "give the path of a GGUF file, or leave the model out to use the embedded one".to_owned())
}

/// A failure of a run: an interruption, or `what` and why.
pub fn failed(what: impl Into<String>, error: Error) -> Failure {
    if error.is_cancelled() { Failure::interrupted() } else { Failure::new(what).because(error) }
}

/// Runs `work`, whose panic, which would be a fault of this program, becomes a failure of this one piece of work.
///
/// # Errors
/// Those of `work`.
pub fn contained<T>(what: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::new(what).reason("a fault in this program (see above)").advice("please report it"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn a_panic_is_a_failure_of_its_file() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result: Result<(), Failure> = contained("cannot transcribe a.wav", || panic!("oh"));
        std::panic::set_hook(hook);
        assert_eq!(result.unwrap_err().exit(), Exit::Failed);
        assert_eq!(contained("x", || Ok(3)).unwrap(), 3);
    }

    #[test]
    fn advice_fits_the_path() {
        assert!(advice(Path::new("a.nemo")).unwrap().contains("conure convert a.nemo"));
        assert!(advice(Path::new(".")).unwrap().contains("convert"));
        assert!(advice(Path::new("not-there.gguf")).unwrap().contains("GGUF"));
        assert_eq!(advice(Path::new("Cargo.toml")), None);
        assert!(is_embedded(None) && is_embedded(Some(Path::new("embedded"))));
        assert!(!is_embedded(Some(Path::new("Cargo.toml"))));
    }
}
