//! The environment variables by which OpenVINO's options are set.

use std::ffi::OsString;
use std::path::PathBuf;

/// An environment variable has a value that it does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {name} is {value:?}, which it cannot be; it takes {allowed}")]
pub struct VariableError {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The values that it takes, in words.
    pub allowed: String,
}

/// The variables whose names begin with `CONURE_OPENVINO_`, asked for by the rest of their names. One that is empty is not set.
pub(super) struct Variables<F>(pub F);

impl<F: Fn(&str) -> Option<OsString>> Variables<F> {
    /// The value as the system has it: paths need not be text.
    pub(super) fn raw(&self, name: &str) -> Option<OsString> {
        (self.0)(&full(name)).filter(|value| !value.is_empty())
    }

    /// The value as text.
    pub(super) fn text(&self, name: &str, allowed: &str) -> Result<Option<String>, VariableError> {
        let text = self
            .raw(name)
            .map(|raw| raw.into_string().map_err(|raw| refused(name, &raw.to_string_lossy(), allowed)));
        Ok(text.transpose()?.filter(|text| !text.trim().is_empty()))
    }

    /// What `parse` makes of the value.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, VariableError> {
        let text = self.text(name, allowed)?;
        text.map(|text| parse(&text).ok_or_else(|| refused(name, &text, allowed))).transpose()
    }

    /// Whether a switch is on.
    pub(super) fn switch(&self, name: &str) -> Result<Option<bool>, VariableError> {
        let allowed = format!("{}; or {}", ON.join(", "), OFF.join(", "));
        self.parsed(name, &allowed, |text| match (is_one_of(&ON, text), is_off(text)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        })
    }
}

fn full(name: &str) -> String {
    format!("CONURE_OPENVINO_{name}")
}

fn refused(name: &str, value: &str, allowed: &str) -> VariableError {
    VariableError { name: full(name), value: value.to_owned(), allowed: allowed.to_owned() }
}

const ON: [&str; 4] = ["1", "on", "yes", "true"];
const OFF: [&str; 4] = ["0", "off", "no", "false"];

fn is_one_of(all: &[&str], value: &str) -> bool {
    all.iter().any(|one| value.trim().eq_ignore_ascii_case(one))
}

/// Whether a switch is off.
pub(super) fn is_off(value: &str) -> bool {
    is_one_of(&OFF, value)
}

/// Where compiled models are kept if nobody says: in the user's folder for caches.
pub(super) fn cache_folder(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches = if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Caches"))
    } else {
        folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("conure").join("openvino"))
}

/// A size: `500M`, `2G`, or bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let shift = match unit.trim().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("12", Some(12)),
            ("3k", Some(3 << 10)),
            ("500 M", Some(500 << 20)),
            ("2GiB", Some(2 << 30)),
            ("1tb", Some(1 << 40)),
            ("many", None),
            ("1.5G", None),
            ("99999999999T", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let variables = Variables(|_: &str| Some(OsString::from_vec(vec![b'e', 0xff])));
        let error = variables.text("PRECISION", "exact").unwrap_err();
        assert_eq!((error.name.as_str(), error.value.as_str()), ("CONURE_OPENVINO_PRECISION", "e\u{fffd}"));
    }
}
